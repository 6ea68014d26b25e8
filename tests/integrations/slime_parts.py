"""The parts of slime and miles that the adapter touches: the real ones where they are installed, else a stand-in.

The stand-in follows slime 624b824 (``utils/types.py``, ``ray/rollout.py``, ``utils/arguments.py``) name by name; miles
31f1ca9 (``ray/rollout/train_data_conversion.py``) calls the function in the same way, on samples with the same fields.
``run_real.sh slime`` and ``run_real.sh miles`` run the same tests against the real ones.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from argparse import Namespace
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
from fake_modules import installed

TRAINERS = ["slime", "miles"]
OURS = "rollonce.integrations.slime.reward_post_process"
ABSENT = ["sglang", "sglang.srt", "sglang.srt.constants", "sglang.srt.server_args", "sglang.srt.utils"]
DEFAULTS = {
    "advantage_estimator": "grpo",
    "rewards_normalization": True,
    "grpo_std_normalization": True,
    "normalize_advantages": False,
    "n_samples_per_prompt": 1,
    "rollout_batch_size": 4,
    "reward_key": None,
    "custom_reward_post_process_path": OURS,
    "custom_advantage_function_path": None,
    "dynamic_sampling_filter_path": None,
    "use_dynamic_global_batch_size": False,
    "save": None,
}


# ---------------------------------------------------------------------- the stand-in


class _Status(Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class _Sample:
    """The fields that a reward post-processor may read; ``rollout_log_probs`` has one number per response token."""

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: Any = ""
    response_length: int = 0
    reward: Any = None
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: _Status = _Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)

    Status = _Status

    def get_reward_value(self, args: Namespace) -> float:
        return self.reward if not args.reward_key else self.reward[args.reward_key]


def _load(path: str) -> Any:
    home, _, name = path.rpartition(".")
    return getattr(importlib.import_module(home), name)


def _group_centred(args: Namespace, samples: list[Any]) -> tuple[list[float], list[float]]:
    """slime's ``_post_process_rewards``: group mean, or *one* mean where the counts do not fit."""
    raw = [s.get_reward_value(args) for s in samples]
    r = np.asarray(raw, float)
    fits = len(r) == args.n_samples_per_prompt * args.rollout_batch_size
    r = r.reshape(-1, args.n_samples_per_prompt) if fits else r.reshape(1, -1)
    r = r - r.mean(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):  # torch's std of a single number is NaN
        std = r.std(axis=-1, ddof=1, keepdims=True) if r.shape[-1] > 1 else np.full((len(r), 1), np.nan)
    return raw, (r / (std + 1e-6)).ravel().tolist()


def _stand_in_train_data(args: Namespace, samples: list[Any]) -> dict[str, Any]:
    path = args.custom_reward_post_process_path
    raw, rewards = (_group_centred if path is None else _load(path))(args, samples)
    return {"raw_reward": raw, "rewards": rewards}


# ---------------------------------------------------------------------- the real ones


def _real_slime(monkeypatch: Any) -> SimpleNamespace:
    for name in ABSENT:
        if name not in sys.modules:
            empty = MagicMock(name=name)
            empty.__spec__, empty.__path__ = importlib.machinery.ModuleSpec(name, None), []
            monkeypatch.setitem(sys.modules, name, empty)
    from slime.ray.rollout import RolloutManager
    from slime.utils.misc import load_function
    from slime.utils.types import Sample

    manager = RolloutManager.__ray_metadata__.modified_class

    def train_data(args: Namespace, samples: list[Any]) -> dict[str, Any]:
        bare = manager.__new__(manager)  # its own __init__ starts servers on GPUs
        path = args.custom_reward_post_process_path
        bare.args, bare.custom_convert_samples_to_train_data_func = args, None
        bare.custom_reward_post_process_func = None if path is None else load_function(path)
        return bare._convert_samples_to_train_data(samples)

    return SimpleNamespace(sample=Sample, train_data=train_data)


def _real_miles() -> SimpleNamespace:
    from miles.ray.rollout.train_data_conversion import convert_samples_to_train_data
    from miles.utils.misc import load_function
    from miles.utils.types import Sample

    def train_data(args: Namespace, samples: list[Any]) -> dict[str, Any]:
        function = load_function(args.custom_reward_post_process_path)
        return convert_samples_to_train_data(
            args,
            samples,
            metadata={},
            custom_convert_samples_to_train_data_func=None,
            custom_reward_post_process_func=function,
        )

    return SimpleNamespace(sample=Sample, train_data=train_data)


class Slime:
    """Builds samples and converts them to training data as the rollout manager does, with real or stand-in parts."""

    def __init__(self, monkeypatch: Any, trainer: str = "slime") -> None:
        if installed(trainer) and trainer == "slime":
            self._parts = _real_slime(monkeypatch)
        elif installed(trainer):
            self._parts = _real_miles()
        else:
            self._parts = SimpleNamespace(sample=_Sample, train_data=_stand_in_train_data)
        self.Status = self._parts.sample.Status

    def sample(self, index: int, prompt: Any, reward: Any, *, group: int | None = None, **more: Any) -> Any:
        """A completed ``Sample`` of the group of its own index, or of another."""
        more = {"status": self.Status.COMPLETED, **more}
        more.setdefault("response_length", len(more.get("rollout_log_probs") or []))
        group = index if group is None else group
        return self._parts.sample(group_index=group, index=index, prompt=prompt, reward=reward, **more)

    def args(self, **changes: Any) -> Namespace:
        """The arguments that matter here, at their defaults, with our function as the post-processor."""
        return Namespace(**{**DEFAULTS, **changes})

    def train_data(self, args: Namespace, samples: list[Any]) -> dict[str, Any]:
        """``rewards`` (what becomes the advantages), ``raw_reward`` and the rest of a step's training data."""
        return self._parts.train_data(args, samples)
