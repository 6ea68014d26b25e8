"""Baseline files: what comes back, and what a damaged one says."""

import json
from pathlib import Path

import numpy as np
import pytest

from rollonce.baselines import (
    Baseline,
    Batch,
    ExpertMixture,
    KernelBaseline,
    Kriging,
    LeaveOneOut,
    Prediction,
    Tracker,
    copy_without_history,
    published_tfidf,
)
from rollonce.errors import InputError
from rollonce.testing.samples import ODD_PROMPTS

PROMPTS = ["add two and two", "prove the lemma", "Σίσυφος rolls 東京", "add the lemma"]


@pytest.fixture
def saved(tmp_path):
    baseline = published_tfidf(window=8).fit(PROMPTS)
    baseline.observe(Batch.of(PROMPTS, [1.0, 0.0, 0.5, 0.25]))
    path = tmp_path / "baseline.json"
    baseline.save(path, provenance={"command": "tune", "tasks": 4})
    return path


def edit(path, change):
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")


def test_what_comes_back(saved):
    loaded = Baseline.load(saved)
    assert loaded.provenance == {"command": "tune", "tasks": 4}
    assert loaded.window == 8
    assert loaded.history.rewards_H.tolist() == [1.0, 0.0, 0.5, 0.25]
    assert loaded.history.tasks.prompts == PROMPTS
    assert [p.name for p in saved.parent.iterdir()] == ["baseline.json"]  # no temporary file stays
    assert "東京" in saved.read_text(encoding="utf-8")  # readable, not escaped


def kernel_feature(document):
    return document["state"]["children"]["kernel"]["children"]["feature"]


DAMAGES = {
    "a list": lambda d: d.clear(),
    "another format": lambda d: d.update(format="pickle"),
    "a newer version": lambda d: d.update(version=2),
    "no config": lambda d: d.pop("config"),
    "an unknown type": lambda d: d["config"].update(type="kernal"),
    "a part instead of a baseline": lambda d: d.update(config={"type": "log_length"}, state={}),
    "an unknown setting": lambda d: d["config"].update(windw=3),
    "a setting of the wrong type": lambda d: d["config"]["kernel"].update(temperature="hot"),
    "a setting out of range": lambda d: d["config"]["kernel"].update(temperature=-1),
    "a feature for a kernel": lambda d: d["config"].update(kernel={"type": "log_length"}),
    "state is a list": lambda d: d.update(state=[1, 2]),
    "state names another part": lambda d: d["state"]["children"].update(smoother={}),
    "terms without idf": lambda d: kernel_feature(d).update(idf=[1.0]),
    "idf is text": lambda d: kernel_feature(d).update(idf="high"),
    "idf is NaN": lambda d: kernel_feature(d)["idf"].__setitem__(0, float("nan")),
    "history without ages": lambda d: d["state"]["history"].pop("ages"),
    "history with fewer rewards": lambda d: d["state"]["history"]["rewards"].pop(),
    "history with a NaN": lambda d: d["state"]["history"]["rewards"].__setitem__(0, float("nan")),
    "history with fewer ids": lambda d: d["state"]["history"]["task_ids"].pop(),
    "history is text": lambda d: d["state"].update(history="yesterday"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_in_a_sentence(saved, damage):
    edit(saved, DAMAGES[damage])
    with pytest.raises(InputError) as caught:
        Baseline.load(saved)
    assert str(caught.value).startswith(f"{saved}: ")
    assert len(caught.value.message) > 15


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe\x00", b"[1, 2]", b"null", b"\x80\x04\x95pickle", b"[" * 100_000]
)
def test_what_is_no_baseline_file_is_named_in_a_sentence(tmp_path, content):
    path = tmp_path / "wrong.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"wrong\.json: not a baseline file"):
        Baseline.load(path)


def test_truncated_anywhere_it_is_refused(saved):
    content = saved.read_bytes()
    for cut in range(0, len(content) - 1, 37):
        saved.write_bytes(content[:cut])
        with pytest.raises(InputError, match=r"baseline\.json: not a baseline file"):
            Baseline.load(saved)


def test_missing_file_and_directory(tmp_path):
    with pytest.raises(InputError, match=r"nothing\.json: no such file"):
        Baseline.load(tmp_path / "nothing.json")
    with pytest.raises(InputError, match="cannot be read"):
        Baseline.load(tmp_path)


def test_a_failed_save_leaves_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()
    baseline = Baseline.load(saved)
    monkeypatch.setattr(type(baseline), "state_dict", lambda self: {"oops": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        baseline.save(saved)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == ["baseline.json"]


@pytest.mark.parametrize(
    "make", [lambda: published_tfidf(window=20), lambda: Kriging(window=20), Tracker], ids=lambda m: m().label
)
def test_odd_prompts_in_the_history_come_back(tmp_path, make):
    baseline = make().fit(PROMPTS)
    baseline.observe(Batch.of(ODD_PROMPTS, np.linspace(0, 1, len(ODD_PROMPTS))))
    baseline.save(tmp_path / "odd.json")
    ask = Batch.of([*ODD_PROMPTS, *PROMPTS], np.linspace(0, 1, len(ODD_PROMPTS) + 4))
    assert np.array_equal(
        Baseline.load(tmp_path / "odd.json").predict(ask).baseline_B, baseline.predict(ask).baseline_B
    )


def test_copy_without_history_keeps_the_fit_and_forgets_the_rest():
    ask = Batch.of(PROMPTS, [1.0, 0.0, 0.5, 0.25])
    for baseline in (published_tfidf(window=9).fit(PROMPTS), Tracker(), LeaveOneOut(window=4)):
        want = baseline.predict(ask).baseline_B
        baseline.observe(ask)
        fresh = copy_without_history(baseline)
        assert np.array_equal(fresh.predict(ask).baseline_B, want)
        assert len(fresh.history) == 0


def test_copy_without_history_keeps_a_subclass_that_has_no_type_of_its_own():
    class Doubled(LeaveOneOut):
        def predict(self, batch, history=None):
            return Prediction.of(batch, 2 * super().predict(batch, history).baseline_B)

    baseline = Doubled(window=5)
    baseline.observe(Batch.of(PROMPTS, [1.0] * 4))
    fresh = copy_without_history(baseline)
    assert type(fresh) is Doubled
    assert len(fresh.history) == 0
    assert len(baseline.history) == 4


FIXTURES = Path(__file__).parent / "fixtures"


def test_a_file_of_the_former_shrunk_baseline_is_a_smoother_with_shrinkage(tmp_path):
    """Written by the last version that had ``shrunk``: 0.4 LOO around a kernel with a shrinkage of 0.25 of its own."""
    old = Baseline.load(FIXTURES / "shrunk_kernel.json")
    assert isinstance(old, KernelBaseline)
    assert old.shrinkage == pytest.approx(1 - 0.75 * 0.6)
    assert (old.window, old.decay, len(old.history)) == (6, 0.9, 6)
    ask = Batch.of(["add two and two", "add two and five", "prove the lemma", "prove the claim"], [1.0, 0.0, 0.0, 1.0])
    parts = [KernelBaseline(window=6, decay=0.9), LeaveOneOut(window=6, decay=0.9)]
    kernel_b, loo_b = (p.fit(ask.tasks).predict(ask, old.history).baseline_B for p in parts)
    np.testing.assert_allclose(old.predict(ask).baseline_B, 0.45 * kernel_b + 0.55 * loo_b, atol=1e-14)
    old.save(tmp_path / "new.json")
    assert "shrunk" not in (tmp_path / "new.json").read_text()
    assert np.array_equal(Baseline.load(tmp_path / "new.json").predict(ask).baseline_B, old.predict(ask).baseline_B)


def test_a_file_with_former_shrunk_baselines_deep_inside():
    experts = Baseline.load(FIXTURES / "experts_with_shrunk.json")
    assert isinstance(experts, ExpertMixture)
    loo, kernel, kriging = experts.experts
    assert [type(e) for e in experts.experts] == [LeaveOneOut, KernelBaseline, Kriging]
    assert (kernel.shrinkage, kriging.shrinkage) == (pytest.approx(0.55), 0.5)
    assert [len(e.history) for e in (loo, kernel, kriging)] == [0, 6, 4]


@pytest.mark.parametrize("damage", [{"smoother": 3}, {"amount": 2.0}, {"amount": "half"}])
def test_a_former_shrunk_baseline_with_damaged_settings_is_refused(saved, damage):
    edit(saved, lambda d: d.update(config={"type": "shrunk", "smoother": d["config"], **damage}))
    with pytest.raises(InputError, match="'shrunk' baseline needs a smoother and an amount"):
        Baseline.load(saved)


def test_another_label_and_a_vocabulary_that_stays(saved):
    loaded = Baseline.load(saved)
    named = loaded.named("mine", keep_fit=True)
    assert (named.label, type(named)) == ("mine", type(loaded))
    assert loaded.label == "softmax TF-IDF, T=0.1, window 8"
    terms = list(named.kernel.feature.vocabulary_)
    for kept in (named, copy_without_history(named)):
        assert kept.label == "mine"
        kept.fit(["entirely other words"])
        assert list(kept.kernel.feature.vocabulary_) == terms
    assert list(loaded.fit(["entirely other words"]).kernel.feature.vocabulary_) == ["entirely", "other", "words"]
    assert list(named.kernel.feature.vocabulary_) == terms
