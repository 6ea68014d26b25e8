"""The code in CONTRIBUTING.md does what the page says of it: a kernel, a baseline, a log format, a source of tasks."""

import ast
import json
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from rollonce import read_rollouts
from rollonce.baselines import Batch, KernelBaseline, catalogue
from rollonce.component import from_config
from rollonce.readers import registry as readers
from rollonce.rollouts import Rollouts
from rollonce.scoring import score_rollouts
from rollonce.tasks import load_tasks
from rollonce.tasks import registry as sources
from rollonce.testing import check_baseline

PAGE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# src/rollonce/(\S+)\.py\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture
def module(monkeypatch):
    """Makes a module of one of the page's files, without a place in the package."""

    def make(name):
        made = types.ModuleType(f"page_{name.replace('/', '_')}")
        monkeypatch.setitem(sys.modules, made.__name__, made)
        exec(compile(FILES[name], name, "exec"), made.__dict__)
        return made

    return make


def test_the_pages_files():
    assert list(FILES) == ["kernels/number_count", "baselines/median", "readers/acme", "tasks/squares"]
    assert max(len(code.splitlines()) for code in FILES.values()) < 45
    assert len(FILES["kernels/number_count"].splitlines()) < 40
    assert all(ast.get_docstring(ast.parse(code)) for code in FILES.values())


def test_the_kernel(module):
    kernel = module("kernels/number_count").NumberCount
    check_baseline(KernelBaseline(kernel()), raise_on_failure=True)
    baseline = from_config({"type": "kernel", "kernel": {"type": "number_count", "scale": 0.5}})
    assert baseline.label == "number_count scale=0.5"
    # 1, 2 and 2 numbers: distances 1 and 0 at scale 0.5 weigh exp(-2) and 1.
    b = baseline.predict(Batch.of(["1", "1 + 2", "3 + 4"], [1.0, 0.5, 0.0])).baseline_B
    near = np.exp(-2)
    np.testing.assert_allclose(b, [0.25, near / (1 + near), (near + 0.5) / (1 + near)], atol=1e-15)


def test_the_baseline(module, monkeypatch):
    median = module("baselines/median").Median
    check_baseline(median(), raise_on_failure=True)
    (line,) = re.findall(r'```python\n(Entry\("median".*?),\n```', PAGE)
    entry = eval(line, {"Entry": catalogue.Entry, "Median": median})
    assert median().predict(Batch.of(list("abcd"), [0.0, 1.0, 10.0, 2.0])).baseline_B.tolist() == [2.0, 2.0, 1.0, 1.0]
    monkeypatch.setattr(catalogue, "CATALOGUE", (*catalogue.CATALOGUE, entry))
    monkeypatch.setitem(catalogue._BY_NAME, entry.name, entry)
    assert isinstance(catalogue.named_baseline("median"), median)
    rng = np.random.default_rng(0)
    table = Rollouts.from_groups(rng.integers(0, 2, (12, 4)), [f"task {i}" for i in range(12)])
    board = score_rollouts(
        table, baselines=catalogue.default_board_baselines(table.tasks, 0)[-1:], batch_size=4, n_batches=20
    )
    assert "LOO median" in {s.label for s in board.scores}


def test_the_log_format(module, monkeypatch, tmp_path):
    monkeypatch.setattr(readers, "FORMATS", (module("readers/acme").Acme, *readers.FORMATS))
    records = [{"acme": 2, "question": q, "points": p, "iteration": 3} for q, p in (("a?", 10), ("b?", 5), ("a?", 0))]
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    table = read_rollouts(path)
    assert (table.format, table.n_tasks, table.rewards_R.tolist()) == ("acme", 2, [1.0, 0.0, 0.5])


def test_the_source_of_tasks(module, monkeypatch):
    monkeypatch.setitem(sources.SOURCES, "squares", module("tasks/squares").SQUARES)
    splits = load_tasks("squares:2-60", test=3)
    assert len(splits.test) == 3 < len(splits.train)
    assert len(splits.train) + len(splits.holdout) < 59
    task = splits.train[0]
    n = int(task.id.removeprefix("square-"))
    assert task.grader(f"The answer is {n * n}", task.reference) == 1.0
    assert task.columns == {"digits": len(str(n))}
