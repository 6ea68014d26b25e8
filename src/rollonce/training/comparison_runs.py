"""What every way of running a comparison shares, over processes (`rollonce.training.compare`) or a Ray cluster
(`rollonce.training.ray_cluster`): what is still to be run, how far it is, and what can be told before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rollonce.errors import InputError
from rollonce.files import write_json_file
from rollonce.run_directory import CONFIG_FILE, PLAN_FILE, ArmPlan, ComparisonPlan, path_of_run_folder
from rollonce.training.config import ExperimentConfig, RunConfig
from rollonce.training.devices import assign_run_devices, check_device_available
from rollonce.training.files import ensure_same_config, read_run_result
from rollonce.training.loading import list_comparison_runs


class Progress(NamedTuple):
    """Where a comparison stands.

    Attributes:
        done, total: Runs.
        steps_done, steps_total: Of all runs together.
        running: ``arm seed step reward`` of the runs at hand.
    """

    done: int
    total: int
    steps_done: int
    steps_total: int
    running: list[str]


class ComparisonOutcome(NamedTuple):
    """How a comparison ended.

    Attributes:
        done: Runs that have a result.
        errors: Sentences of those that could not run.
        interrupted: True if it was stopped before all were done.
    """

    done: int
    errors: list[str]
    interrupted: bool


def write_comparison_plan(config: ExperimentConfig, out: Path, runs: Sequence[RunConfig]) -> None:
    """``compare.json``: the arms as they are run, what they share, and the seeds."""
    arms: dict[str, ArmPlan] = {}
    for run in runs:
        arms[run.name] = {
            "arm": run.name.partition("@")[0],
            "baseline": run.arm.baseline if run.arm.critic is None else f"token-level critic ({run.arm.critic.kind})",
            "group_size": run.arm.group_size,
            "rollouts_per_step": run.train.rollouts,
            "learning_rate": run.learning_rate,
        }
    plan: ComparisonPlan = {
        "arms": arms,
        "seeds": list(config.compare.seeds),
        "steps": config.train.steps,
        "reference": config.compare.reference,
        "seed_means": "the order of tasks and the stream of samples; the start policy is the same for all",
        "config": config.model_dump(mode="json"),
    }
    write_json_file(out / PLAN_FILE, plan, make_parents=True)


def prepare_comparison(config: ExperimentConfig, out: Path) -> tuple[list[RunConfig], list[RunConfig]]:
    """All runs, and those that have no result yet; ``compare.json`` is written.

    Raises:
        InputError: a run there of another configuration, or a disk that is full.
    """
    runs = list_comparison_runs(config)
    for run in runs:
        directory = path_of_run_folder(out, run.name, run.seed)
        if (directory / CONFIG_FILE).exists():
            ensure_same_config(run, directory)
    write_comparison_plan(config, out, runs)
    return runs, [run for run in runs if read_run_result(path_of_run_folder(out, run.name, run.seed)) is None]


def check_comparison_start(config: ExperimentConfig, *, runs_here: bool = True) -> None:
    """Find out what no run could do, before anything starts; ``runs_here`` with the devices of this machine.

    Raises:
        InputError: tasks, policy or a baseline that cannot be had.
    """
    from rollonce.training.arms import ORACLE, TOKEN_BASELINES
    from rollonce.training.arms.baseline import make_arm_baseline
    from rollonce.training.engines import check_engine_can_run
    from rollonce.training.rolling import load_configured_tasks

    if runs_here and config.policy.engine != "tinker":
        assign_run_devices(config)
        check_device_available(config.policy.device)
    for run in list_comparison_runs(config):
        check_engine_can_run(run)
    splits = load_configured_tasks(config.tasks)
    for name, arm in config.arms.items():
        distinct = (arm.rollouts or config.train.rollouts) // arm.group_size
        if distinct > len(splits.train):
            raise InputError(f"arm {name!r} needs {distinct} different tasks a step, but there are {len(splits.train)}")
        if arm.critic is not None or arm.baseline in (ORACLE, *TOKEN_BASELINES):
            continue
        try:
            make_arm_baseline(arm, splits.train.as_feature_tasks())
        except InputError as error:
            raise InputError(f"arm {name!r}: {error}") from None
