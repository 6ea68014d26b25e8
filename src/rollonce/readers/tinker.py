"""tinker-cookbook: evaluations' ``trajectories.jsonl`` and training's ``*_rollout_summaries.jsonl``.

Training summaries (rl/rollout_logging.py) hold no prompts. A join file gives them: rows with ``prompt``, perhaps
``task_id``, and the keys by which to find them, ``iteration`` and ``group_idx`` (what an environment's dataset builder
knows: group g of batch i), or ``tags``, or with ``split``. Group numbers follow the dataset only in synchronous
training without failed groups (rl/train.py enumerates the groups that it got); otherwise join by tags that name the
task. Only rows of the split ``train`` are read unless ``split=`` names another one (``eval/gsm8k``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rollonce.errors import InputError
from rollonce.readers.base import Format, Row
from rollonce.readers.join import Join
from rollonce.readers.options import Options
from rollonce.readers.probe import Probe


class TinkerEvals(Format):
    """tinker-cookbook evaluation trajectories (eval/benchmarks/_types.py, StoredTrajectory)."""

    name = "tinker-evals"
    uses = frozenset({"reward"})
    whole_file = True

    @classmethod
    def is_file_of_format(cls, probe: Probe) -> bool:
        """``benchmark``, ``turns`` and ``reward``."""
        return probe.kind == "jsonl" and probe.has_all_keys("idx", "benchmark", "turns", "reward")

    def parse_rollout_rows(self, record: Any) -> Iterable[Row]:
        """One rollout. Its prompt is the text of its first observation, chat template and all: that is what the
        cookbook stores."""
        if record.get("error"):
            raise InputError(
                f"this rollout ended in an error ({str(record['error'])[:80]}); skip_bad_rows passes over such rows"
            )
        turns = record["turns"]
        if not turns or turns[0]["role"] == "assistant":
            raise InputError("no turn before the first assistant turn, so no prompt")
        reward = self.read_named_reward({**(record.get("metrics") or {}), **record}, "reward")
        length = sum(t.get("token_count") or 0 for t in turns if t["role"] == "assistant")
        task = record.get("example_id") or record["idx"]
        yield Row(turns[0]["content"], reward, f"{record['benchmark']}/{task}", length=length)


class TinkerTraining(Format):
    """tinker-cookbook training summaries, with a join file for the prompts."""

    name = "tinker-training"
    uses = frozenset({"reward", "join", "split"})

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._join: Join | None = None

    @classmethod
    def is_file_of_format(cls, probe: Probe) -> bool:
        """``group_idx``, ``traj_idx`` and ``total_reward``."""
        return probe.kind == "jsonl" and probe.has_all_keys("iteration", "group_idx", "traj_idx", "total_reward")

    def prepare_for_file(self, probe: Probe) -> None:
        if self._join is not None:
            return
        if self.options.join is None:
            raise InputError(
                "tinker-cookbook's rollout summaries hold no prompts; give a join file (join=, --join): JSON Lines "
                "with 'prompt', 'iteration' and 'group_idx' (or 'tags'), and 'task_id' if there is one. "
                "docs/formats.md shows how to write it",
                file=probe.path,
            )
        self._join = Join(self.options.join, ("split", "iteration", "group_idx", "tags"))

    def parse_rollout_rows(self, record: Any) -> Iterable[Row]:
        if record["split"] != (self.options.split or "train"):
            self.n_filtered += 1
            self.splits.add(str(record["split"]))
            return
        assert self._join is not None
        joined = self._join.find_joined_task(record)
        length = sum(step["ac_len"] for step in record["steps"])
        rollout = f"{record['group_idx']}/{record['traj_idx']}"
        reward = self.read_named_reward({**(record.get("trajectory_metrics") or {}), **record}, "total_reward")
        yield Row(joined.prompt, reward, joined.task, rollout, length, record["iteration"])
