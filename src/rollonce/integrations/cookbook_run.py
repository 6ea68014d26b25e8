"""What the tinker-cookbook adapter keeps for one run: the baseline at work, its log, its history beside the
checkpoints.

Nothing of the cookbook is imported here; its objects are looked at by their attributes. The patch is in
`rollonce.integrations.tinker_cookbook`.

Shapes: ``_P`` groups of a step, ``_G`` rollouts of a group, ``_N`` rollouts of a step.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rollonce.baselines import Baseline, LinearSmoother
from rollonce.errors import InputError
from rollonce.files import write_json_file, write_whole_file
from rollonce.integrations.hook import AdvantageHook, AdvantageResult
from rollonce.integrations.rows import make_rollout_rows, stable_task_id
from rollonce.setting_rules import Rule, refuse

Prompts = Literal["auto", "question", "observation"] | Callable[[Any, Any, Any], str]

RULES = (
    Rule(
        "stream_minibatch_config",
        lambda value: value is not None,
        "shows a baseline a fraction of the step at a time, so that it would be another one",
        "leave it out",
    ),
    Rule(
        "remove_constant_reward_groups",
        True,
        "throws every group of one away before the advantages are computed, and shifts tasks against rollouts",
        "set it to False",
    ),
)


def check_cookbook_config(config: Any) -> None:
    """Refuse a configuration under which the advantages would not be what they seem.

    Raises:
        InputError: naming each setting, why, and the fix.
    """
    refuse(config, RULES, "tinker-cookbook")


@dataclass
class CookbookRun:
    """What the patch holds while a run lasts; `cookbook_baseline` makes one.

    Attributes:
        hook: The baseline at work, None before the first step.
        steps: Steps that it has given advantages for in this process.
        asked: Whether the loop has asked for those of the last one.
    """

    baseline: Baseline
    fingerprint: str
    prompts: Prompts = "auto"
    whiten: bool = False
    scale_by_std: bool = False
    hook: AdvantageHook | None = None
    steps: int = 0
    asked: bool = False
    _directory: Path | None = None
    _start: int = 0
    _mode: Prompts | None = None
    _advantage_of: dict[int, float] = field(default_factory=dict)

    # ---- the run

    def begin_or_resume_run(self, config: Any, start: int) -> None:
        """A run starts, or goes on, at step ``start``.

        Raises:
            InputError: a configuration that breaks it, or a directory of another baseline's run.
        """
        check_cookbook_config(config)
        self._directory, self._start, self.hook, self._mode = Path(config.log_path) / "rollonce", start, None, None
        self._directory.mkdir(parents=True, exist_ok=True)
        facts = {
            "baseline": self.baseline.label,
            "config": json.loads(json.dumps(self.baseline.config())),
            "fingerprint": self.fingerprint,
            "whiten": self.whiten,
            "scale_by_std": self.scale_by_std,
            "prompts": self.prompts if isinstance(self.prompts, str) else "function",
            "tinker_cookbook": cookbook_version(),
        }
        path = self._directory / "run.json"
        if start > 0:
            if not path.is_file():
                raise InputError(
                    f"{config.log_path} resumes at step {start}, but its steps so far were not made with a baseline of "
                    "rollonce; give this run a log_path of its own"
                )
            before = json.loads(path.read_text(encoding="utf-8"))
            changed = [k for k in facts if k != "tinker_cookbook" and before.get(k) != facts[k]]
            if changed:
                k = changed[0]
                raise InputError(
                    f"{config.log_path} resumes at step {start} with another {k} ({before.get(k)!r}) than now "
                    f"({facts[k]!r}); go on with the old one, or begin anew in another log_path"
                )
            self._mode = before.get("prompts_used")
        else:
            for old in self._directory.glob("state_*.json"):
                old.unlink()
        _keep_steps_before(self._directory / "advantages.jsonl", start)
        write_json_file(path, {**facts, "prompts_used": self._mode})

    def compute_step_advantages(
        self, step: int | None, groups: Sequence[Any], builders: Sequence[Any], tokenizer: Any
    ) -> AdvantageResult:
        """Advantages of a step's groups; they join the history, and a line joins the log."""
        if len(groups) != len(builders):
            raise InputError(
                f"a step has {len(groups)} groups but {len(builders)} tasks: something dropped groups on the way, so "
                "none can be matched"
            )
        sizes = {len(g.trajectories_G) for g in groups}
        size = sizes.pop() if len(sizes) == 1 else None
        prompts_P = self._read_group_prompts(groups, builders, tokenizer)
        ids_P = _make_group_task_ids(prompts_P, one_each=size == 1)
        if self.hook is None:
            self.hook = AdvantageHook(
                self.baseline, whiten=self.whiten, scale_by_std=self.scale_by_std, group_size=size
            )
            if self._start > 0 and self._directory is not None:
                self.hook.load(self._directory / f"state_{self._start:06d}.json")
        prompts_N = [p for p, g in zip(prompts_P, groups, strict=True) for _ in g.trajectories_G]
        ids_N = [t for t, g in zip(ids_P, groups, strict=True) for _ in g.trajectories_G]
        rewards_N = [float(r) for g in groups for r in g.get_total_rewards()]
        self_weight = _largest_self_weight(self.hook.baseline, prompts_N, rewards_N, ids_N)
        trajectories = [t for g in groups for t in g.trajectories_G]
        log_probs_N = [_sum_trajectory_log_probs(t) for t in trajectories] if self.hook.uses_log_probs else None
        result = self.hook.advantages(prompts_N, rewards_N, task_ids=ids_N, log_probs=log_probs_N)
        self._advantage_of = {id(t): float(a) for t, a in zip(trajectories, result.advantages_N, strict=True)}
        self.asked = False
        self.steps += 1
        if self._directory is not None and step is not None:
            gap = float(np.abs(result.baseline_N - result.loo_mean_N).mean()) if len(rewards_N) else 0.0
            record = {
                "step": step,
                "rollouts": len(rewards_N),
                "group_size": size,
                "self_weight_max": self_weight,
                "mean_abs_baseline_minus_loo": gap,
                "nonzero_advantages": float((np.abs(result.advantages_N) > 1e-6).mean()) if len(rewards_N) else 0.0,
                **result.metrics,
                "prompts": prompts_P,
                "task_ids": ids_N,
                "rewards": rewards_N,
                "baselines": result.baseline_N.tolist(),
                "loo_means": result.loo_mean_N.tolist(),
                "advantages": result.advantages_N.tolist(),
            }
            with (self._directory / "advantages.jsonl").open("a", encoding="utf-8") as log:
                log.write(json.dumps(record, ensure_ascii=True) + "\n")
            self.hook.save(self._directory / f"state_{step + 1:06d}.json")
            self._remove_old_states(step + 1)
        return result

    def look_up_advantages(self, groups: Sequence[Any]) -> list[Any]:
        """What stands in for ``compute_advantages``: one tensor (G,) per group, looked up, so that asking twice, or for
        one group, is harmless."""
        import torch  # type: ignore

        try:
            found = [[self._advantage_of[id(t)] for t in g.trajectories_G] for g in groups]
        except KeyError:
            raise InputError(
                "compute_advantages was called for rollouts that prepare_minibatch never saw; the adapter covers the "
                "loop of tinker_cookbook.rl.train alone"
            ) from None
        self.asked = True
        return [torch.tensor(a, dtype=torch.float32) for a in found]

    # ---- parts

    def _read_group_prompts(self, groups: Sequence[Any], builders: Sequence[Any], tokenizer: Any) -> list[str]:
        if callable(self.prompts):
            return [str(self.prompts(g, b, tokenizer)) for g, b in zip(groups, builders, strict=True)]
        seen_P = [_first_observation(g, tokenizer) for g in groups]
        if self._mode is None:
            asked_P = [_read_task_question(b) for b in builders]
            fits = all(
                q is not None and _is_question_in_prompt(q, seen) for q, seen in zip(asked_P, seen_P, strict=True)
            )
            if self.prompts == "question" and not fits:
                raise InputError(
                    "prompts='question' needs environments with a get_question() whose text stands in the first "
                    "observation; these have none: use prompts='observation'"
                )
            self._mode = "question" if fits and self.prompts != "observation" else "observation"
            if self._directory is not None:
                path = self._directory / "run.json"
                write_json_file(path, {**json.loads(path.read_text(encoding="utf-8")), "prompts_used": self._mode})
        if self._mode == "observation":
            return seen_P
        out = []
        for builder, seen in zip(builders, seen_P, strict=True):
            question = _read_task_question(builder)
            if question is None or not _is_question_in_prompt(question, seen):
                raise InputError(
                    f"the task {question!r} and its rollout's prompt {seen[-200:]!r} do not belong together"
                )
            out.append(_strip_question_suffix(question, builder))
        return out

    def _remove_old_states(self, newest: int) -> None:
        """Keep the states from the last checkpoint on: the cookbook may resume there."""
        assert self._directory is not None
        checkpoints = self._directory.parent / "checkpoints.jsonl"
        batches = [0]
        if checkpoints.is_file():
            for line in checkpoints.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):
                    batch = json.loads(line).get("batch")
                    batches += [int(batch)] if isinstance(batch, int) else []
        for path in self._directory.glob("state_*.json"):
            number = int(path.stem.partition("_")[2])
            if number < max(batches) and number < newest:
                path.unlink()


def cookbook_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tinker-cookbook")
    except PackageNotFoundError:
        return "(unknown version)"


def _read_task_question(builder: Any) -> str | None:
    """The question of a single-turn task (`ProblemGroupBuilder`), before any template; None for other kinds."""
    thunk = getattr(builder, "env_thunk", None)
    if thunk is None:
        return None
    ask = getattr(thunk(), "get_question", None)
    return None if ask is None else str(ask())


def _strip_question_suffix(question: str, builder: Any) -> str:
    """Without the instruction that the recipe hangs on every question ("Write your answer in ..."): it tells no two
    tasks apart."""
    suffix = getattr(builder.env_thunk(), "question_suffix", None)
    return question.removesuffix(str(suffix())) if callable(suffix) else question


def _first_observation(group: Any, tokenizer: Any) -> str:
    """The text of what the policy saw before it wrote anything; images and sounds leave a mark of their length."""
    transitions = group.trajectories_G[0].transitions
    if not transitions:
        raise InputError(
            "a rollout ended before its first turn, so it has no prompt; drop such groups before the advantages"
        )
    parts = []
    for chunk in transitions[0].ob.chunks:
        tokens = getattr(chunk, "tokens", None)
        parts.append(f"[{getattr(chunk, 'length', '?')} tokens]" if tokens is None else tokenizer.decode(list(tokens)))
    return "".join(parts)


def _sum_trajectory_log_probs(trajectory: Any) -> float:
    """Of all that the policy sampled, turn by turn; NaN where the completer gave none (``maybe_logprobs`` None)."""
    turns = [transition.ac.maybe_logprobs for transition in trajectory.transitions]
    return math.nan if any(t is None for t in turns) else sum(map(sum, turns))


def _is_question_in_prompt(question: str, seen: str) -> bool:
    squeeze = lambda text: re.sub(r"\s+", "", text)  # noqa: E731  (renderers strip, tokenizers add spaces)
    return squeeze(question) in squeeze(seen)


def _make_group_task_ids(prompts_P: Sequence[str], *, one_each: bool) -> list[str]:
    """One id per group, made from its prompt. With groups of several rollouts a second group of the same prompt stays a
    group of its own."""
    ids, times = [], {}
    for prompt in prompts_P:
        task = stable_task_id(prompt)
        times[task] = times.get(task, 0) + 1
        ids.append(task if one_each or times[task] == 1 else f"{task}-{times[task]}")
    return ids


def _largest_self_weight(
    baseline: Baseline, prompts: Sequence[str], rewards: Sequence[float], ids: Sequence[str]
) -> float | None:
    """The largest weight of a rollout's own reward in its baseline; None for baselines without weights."""
    if not isinstance(baseline, LinearSmoother) or not rewards:
        return None
    batch = make_rollout_rows(prompts, rewards, task_ids=ids).batch
    return float(np.abs(np.diagonal(baseline.weights(batch)[:, : len(batch)])).max())


def _keep_steps_before(path: Path, start: int) -> None:
    """Drop the lines of steps that the cookbook is about to make again, and a line that was being written when it was
    killed."""
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            if json.loads(line)["step"] < start:
                kept.append(line + "\n")
    write_whole_file(path, "".join(kept))
