"""The board of a table of rollouts: every baseline's score, ranked, with what stands apart standing apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from rollonce.baselines import Baseline, LeaveOneOut, LinearSmoother, published_tfidf
from rollonce.baselines.catalogue import default_board_baselines
from rollonce.errors import InputError
from rollonce.files import convert_to_plain_json
from rollonce.rollouts import Rollouts
from rollonce.scoring.crossfit import FOLDS, CrossFitted, cross_fit_baseline
from rollonce.scoring.estimator import Scorer
from rollonce.scoring.groups import GroupScore, score_group_baselines
from rollonce.scoring.moments import Moments, effective_batch_of_loo, moments
from rollonce.scoring.rows import norm_weighted_exponent
from rollonce.scoring.score import Score
from rollonce.scoring.step_prediction import StepPrediction, StepPredictor, exponents_to_predict, join_over_exponents

CURVE_SIZES = (8, 16, 32, 64, 128)
NO_LOG_PROBS = (
    "These rollouts carry no log-probabilities, from which the progress of a step would be predicted: log their sum "
    "for each rollout as log_prob (`rollonce collect` does)."
)


@dataclass
class Board:
    """Scores of many baselines on one table.

    Attributes:
        name: The table's name; ``source`` its file.
        batch_size: B.
        moments: s2, tau2, SNR.
        scores: Baselines that work at one rollout per task, best ratio first.
        apart: Those that need repeats or extra rollouts (trackers, the oracle): ceilings, not choices.
        groups: RLOO / GRPO at the same number of rollouts.
        curve: B_eff against batch size, label -> [(B, B_eff)].
        difficulty: Task means (N,), for the histogram.
        notes: Sentences that the reader must know (windows cut short, no repeats, equal rewards ...).
        settings: How it was computed: batches, resamples, seed, window.
        steps: What is predicted of a training step, label -> a prediction for each exponent; empty without
            log-probabilities.
    """

    name: str
    source: str
    batch_size: int
    moments: Moments
    scores: list[Score]
    apart: list[Score]
    groups: list[GroupScore]
    curve: dict[str, list[tuple[int, float]]]
    difficulty: list[float]
    notes: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, list[StepPrediction]] = field(default_factory=dict)

    @property
    def loo(self) -> Score | None:
        """The in-batch leave-one-out mean, the yardstick."""
        return next((s for s in self.scores if s.label == LeaveOneOut().label), None)

    @property
    def best(self) -> Score:
        """The best baseline that works at one rollout per task."""
        return self.scores[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; NaN and infinities become null."""
        return convert_to_plain_json(self)


def score_rollouts(
    rollouts: Rollouts,
    *,
    baselines: Sequence[Baseline] | None = None,
    fitted: Sequence[Baseline] = (),
    batch_size: int = 32,
    window: int = 512,
    n_batches: int = 2000,
    resamples: int = 100,
    seed: int = 0,
    held_out: float = 0.0,
    exponent: float | None = None,
    leave_out: bool | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    on_score: Callable[[Score], None] | None = None,
) -> Board:
    """Score baselines on a table of rollouts.

    One that learns from rewards (``fit_rewards``) is cross-fitted: a task is scored with what single rollouts of other
    tasks taught it.

    Args:
        rollouts: The table.
        baselines: What to fit on the prompts and score; `rollonce.baselines.catalogue.default_board_baselines` by
            default. The LOO mean is always there.
        fitted: What to score as well, as it was fitted: baselines read from files.
        batch_size: B.
        window: Rows of history for the windowed defaults.
        n_batches, resamples, seed: See `Scorer`.
        held_out: With a fraction in (0, 1): features are fitted on the other tasks and only this fraction is scored as
            targets. What learns from rewards is left out then.
        exponent: Of the surprisal, as `rollonce noise` measures it, for rollouts with log-probabilities; without it
            progress is predicted for 1 and for 2, and a note says where the two disagree.
        leave_out: Whether a baseline that cannot be fitted is left out with a note; by default so with the defaults.
        progress: Called with (label, done, total).
        on_score: Called with each score as it comes, in the order of the baselines.

    Raises:
        InputError: if no batch can be drawn from the table, or one of ``baselines`` cannot be fitted on it.
    """
    tasks = rollouts.tasks
    targets, fit_on = None, tasks
    if held_out:
        order = np.random.default_rng([seed, 7]).permutation(rollouts.n_tasks)
        n_held = max(1, round(held_out * rollouts.n_tasks))
        targets, fit_on = order[:n_held], tasks.take(order[n_held:])
    scorer = Scorer(rollouts, batch_size, n_batches, resamples, seed=seed, targets=targets)
    chosen = (
        list(baselines)
        if baselines is not None
        else default_board_baselines(tasks, window, norm_weighted_exponent(rollouts, exponent))
    )
    leave_out = baselines is None if leave_out is None else leave_out
    if not any(isinstance(b, LeaveOneOut) and not b.window for b in chosen):
        chosen.insert(0, LeaveOneOut())
    if not scorer.has_repeats:
        chosen = [b for b in chosen if not b.tags.needs_repeats]
    # Its own scorer: each fold needs its own solves, and batches that share their window share them.
    few, fewer = min(n_batches, 600), min(resamples, 24)
    crossfit_scorer = scorer.copy_with_settings(
        n_batches=few, resamples=fewer, n_batches_expensive=few, shared_windows=True
    )
    predictor, why_not = _make_step_predictor(scorer, exponent)
    steps: dict[str, list[StepPrediction]] = {}
    total = len(chosen) + len(fitted)
    scores: list[Score] = []
    served: dict[str, Baseline | CrossFitted] = {}
    fits: dict[str, CrossFitted] = {}
    left_out: list[str] = []
    for i, baseline in enumerate([*chosen, *fitted]):
        if progress:
            progress(baseline.label, i, total)
        ready: Baseline | CrossFitted = baseline
        try:
            if i >= len(chosen):
                pass
            elif hasattr(baseline, "fit_rewards"):
                ready = _cross_fitted_or_refused(baseline, rollouts, seed, held_out, fits)
            else:
                baseline.fit(fit_on)
        except InputError as error:
            if not leave_out:
                raise
            left_out.append(f"{baseline.label} was left out: {error}")
            continue
        score = (crossfit_scorer if isinstance(ready, CrossFitted) else scorer).score_baseline(ready)
        if predictor is not None and not score.needs:
            steps[score.label] = predictor.predict_step_progress(ready)
            of_step, equivalent = join_over_exponents(steps[score.label])
            score = score._replace(progress=of_step, equivalent_batch=equivalent)
        served[score.label] = ready
        scores.append(score)
        if on_score:
            on_score(score)
    if progress:
        progress("", total, total)
    usable = sorted(
        (s for s in scores if not s.needs), key=lambda s: -s.ratio.value if np.isfinite(s.ratio.value) else np.inf
    )
    m = moments(rollouts, seed=seed)
    best = next((s for s in usable if np.isfinite(s.b_eff.value)), None)
    notes = _notes_on_the_board(rollouts, scorer, m, usable, held_out) + left_out
    if any(isinstance(b, CrossFitted) for b in served.values()):
        notes.append(
            "The self-tuning baseline was cross-fitted: a task is scored with what single rollouts of other tasks "
            "taught it."
        )
    notes += _notes_on_the_step(steps, exponent, why_not)
    return Board(
        name=rollouts.name,
        source=rollouts.source,
        batch_size=batch_size,
        moments=m,
        scores=usable,
        apart=[s for s in scores if s.needs],
        groups=score_group_baselines(rollouts, batch_size, best.b_eff.value) if best else [],
        curve=_curve_over_batch_sizes(scorer, m, served, usable) if best else {},
        difficulty=[float(x) for x in rollouts.means_N],
        notes=notes,
        settings={
            "n_batches": n_batches,
            "resamples": resamples,
            "seed": seed,
            "window": window,
            "held_out": held_out,
            "exponent": exponent,
        },
        steps=steps,
    )


def _make_step_predictor(scorer: Scorer, exponent: float | None) -> tuple[StepPredictor | None, str]:
    """The predictor of training steps, or why there is none."""
    if np.ptp(scorer.rollouts.rewards_R) == 0:
        return None, ""
    if scorer.rollouts.log_probs_R is None:
        return None, NO_LOG_PROBS
    try:
        return StepPredictor(scorer, exponents_to_predict(exponent)), ""
    except InputError as error:
        return None, f"What a training step feels is not predicted: {error.message}."


def _notes_on_the_step(steps: dict[str, list[StepPrediction]], exponent: float | None, why_not: str) -> list[str]:
    """Why steps are not predicted, or where the two exponents disagree about one."""
    if why_not or exponent is not None or not steps:
        return [why_not] if why_not else []
    split = [
        label
        for label, (one, two) in steps.items()
        if (one.progress.value - 1) * (two.progress.value - 1) < 0
        and max(_distance_from_loo(one), _distance_from_loo(two)) > 0.01
    ]
    note = (
        "The exponent of the surprisal was not measured for this policy (rollonce noise --save exponent.json, then "
        "--exponent exponent.json): progress is predicted for 1 and for 2"
    )
    return [
        f"{note}. They disagree about {', '.join(split)}." if split else f"{note}, which agree about every baseline."
    ]


def _distance_from_loo(prediction: StepPrediction) -> float:
    return abs(float(np.log(prediction.progress.value)))


def _cross_fitted_or_refused(
    baseline: Baseline, rollouts: Rollouts, seed: int, held_out: float, fits: dict[str, CrossFitted]
) -> CrossFitted:
    """The baseline cross-fitted; of smoothers that differ by their window alone, one is fitted (``fits``)."""
    n_prompts = len(np.unique(rollouts.tasks.prompt_keys))
    if held_out:
        raise InputError("it learns from rewards and is cross-fitted over all tasks, so it has no held-out score")
    if n_prompts < 2 * FOLDS or np.ptp(rollouts.rewards_R) == 0:
        raise InputError(
            f"it learns from rewards, and cross-fitting needs rewards that differ and at least {2 * FOLDS} different "
            f"prompts; here are {n_prompts}"
        )
    if not isinstance(baseline, LinearSmoother):
        return cross_fit_baseline(baseline, rollouts, seed=seed)
    name = str(baseline.config() | {"window": 0})
    if name not in fits:
        fits[name] = cross_fit_baseline(baseline, rollouts, seed=seed)
    fitted = fits[name]
    return fitted if fitted.window == baseline.window else fitted.copy_with_window(baseline.window)


def _curve_over_batch_sizes(
    scorer: Scorer, m: Moments, served: dict[str, Baseline | CrossFitted], usable: list[Score]
) -> dict[str, list[tuple[int, float]]]:
    """B_eff against batch size: the LOO mean in closed form; the published kernel, the best in-batch baseline and the
    best of all by simulation."""
    sizes = [b for b in CURVE_SIZES if b <= scorer.n_tasks]
    curve: dict[str, list[tuple[int, float]]] = {"perfect": [(b, float(b)) for b in sizes]}
    curve[LeaveOneOut().label] = [(b, effective_batch_of_loo(m.snr.value, b)) for b in sizes]
    wanted = [
        published_tfidf().label,
        *[s.label for s in usable if not s.window and not s.scored_as][:1],
        usable[0].label,
    ]
    for label in dict.fromkeys(wanted):
        if label in served and label not in curve:
            shared = isinstance(served[label], CrossFitted)
            # Of what is cross-fitted each batch costs a solve for each fold.
            n_batches = 200 if shared else 300
            at_size = partial(scorer.copy_with_settings, n_batches=n_batches, targets=None, shared_windows=shared)
            curve[label] = [(b, at_size(batch_size=b).effective_batch_size(served[label])) for b in sizes]
    return curve


def _notes_on_the_board(
    rollouts: Rollouts, scorer: Scorer, m: Moments, usable: list[Score], held_out: float
) -> list[str]:
    notes = []
    if not scorer.has_repeats:
        notes.append(
            "Every task has a single rollout, so within-task noise (s2) and absolute B_eff cannot be known; "
            "baselines are ranked by E[A^2], whose ratio to LOO is the ratio of their B_eff. "
            "Sample some tasks twice or more for the level."
        )
    elif m.s2.value == 0:
        notes.append(
            "All rollouts of each task earned the same reward, so s2 = 0 and B_eff is 0 for every baseline that errs "
            "at all: there is no sampling noise to compare with. Check the reward, or sample at a higher temperature."
        )
    elif m.n_repeated < m.n_tasks:
        notes.append(
            f"{m.n_tasks - m.n_repeated} of {m.n_tasks} tasks have a single rollout; s2 is taken from the other "
            f"{m.n_repeated}."
        )
    if np.ptp(rollouts.rewards_R) == 0:
        notes.append(
            f"All {rollouts.n_rollouts} rewards are {rollouts.rewards_R[0]:g}: nothing can be learned or compared."
        )
    if scorer.has_repeats and m.tau2.value <= 0 < m.s2.value:
        notes.append(
            "The tasks' means differ no more than by chance (tau2 <= 0): the batch mean is already as good as any "
            "baseline can be."
        )
    cut = [s for s in usable if s.window < s.window_asked]
    if cut:
        notes.append(
            f"A window of {cut[0].window_asked} rows was asked for, but {m.n_tasks} tasks less a batch of "
            f"{scorer.batch_size} leave {cut[0].window} other tasks; that many were used."
        )
    if rollouts.tasks.ids_tell_apart:
        notes.append(
            "Many tasks have one prompt, so they are told apart by their ids; what reads the prompt alone can do no "
            "better there than the batch mean. A column that differs between them would help (--columns)."
        )
    if m.same_prompt:
        notes.append(
            f"{m.same_prompt} tasks share their prompt with another task id; windows never hold a task's own prompt."
        )
    if held_out:
        notes.append(f"Features were fitted on {1 - held_out:.0%} of the tasks and scored on the other {held_out:.0%}.")
    if rollouts.skipped:
        notes.append(f"{rollouts.n_skipped} bad rows were skipped; the first: {rollouts.skipped[0]}")
    return notes
