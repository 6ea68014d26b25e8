"""Runs the small experiment in children that die by kill -9 at one event after the other, resumes each, and says what
came of it.

``python killing.py FOLDER FIRST STEP``: the parent imports everything once and forks; it never computes, so the
    children start clean.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import experiment_fakes as fakes
import numpy  # noqa: F401
import torch  # noqa: F401

from rollonce.experiments import evaluate, gates, ledger
from rollonce.experiments.files import read_finished_lines
from rollonce.experiments.loading import load_specification
from rollonce.experiments.records import Chain, locked_directory
from rollonce.experiments.stages import before_spending, run_experiment

gates.N_BATCHES, gates.RESAMPLES, evaluate.ROWS = 50, 0, 6
# Kills are about the records, not about what the preflight computes, which test_experiment_preflight.py looks at.
before_spending.run_correctness_preflight = lambda *a: {"passed": True, "paths": [], "forced": []}


class Clock:
    """Counts events, and ends the process, hard, at one of them."""

    def __init__(self, die_at: int | None) -> None:
        self.count, self.die_at = 0, die_at

    def __call__(self, what: str) -> None:
        self.count += 1
        if self.count == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)


def attempt(spec: Path, directory: Path, die_at: int | None) -> None:
    clock = Clock(die_at)
    real = Chain.append_stage_record

    def append(self: Chain, *args: object, **named: object) -> object:
        clock("before a record")
        record = real(self, *args, **named)  # type: ignore[arg-type]
        clock("after a record")
        return record

    Chain.append_stage_record = append  # type: ignore[method-assign]
    write = ledger.append_json_line

    def append_line(path: Path, value: object) -> None:
        write(path, value)
        clock("a line written and not noted")

    ledger.append_json_line = append_line
    with locked_directory(directory):
        run, _ = fakes.open_run(load_specification(spec), directory, clock)
        outcome = run_experiment(run)
    (directory / "end.json").write_text(json.dumps([outcome.code, outcome.sentence, clock.count]))


def child(spec: Path, directory: Path, die_at: int | None) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            attempt(spec, directory, die_at)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def findings(chain: Chain) -> list[dict[str, object]]:
    """Of the gate and the verdict; all but the time that it took."""
    found = [r.data for r in chain.records if r.stage in ("decision", "gate_offline")]
    return [{k: v for k, v in data.items() if k != "used"} for data in found]


def main() -> None:
    folder, first, step = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    spec = folder / "small.spec.json"
    spec.write_text(json.dumps(fakes.small_spec()))
    whole = folder / "whole"
    assert child(spec, whole, None) == 0
    code, sentence, events = json.loads((whole / "end.json").read_text())
    results = {"code": code, "sentence": sentence, "events": events, "bad": []}
    wanted = findings(Chain(whole))
    for die_at in range(first, events + 1, step):
        directory = folder / f"killed{die_at}"
        killed = child(spec, directory, die_at)
        if killed != -signal.SIGKILL:
            results["bad"].append(f"{die_at}: was not killed ({killed})")
            continue
        if child(spec, directory, None) != 0:
            results["bad"].append(f"{die_at}: did not go on")
            continue
        chain = Chain(directory)
        if json.loads((directory / "end.json").read_text())[:2] != [code, sentence]:
            results["bad"].append(f"{die_at}: ended otherwise")
        if findings(chain) != wanted:
            results["bad"].append(f"{die_at}: other numbers")
        stages = [r.stage for r in chain.records]
        if len(set(stages)) != len(stages):
            results["bad"].append(f"{die_at}: a stage twice: {stages}")
        for arm in ("grpo_g8", "gs1_tfidf_g1"):
            steps = [row["step"] for row in read_finished_lines(directory / "arms" / arm / "log.jsonl")]
            items = [row["task_id"] for row in read_finished_lines(directory / "evaluation" / f"{arm}.jsonl")]
            if steps != [1, 2, 3] or len(items) != 24 or len(set(items)) != 24:
                results["bad"].append(f"{die_at}: {arm} steps {steps}, {len(items)} items")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
