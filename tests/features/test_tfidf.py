"""TF-IDF is scikit-learn's, to the last digit that float64 keeps, without scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from rollonce.errors import InputError
from rollonce.features import SparseRows, Tfidf
from rollonce.features.ngram_table import NgramTable
from rollonce.rollouts import Tasks
from rollonce.testing.samples import ODD_PROMPTS

TEXTS = [
    "The quick brown fox jumps over the lazy dog; the dog sleeps.",
    "If Natalia sold 48 clips in April, and half as many in May, how many clips did she sell altogether?",
    "def f(x):\n\treturn x**2 + 3*x - 1   # a   comment",
    "Ünïcödé naïve café ΣΊΣΥΦΟΣ İstanbul ﬁn ｆｕｌｌ",
    "東京は日本の首都です。 你好 世界",
    "привет, мир! привет 123 123 123",
    "emoji 🌍🏳️‍🌈 and a family 👨‍👩‍👧 here",
    "a I x ? !",
    "",
    "   \n\t  ",
    "under_score under_score CamelCase camelcase it's don't",
    "the the the the the dog",
    "éé éé e\u0301e\u0301 combining\u200djoiner",
    "no\x00nul and \ufeff bom and \u202ertl",
    "repeat " * 50,
]
NEW = ["the brown cat in Tokyo 東京", "nothing known zzz", "", "İİ ΣΣ clips clips April 48"]

SETTINGS = [
    {},
    {"sublinear": True},
    {"ngrams": (1, 2)},
    {"ngrams": (2, 3), "sublinear": True},
    {"min_df": 2},
    {"analyzer": "char", "ngrams": (1, 1)},
    {"analyzer": "char", "ngrams": (1, 3)},
    {"analyzer": "char", "ngrams": (3, 5), "sublinear": True, "min_df": 2},
    {"analyzer": "char_wb", "ngrams": (1, 4)},
    {"analyzer": "char_wb", "ngrams": (3, 5)},
    {"analyzer": "char_wb", "ngrams": (5, 6), "min_df": 2},
]


def theirs(s: dict) -> TfidfVectorizer:
    return TfidfVectorizer(
        analyzer=s.get("analyzer", "word"),
        ngram_range=s.get("ngrams", (1, 1)),
        sublinear_tf=s.get("sublinear", False),
        min_df=s.get("min_df", 1),
        max_features=s.get("max_features"),
    )


@pytest.mark.parametrize("s", SETTINGS, ids=str)
def test_equals_scikit_learn(s):
    ours, reference = Tfidf(**s).fit(TEXTS), theirs(s).fit(TEXTS)
    assert list(ours.vocabulary_) == reference.get_feature_names_out().tolist()
    np.testing.assert_allclose(ours.idf_, reference.idf_, rtol=0, atol=1e-12)
    for texts in (TEXTS, NEW):
        np.testing.assert_allclose(
            ours.transform_tasks(texts).to_dense(), reference.transform(texts).toarray(), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("s", [{"max_features": 3}, {"analyzer": "char", "max_features": 2}], ids=str)
def test_max_features_keeps_the_most_frequent(s):
    # Frequencies without ties at the cut; scikit-learn resolves ties by an unstable sort, we alphabetically.
    texts = ["dog dog dog dog cat cat cat ox ox bee", "dog cat ox"]
    reference = theirs(s).fit(texts)
    assert list(Tfidf(**s).fit(texts).vocabulary_) == reference.get_feature_names_out().tolist()
    assert list(Tfidf(max_features=2).fit(["bb aa", "cc aa"]).vocabulary_) == ["aa", "bb"]


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(max_size=40), min_size=1, max_size=8),
    analyzer=st.sampled_from(["word", "char", "char_wb"]),
    low=st.integers(1, 3),
    more=st.integers(0, 2),
    sublinear=st.booleans(),
)
def test_equals_scikit_learn_on_any_text(texts, analyzer, low, more, sublinear):
    s = {"analyzer": analyzer, "ngrams": (low, low + more), "sublinear": sublinear}
    try:
        reference = theirs(s).fit(texts)
    except ValueError:  # "empty vocabulary"
        with pytest.raises(InputError, match="no term"):
            Tfidf(**s).fit(texts)
        return
    ours = Tfidf(**s).fit(texts)
    assert list(ours.vocabulary_) == reference.get_feature_names_out().tolist()
    np.testing.assert_allclose(
        ours.transform_tasks(texts).to_dense(), reference.transform(texts).toarray(), rtol=0, atol=1e-12
    )


def test_by_hand():
    f = Tfidf().fit(["red red blue", "blue"])
    # blue is in both prompts: ln(3/3) + 1 = 1; red in one: ln(3/2) + 1 = 1.405465
    x = f.transform_tasks(["red red blue"]).to_dense()[0]
    norm = np.hypot(1.0, 2 * 1.4054651081081644)
    np.testing.assert_allclose(x, [1 / norm, 2 * 1.4054651081081644 / norm], atol=1e-15)


def test_skeleton_makes_one_template_of_many_numbers():
    x = (
        Tfidf(skeleton=True)
        .fit(["add 12 and 7", "add 3,000.5 and 99", "take 1 from 2"])
        .transform_tasks(["add 12 and 7", "add 5 and 6"])
    )
    np.testing.assert_allclose(x.to_dense()[0], x.to_dense()[1], atol=0)


def test_a_fitted_one_comes_back_from_plain_json():
    import json

    from rollonce.component import from_config

    f = Tfidf(analyzer="char", ngrams=(2, 3), sublinear=True).fit(TEXTS)
    g = from_config(json.loads(json.dumps(f.config())))
    g.load_state_dict(json.loads(json.dumps(f.state_dict())))
    assert np.array_equal(f.transform_tasks(NEW).to_dense(), g.transform_tasks(NEW).to_dense())
    assert f.matrix_cache_key == g.matrix_cache_key


def test_unfitted_and_bad_settings_say_what_to_do():
    with pytest.raises(InputError, match=r"call fit\(prompts\)"):
        Tfidf().transform_tasks(["a b"])
    with pytest.raises(InputError, match="'sentence'"):
        Tfidf(analyzer="sentence")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="shortest <= longest"):
        Tfidf(ngrams=(2, 1))
    with pytest.raises(InputError, match="no term in 2 prompts"):
        Tfidf().fit(["", "?"])


def test_refitting_forgets_cached_matrices():

    tasks = Tasks(["red blue", "green"])
    f = Tfidf().fit(["red"])
    assert f.transform_tasks(tasks).shape == (2, 1)
    assert f.fit(["red", "blue", "green"]).transform_tasks(tasks).shape == (2, 3)


@pytest.mark.parametrize("stretch", [1, 5000])  # few columns are looked up in a table, very many are searched
def test_sparse_rows_multiply_as_dense_ones(stretch):
    rng = np.random.default_rng(0)
    dense = rng.random((100, 50)) * (rng.random((100, 50)) < 0.1)
    dense[3] = 0
    at, columns = np.nonzero(dense)
    starts = np.concatenate([[0], np.cumsum(np.bincount(at, minlength=100))])
    x = SparseRows(starts, (columns * stretch).astype(np.int32), dense[at, columns], 50 * stretch)
    rows = np.array([5, 3, 5, 29, 0])
    np.testing.assert_allclose(x.dot_with_transposed(x), dense @ dense.T, atol=1e-14)
    np.testing.assert_allclose(x[rows].dot_with_transposed(x), dense[rows] @ dense.T, atol=1e-14)
    np.testing.assert_allclose(x.dot_with_transposed(x[rows]), dense @ dense[rows].T, atol=1e-14)
    np.testing.assert_allclose(x[np.array([3])].dot_with_transposed(x), np.zeros((1, 100)), atol=0)
    assert x[np.zeros(0, np.int64)].dot_with_transposed(x).shape == (0, 100)
    assert np.array_equal(x[rows].to_dense()[:, ::stretch], dense[rows])
    assert np.array_equal(
        SparseRows.stack_vertically([x[rows], x]).to_dense()[:, ::stretch], np.vstack([dense[rows], dense])
    )


@pytest.mark.parametrize("options", [{"ngrams": (2, 5)}, {"ngrams": (1, 3), "skeleton": True, "max_features": 40}])
def test_character_ngrams_found_at_once_are_those_found_one_by_one(options):
    prompts = [f"add {a} and {a * a} naïve Σίσυφος" for a in range(30)] + ODD_PROMPTS
    feature = Tfidf(analyzer="char", **options).fit(prompts[::2])
    at_once = feature.compute_feature_matrix(Tasks(prompts))
    assert feature._table is not None
    assert feature._table[1] is not None
    feature._table = (feature.vocabulary_, None)
    one_by_one = feature.compute_feature_matrix(Tasks(prompts))
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(at_once, part), getattr(one_by_one, part))


def test_ngrams_too_long_for_a_number_are_found_all_the_same():
    feature = Tfidf(analyzer="char", ngrams=(2, 30)).fit(["the quick brown fox jumps over the lazy dog"])
    row = feature.compute_feature_matrix(Tasks(["the quick brown fox jumps over the lazy dog"]))
    assert len(row.data) == len(feature.vocabulary_)
    assert NgramTable.from_vocabulary(feature.vocabulary_) is None
    # longer n-grams than any term, whose keys would run over
    few = Tfidf(analyzer="char", ngrams=(1, 60), max_features=3).fit(["aaab aaab aab"])
    assert list(few.vocabulary_) == ["a", "aa", "aab"]
    np.testing.assert_array_equal(
        few.compute_feature_matrix(Tasks(["aab a", "ba"])).to_dense() > 0, [[True, True, True], [True, False, False]]
    )


def test_rare_terms_of_many_rows_multiply_as_all_others():
    rng = np.random.default_rng(1)
    prompts = [
        f"task {i % 7} of family{i % 90} with {' '.join(f'w{w}' for w in rng.integers(900, size=5))}"
        for i in range(700)
    ]
    for options in ({}, {"analyzer": "char_wb", "ngrams": (3, 5)}):
        x = Tfidf(**options).fit(prompts).compute_feature_matrix(Tasks(prompts))
        dense = x.to_dense()
        np.testing.assert_allclose(x.dot_with_transposed(x), dense @ dense.T, atol=1e-14)


def test_features_of_one_table_share_what_they_counted_and_nothing_else():
    prompts = ["one two three", "two three four", "five"]
    tasks, others = Tasks(prompts), Tasks(["six seven", "seven"])
    first, second, plain = Tfidf().fit(tasks), Tfidf().fit(tasks), Tfidf().fit(prompts)
    assert second.vocabulary_ is first.vocabulary_
    assert plain.vocabulary_ == first.vocabulary_
    np.testing.assert_array_equal(second.idf_, plain.idf_)
    assert second.matrix_cache_key == plain.matrix_cache_key
    second.fit(others)
    assert list(second.vocabulary_) == ["seven", "six"]
    assert second.matrix_cache_key != first.matrix_cache_key == plain.matrix_cache_key
    of_some = Tfidf().fit(tasks.take([2]))
    assert list(of_some.vocabulary_) == ["five"]
    assert len(Tfidf(min_df=2).fit(tasks).vocabulary_) == 2
