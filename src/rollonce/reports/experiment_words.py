"""Numbers and times of an experiment's report as people read them, and its Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def number_for_people(value: Any, digits: int = 4) -> str:
    """A number for people; a dash for none."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, int) or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if abs(value) < 1e-3 else f"{value:.{digits}f}"


def duration_for_people(value: float) -> str:
    return f"{value:.1f} s" if value < 90 else f"{value / 60:.1f} min"


def list_unanswered_items(evaluation: dict[str, Any]) -> list[str]:
    """Items that an arm never answered (older records counted those over the time limit as wrong)."""
    return evaluation.get("unanswered", evaluation.get("over_time_limit", []))


def render_facts_markdown(f: dict[str, Any]) -> str:
    out = [f"# {f['title']}", "", f"**{f['sentence']}**", ""]
    if f["caveat"]:
        out += [f["caveat"], ""]
    out += ["## Deviations and remarks", "", *([f"- {d}" for d in f["deviations"]] or ["- none"]), ""]
    if f["used"]:
        out += ["## Used", "", f["used"], ""]
    if f["criteria"]:
        rows = []
        for c in f["criteria"]:
            for name, key in (
                ("Hoeffding (decides)", "hoeffding"),
                ("empirical Bernstein", "bernstein"),
                ("betting", "betting"),
            ):
                i = c[key]
                rows.append([c["id"], name, f"{i['value']:+.4f}", f"[{i['low']:+.4f}, {i['high']:+.4f}]"])
            if c["mcnemar"]:
                m = c["mcnemar"]
                said = f"{m['only_treatment']} only right in treatment, {m['only_baseline']} only in baseline"
                rows.append([c["id"], "exact McNemar", f"p = {m['p_value']:.3g}", said])
        out += ["## Verdict", "", *_format_markdown_table(["criterion", "method", "difference", "interval"], rows), ""]
    if f["evaluations"]:
        rows = [
            [
                n,
                e["items"],
                number_for_people(e["accuracy"]),
                number_for_people(e["truncated"]),
                len(list_unanswered_items(e)),
            ]
            for n, e in f["evaluations"].items()
        ]
        out += [
            "## Evaluation",
            "",
            *_format_markdown_table(["arm", "items", "accuracy", "truncated", "unanswered"], rows),
            "",
        ]
    if f["checks"]:
        rows = [
            [
                "passed" if c.passed else "**failed**",
                c.metric,
                ", ".join(map(number_for_people, c.values)),
                number_for_people(c.min),
                number_for_people(c.max),
            ]
            for c in f["checks"]
        ]
        out += ["## Activation gate", "", *_format_markdown_table(["", "metric", "measured", "min", "max"], rows), ""]
        out += _describe_offline_gate(f["gate"])
    if f["executed"]:
        rows = []
        for name, e in f["executed"].items():
            x = e.get("executed", {})
            rows.append(
                [
                    name,
                    x.get("steps"),
                    x.get("group_sizes"),
                    x.get("rollouts_per_step"),
                    x.get("learning_rates"),
                    number_for_people(x.get("self_weight_max")),
                ]
            )
        out += [
            "## Executed",
            "",
            *_format_markdown_table(
                ["arm", "steps", "group size", "rollouts per step", "learning rate", "own weight, max"], rows
            ),
            "",
        ]
    for t in f["traces"]:
        every = max(1, len(t.steps) // 10)
        rows = [
            [t.steps[i], *(number_for_people(s[i]) for s in (t.reward, t.spread, t.loo_spread, t.gap, t.advantage_sd))]
            for i in range(0, len(t.steps), every)
        ]
        head = ["step", "reward", "sd of b", "sd of LOO", "mean abs(b - LOO)", "sd of A"]
        out += [f"### {t.arm}", "", *_format_markdown_table(head, rows), ""]
    rows = [[r.index, r.stage, r.status, duration_for_people(r.seconds), r.hash[:12]] for r in f["records"]]
    out += ["## Records", "", *_format_markdown_table(["", "stage", "status", "time", "hash"], rows), ""]
    out += [
        f"Specification sha256 `{f['sha256']}`; head of the chain `{f['head']}`.",
        "",
        "## Commands",
        "",
        f"    {f['command']}",
    ]
    out += [f"    {e['command']}" for e in f["executed"].values() if e.get("command")]
    return "\n".join(out) + "\n"


def _describe_offline_gate(g: dict[str, Any] | None) -> list[str]:
    if not g:
        return []
    if g["ratio"] is None:
        return [
            f"Calibration: {g['n_tasks']} tasks, mean reward {number_for_people(g['mean_reward'])}; {g['note']}.",
            "",
        ]
    ends = f", 95% over tasks [{g['interval'][0]:.3f}, {g['interval'][1]:.3f}]" if g["interval"] else ""
    return [
        f"B_eff {g['b_eff']:.2f} against {g['loo']:.2f} of the LOO mean at B = {g['batch_size']}: "
        f"ratio {g['ratio']:.4f} by the recipe (Monte-Carlo error {g['ratio_se']:.4f}), "
        f"{g['closed_form']:.4f} in closed form{ends}. "
        f"s2 {g['s2']:.4f}, tau2 {g['tau2']:.4f}, mean reward {g['mean_reward']:.3f}, {g['n_tasks']} tasks.",
        "",
    ]


def _format_markdown_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    cell = lambda v: str(v).replace("|", "\\|").replace("\n", " ")  # noqa: E731
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(map(cell, r)) + " |" for r in rows),
    ]
