"""Arms against a reference arm: everything that the report shows, computed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rollonce.comparison.curves import (
    Reach,
    area_under_curve,
    common_evaluation_steps,
    make_learning_curve,
    measure_reach_of_level,
    ratio_of_means,
)
from rollonce.comparison.intervals import (
    Components,
    Crossed,
    bootstrap_difference,
    count_seeds_needed,
    crossed_difference,
    crossed_mean,
    holm_adjusted_p_values,
    interquartile_mean,
    mean_over_seeds,
    probability_of_improvement,
    share_with_interval,
    smallest_difference,
)
from rollonce.comparison.rates import choose_learning_rates, compute_rate_curves, has_run_collapsed
from rollonce.comparison.reading import Item
from rollonce.comparison.results import (
    Analysis,
    ArmSummary,
    ComparisonSettings,
    Difference,
    FamilyCell,
    FamilyRow,
    Times,
)
from rollonce.comparison.runs import FinishedRun, Runs
from rollonce.comparison.shadow import compute_shadow_ratios, find_loo_label
from rollonce.errors import InputError
from rollonce.rollouts import FloatArray
from rollonce.run_directory import PARTS
from rollonce.scoring import Estimate

INSIDE = (
    "entropy",
    "kl",
    "truncated",
    "dead_groups",
    "baseline_outcome_correlation",
    "advantage_var",
    "grad_norm",
    "tokens",
)
"""What of the metrics is shown per arm, as a mean over the last quarter of the steps."""


def analyse_comparison(runs: Runs, settings: ComparisonSettings | None = None) -> Analysis:
    """Compare arms.

    Raises:
        InputError: for settings that make no sense, or an unknown reference.
    """
    settings = settings or ComparisonSettings()
    _check_comparison_settings(settings)
    return _Comparison(runs, settings).compute_analysis()


def _check_comparison_settings(settings: ComparisonSettings) -> None:
    if settings.pairing not in ("auto", "seed", "none"):
        raise InputError(f"pairing is auto, seed or none, not {settings.pairing!r}")
    if not 0 < settings.difference < 1:
        raise InputError(
            f"the difference to tell is a share between 0 and 1 (0.02 is 2 points), not {settings.difference:g}"
        )
    if not 0.5 <= settings.power < 1:
        raise InputError(f"the power is a chance from 0.5 to below 1, not {settings.power:g}")
    if settings.level is not None and not 0 <= settings.level <= 1:
        raise InputError(f"the level to reach is a share from 0 to 1 (0.4 is 40%), not {settings.level:g}")
    if not settings.drop > 0:
        raise InputError(f"the drop of a collapse must be above 0, not {settings.drop:g}")
    if settings.resamples < 100:
        raise InputError(f"at least 100 resamples, not {settings.resamples}")
    if settings.seed < 0:
        raise InputError(f"the bootstrap's seed must be at least 0, not {settings.seed}")


class _Comparison:
    """One comparison while it is computed."""

    def __init__(self, runs: Runs, settings: ComparisonSettings) -> None:
        self.runs, self.settings = runs, settings
        self.mode = runs.modes[0]
        self.kind = (self.mode, runs.final_split)
        self.curve_kind = (self.mode, runs.curve_split)
        self.chosen, self.how = choose_learning_rates(runs, self.mode)
        self.reference = _choose_reference_arm(self.chosen, settings.reference, runs.config)
        order = [self.reference, *(b for b in self.chosen if b != self.reference)]
        self.arms = {base: runs.arms[self.chosen[base]] for base in order}
        self.all = [r for arm_runs in self.arms.values() for r in arm_runs]
        self.steps = common_evaluation_steps(self.all, self.curve_kind)
        whole = runs.config.get("config")
        policy = whole.get("policy") if isinstance(whole, dict) else None
        policy = policy if isinstance(policy, dict) else {}
        on_cpu = str(policy.get("device", "cpu")).startswith("cpu") and policy.get("engine", "local") != "tinker"
        self.clock = "cpu" if on_cpu else "wall"

    def compute_analysis(self) -> Analysis:
        runs = self.runs
        loo = find_loo_label(self.all)
        arms = [self._summarise_one_arm(base, loo) for base in self.arms]
        differences = self._compare_with_reference()
        return Analysis(
            directory=runs.directory,
            settings=self.settings,
            reference=self.reference,
            modes=runs.modes,
            final_split=runs.final_split,
            curve_split=runs.curve_split,
            n_items=len(runs.items[self.kind]),
            clock=self.clock,
            arms=arms,
            differences=differences,
            families=self._compare_by_family(),
            shadow=compute_shadow_ratios(self.all, loo) if loo else {},
            loo=loo or "",
            reach=self._compute_level_reach(arms[0]),
            rates=compute_rate_curves(runs, self.mode, self.reference, self.settings.drop),
            n_runs=sum(map(len, runs.arms.values())),
            left_out=runs.left_out,
            notes=self._write_reader_notes(arms, differences),
        )

    def _plan_entry_of_arm(self, base: str) -> dict[str, Any]:
        return self.runs.config["arms"].get(self.chosen[base], {})

    def _final_levels_of_runs(self, arm_runs: Sequence[FinishedRun], mode: str) -> FloatArray:
        return np.array([r.final_item_levels(mode, self.runs.final_split) for r in arm_runs])

    # One arm
    # ------------------------------------------------------------------------------------------------------------------

    def _summarise_one_arm(self, base: str, loo: str | None) -> ArmSummary:
        arm_runs, entry = self.arms[base], self._plan_entry_of_arm(base)
        finals = {m: self._final_levels_of_runs(arm_runs, m) for m in self.runs.modes}
        starts = [
            r.series[self.kind].levels_EI[0]
            for r in arm_runs
            if r.series[self.kind].at_E[0] == 0 and len(r.series[self.kind].at_E) > 1
        ]
        has_start = len(starts) == len(arm_runs)
        n_bad = sum(has_run_collapsed(r, self.kind, self.settings.drop) for r in arm_runs)
        group, rollouts = entry.get("group_size"), entry.get("rollouts_per_step")
        group = group if isinstance(group, int) and group > 0 else 0
        return ArmSummary(
            name=base,
            rate=self.runs.learning_rate_of_arm(self.chosen[base]),
            how=self.how[base],
            tasks_per_step=rollouts / group if group and isinstance(rollouts, int | float) else 0,
            group_size=group,
            seeds=[r.seed for r in arm_runs],
            steps=max(r.steps for r in arm_runs),
            final={m: crossed_mean(v) for m, v in finals.items()},
            by_seed={m: v.mean(axis=1).tolist() for m, v in finals.items()},
            iqm=float(interquartile_mean(finals[self.mode].mean(axis=1))),
            start=float(np.mean(starts)) if has_start else math.nan,
            gain=crossed_mean(finals[self.mode] - np.array(starts)) if has_start else None,
            collapsed=share_with_interval(n_bad, len(arm_runs)),
            n_collapsed=n_bad,
            area=crossed_mean(self._areas_under_curves(arm_runs)),
            curve=make_learning_curve(arm_runs, self.curve_kind, self.steps, self.clock),
            times=self._summarise_times(base),
            inside={
                name: _mean_of_last_quarter(arm_runs, name)
                for name in INSIDE
                if any(name in r.metrics.values for r in arm_runs)
            },
            shadow=compute_shadow_ratios(arm_runs, loo) if loo else {},
            answer_truncated=_mean_of_finite_values([r.truncated for r in arm_runs]),
            answer_tokens=_mean_of_finite_values([r.tokens for r in arm_runs]),
        )

    def _areas_under_curves(self, arm_runs: Sequence[FinishedRun]) -> FloatArray:
        return np.array([area_under_curve(r, self.curve_kind, self.steps) for r in arm_runs])

    def _summarise_times(self, base: str) -> Times:
        def seconds_by_part(run: FinishedRun) -> dict[str, float]:
            seconds = run.metrics.cpu if self.clock == "cpu" else run.metrics.wall
            return {p: float(v.sum()) for p, v in seconds.items()}

        def seconds_per_rollout(arm_runs: Sequence[FinishedRun]) -> FloatArray:
            return np.array(
                [
                    sum(seconds_by_part(r).values()) / r.metrics.rollouts_T[-1]
                    for r in arm_runs
                    if len(r.metrics.rollouts_T)
                ]
            )

        arm_runs = [r for r in self.arms[base] if len(r.metrics.steps_T)]
        sums = [seconds_by_part(r) for r in arm_runs]
        whole = sum(sum(p.values()) for p in sums)
        n_steps = sum(len(r.metrics.steps_T) for r in arm_runs)
        ratio = Estimate(math.nan, math.nan, math.nan)
        if base != self.reference:
            ratio = ratio_of_means(seconds_per_rollout(arm_runs), seconds_per_rollout(self.arms[self.reference]))
        return Times(
            mean_over_seeds([sum(p.values()) for p in sums]),
            {name: sum(p[name] for p in sums) / max(n_steps, 1) for name in PARTS},
            {name: sum(p[name] for p in sums) / whole if whole else math.nan for name in PARTS},
            ratio,
        )

    # Against the reference
    # ----------------------------------------------------------------------------------------------------

    def _decide_seed_pairing(self, base: str) -> tuple[bool, str]:
        """Whether the same seed makes an arm and the reference alike, and why."""
        mine, other = {r.seed for r in self.arms[base]}, {r.seed for r in self.arms[self.reference]}
        if self.settings.pairing == "none":
            return False, "seeds are not paired, as asked for"
        if len(mine & other) < 2:
            return False, "seeds are not paired: the arms share fewer than two"
        if self.settings.pairing == "seed":
            return True, "paired by seed, as asked for"
        entries = [self._plan_entry_of_arm(base), self._plan_entry_of_arm(self.reference)]
        sizes = [(e.get("group_size", 1), e.get("rollouts_per_step")) for e in entries]
        if sizes[0] != sizes[1]:
            return (
                False,
                "seeds are not paired: with other group sizes the same seed meets other tasks at the same step",
            )
        return (
            True,
            "paired by seed: the same seed means the same tasks in the same order, and the same stream of samples",
        )

    def _arm_and_reference_tables(
        self, base: str, paired: bool, of: Callable[[Sequence[FinishedRun]], FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        mine, other = self.arms[base], self.arms[self.reference]
        if paired:
            both = {r.seed for r in mine} & {r.seed for r in other}
            mine, other = [r for r in mine if r.seed in both], [r for r in other if r.seed in both]
        return of(mine), of(other)

    def _compare_with_reference(self) -> list[Difference]:
        modes, others = self.runs.modes, [b for b in self.arms if b != self.reference]
        pairing = {b: self._decide_seed_pairing(b) for b in others}
        final = {
            b: {
                m: crossed_difference(
                    *self._arm_and_reference_tables(
                        b, pairing[b][0], lambda rs, m=m: self._final_levels_of_runs(rs, m)
                    ),
                    pairing[b][0],
                )
                for m in modes
            }
            for b in others
        }
        adjusted = {m: holm_adjusted_p_values([final[b][m].p for b in others]) for m in modes}
        pooled = _pool_variance_components([final[b][self.mode].components for b in others])
        n_items = len(self.runs.items[self.kind])
        out = []
        for k, base in enumerate(others):
            paired, why = pairing[base]
            mine, other = self._arm_and_reference_tables(
                base, paired, lambda rs: self._final_levels_of_runs(rs, self.mode)
            )
            exact = final[base][self.mode]
            boot = bootstrap_difference(
                mine, other, paired, exact=exact, resamples=self.settings.resamples, seed=self.settings.seed
            )
            # Where nothing varied, other arms' variances say nothing of this one's.
            parts = exact.components if pooled is None or exact.why_no_interval == "no spread" else pooled
            power, m = self.settings.power, len(others)
            out.append(
                Difference(
                    arm=base,
                    paired=paired,
                    why=why,
                    final=final[base],
                    p_holm={m: adjusted[m][k] for m in modes},
                    iqm=boot.iqm,
                    bootstrap=boot.mean,
                    improvement=probability_of_improvement(mine.mean(axis=1), other.mean(axis=1)),
                    area=crossed_difference(
                        *self._arm_and_reference_tables(base, paired, self._areas_under_curves), paired
                    ),
                    seeds_needed=count_seeds_needed(parts, n_items, self.settings.difference, paired, power, m),
                    smallest=smallest_difference(parts, exact.n_seeds, n_items, paired, power, m),
                )
            )
        return out

    def _compare_by_family(self) -> list[FamilyRow]:
        items: list[Item] = self.runs.items[self.kind]
        columns: dict[str, list[int]] = {}
        for k, item in enumerate(items):
            columns.setdefault(item.family, []).append(k)
        if len(columns) < 2:
            return []
        cells: dict[tuple[str, str], tuple[Estimate, Crossed | None]] = {}
        for family, at in columns.items():
            for base, arm_runs in self.arms.items():
                level = crossed_mean(self._final_levels_of_runs(arm_runs, self.mode)[:, at]).estimate
                against = None
                if base != self.reference:
                    paired, _ = self._decide_seed_pairing(base)
                    tables = self._arm_and_reference_tables(
                        base, paired, lambda rs, at=at: self._final_levels_of_runs(rs, self.mode)[:, at]
                    )
                    against = crossed_difference(*tables, paired)
                cells[family, base] = (level, against)
        keys = [key for key, (_, against) in cells.items() if against is not None]
        adjusted = dict(zip(keys, holm_adjusted_p_values([cells[key][1].p for key in keys]), strict=True))  # type: ignore[union-attr]
        none = Estimate(math.nan, math.nan, math.nan)
        first = [r.series[self.kind] for r in self.all]
        rows = []
        for family, at in columns.items():
            start = (
                float(np.mean([s.levels_EI[0][at] for s in first])) if all(s.at_E[0] == 0 for s in first) else math.nan
            )
            row = {}
            for base in self.arms:
                level, against = cells[family, base]
                row[base] = FamilyCell(
                    level, against.estimate if against else none, adjusted.get((family, base), math.nan)
                )
            rows.append(FamilyRow(family, len(at), start, row))
        return rows

    def _compute_level_reach(self, reference: ArmSummary) -> Reach | None:
        level, why = self.settings.level, "as asked for"
        if level is None:
            begin, end = reference.curve[0], reference.curve[-1]
            if begin.step != 0 or end.level.value - begin.level.value < 0.01:
                return None
            level = (begin.level.value + end.level.value) / 2
            why = (
                f"half-way from the start ({begin.level.value:.1%}) to where {reference.name} ends "
                f"({end.level.value:.1%})"
            )
        return measure_reach_of_level(self.arms, self.curve_kind, level, why, self.reference, self.clock)

    def _write_reader_notes(self, arms: list[ArmSummary], differences: list[Difference]) -> list[str]:
        runs, notes = self.runs, []
        few = sorted({len(a.seeds) for a in arms if len(a.seeds) < 5})
        if few and few[0] == 1:
            alone = ", ".join(a.name for a in arms if len(a.seeds) == 1)
            notes.append(
                f"Only one seed: {alone}. What another seed would have given is not known, so there is no interval."
            )
        elif few:
            notes.append(f"{few[0]} seeds say little about seeds: intervals are wide because they have to be.")
        stood_in = [f"{r.arm} seed {r.seed}" for r in self.all if r.stood_in]
        if stood_in:
            notes.append(
                f"Ended badly and were not evaluated afterwards, so zeros stand for their end: {', '.join(stood_in)}."
            )
        bad = [
            f"{r.arm} seed {r.seed} ({r.status}: {r.message or 'no message'})" for r in self.all if r.has_ended_badly
        ]
        if bad:
            notes.append(f"Ended badly, and counted with what they ended with: {'; '.join(bad)}.")
        if runs.final_split == "holdout":
            notes.append("There are no test items; all figures are of the hold-out.")
        if runs.curve_split != runs.final_split:
            words = {"test": "test", "holdout": "hold-out"}
            along = f"Curves are of the {words[runs.curve_split]} items, evaluated along the way"
            notes.append(f"{along}; final figures of the {words[runs.final_split]} items.")
        budgets = {
            float(r.metrics.rollouts_T[-1]) for r in self.all if not r.has_ended_badly and len(r.metrics.rollouts_T)
        }
        if len(budgets) > 1:
            notes.append(
                f"The runs did not have the same number of rollouts: {min(budgets):,.0f} to {max(budgets):,.0f}."
            )
        modes_missing = {m for m, s in runs.items if s == runs.final_split} - set(runs.modes)
        if modes_missing:
            notes.append(f"Only some runs were evaluated {' and '.join(sorted(modes_missing))}; that is left out.")
        short = [
            d.arm
            for d in differences
            if d.paired and len(self.arms[d.arm]) + len(self.arms[self.reference]) > 2 * d.final[self.mode].n_seeds
        ]
        if short:
            notes.append(f"Pairing leaves out seeds that only one of the two arms has: {', '.join(short)}.")
        return notes


def _choose_reference_arm(chosen: dict[str, str], asked: str | None, config: dict[str, Any]) -> str:
    if asked is None:
        wanted = config.get("reference") or "flashreinforce"
        return wanted if wanted in chosen else next(iter(chosen))
    if asked not in chosen:
        raise InputError(
            f"the reference {asked!r} is no arm with a run that can be used; there are {', '.join(chosen)}"
        )
    return asked


def _pool_variance_components(parts: Sequence[Components]) -> Components | None:
    """Mean variances over all comparisons: with few seeds each one's own says next to nothing."""
    known = [p for p in parts if all(map(math.isfinite, p))]
    return Components(*(float(np.mean([p[k] for p in known])) for k in range(3))) if known else None


def _mean_of_last_quarter(arm_runs: Sequence[FinishedRun], name: str) -> float:
    values = [v[-max(1, len(v) // 4) :] for r in arm_runs if (v := r.metrics.values.get(name)) is not None and len(v)]
    return _mean_of_finite_values(np.concatenate(values)) if values else math.nan


def _mean_of_finite_values(values: Sequence[float] | FloatArray) -> float:
    v = np.asarray(values, dtype=np.float64)
    v = v[np.isfinite(v)]
    return float(v.mean()) if len(v) else math.nan
