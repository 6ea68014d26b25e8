"""tinker-cookbook's RL loop with a baseline of ours, for one run: ``rl.train`` is patched while a block (or this
command) runs.

    python -m rollonce.integrations.tinker_cookbook baseline.json -- tinker_cookbook.recipes.math_rl.train \\
        group_size=1 groups_per_batch=32 loss_fn=importance_sampling renderer_name=role_colon ...

or, around a training script of one's own::

    with cookbook_baseline("baseline.json"):
        asyncio.run(train.main(config))

The stock cookbook subtracts the mean of each group: with one rollout per task every advantage is exactly 0 and nothing
is learnt. Here the step's rollouts go to an `AdvantageHook` together. Only names of the module
``tinker_cookbook.rl.train`` are replaced; `import_patchable_cookbook` says so in a sentence if a version lacks them
(tested: `TESTED`).

Beside the run, in ``LOG_PATH/rollonce/``: ``advantages.jsonl``, one line per step (b, leave-one-out mean, advantage and
reward of each rollout, largest weight of an own reward); ``state_000012.json``, the history before step 12, which a
resumed run goes on from; ``run.json``.

Shapes: ``_P`` groups of a step, ``_G`` rollouts of a group, ``_N`` rollouts of a step.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from rollonce.baselines import Baseline, copy_without_history
from rollonce.errors import InputError, MissingExtraError
from rollonce.integrations.cookbook_run import CookbookRun, Prompts, check_cookbook_config, cookbook_version

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


def import_patchable_cookbook() -> Any:
    """The module ``tinker_cookbook.rl.train``, with everything that is to be replaced.

    Raises:
        MissingExtraError: tinker-cookbook is not installed.
        InputError: this version's loop is another one.
    """
    try:
        train = importlib.import_module("tinker_cookbook.rl.train")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "the tinker-cookbook adapter", (error.name or "tinker-cookbook").partition(".")[0], "tinker"
        ) from error
    for name, wanted in PATCHED.items():
        function = getattr(train, name, None)
        has = inspect.signature(function).parameters if callable(function) else {}
        missing = [p for p in wanted if p not in has]
        if function is None or missing:
            what = f"has no parameter {missing[0]!r}" if function is not None else "is not there"
            raise InputError(
                f"tinker-cookbook {cookbook_version()} cannot be patched: rl.train.{name} {what}. "
                f"Tested are {' and '.join(TESTED)}: "
                "install one of them, or use the Tinker policy of rollonce train, which needs no cookbook"
            )
    return train


# ---- the patch

_ACTIVE: CookbookRun | None = None


@contextlib.contextmanager
def cookbook_baseline(
    baseline: Baseline | str | os.PathLike[str],
    *,
    prompts: Prompts = "auto",
    whiten: bool = False,
    scale_by_std: bool = False,
) -> Iterator[CookbookRun]:
    """While the block runs, `tinker_cookbook.rl.train` takes its advantages from ``baseline``.

    Args:
        baseline: A fitted baseline or its file. It is copied; what it learns is in ``run.hook.baseline``.
        prompts: What the baseline reads. ``question``: the task's question without template, examples and the recipe's
            suffix (checked against the rollout's prompt); ``observation``: the decoded first observation, all of it;
            ``auto``: the former where every task has one, else the latter, for the whole run; or a function of (group,
            builder, tokenizer).
        whiten, scale_by_std: See `AdvantageHook`. Off.

    Raises:
        MissingExtraError, InputError: see `import_patchable_cookbook`; a second patch at once. While the run lasts:
            `check_cookbook_config`.
    """
    global _ACTIVE
    if not callable(prompts) and prompts not in ("auto", "question", "observation"):
        raise InputError(f"prompts must be auto, question, observation or a function, not {prompts!r}")
    if _ACTIVE is not None:
        raise InputError("a baseline is at work in tinker-cookbook already; end that block first")
    # Rewards in a tuned file's history are another policy's.
    loaded = baseline if isinstance(baseline, Baseline) else copy_without_history(Baseline.load(baseline))
    text = json.dumps([loaded.config(), loaded.state_dict()], sort_keys=True, default=str)
    train = import_patchable_cookbook()
    run = CookbookRun(
        loaded, hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16], prompts, whiten, scale_by_std
    )
    originals = {name: getattr(train, name) for name in PATCHED}
    try:
        _ACTIVE = run
        for name, replacement in _make_replacements(run, originals).items():
            setattr(train, name, replacement)
        yield run
    finally:
        for name, original in originals.items():
            setattr(train, name, original)
        _ACTIVE = None


def _make_replacements(run: CookbookRun, originals: dict[str, Any]) -> dict[str, Any]:
    step_of: contextvars.ContextVar[int | None] = contextvars.ContextVar("rollonce_step", default=None)

    def bind_call_arguments(name: str, args: Any, kwargs: Any) -> dict[str, Any]:
        return inspect.signature(originals[name]).bind(*args, **kwargs).arguments

    def wrap_training_loop(name: str) -> Any:
        @functools.wraps(originals[name])
        async def begin_then_train(*args: Any, **kwargs: Any) -> Any:
            got = bind_call_arguments(name, args, kwargs)
            run.begin_or_resume_run(got["config"], int(got["start_batch"]))
            return await originals[name](*args, **kwargs)

        return begin_then_train

    @functools.wraps(originals["main"])
    async def main(*args: Any, **kwargs: Any) -> Any:
        check_cookbook_config(
            bind_call_arguments("main", args, kwargs)["config"]
        )  # before anything is created on the service
        return await originals["main"](*args, **kwargs)

    @functools.wraps(originals["do_train_step_and_get_sampling_client"])
    async def run_checked_train_step(*args: Any, **kwargs: Any) -> Any:
        name = "do_train_step_and_get_sampling_client"
        token = step_of.set(int(bind_call_arguments(name, args, kwargs)["i_batch"]))
        before = run.steps
        try:
            out = await originals[name](*args, **kwargs)
        finally:
            step_of.reset(token)
        if run.steps == before or not run.asked:
            raise InputError(
                f"tinker-cookbook {cookbook_version()} made a step without asking for advantages where it is patched; "
                f"{TESTED} do"
            )
        return out

    @functools.wraps(originals["prepare_minibatch"])
    async def prepare_minibatch(*args: Any, **kwargs: Any) -> Any:
        got = bind_call_arguments("prepare_minibatch", args, kwargs)
        # All at once and first: print_group asks for single groups before the step's own call, and gets the same
        # numbers.
        result = run.compute_step_advantages(
            step_of.get(), got["trajectory_groups_P"], got["env_group_builders_P"], got["tokenizer"]
        )
        out = await originals["prepare_minibatch"](*args, **kwargs)
        out[1].update({f"rollonce/{name}": value for name, value in result.metrics.items()})
        return out

    def compute_advantages(trajectory_groups_P: Sequence[Any]) -> list[Any]:
        return run.look_up_advantages(trajectory_groups_P)

    return {
        "compute_advantages": compute_advantages,
        "prepare_minibatch": prepare_minibatch,
        "do_train_step_and_get_sampling_client": run_checked_train_step,
        "do_sync_training": wrap_training_loop("do_sync_training"),
        "do_async_training": wrap_training_loop("do_async_training"),
        "do_sync_training_with_stream_minibatch": wrap_training_loop("do_sync_training_with_stream_minibatch"),
        "main": main,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: ``BASELINE.json [--prompts auto|question|observation] -- [RECIPE.MODULE] key=value ...``."""
    import argparse

    argv = list(sys.argv[1:] if arguments is None else arguments)
    own, recipe = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    parser = argparse.ArgumentParser(
        prog="python -m rollonce.integrations.tinker_cookbook",
        usage="%(prog)s BASELINE.json [options] -- [RECIPE.MODULE] key=value ...",
    )
    parser.add_argument("baseline", help="file that rollonce tune (or Baseline.save) wrote")
    parser.add_argument(
        "--prompts", choices=("auto", "question", "observation"), default="auto", help="what the baseline reads"
    )
    options = parser.parse_args(own)
    module = recipe.pop(0) if recipe and "=" not in recipe[0] else DEFAULT_RECIPE
    before = sys.argv
    try:
        with cookbook_baseline(options.baseline, prompts=options.prompts):
            if not _can_find_module(module):
                raise InputError(f"no recipe module {module!r} here; give the module after --, then key=value ...")
            sys.argv = [module, *recipe]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except InputError as error:
        print(f"rollonce: {error}", file=sys.stderr)
        return 2
    finally:
        sys.argv = before
    return 0


def _can_find_module(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


if __name__ == "__main__":
    # Under -m this file is __main__; the patch's state must live in the module that others import.
    sys.exit(importlib.import_module("rollonce.integrations.tinker_cookbook").main())
