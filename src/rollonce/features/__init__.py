"""Features: what is known before a rollout, as a matrix. One file each."""

from rollonce.features.base import Feature, Matrix, tasks_from_prompts
from rollonce.features.column import CategoryColumn, NumberColumn
from rollonce.features.embedding import Embedding
from rollonce.features.hidden import HiddenState
from rollonce.features.length import LogLength
from rollonce.features.sparse import SparseRows
from rollonce.features.statistics import PromptStatistics
from rollonce.features.tfidf import Tfidf

__all__ = [
    "CategoryColumn",
    "Embedding",
    "Feature",
    "HiddenState",
    "LogLength",
    "Matrix",
    "NumberColumn",
    "PromptStatistics",
    "SparseRows",
    "Tfidf",
    "tasks_from_prompts",
]
