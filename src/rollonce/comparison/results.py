"""What a comparison consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollonce.comparison.curves import CurvePoint, Reach
from rollonce.comparison.intervals import Crossed
from rollonce.comparison.rates import RateCurve
from rollonce.comparison.runs import LeftOut
from rollonce.files import convert_to_plain_json
from rollonce.scoring import Estimate


class ComparisonSettings(NamedTuple):
    """How a comparison is made.

    Attributes:
        reference: Arm to compare with; None: that of compare.json, or ``flashreinforce``, or the first.
        pairing: ``auto``, ``seed`` or ``none``; `analyse_comparison` says which it was.
        difference: A difference worth telling (0.02 is 2 points): for the number of seeds that it would take.
        power: The wanted chance of telling it.
        level: The level for "rollouts to reach"; None: half-way from the start to where the reference ends.
        drop: A run that ends this far below its start, and farther than the noise of its items, has collapsed.
        resamples, seed: Of the bootstrap.
    """

    reference: str | None = None
    pairing: str = "auto"
    difference: float = 0.02
    power: float = 0.8
    level: float | None = None
    drop: float = 0.05
    resamples: int = 2000
    seed: int = 0


class Times(NamedTuple):
    """Where an arm's time goes, evaluation apart.

    Attributes:
        total: Seconds of a whole run.
        per_step: Seconds a step of each part, mean over seeds.
        shares: The parts' shares of the total.
        ratio: Seconds a rollout over the reference's; NaN for the reference.
    """

    total: Estimate
    per_step: dict[str, float]
    shares: dict[str, float]
    ratio: Estimate


@dataclass(frozen=True)
class ArmSummary:
    """One arm on its own.

    Attributes:
        name, rate, how: Its name without the rate, its learning rate, and how that was chosen ("" if it was not).
        tasks_per_step, group_size: Of its batches; 0 where not said.
        seeds, steps: Its runs, and the steps they were meant to take.
        final: Final level by mode.
        by_seed: The same of each seed.
        iqm: Interquartile mean over seeds (sampled).
        start: Level before training (sampled); NaN where not evaluated.
        gain: Final minus start, paired by seed and item; None without a start.
        collapsed, n_collapsed: Share of runs that collapsed.
        area: Mean level along the curve.
        curve: The learning curve.
        times: Where time went.
        inside: Means of training metrics over the last quarter of the steps.
        shadow: Ratios to LOO of the baselines scored alongside.
        answer_truncated, answer_tokens: Of the final sampled answers.
    """

    name: str
    rate: float
    how: str
    tasks_per_step: float
    group_size: int
    seeds: list[int]
    steps: int
    final: dict[str, Crossed]
    by_seed: dict[str, list[float]]
    iqm: float
    start: float
    gain: Crossed | None
    collapsed: Estimate
    n_collapsed: int
    area: Crossed
    curve: list[CurvePoint]
    times: Times
    inside: dict[str, float]
    shadow: dict[str, Estimate]
    answer_truncated: float
    answer_tokens: float


@dataclass(frozen=True)
class Difference:
    """An arm minus the reference.

    Attributes:
        arm: Its name.
        paired: Whether differences were taken seed by seed.
        why: Why, or why not.
        final: By mode.
        p_holm: Holm's adjusted p of the final difference over all arms, by mode.
        iqm: Difference of interquartile means (sampled).
        bootstrap: Plain percentile interval of the mean difference (sampled); too short with few seeds.
        improvement: Chance that a run of this arm ends above one of the reference (sampled).
        area: Difference of the areas under the curves.
        seeds_needed: Seeds per arm for a true difference of `ComparisonSettings.difference` at .05 over the number of
            arms; None if items alone forbid it, or where nothing varied.
        smallest: The true difference that this many seeds tell with the wanted chance, at the same level; NaN where
            that is not known.
    """

    arm: str
    paired: bool
    why: str
    final: dict[str, Crossed]
    p_holm: dict[str, float]
    iqm: Estimate
    bootstrap: Estimate
    improvement: Estimate
    area: Crossed
    seeds_needed: int | None
    smallest: float


class FamilyCell(NamedTuple):
    """An arm on a family: final level, difference to the reference, and its p adjusted over the whole table (NaN for
    the reference)."""

    level: Estimate
    difference: Estimate
    p_holm: float


class FamilyRow(NamedTuple):
    family: str
    n_items: int
    start: float
    cells: dict[str, FamilyCell]


@dataclass(frozen=True)
class Analysis:
    """A comparison of arms.

    Attributes:
        directory, settings: Of what, and how.
        reference: The arm that others were compared with.
        modes, final_split, curve_split: What was evaluated, and which split final figures and curves are of.
        n_items: Of the final split.
        clock: ``cpu`` or ``wall``.
        arms, differences, families: See the classes; the reference comes first.
        shadow: Ratios to LOO over all runs.
        loo: Label of LOO among the shadow baselines, or "".
        reach: Rollouts and seconds to reach a level; None where there is no level to reach.
        rates: Learning-rate curves, for arms with a grid.
        n_runs, left_out, notes: Runs used; runs not used, and why; what a reader must know.
    """

    directory: str
    settings: ComparisonSettings
    reference: str
    modes: tuple[str, ...]
    final_split: str
    curve_split: str
    n_items: int
    clock: str
    arms: list[ArmSummary]
    differences: list[Difference]
    families: list[FamilyRow]
    shadow: dict[str, Estimate]
    loo: str
    reach: Reach | None
    rates: list[RateCurve]
    n_runs: int
    left_out: list[LeftOut] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def summary_of_arm(self, name: str) -> ArmSummary:
        return next(a for a in self.arms if a.name == name)

    def to_dict(self) -> dict[str, Any]:
        """As JSON: NaN and infinity become null."""
        return convert_to_plain_json(self)
