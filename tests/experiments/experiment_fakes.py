"""An engine that trains nothing, in no time: tasks of two colours, one easy and one hard; every rollout follows from
its seed."""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollonce.baselines import Batch
from rollonce.experiments.advantages import make_advantage_baseline
from rollonce.experiments.derive import ExperimentSettings, derive_settings
from rollonce.experiments.engine import (
    Answer,
    ExperimentTasks,
    FreshClient,
    Probe,
    Progress,
    StageFailed,
    StartPolicy,
    StepLog,
    TrainedArm,
    largest_difference,
)
from rollonce.experiments.ledger import Ledger
from rollonce.experiments.loading import LoadedSpec, load_specification
from rollonce.experiments.preflight import OwnPath
from rollonce.experiments.run import ExperimentRun
from rollonce.experiments.spec import ArmSpec, Spec
from rollonce.tasks import Task, TaskSet, find_grader_by_name

SPECS = Path(__file__).parents[2] / "specs"
SEED_SPEC = SPECS / "gs1_vs_grpo_gsm8k.spec.json"
EXACT = find_grader_by_name("exact")


def small_spec(**changes: Any) -> dict[str, Any]:
    """The local twin cut down: 8 rollouts a step, 3 steps, 24 items. Keys with dots go inwards (lists by number)."""
    spec = json.loads((SPECS / "local_twin.spec.json").read_text())
    spec["batch_size"], spec["steps"], spec["eval"]["n_examples"] = 8, 3, 24
    for arm, group in zip(spec["arms"], (4, 1), strict=True):
        arm.update(group_size=group, groups_per_batch=8 // group, steps=3)
    for check in spec["activation_gate"]["checks"]:
        if check["metric"] == "executed_rollouts_per_step":
            check.update(min=8, max=8)
        if check["metric"] == "executed_group_size_grpo":
            check.update(min=4, max=4)
        if check["metric"] == "nonzero_advantage_fraction_gs1":
            check.update(min=0.1)
    spec["rollonce"].update(calibration_tasks=32, calibration_group_size=6, pilot_steps=2, pilot_eval_items=5)
    spec["activation_gate"]["reason"] = "test"
    spec["preflight"] = {"tuning": "none"}
    for key, value in changes.items():
        put(spec, key, value)
    return spec


def put(document: dict[str, Any], path: str, value: Any) -> None:
    """Set ``a.0.b``."""
    *way, last = path.split(".")
    at: Any = document
    for key in way:
        at = at[int(key)] if isinstance(at, list) else at[key]
    at[int(last) if isinstance(at, list) else last] = value


def write_spec(folder: Path, document: dict[str, Any], name: str = "small.spec.json") -> LoadedSpec:
    """On disk, and loaded."""
    path = folder / name
    path.write_text(json.dumps(document))
    return load_specification(path)


def colour_tasks(n: int, start: int, name: str) -> TaskSet:
    """Half easy, half hard; prompts of one colour share all words but a number."""
    words = ("red apples in the basket, count", "blue engines on the hill, weigh")
    return TaskSet([Task(f"{name}{i}", f"{words[i % 2]} {start + i}", str(i), EXACT) for i in range(n)], name)


def chance(task_id: str, *more: object) -> float:
    """A number in [0, 1) that follows from a text alone."""
    return float(np.random.default_rng([zlib.crc32(repr((task_id, *more)).encode())]).random())


class FakeEngine:
    """See the module. ``tick`` is called with what is about to happen."""

    name = "fake"

    def __init__(
        self, spec: Spec, settings: ExperimentSettings, tick: Callable[[str], None] = lambda what: None
    ) -> None:
        self.spec, self.settings, self.tick = spec, settings, tick
        self.path = OwnPath()
        self.easy, self.hard, self.step_seconds = 0.9, 0.1, 0.01
        self.skill = {"grpo_g8": 0.5, "gs1_tfidf_g1": 0.5}
        self.drift: dict[str, float] = {}
        self.late_drift: dict[str, float] = {}
        self.compares_its_start = True
        self.optimizer_change: dict[str, Any] = {}
        self.probe_change: dict[str, Any] = {}
        self.adapter_change: dict[str, Any] = {}
        self.slow_items: set[str] = set()

    def describe_identity(self) -> dict[str, Any]:
        return {"engine": "fake"}

    def load_experiment_tasks(self) -> ExperimentTasks:
        train, calibration, test = (
            colour_tasks(40, 0, "train"),
            colour_tasks(32, 1000, "cal"),
            colour_tasks(24, 2000, "test"),
        )
        selection = colour_tasks(self.settings.selection_tasks, 3000, "sel")
        labels = [(t, t.reference) for t in train]
        return ExperimentTasks(train, train, calibration, test, labels, selection)

    def reward(self, task: Task, *seed: object) -> float:
        return float(chance(task.id, *seed) < (self.easy if task.prompt.startswith("red") else self.hard))

    def sample_task_groups(self, tasks: Sequence[Task], group_size: int, seed: int) -> list[list[Answer]]:
        self.tick("sample")
        return [[Answer(self.reward(t, seed, k), False, 3) for k in range(group_size)] for t in tasks]

    def count_prompt_tokens(self, prompts: Sequence[str]) -> list[int]:
        return [len(p.split()) for p in prompts]

    def _start(self, arm: ArmSpec, prompts: Sequence[str]) -> list[list[float]]:
        return [[-1.0 + self.drift.get(arm.name, 0.0), -2.0] for _ in prompts]

    def _adam(self, arm: ArmSpec) -> dict[str, Any]:
        return {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "learning_rate": arm.lr} | self.optimizer_change

    def measure_fresh_client(self, arm: ArmSpec, prompts: Sequence[str]) -> FreshClient:
        return FreshClient(self._start(arm, prompts), {"lora_rank": None, "seed": arm.seed} | self.adapter_change)

    def probe_arm_training(self, arm: ArmSpec, tasks: Sequence[Task]) -> Probe:
        self.tick(f"probe {arm.name} {len(tasks)}")
        return Probe(len(tasks), 3 * len(tasks), 0.1, 0.0, self._adam(arm) | self.probe_change, 0.01)

    def train_or_resume_arm(
        self,
        arm: ArmSpec,
        steps: int,
        directory: Path,
        *,
        progress: Progress,
        ledger: Ledger,
        start: StartPolicy | None,
    ) -> TrainedArm:
        directory.mkdir(parents=True, exist_ok=True)
        if start is not None:
            own = [[x + self.late_drift.get(arm.name, 0.0) for x in row] for row in self._start(arm, start.prompts)]
            difference = largest_difference(own, start.log_probs)
            if difference is None or difference > start.atol:
                raise StageFailed(f"the training client of {arm.name} starts elsewhere")
        name = directory.relative_to(ledger.directory).as_posix()
        log, train = f"{name}/log.jsonl", self.load_experiment_tasks().train
        baseline = make_advantage_baseline(self.spec, arm.advantage).fit(train.prompts)
        done = len(list(ledger.read_noted_lines(log)))
        for step in range(done + 1, steps + 1):
            self.tick(f"train {arm.name} {step}")
            order = np.random.default_rng([arm.seed, step]).permutation(len(train))[: arm.groups_per_batch]
            tasks = [train[int(i)] for i in order for _ in range(arm.group_size)]
            rewards = [self.reward(t, arm.name, step, k) for k, t in enumerate(tasks)]
            batch = Batch.of([t.prompt for t in tasks], rewards, task_ids=[t.id for t in tasks])
            b = baseline.predict(batch).baseline_B
            row = StepLog(
                step=step,
                task_ids=[t.id for t in tasks],
                rewards=rewards,
                baselines=b.tolist(),
                advantages=(batch.rewards_B - b).tolist(),
                group_size=arm.group_size,
                learning_rate=arm.lr,
                seconds=self.step_seconds,
                self_weight_max=0.0,
                response_tokens=3 * len(tasks),
                prompt_tokens=7 * len(tasks),
            )
            ledger.append_noted_line(log, row._asdict())
            progress(arm.name, "steps", step, steps)
        (directory / "weights").write_text(arm.name)
        optimizer = {k: [v] for k, v in self._adam(arm).items()}
        rows = [StepLog(**row) for row in ledger.read_noted_lines(log)]
        weights = str(directory / "weights")
        compared = 0.0 if self.compares_its_start and start is not None else None
        return TrainedArm(rows, weights, f"fake {arm.name}", [], optimizer, compared, [weights])

    def discard_weights(self, directory: Path) -> None:
        (directory / "weights").unlink(missing_ok=True)

    def answer_greedily(self, checkpoint: str, tasks: Sequence[Task]) -> list[Answer]:
        self.tick("answer")
        if any(t.id in self.slow_items for t in tasks):
            import time

            time.sleep(5)
        arm = Path(checkpoint).read_text().strip()
        return [Answer(float(chance(t.id, arm) < self.skill[arm]), False, 4) for t in tasks]


def open_run(
    loaded: LoadedSpec, directory: Path, tick: Callable[[str], None] = lambda what: None, **options: Any
) -> tuple[ExperimentRun, FakeEngine]:
    """A run with a fake engine."""
    settings = derive_settings(loaded.spec)
    engine = FakeEngine(loaded.spec, settings, tick)
    directory.mkdir(parents=True, exist_ok=True)
    return ExperimentRun(loaded, settings, engine, directory, **options), engine


def deep(document: dict[str, Any]) -> dict[str, Any]:
    """A copy to change."""
    return copy.deepcopy(document)
