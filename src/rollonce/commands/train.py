"""``rollonce train``: one arm, one seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from rollonce.commands.terminal import Bars, Flag, print_json_document, print_remark
from rollonce.errors import InputError

if TYPE_CHECKING:
    from rollonce.training.config import RunConfig

HELP = """\
Train a policy with one arm of a configuration: sample, grade, take the baseline
off, update. What is measured goes to metrics.jsonl, a line a step; checkpoints
are written whole, so a run that was killed goes on from the last one, to the
same numbers, when the same command is given again. Needs the extra:
pip install 'rollonce[train]'.

Examples:
  rollonce train specs/embedded_small.toml --arm gs1_self_tuning
      The policy that comes with rollonce, a minute or so on one core.
  rollonce train my.toml --arm grpo --seed 3 --out runs/grpo3
      Of a file with several arms, one; docs/training.md has all keys.
"""


@dataclass
class Args:
    """Options of ``rollonce train``."""

    config: Annotated[Positional[str], arg(metavar="CONFIG.toml")]
    """What to train: policy, tasks, loss, arms."""
    arm: Annotated[str | None, arg(metavar="NAME")] = None
    """Which arm; not needed if there is only one."""
    seed: Annotated[int | None, arg(metavar="N")] = None
    """Instead of the first of the file's seeds."""
    out: Annotated[str | None, arg(metavar="DIR")] = None
    """Where to; default runs/ARM-seedN."""
    json: Flag = False
    """Print the result as JSON."""


def find_requested_run(config_path: str, arm: str | None, seed: int | None) -> RunConfig:
    """The one run that is asked for.

    Raises:
        InputError: a bad file, no such arm, or several and none named.
    """
    from rollonce.training.loading import list_comparison_runs, load_experiment_config

    config = load_experiment_config(config_path)
    if seed is not None:
        if seed < 0:
            raise InputError(f"--seed must be 0 or more, not {seed}")
        config = config.model_copy(update={"compare": config.compare.model_copy(update={"seeds": (seed,)})})
    first = config.compare.seeds[0]
    runs = {run.name: run for run in list_comparison_runs(config) if run.seed == first}
    if arm is None and len(runs) > 1:
        raise InputError(f"has several arms; say which with --arm: {', '.join(runs)}", file=config_path)
    name = arm if arm is not None else next(iter(runs))
    if name not in runs:
        raise InputError(f"has no arm {name!r}; there are {', '.join(runs)}", file=config_path)
    return runs[name]


def run(args: Args) -> int:
    """Train, show progress, say how it ended. Exit code 1 for a run that went wrong (NaN, collapse), 130 for one that
    was stopped."""
    from rollonce.training import check_training_extra

    run_config = find_requested_run(args.config, args.arm, args.seed)
    check_training_extra()
    from rollonce.run_directory import INTERRUPTED
    from rollonce.training.engines import check_engine_can_run, train_on_engine

    check_engine_can_run(run_config)
    directory = Path(args.out or f"runs/{run_config.name}-seed{run_config.seed}")
    steps = run_config.train.steps
    print_remark(
        f"{run_config.name}, seed {run_config.seed}: {steps} steps of {run_config.train.rollouts} rollouts into "
        f"{directory}"
    )
    with Bars() as bars:
        result = train_on_engine(
            run_config,
            directory,
            on_step=lambda r: bars.report_progress(run_config.name, f"reward {r['reward']:.2f}", r["step"], steps),
        )
    if args.json:
        print_json_document({**result._asdict(), "directory": str(directory)})
    else:
        print(f"{result.status}: {result.message}")
        for label, value in (
            ("hold-out", result.holdout),
            ("test, sampled", result.test),
            ("test, greedy", result.test_greedy),
        ):
            if value is not None:
                print(f"  {label:<14} {value:.3f}")
        print(f"  everything in  {directory}")
    if result.status == INTERRUPTED:
        return 130
    return 0 if result.status == "done" else 1
