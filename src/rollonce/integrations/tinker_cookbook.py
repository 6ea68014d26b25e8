"""tinker-cookbook's RL loop with a baseline of ours, for one run: ``rl.train`` is patched while a block (or this command) runs.

    python -m rollonce.integrations.tinker_cookbook baseline.json -- tinker_cookbook.recipes.math_rl.train \\
        group_size=1 groups_per_batch=32 loss_fn=importance_sampling renderer_name=role_colon ...

or, around a training script of one's own::

    with cookbook_baseline("baseline.json"):
        asyncio.run(train.main(config))

The stock cookbook subtracts the mean of each group: with one rollout a task every advantage is exactly 0 and nothing is learnt. Here the
step's rollouts go to an `AdvantageHook` together. What is replaced are names of the module ``tinker_cookbook.rl.train`` only;
`check_cookbook` says so in a sentence if a version lacks them (tested: `TESTED`).

Beside the run, in ``LOG_PATH/rollonce/``: ``advantages.jsonl``, a line a step (b, leave-one-out mean, advantage and reward of each rollout,
largest weight of an own reward); ``state_000012.json``, the history before step 12, which a resumed run goes on from; ``run.json``.

Shapes: ``_P`` groups of a step, ``_G`` rollouts of a group, ``_N`` rollouts of a step.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import importlib
import inspect
import json
import os
import re
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rollonce.baselines import Baseline, LinearSmoother, copy_without_history
from rollonce.errors import InputError, MissingExtraError
from rollonce.integrations.hook import AdvantageHook, AdvantageResult
from rollonce.integrations.rows import Rule, make_rows, refuse, stable_task_id

TESTED = ("0.5.8", "0.6.1")
"""Versions of tinker-cookbook that the tests run against a server."""

DEFAULT_RECIPE = "tinker_cookbook.recipes.math_rl.train"

PATCHED = {
    "compute_advantages": ("trajectory_groups_P",),
    "prepare_minibatch": ("env_group_builders_P", "trajectory_groups_P", "tokenizer"),
    "do_train_step_and_get_sampling_client": ("config", "i_batch", "env_group_builders_P", "trajectory_groups_P"),
    "do_sync_training": ("config", "start_batch"),
    "do_async_training": ("config", "start_batch"),
    "do_sync_training_with_stream_minibatch": ("config", "start_batch"),
    "main": ("config",),
}
"""The names of ``tinker_cookbook.rl.train`` that are replaced, and the parameters that we read there."""

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

Prompts = Literal["auto", "question", "observation"] | Callable[[Any, Any, Any], str]


def check_cookbook() -> Any:
    """The module ``tinker_cookbook.rl.train``, with everything that is to be replaced.

    Raises:
        MissingExtraError: tinker-cookbook is not installed.
        InputError: this version's loop is another one.
    """
    try:
        train = importlib.import_module("tinker_cookbook.rl.train")
    except ModuleNotFoundError as error:
        raise MissingExtraError("the tinker-cookbook adapter", (error.name or "tinker-cookbook").partition(".")[0], "tinker") from error
    for name, wanted in PATCHED.items():
        function = getattr(train, name, None)
        has = inspect.signature(function).parameters if callable(function) else {}
        missing = [p for p in wanted if p not in has]
        if function is None or missing:
            what = f"has no parameter {missing[0]!r}" if function is not None else "is not there"
            raise InputError(
                f"tinker-cookbook {_version()} cannot be patched: rl.train.{name} {what}. Tested are {' and '.join(TESTED)}:"
                " install one of them, or use the Tinker policy of rollonce train, which needs no cookbook"
            )
    return train


def check_config(config: Any) -> None:
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
    """

    baseline: Baseline
    fingerprint: str
    prompts: Prompts = "auto"
    whiten: bool = False
    scale_by_std: bool = False
    hook: AdvantageHook | None = None
    steps: int = 0
    _directory: Path | None = None
    _start: int = 0
    _mode: Prompts | None = None
    _advantage_of: dict[int, float] = field(default_factory=dict)
    _asked: bool = False

    # ---- the run

    def begin(self, config: Any, start: int) -> None:
        """A run starts, or goes on, at step ``start``.

        Raises:
            InputError: a configuration that breaks it, or a directory of another baseline's run.
        """
        check_config(config)
        self._directory, self._start, self.hook, self._mode = Path(config.log_path) / "rollonce", start, None, None
        self._directory.mkdir(parents=True, exist_ok=True)
        facts = {
            "baseline": self.baseline.label,
            "config": json.loads(json.dumps(self.baseline.config())),
            "fingerprint": self.fingerprint,
            "whiten": self.whiten,
            "scale_by_std": self.scale_by_std,
            "prompts": self.prompts if isinstance(self.prompts, str) else "function",
            "tinker_cookbook": _version(),
        }
        path = self._directory / "run.json"
        if start > 0:
            if not path.is_file():
                raise InputError(
                    f"{config.log_path} resumes at step {start}, but its steps so far were not made with a baseline of rollonce; give this"
                    " run a log_path of its own"
                )
            before = json.loads(path.read_text(encoding="utf-8"))
            changed = [k for k in facts if k != "tinker_cookbook" and before.get(k) != facts[k]]
            if changed:
                k = changed[0]
                raise InputError(
                    f"{config.log_path} resumes at step {start} with another {k} ({before.get(k)!r}) than now ({facts[k]!r});"
                    " go on with the old one, or begin anew in another log_path"
                )
            self._mode = before.get("prompts_used")
        else:
            for old in self._directory.glob("state_*.json"):
                old.unlink()
        _keep_steps_before(self._directory / "advantages.jsonl", start)
        _write(path, {**facts, "prompts_used": self._mode})

    def step(self, step: int | None, groups: Sequence[Any], builders: Sequence[Any], tokenizer: Any) -> AdvantageResult:
        """Advantages of a step's groups; they join the history, and a line joins the log."""
        if len(groups) != len(builders):
            raise InputError(
                f"a step has {len(groups)} groups but {len(builders)} tasks: something dropped groups on the way, so none can be matched"
            )
        sizes = {len(g.trajectories_G) for g in groups}
        size = sizes.pop() if len(sizes) == 1 else None
        prompts_P = self._prompts(groups, builders, tokenizer)
        ids_P = _task_ids(prompts_P, one_each=size == 1)
        if self.hook is None:
            self.hook = AdvantageHook(self.baseline, whiten=self.whiten, scale_by_std=self.scale_by_std, group_size=size)
            if self._start > 0 and self._directory is not None:
                self.hook.load(self._directory / f"state_{self._start:06d}.json")
        prompts_N = [p for p, g in zip(prompts_P, groups, strict=True) for _ in g.trajectories_G]
        ids_N = [t for t, g in zip(ids_P, groups, strict=True) for _ in g.trajectories_G]
        rewards_N = [float(r) for g in groups for r in g.get_total_rewards()]
        self_weight = _self_weight_max(self.hook.baseline, prompts_N, rewards_N, ids_N)
        result = self.hook.advantages(prompts_N, rewards_N, task_ids=ids_N)
        trajectories = [t for g in groups for t in g.trajectories_G]
        self._advantage_of = {id(t): float(a) for t, a in zip(trajectories, result.advantages_N, strict=True)}
        self._asked = False
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
            self._prune(step + 1)
        return result

    def advantages_of(self, groups: Sequence[Any]) -> list[Any]:
        """What stands in for ``compute_advantages``: a tensor (G,) a group, looked up: asking twice, or for one group, is harmless."""
        import torch  # type: ignore

        try:
            found = [[self._advantage_of[id(t)] for t in g.trajectories_G] for g in groups]
        except KeyError:
            raise InputError(
                "compute_advantages was called for rollouts that prepare_minibatch never saw; the adapter covers the loop of"
                " tinker_cookbook.rl.train alone"
            ) from None
        self._asked = True
        return [torch.tensor(a, dtype=torch.float32) for a in found]

    # ---- parts

    def _prompts(self, groups: Sequence[Any], builders: Sequence[Any], tokenizer: Any) -> list[str]:
        if callable(self.prompts):
            return [str(self.prompts(g, b, tokenizer)) for g, b in zip(groups, builders, strict=True)]
        seen_P = [_first_observation(g, tokenizer) for g in groups]
        if self._mode is None:
            asked_P = [_question(b) for b in builders]
            fits = all(q is not None and _within(q, seen) for q, seen in zip(asked_P, seen_P, strict=True))
            if self.prompts == "question" and not fits:
                raise InputError(
                    "prompts='question' needs environments with a get_question() whose text stands in the first observation; these have"
                    " none: use prompts='observation'"
                )
            self._mode = "question" if fits and self.prompts != "observation" else "observation"
            if self._directory is not None:
                path = self._directory / "run.json"
                _write(path, {**json.loads(path.read_text(encoding="utf-8")), "prompts_used": self._mode})
        if self._mode == "observation":
            return seen_P
        out = []
        for builder, seen in zip(builders, seen_P, strict=True):
            question = _question(builder)
            if question is None or not _within(question, seen):
                raise InputError(f"the task {question!r} and its rollout's prompt {seen[-200:]!r} do not belong together")
            out.append(_without_suffix(question, builder))
        return out

    def _prune(self, newest: int) -> None:
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


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tinker-cookbook")
    except PackageNotFoundError:
        return "(unknown version)"


def _question(builder: Any) -> str | None:
    """The question of a single-turn task (`ProblemGroupBuilder`), before any template; None for other kinds."""
    thunk = getattr(builder, "env_thunk", None)
    if thunk is None:
        return None
    ask = getattr(thunk(), "get_question", None)
    return None if ask is None else str(ask())


def _without_suffix(question: str, builder: Any) -> str:
    """Without the instruction that the recipe hangs on every question ("Write your answer in ..."): it tells no two tasks apart."""
    suffix = getattr(builder.env_thunk(), "question_suffix", None)
    return question.removesuffix(str(suffix())) if callable(suffix) else question


def _first_observation(group: Any, tokenizer: Any) -> str:
    """The text of what the policy saw before it wrote anything; images and sounds leave a mark of their length."""
    transitions = group.trajectories_G[0].transitions
    if not transitions:
        raise InputError("a rollout ended before its first turn, so it has no prompt; drop such groups before the advantages")
    parts = []
    for chunk in transitions[0].ob.chunks:
        tokens = getattr(chunk, "tokens", None)
        parts.append(f"[{getattr(chunk, 'length', '?')} tokens]" if tokens is None else tokenizer.decode(list(tokens)))
    return "".join(parts)


def _within(question: str, seen: str) -> bool:
    squeeze = lambda text: re.sub(r"\s+", "", text)  # noqa: E731  (renderers strip, tokenizers add spaces)
    return squeeze(question) in squeeze(seen)


def _task_ids(prompts_P: Sequence[str], *, one_each: bool) -> list[str]:
    """An id a group, made from its prompt. With groups of several rollouts a second group of the same prompt stays a group of its own."""
    ids, times = [], {}
    for prompt in prompts_P:
        task = stable_task_id(prompt)
        times[task] = times.get(task, 0) + 1
        ids.append(task if one_each or times[task] == 1 else f"{task}-{times[task]}")
    return ids


def _self_weight_max(baseline: Baseline, prompts: Sequence[str], rewards: Sequence[float], ids: Sequence[str]) -> float | None:
    """The largest weight of a rollout's own reward in its baseline; None for baselines without weights."""
    if not isinstance(baseline, LinearSmoother) or not rewards:
        return None
    batch = make_rows(prompts, rewards, task_ids=ids).batch
    return float(np.abs(np.diagonal(baseline.weights(batch)[:, : len(batch)])).max())


def _keep_steps_before(path: Path, start: int) -> None:
    """Drop the lines of steps that the cookbook is about to make again, and a line that was being written when it was killed."""
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            if json.loads(line)["step"] < start:
                kept.append(line + "\n")
    part = path.with_name(path.name + ".part")
    part.write_text("".join(kept), encoding="utf-8")
    os.replace(part, path)


def _write(path: Path, document: dict[str, Any]) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


# ---- the patch

_ACTIVE: CookbookRun | None = None


@contextlib.contextmanager
def cookbook_baseline(
    baseline: Baseline | str | os.PathLike[str], *, prompts: Prompts = "auto", whiten: bool = False, scale_by_std: bool = False
) -> Iterator[CookbookRun]:
    """While the block runs, `tinker_cookbook.rl.train` takes its advantages from ``baseline``.

    Args:
        baseline: A fitted baseline or its file. It is copied; what it learns is in ``run.hook.baseline``.
        prompts: What the baseline reads. ``question``: the task's question without template, examples and the recipe's suffix (checked
            against the rollout's prompt); ``observation``: the decoded first observation, all of it; ``auto``: the former where every
            task has one, else the latter, for the whole run; or a function of (group, builder, tokenizer).
        whiten, scale_by_std: See `AdvantageHook`. Off.

    Raises:
        MissingExtraError, InputError: see `check_cookbook`; a second patch at once. While the run lasts: `check_config`.
    """
    global _ACTIVE
    if not callable(prompts) and prompts not in ("auto", "question", "observation"):
        raise InputError(f"prompts must be auto, question, observation or a function, not {prompts!r}")
    if _ACTIVE is not None:
        raise InputError("a baseline is at work in tinker-cookbook already; end that block first")
    # Rewards in a tuned file's history are another policy's.
    loaded = baseline if isinstance(baseline, Baseline) else copy_without_history(Baseline.load(baseline))
    text = json.dumps([loaded.config(), loaded.state_dict()], sort_keys=True, default=str)
    train = check_cookbook()
    run = CookbookRun(loaded, hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16], prompts, whiten, scale_by_std)
    originals = {name: getattr(train, name) for name in PATCHED}
    try:
        _ACTIVE = run
        for name, replacement in _replacements(run, originals).items():
            setattr(train, name, replacement)
        yield run
    finally:
        for name, original in originals.items():
            setattr(train, name, original)
        _ACTIVE = None


def _replacements(run: CookbookRun, originals: dict[str, Any]) -> dict[str, Any]:
    step_of: contextvars.ContextVar[int | None] = contextvars.ContextVar("rollonce_step", default=None)

    def given(name: str, args: Any, kwargs: Any) -> dict[str, Any]:
        return inspect.signature(originals[name]).bind(*args, **kwargs).arguments

    def loop(name: str) -> Any:
        @functools.wraps(originals[name])
        async def training(*args: Any, **kwargs: Any) -> Any:
            got = given(name, args, kwargs)
            run.begin(got["config"], int(got["start_batch"]))
            return await originals[name](*args, **kwargs)

        return training

    @functools.wraps(originals["main"])
    async def main(*args: Any, **kwargs: Any) -> Any:
        check_config(given("main", args, kwargs)["config"])  # before anything is created on the service
        return await originals["main"](*args, **kwargs)

    @functools.wraps(originals["do_train_step_and_get_sampling_client"])
    async def train_step(*args: Any, **kwargs: Any) -> Any:
        name = "do_train_step_and_get_sampling_client"
        token = step_of.set(int(given(name, args, kwargs)["i_batch"]))
        before = run.steps
        try:
            out = await originals[name](*args, **kwargs)
        finally:
            step_of.reset(token)
        if run.steps == before or not run._asked:
            raise InputError(f"tinker-cookbook {_version()} made a step without asking for advantages where it is patched; {TESTED} do")
        return out

    @functools.wraps(originals["prepare_minibatch"])
    async def prepare_minibatch(*args: Any, **kwargs: Any) -> Any:
        got = given("prepare_minibatch", args, kwargs)
        # All at once and first: print_group asks for single groups before the step's own call, and gets the same numbers.
        result = run.step(step_of.get(), got["trajectory_groups_P"], got["env_group_builders_P"], got["tokenizer"])
        out = await originals["prepare_minibatch"](*args, **kwargs)
        out[1].update({f"rollonce/{name}": value for name, value in result.metrics.items()})
        return out

    def compute_advantages(trajectory_groups_P: Sequence[Any]) -> list[Any]:
        return run.advantages_of(trajectory_groups_P)

    return {
        "compute_advantages": compute_advantages,
        "prepare_minibatch": prepare_minibatch,
        "do_train_step_and_get_sampling_client": train_step,
        "do_sync_training": loop("do_sync_training"),
        "do_async_training": loop("do_async_training"),
        "do_sync_training_with_stream_minibatch": loop("do_sync_training_with_stream_minibatch"),
        "main": main,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: ``BASELINE.json [--prompts auto|question|observation] -- [RECIPE.MODULE] key=value ...``."""
    import argparse

    argv = list(sys.argv[1:] if arguments is None else arguments)
    own, recipe = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    parser = argparse.ArgumentParser(
        prog="python -m rollonce.integrations.tinker_cookbook", usage="%(prog)s BASELINE.json [options] -- [RECIPE.MODULE] key=value ..."
    )
    parser.add_argument("baseline", help="file that rollonce tune (or Baseline.save) wrote")
    parser.add_argument("--prompts", choices=("auto", "question", "observation"), default="auto", help="what the baseline reads")
    options = parser.parse_args(own)
    module = recipe.pop(0) if recipe and "=" not in recipe[0] else DEFAULT_RECIPE
    before = sys.argv
    try:
        with cookbook_baseline(options.baseline, prompts=options.prompts):
            sys.argv = [module, *recipe]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except InputError as error:
        print(f"rollonce: {error}", file=sys.stderr)
        return 2
    except ImportError as error:
        if error.name is not None and module.startswith(error.name):
            print(f"rollonce: no recipe module {module!r}; put -- before it, and key=value after it", file=sys.stderr)
            return 2
        raise
    finally:
        sys.argv = before
    return 0


if __name__ == "__main__":
    # Under -m this file is __main__; the patch's state must live in the module that others import.
    sys.exit(importlib.import_module("rollonce.integrations.tinker_cookbook").main())
