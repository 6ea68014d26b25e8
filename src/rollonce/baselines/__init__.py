"""Baselines: (batch, history) -> b. One idea a file; base.py states the contract."""

from rollonce.baselines.base import Baseline, LinearSmoother, copy_without_history
from rollonce.baselines.batch import Batch, History, Prediction
from rollonce.baselines.blend import Blend
from rollonce.baselines.catalogue import load_baseline, named_baseline
from rollonce.baselines.experts import ExpertMixture
from rollonce.baselines.groups import Grpo, Rloo
from rollonce.baselines.james_stein import JamesStein
from rollonce.baselines.kernel import (
    KernelBaseline,
    LeaveOneOut,
    family_mean_baseline,
    published_length_buckets,
    published_tfidf,
)
from rollonce.baselines.kriging import Kriging
from rollonce.baselines.norm_weighted import NormWeighted
from rollonce.baselines.opo import Opo
from rollonce.baselines.own import FunctionBaseline
from rollonce.baselines.plain import Constant, FlashReinforce, NoBaseline, ReinforcePlusPlus
from rollonce.baselines.regressor import BoostedTrees, Ridge
from rollonce.baselines.self_tuning import SelfTuning
from rollonce.baselines.tags import Cost, Tags
from rollonce.baselines.tracker import Oracle, Tracker

__all__ = [
    "Baseline",
    "Batch",
    "Blend",
    "BoostedTrees",
    "Constant",
    "Cost",
    "ExpertMixture",
    "FlashReinforce",
    "FunctionBaseline",
    "Grpo",
    "History",
    "JamesStein",
    "KernelBaseline",
    "Kriging",
    "LeaveOneOut",
    "LinearSmoother",
    "NoBaseline",
    "NormWeighted",
    "Opo",
    "Oracle",
    "Prediction",
    "ReinforcePlusPlus",
    "Ridge",
    "Rloo",
    "SelfTuning",
    "Tags",
    "Tracker",
    "copy_without_history",
    "family_mean_baseline",
    "load_baseline",
    "named_baseline",
    "published_length_buckets",
    "published_tfidf",
]
