"""The page and the Markdown of a pre-registered experiment: everything that its records say, drawn from the run's
directory alone."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from rollonce import __version__
from rollonce.errors import InputError
from rollonce.experiments.gates import GateResult
from rollonce.experiments.ledger import TOUCHED, Ledger, ledger_path
from rollonce.experiments.prices import PRICES, Price
from rollonce.experiments.records import RECORDS, Chain, Record
from rollonce.experiments.stages import RunOutcome
from rollonce.experiments.stages.executed import load_steps
from rollonce.files import write_whole_file

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 340, 200, 40, 8, 10, 30


class Trace(NamedTuple):
    """One arm's training, one value per step."""

    arm: str
    steps: list[int]
    reward: list[float]
    spread: list[float]
    loo_spread: list[float]
    gap: list[float]
    advantage_sd: list[float]


def write_report(directory: Path, command: str, outcome: RunOutcome, price: Price | None = None) -> tuple[Path, Path]:
    """``report.html`` and ``report.md`` in the run's directory, whole or not at all.

    Args:
        directory: Of the run.
        command: What was typed.
        outcome: How it ended (so far).
        price: Of the service; the table's where none is given.

    Raises:
        InputError: they cannot be written, or something that they would show was changed after it was recorded.
    """
    facts = gather_facts(directory, command, outcome, price)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page, text = directory / "report.html", directory / "report.md"
    write_whole_file(page, environment.get_template("experiment.html").render(**facts))
    write_whole_file(text, facts_in_markdown(facts))
    return page, text


def verified_chain(directory: Path) -> tuple[Chain, str]:
    """The records of a run, every file of theirs compared with its hash, and what could not be verified, in a sentence.

    Raises:
        InputError: a record or a file was changed, dropped, or put in.
    """
    known = ledger_path(directory).is_file()
    chain = Chain(directory, Ledger(directory) if known else None)
    if not chain.records:
        raise InputError("holds no records of a run", file=directory / RECORDS)
    newest = {record.stage: record for record in chain.records}
    for record in newest.values():
        name = chain.damaged_file(record)
        if name and not _thrown_away(directory, record, name):
            raise InputError(
                f"was changed or removed after stage {record.stage!r} recorded it. {TOUCHED}", file=directory / name
            )
    if known:
        return chain, ""
    return chain, (
        "the ledger beside the run's directory was not there: whether records were dropped from the end cannot be told"
    )


def _thrown_away(directory: Path, record: Record, name: str) -> bool:
    """Weights may be deleted once they were evaluated; nothing of the report is read from them."""
    return record.stage.startswith("arm:") and not name.endswith(".jsonl") and not (directory / name).exists()


def gather_facts(directory: Path, command: str, outcome: RunOutcome, price: Price | None = None) -> dict[str, Any]:
    """Everything that page and Markdown show, all of it verified."""
    chain, unverified = verified_chain(directory)
    latest = {r.stage: r for r in chain.records}
    force = next(r for r in reversed(chain.records) if r.stage in ("start", "revision"))
    spec = json.loads((directory / force.data.get("file", "spec.json")).read_text(encoding="utf-8"))
    settings = next(r for r in reversed(chain.records) if "settings" in r.data).data["settings"]
    used = (latest["decision"].data if "decision" in latest else {}).get("used")
    deviations = list(dict.fromkeys(d for r in chain.records for d in r.data.get("deviations", [])))
    decision = latest.get("decision")
    traces = [
        trace_training(directory, r) for r in chain.records if r.stage.startswith("arm:") and r.status == "passed"
    ]
    verdict = decision.data["verdict"] if decision else "stopped"
    return {
        "title": spec["title"],
        "version": __version__,
        "verdict": verdict,
        "sentence": outcome.sentence,
        "stage": outcome.stage,
        "command": command,
        "spec": spec,
        "sha256": force.spec,
        "head": chain.records[-1].hash,
        "arms": spec["arms"],
        "records": chain.records,
        "checks": _gate_checks(latest),
        "gate": latest["gate_offline"].data.get("score") if "gate_offline" in latest else None,
        "criteria": decision.data["criteria"] if decision else [],
        "caveat": decision.data["caveat"] if decision else "",
        "correctness": latest["correctness"].data if "correctness" in latest else None,
        "restoration": latest["restoration"].data if "restoration" in latest else None,
        "audit": latest["data_audit"].data if "data_audit" in latest else None,
        "feasibility": latest["feasibility"].data if "feasibility" in latest else None,
        "pins": latest["pins"].data if "pins" in latest else None,
        "evaluations": {r.stage.partition(":")[2]: r.data for r in chain.records if r.stage.startswith("evaluation:")},
        "executed": {r.stage.partition(":")[2]: r.data for r in chain.records if r.stage.startswith("arm:")},
        "probes": latest["probe"].data.get("probes", {}) if "probe" in latest else {},
        "selection": latest["selection"].data if "selection" in latest else None,
        "deviations": deviations + ([unverified] if unverified else []),
        "used": used_sentence(used, settings, price),
        "traces": traces,
        "figures": _training_figures(traces),
        "settings": settings,
        "unanswered": unanswered,
        "num": number_for_people,
        "sec": duration_for_people,
    }


def used_sentence(used: dict[str, Any] | None, settings: dict[str, Any], price: Price | None) -> str:
    """Time, tokens and dollars that the run really took, in a sentence; "" before it ended."""
    if not used:
        return ""
    tokens = ", ".join(f"{used[f'{k}_tokens']:,} {word}" for k, word in _TOKENS.items())
    said = (
        f"{duration_for_people(used['seconds'])} in all sittings, {used['gpu_hours']:.2f} GPU hours; tokens: {tokens}"
    )
    price = None if settings["engine"] == "local" else price or PRICES.get(settings["policy"])
    if price is None:
        return said + "."
    dollars = sum(
        used[f"{k}_tokens"] * p for k, p in zip(_TOKENS, (price.prefill, price.sample, price.train), strict=True)
    )
    return f"{said}; ${dollars / 1e6:.2f} at the prices of {price.source}."


_TOKENS = {"prompt": "read", "response": "sampled", "trained": "trained on"}


def trace_training(directory: Path, record: Record) -> Trace:
    """Reward, and how the baseline and the LOO mean spread over the tasks of a step (their means are the mean reward,
    or near it)."""
    name = record.stage.partition(":")[2]
    steps = load_steps(directory / f"arms/{name}.steps.jsonl")
    out = Trace(name, [], [], [], [], [], [])
    for s in steps:
        r, b, a = (np.asarray(x, dtype=np.float64) for x in (s.rewards, s.baselines, s.advantages))
        loo = (r.sum() - r) / max(len(r) - 1, 1)
        out.steps.append(s.step)
        values = (r.mean(), b.std(), loo.std(), np.abs(b - loo).mean(), a.std())
        series = (out.reward, out.spread, out.loo_spread, out.gap, out.advantage_sd)
        for line, value in zip(series, values, strict=True):
            line.append(float(value))
    return out


def unanswered(evaluation: dict[str, Any]) -> list[str]:
    """Items that an arm never answered (older records counted those over the time limit as wrong)."""
    return evaluation.get("unanswered", evaluation.get("over_time_limit", []))


def _gate_checks(latest: dict[str, Record]) -> list[GateResult]:
    found = []
    for stage in ("gate_offline", "gate_online"):
        if stage in latest:
            found += [GateResult(**c) for c in latest[stage].data.get("checks", [])]
    return found


def number_for_people(value: Any, digits: int = 4) -> str:
    """A number for people; a dash for none."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, int) or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if abs(value) < 1e-3 else f"{value:.{digits}f}"


def duration_for_people(value: float) -> str:
    return f"{value:.1f} s" if value < 90 else f"{value / 60:.1f} min"


# ---- figures


def _training_figures(traces: Sequence[Trace]) -> list[dict[str, Any]]:
    if not traces:
        return []
    names = [t.arm for t in traces]
    out = [
        _titled_figure(
            "Mean reward of each step",
            [running_mean(t.reward) for t in traces],
            names,
            "training reward, mean of five steps",
        ),
        _titled_figure(
            "Mean |b − LOO mean|",
            [t.gap for t in traces],
            names,
            "how far the arm's baseline lies from a plain leave-one-out mean",
        ),
        _titled_figure(
            "Standard deviation of the advantages",
            [t.advantage_sd for t in traces],
            names,
            "what the update is scaled by",
        ),
    ]
    for t in traces:
        about = "standard deviation over the tasks of a step: how far each tells tasks apart"
        out.append(
            _titled_figure(
                f"{t.arm}: spread of b and of the LOO mean", [t.spread, t.loo_spread], ["b", "LOO mean"], about
            )
        )
    return out


def running_mean(values: Sequence[float], over: int = 5) -> list[float]:
    """Mean of the last ``over`` values at each step."""
    return [float(np.mean(values[max(0, i - over + 1) : i + 1])) for i in range(len(values))]


def _titled_figure(title: str, series: Sequence[Sequence[float]], names: Sequence[str], about: str) -> dict[str, Any]:
    return {"title": title, "about": about, "names": list(names), "svg": line_chart(series, title)}


def line_chart(series: Sequence[Sequence[float]], label: str) -> Markup:
    """Values by step, one line per series."""
    points = [v for s in series for v in s if math.isfinite(v)]
    n = max((len(s) for s in series), default=0)
    if not points or n == 0:
        return Markup("")
    low, high = min(points), max(points)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    x = lambda i: LEFT + (WIDTH - LEFT - RIGHT) * (i / max(n - 1, 1))  # noqa: E731
    y = lambda v: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (v - low) / (high - low)  # noqa: E731
    parts = []
    for k in range(5):
        v = low + (high - low) * k / 4
        parts.append(
            Markup(
                '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
                '<text x="{}" y="{:.1f}" text-anchor="end">{}</text>'
            ).format(LEFT, WIDTH - RIGHT, y(v), y(v), LEFT - 5, y(v) + 3.5, f"{v:.3g}")
        )
    for i in sorted({0, (n - 1) // 2, n - 1}):
        parts.append(
            Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(x(i), HEIGHT - BOTTOM + 13, i + 1)
        )
    for k, s in enumerate(series):
        path = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(s) if math.isfinite(v))
        parts.append(Markup('<polyline class="s{}" points="{}"/>').format(k % 3 + 1, path))
    parts.append(
        Markup('<text class="title" x="{}" y="{}" text-anchor="middle">step</text>').format(
            (LEFT + WIDTH) / 2, HEIGHT - 2
        )
    )
    return Markup('<svg class="figure" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, label, Markup("").join(parts)
    )


# ---- Markdown


def facts_in_markdown(f: dict[str, Any]) -> str:
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
        out += ["## Verdict", "", *_markdown_table(["criterion", "method", "difference", "interval"], rows), ""]
    if f["evaluations"]:
        rows = [
            [n, e["items"], number_for_people(e["accuracy"]), number_for_people(e["truncated"]), len(unanswered(e))]
            for n, e in f["evaluations"].items()
        ]
        out += [
            "## Evaluation",
            "",
            *_markdown_table(["arm", "items", "accuracy", "truncated", "unanswered"], rows),
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
        out += ["## Activation gate", "", *_markdown_table(["", "metric", "measured", "min", "max"], rows), ""]
        out += _gate_lines(f["gate"])
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
            *_markdown_table(
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
        out += [f"### {t.arm}", "", *_markdown_table(head, rows), ""]
    rows = [[r.index, r.stage, r.status, duration_for_people(r.seconds), r.hash[:12]] for r in f["records"]]
    out += ["## Records", "", *_markdown_table(["", "stage", "status", "time", "hash"], rows), ""]
    out += [
        f"Specification sha256 `{f['sha256']}`; head of the chain `{f['head']}`.",
        "",
        "## Commands",
        "",
        f"    {f['command']}",
    ]
    out += [f"    {e['command']}" for e in f["executed"].values() if e.get("command")]
    return "\n".join(out) + "\n"


def _gate_lines(g: dict[str, Any] | None) -> list[str]:
    if not g:
        return []
    if g["ratio"] is None:
        return [
            f"Calibration: {g['n_tasks']} tasks, mean reward {number_for_people(g['mean_reward'])}; {g['note']}.",
            "",
        ]
    ends = f", 95% over tasks [{g['interval'][0]:.3f}, {g['interval'][1]:.3f}]" if g["interval"] else ""
    return [
        f"B_eff {g['b_eff']:.2f} against {g['loo']:.2f} of the LOO mean at B = {g['batch_size']}: ratio "
        f"{g['ratio']:.4f} by the recipe "
        f"(Monte-Carlo error {g['ratio_se']:.4f}), {g['closed_form']:.4f} in closed form{ends}. "
        f"s2 {g['s2']:.4f}, tau2 {g['tau2']:.4f}, mean reward {g['mean_reward']:.3f}, {g['n_tasks']} tasks.",
        "",
    ]


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    cell = lambda v: str(v).replace("|", "\\|").replace("\n", " ")  # noqa: E731
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(map(cell, r)) + " |" for r in rows),
    ]
