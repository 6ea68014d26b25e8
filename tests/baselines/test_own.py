"""Baselines of a user's own: ``module:name`` and entry points, of every kind that is taken, saved and loaded again."""

import json
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from rollonce.baselines import Baseline, Batch, KernelBaseline, LeaveOneOut, named_baseline, own
from rollonce.cli import main
from rollonce.component import from_config
from rollonce.errors import InputError
from rollonce.kernels import Kernel
from rollonce.testing import check_baseline

MODULE = '''
from dataclasses import dataclass
import numpy as np
from rollonce.baselines import Baseline, KernelBaseline, LeaveOneOut, LinearSmoother
from rollonce.baselines.batch import Prediction
from rollonce.kernels import Kernel

@dataclass
class Parity(Kernel):
    strength: float = 2.0
    def log_weights(self, tasks, rows_KB, columns_KM, visible_KBM):
        odd_N = np.array([len(p) % 2 for p in tasks.prompts])
        return np.where(odd_N[rows_KB][:, :, None] == odd_N[columns_KM][:, None, :], self.strength, 0.0)

@dataclass
class Half(LeaveOneOut):
    """LOO drawn half-way to 0.5: a class without a type of its own."""
    def predict(self, batch, history=None):
        p = super().predict(batch, history)
        return Prediction.of(batch, 0.5 * p.baseline_B + 0.25)

class NoDataclass(Kernel):
    strength: float = 1.0

ready = KernelBaseline(Parity(1.0), window=8)
def make(): return KernelBaseline(Parity(), shrinkage=0.5)
def others(prompts, rewards): return (rewards.sum() - rewards) / max(1, len(rewards) - 1)
def leaky(prompts, rewards): return [rewards.mean()] * len(prompts)
def with_responses(rewards, responses): return others(None, rewards)
number = 3
'''
PROMPTS = ["a", "bb", "c", "dd", "e"]
REWARDS = np.array([1.0, 0.0, 1.0, 0.0, 0.0])


@pytest.fixture
def module(tmp_path, monkeypatch):
    """``mine`` in the current directory, which Python's path does not have."""
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.mark.parametrize("name", ["Parity", "Half", "ready", "make", "others"])
def test_every_kind_works_and_comes_back_from_its_file(module, name):
    baseline = named_baseline(f"mine:{name}").fit(PROMPTS)
    want = baseline.predict(Batch.of(PROMPTS, REWARDS)).baseline_B
    loo = LeaveOneOut().predict(Batch.of(PROMPTS, REWARDS)).baseline_B
    if name == "others":
        np.testing.assert_allclose(want, loo)
    if name == "Half":
        np.testing.assert_allclose(want, 0.5 * loo + 0.25)
    if name == "Parity":  # row 0 sees two of its parity with weight e^2 and two others with weight 1
        assert want[0] == pytest.approx(np.exp(2) / (2 * np.exp(2) + 2))
    baseline.save("baseline.json")
    sys.modules.pop("mine")  # as in another process
    again = Baseline.load("baseline.json")
    assert type(again).__name__ == type(baseline).__name__
    assert again.label == baseline.label
    np.testing.assert_array_equal(again.predict(Batch.of(PROMPTS, REWARDS)).baseline_B, want)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine:number", ["mine:number is an int", "kernel"]),
        ("mine:Nothing", ["'mine' has no 'Nothing'", "NoDataclass"]),
        ("nowhere:Parity", ["'nowhere' cannot be imported"]),
        ("mine:with_responses", ["with_responses asks for responses"]),
        (":x", ["':x' is not module:name"]),
    ],
)
def test_what_is_no_baseline_is_refused_in_a_sentence(module, name, words):
    with pytest.raises(InputError) as error:
        named_baseline(name)
    assert all(word in str(error.value) for word in words)


def test_a_class_that_is_no_dataclass_says_so_when_it_is_saved(module):
    with pytest.raises(InputError, match="NoDataclass must be a dataclass"):
        named_baseline("mine:NoDataclass").save("baseline.json")
    with pytest.raises(InputError, match="is no class of baselines"):
        from_config({"type": "mine:others"})


def test_what_no_file_could_name_is_not_saved(tmp_path):
    @dataclass
    class Local(Kernel):
        pass

    with pytest.raises(InputError, match="Local cannot be saved"):
        KernelBaseline(Local()).save(tmp_path / "baseline.json")
    with pytest.raises(InputError, match="cannot be saved"):
        own.FunctionBaseline(lambda prompts, rewards: rewards).save(tmp_path / "baseline.json")
    assert not list(tmp_path.iterdir())


def test_the_audit_takes_kernels_and_finds_the_leak(module, capsys):
    assert all(result.passed for result in check_baseline(named_baseline("mine:Parity")))
    assert main(["check", "mine:Parity"]) == 0
    assert main(["check", "mine:with_responses"]) == 0
    assert main(["check", "mine:leaky"]) == 1
    assert main(["check", "loo"]) == 0


@pytest.fixture
def rollouts(module):
    rng = np.random.default_rng(1)
    rows = [
        {"prompt": f"task {'x' * n}", "reward": float(rng.random() < 0.3 + 0.4 * (n % 2))}
        for n in range(24)
        for _ in range(4)
    ]
    (module / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "rollouts.jsonl"


def test_score_watch_and_plan_take_it(rollouts, capsys):
    few = ["-B", "8", "--batches", "400", "--resamples", "4", "--only", "loo", "--json"]
    assert main(["score", rollouts, *few, "--baseline", "mine:Parity", "--baseline", "mine:others"]) == 0
    scores = {s["label"]: s for s in json.loads(capsys.readouterr().out)["boards"][0]["scores"]}
    assert scores["Parity"]["ratio"]["value"] > 1.02  # the planted difference is one of parity
    assert scores["others"]["ratio"]["value"] == pytest.approx(1.0, abs=0.1)  # it is the LOO mean, simulated
    assert main(["score", rollouts, *few, "--baseline", "mine:leaky"]) == 2
    assert "mine:leaky cannot be scored" in capsys.readouterr().err
    assert main(["watch", rollouts, "-B", "8", "--baseline", "mine:Parity", "--window", "0", "--json"]) == 0
    assert "Parity" in capsys.readouterr().out
    assert main(["plan", rollouts, "--budget", "8", "--baseline", "mine:Parity", "--json"]) == 0


def test_a_package_offers_a_baseline_by_an_entry_point(module, monkeypatch, capsys):
    """A distribution as pip installs it: its files and its dist-info, on Python's path."""
    info = module / "site" / "rollonce_parity-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rollonce-parity\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rollonce.baselines]\nparity = mine:Parity\nbroken = mine:number\n")
    (module / "site" / "mine.py").write_text(MODULE)
    (module / "mine.py").unlink()
    monkeypatch.syspath_prepend(str(module / "site"))
    own.offered_baselines.cache_clear()
    try:
        assert named_baseline("parity").label == "Parity"
        with pytest.raises(InputError, match="'broken' that rollonce-parity offers: mine:number is an int"):
            named_baseline("broken")
        with pytest.raises(InputError, match="no baseline 'parities'"):
            named_baseline("parities")
        assert main(["baselines"]) == 0
        assert "parity  mine:Parity, from an installed package" in capsys.readouterr().out
    finally:
        own.offered_baselines.cache_clear()
