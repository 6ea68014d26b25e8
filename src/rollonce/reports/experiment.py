"""The page and the Markdown of a pre-registered experiment: everything that its records say, drawn from the run's
directory alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import Undefined

from rollonce import __version__
from rollonce.errors import InputError
from rollonce.experiments.gates import GateResult
from rollonce.experiments.ledger import TOUCHED, Ledger, make_ledger_path
from rollonce.experiments.prices import PRICES, Price
from rollonce.experiments.records import RECORDS, Chain, Record
from rollonce.experiments.stages import RunOutcome
from rollonce.files import write_whole_file
from rollonce.reports.experiment_figures import make_training_figures, read_training_trace
from rollonce.reports.experiment_words import (
    duration_for_people,
    list_unanswered_items,
    number_for_people,
    render_facts_markdown,
)
from rollonce.reports.html import make_page_environment


def write_experiment_report(
    directory: Path, command: str, outcome: RunOutcome, price: Price | None = None
) -> tuple[Path, Path]:
    """``report.html`` and ``report.md`` in the run's directory, whole or not at all.

    Args:
        directory: Of the run.
        command: What was typed.
        outcome: How it ended (so far).
        price: Of the service; the table's where none is given.

    Raises:
        InputError: they cannot be written, or something that they would show was changed after it was recorded.
    """
    facts = gather_report_facts(directory, command, outcome, price)
    environment = make_page_environment(Undefined)  # a stage that was skipped has not recorded everything
    page, text = directory / "report.html", directory / "report.md"
    write_whole_file(page, environment.get_template("experiment.html").render(**facts))
    write_whole_file(text, render_facts_markdown(facts))
    return page, text


def read_verified_chain(directory: Path) -> tuple[Chain, str]:
    """The records of a run, every file of theirs compared with its hash, and what could not be verified, in a sentence.

    Raises:
        InputError: a record or a file was changed, dropped, or put in.
    """
    known = make_ledger_path(directory).is_file()
    chain = Chain(directory, Ledger(directory) if known else None)
    if not chain.records:
        raise InputError("holds no records of a run", file=directory / RECORDS)
    newest = {record.stage: record for record in chain.records}
    for record in newest.values():
        name = chain.find_damaged_file(record)
        if name and not _is_discarded_weights_file(directory, record, name):
            raise InputError(
                f"was changed or removed after stage {record.stage!r} recorded it. {TOUCHED}", file=directory / name
            )
    if known:
        return chain, ""
    return chain, (
        "the ledger beside the run's directory was not there: whether records were dropped from the end cannot be told"
    )


def _is_discarded_weights_file(directory: Path, record: Record, name: str) -> bool:
    """Weights may be deleted once they were evaluated; nothing of the report is read from them."""
    return record.stage.startswith("arm:") and not name.endswith(".jsonl") and not (directory / name).exists()


def gather_report_facts(
    directory: Path, command: str, outcome: RunOutcome, price: Price | None = None
) -> dict[str, Any]:
    """Everything that page and Markdown show, all of it verified."""
    chain, unverified = read_verified_chain(directory)
    latest = {r.stage: r for r in chain.records}
    force = next(r for r in reversed(chain.records) if r.stage in ("start", "revision"))
    spec = json.loads((directory / force.data.get("file", "spec.json")).read_text(encoding="utf-8"))
    settings = next(r for r in reversed(chain.records) if "settings" in r.data).data["settings"]
    used = (latest["decision"].data if "decision" in latest else {}).get("used")
    deviations = list(dict.fromkeys(d for r in chain.records for d in r.data.get("deviations", [])))
    decision = latest.get("decision")
    traces = [
        read_training_trace(directory, r) for r in chain.records if r.stage.startswith("arm:") and r.status == "passed"
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
        "checks": _collect_gate_checks(latest),
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
        "used": describe_used_resources(used, settings, price),
        "traces": traces,
        "figures": make_training_figures(traces),
        "settings": settings,
        "unanswered": list_unanswered_items,
        "num": number_for_people,
        "sec": duration_for_people,
    }


def describe_used_resources(used: dict[str, Any] | None, settings: dict[str, Any], price: Price | None) -> str:
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


def _collect_gate_checks(latest: dict[str, Record]) -> list[GateResult]:
    found = []
    for stage in ("gate_offline", "gate_online"):
        if stage in latest:
            found += [GateResult(**c) for c in latest[stage].data.get("checks", [])]
    return found
