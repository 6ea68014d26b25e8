"""One policy, one set of tasks: sample, take gradients, and measure noise, progress and the surprisal's exponent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rollonce.baselines import Baseline
from rollonce.baselines.catalogue import named_baseline
from rollonce.errors import InputError
from rollonce.noise.contenders import default_contenders, gradient_sample, token_critic_contender
from rollonce.noise.exponent import SurprisalExponent, adam_squared_norms, fit_surprisal_exponent
from rollonce.noise.gradients import MAX_GRAM, Aggregation, Metric, ScoreGradients, score_gradients
from rollonce.noise.measure import measure_gradient_noise, noise_baselines, with_joint_column
from rollonce.noise.optimizers import OptimizerSettings
from rollonce.noise.progress import NoDirectionError, ProgressReport, measure_progress, refuse_too_few_tasks
from rollonce.noise.report import NoiseReport
from rollonce.noise.streams import Contender
from rollonce.rollouts import Rollouts
from rollonce.tasks import TaskSet, grade

TOKEN_CRITIC_ARM = "critic_token"
Tell = Callable[[str, str, int, int], None]


@dataclass(frozen=True)
class MeasurementSettings:
    """How a policy is measured.

    Attributes:
        rollouts: Of each task.
        batch_size: B.
        window: Rows of earlier steps for the baselines that keep any.
        batches: Common batches behind each value of the arithmetic noise.
        replications, steps: See `rollonce.noise.progress.measure_progress`.
        optimizer: Whose step progress is measured of.
        arms: Names of the catalogue to measure as well, ``critic_token`` among them.
        aggregation, metric, sketch, coordinates: See `rollonce.noise.gradients.score_gradients`.
        max_new_tokens, temperature: Of sampling.
        seed: Of everything random.
    """

    rollouts: int = 16
    batch_size: int = 32
    window: int = 512
    batches: int = 4000
    replications: int = 24
    steps: int = 60
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    arms: tuple[str, ...] = ()
    aggregation: Aggregation = "token"
    metric: Metric = "plain"
    sketch: int = 16384
    coordinates: int = 16_000
    max_new_tokens: int = 96
    temperature: float = 1.0
    seed: int = 0


class Measurement(NamedTuple):
    """Everything that was measured of one policy.

    Attributes:
        rollouts: The table, with log-probabilities.
        gradients: Of its rollouts.
        noise: The arithmetic noise of every baseline at one rollout per task.
        progress: Of the optimizer's step; None where the rollouts are another policy's, or too few for it (a note of
            ``noise`` says so).
        exponents: How squared gradient norms grow with the surprisal, plain and in Adam's metric.
        grader_failures: Rollouts that the grader failed on, in words; "" for none.
    """

    rollouts: Rollouts
    gradients: ScoreGradients
    noise: NoiseReport
    progress: ProgressReport | None
    exponents: list[SurprisalExponent]
    grader_failures: str


def measure_policy(
    policy: Any,
    tasks: TaskSet,
    settings: MeasurementSettings,
    *,
    baselines: Sequence[Baseline] = (),
    sampler: Any = None,
    like: ScoreGradients | None = None,
    tell: Tell = lambda *_: None,
) -> Measurement:
    """Sample ``settings.rollouts`` of every task and measure.

    Args:
        policy: Whose gradients; a `rollonce.policies.TransformersPolicy`.
        tasks: Graded tasks.
        settings: How.
        baselines: Fitted ones to measure besides the usual.
        sampler: An older policy that samples in its place; then progress is not measured.
        like: Gradients of another call whose metric to take.
        tell: Called with (what, detail, done, total).

    Raises:
        InputError: all rewards equal, an unknown arm, or anything that the measurements refuse.
    """
    s = settings
    named = [name for name in s.arms if name != TOKEN_CRITIC_ARM]
    extra = [(name, named_baseline(name)) for name in named]
    size_of_groups = max(
        g for g in range(1, max(2, min(8, s.rollouts, s.batch_size // 2) + 1)) if s.batch_size % g == 0
    )
    if sampler is None:  # before anything is sampled: gradients take minutes
        refuse_too_few_tasks(len(tasks), s.batch_size)
        for name, baseline in extra:
            if baseline.tags.needs_repeats:
                raise InputError(f"--arms {name} needs tasks that come again, and here every batch has other tasks")
            if baseline.tags.needs_groups and size_of_groups < 2:
                raise InputError(
                    f"--arms {name} needs groups, and with {s.rollouts} rollouts of a task no size from 2 to 8 divides "
                    f"a batch of {s.batch_size} into two groups or more: take another --batch-size"
                )
    every = [task for task in tasks for _ in range(s.rollouts)]
    tell("sampling", "", 0, 1)
    samples = (sampler or policy).sample(
        [t.prompt for t in every], max_new_tokens=s.max_new_tokens, temperature=s.temperature, generator=s.seed
    )
    tell("sampling", "", 1, 1)
    grades = grade(every, samples.texts, truncated=samples.truncated_B.tolist())
    failures = f"{grades.n_failed} of {len(every)} rollouts (reward 0): {grades.counts}" if grades.n_failed else ""
    log_probs_R, lengths_R = samples.log_probs_BT.double().sum(dim=1).numpy(), samples.lengths_B.double().numpy()
    table = make_rollouts_table(tasks, grades.rewards, log_probs_R, lengths_R, s.rollouts)
    if np.ptp(table.rewards_R) == 0:
        raise InputError(
            f"all {len(every)} rollouts earned {table.rewards_R[0]:g}: there is no noise to compare on these tasks"
        )
    # Inner products of so many rollouts of each task as fit: all of them but where a trained policy needs very many.
    fitting = max(2, min(s.rollouts, MAX_GRAM // len(tasks)))
    gram_rows = np.flatnonzero(np.arange(len(every)) % s.rollouts < fitting)
    if sampler is not None and fitting < s.rollouts:
        raise InputError(
            f"--lagged compares inner products, of which {MAX_GRAM} rollouts fit, not {len(every)}: fewer tasks or "
            "rollouts"
        )
    gradients = score_gradients(
        policy,
        samples,
        gram_rows=gram_rows,
        aggregation=s.aggregation,
        metric=s.metric,
        buckets=s.sketch,
        coordinates=s.coordinates,
        seed=s.seed,
        weights=like.weights if like is not None else None,
        progress=lambda done, total: tell("gradients", "", done, total),
    )
    exponents = fitted_exponents(table, gradients, s.seed) if sampler is None else []
    usual = [*noise_baselines(table, s.window, exponent_between_rewards(exponents)), *baselines]
    usual += [b.fit(table.tasks) for _, b in extra if not (b.tags.needs_groups or b.tags.needs_repeats)]
    noise_table = table
    if fitting < s.rollouts:
        noise_table = make_rollouts_table(
            tasks, [grades.rewards[i] for i in gram_rows], log_probs_R[gram_rows], lengths_R[gram_rows], fitting
        )
    noise = measure_gradient_noise(
        noise_table,
        gradients.gram_RR,
        usual,
        lengths_R=gradients.lengths_R[gram_rows],
        batch_size=s.batch_size,
        n_batches=s.batches,
        seed=s.seed,
        progress=lambda what, done, total: tell("noise", what, done, total),
    )
    if fitting < s.rollouts:
        note = (
            f"The arithmetic noise is of the first {fitting} rollouts of each task: inner products of more than "
            f"{MAX_GRAM:,} gradients do not fit. Progress and the exponent are of all {len(every):,}."
        )
        noise = noise._replace(notes=[note, *noise.notes])
    if sampler is not None:
        return Measurement(table, gradients, noise, None, [], failures)
    contenders = default_contenders(table, usual, s.batch_size)
    for _, baseline in extra:
        if baseline.tags.needs_groups:
            label = f"{baseline.label}, groups of {size_of_groups}"
            contenders.append(Contender(label, baseline, group_size=size_of_groups))
    if TOKEN_CRITIC_ARM in s.arms:
        options = {"aggregation": s.aggregation, "buckets": s.sketch, "coordinates": s.coordinates, "seed": s.seed}
        count = lambda done, total: tell("gradients of the critic's tokens", "", done, total)  # noqa: E731
        contenders.append(token_critic_contender(policy, samples, table, progress=count, **options))
    try:
        progress = measure_progress(
            table,
            gradient_sample(gradients),
            contenders,
            s.optimizer,
            batch_size=s.batch_size,
            replications=s.replications,
            steps=s.steps,
            seed=s.seed,
            progress=lambda what, done, total: tell(what, "", done, total),
        )
    except NoDirectionError as error:
        progress = None
        noise = noise._replace(notes=[f"Progress could not be measured: {error.message}.", *noise.notes])
    return Measurement(table, gradients, noise, progress, exponents, failures)


def exponent_between_rewards(exponents: Sequence[SurprisalExponent]) -> float | None:
    """The power between rewards in Adam's metric, to one digit and at most 4, for norm-weighted baselines; None where
    it was not measured."""
    value = next((e.between_rewards.value for e in exponents if e.metric == "adam"), float("nan"))
    return min(max(round(value, 1), 0.0), 4.0) if np.isfinite(value) else None


def fitted_exponents(table: Rollouts, gradients: ScoreGradients, seed: int) -> list[SurprisalExponent]:
    """In the plain metric and in Adam's, from the chosen parameters."""
    task_R = np.repeat(np.arange(table.n_tasks), table.group_sizes_N)
    kept_RD = gradients.coordinates_RD
    plain_R = gradients.squared_norms_R
    if gradients.weights is not None:  # those norms are in Adam's metric; the kept parameters' gradients are plain
        plain_R = np.einsum("rd,rd->r", kept_RD, kept_RD, dtype=np.float64)
    n_parameters = max(gradients.n_parameters, kept_RD.shape[1])
    norms = {"plain": plain_R, "adam": adam_squared_norms(kept_RD, n_parameters)}
    return [
        fit_surprisal_exponent(norms_R, gradients.surprisals_R, table.rewards_R, task_R, metric=metric, seed=seed)
        for metric, norms_R in norms.items()
    ]


def make_rollouts_table(
    tasks: TaskSet, rewards: Sequence[float], log_probs_R: np.ndarray, lengths_R: np.ndarray, g: int
) -> Rollouts:
    """Graded rollouts, ``g`` of each task in order, as a table with their summed log-probabilities and lengths (R,)."""
    known = tasks.as_feature_tasks()
    columns = with_joint_column({c: known.column(c).tolist() for c in known.column_names})
    groups = [rewards[i : i + g] for i in range(0, len(rewards), g)]
    return Rollouts.from_groups(
        groups,
        known.prompts,
        task_ids=[str(t) for t in known.task_ids],
        columns=columns,
        name=tasks.name,
        log_probs=[log_probs_R[i : i + g] for i in range(0, len(rewards), g)],
        lengths=[lengths_R[i : i + g] for i in range(0, len(rewards), g)],
    )


__all__ = [
    "TOKEN_CRITIC_ARM",
    "Measurement",
    "MeasurementSettings",
    "fitted_exponents",
    "make_rollouts_table",
    "measure_policy",
]
