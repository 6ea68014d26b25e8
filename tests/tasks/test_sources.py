"""Sources of tasks: splits disjoint by content, numbers as asked, sentences for bad input."""

from __future__ import annotations

import gzip
import itertools
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

from rollonce.errors import InputError
from rollonce.prompts import normalise_prompt
from rollonce.tasks import (
    EMBEDDED_SOURCES,
    SOURCES,
    ReasoningGymSource,
    Source,
    Task,
    TaskSet,
    TaskSplits,
    check_splits_disjoint,
    draw_reasoning_gym_tasks,
    grade,
    list_source_usages,
    load_jsonl_tasks,
    load_tasks,
    split_of,
    usual_source_spec,
)
from rollonce.tasks.grading import exact, numeric_exact
from rollonce.tasks.reasoning_gym import _share_out_by_weight, parse_mixture


def _write(path, records):
    text = "".join(json.dumps(r) + "\n" for r in records)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def test_importing_tasks_loads_nothing_heavy():
    heavy = ("torch", "transformers", "reasoning_gym", "sympy", "math_verify")
    code = f"import rollonce.tasks, sys; print([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_split_of_is_by_content_and_in_proportion():
    assert split_of("Add 1 and 2") == split_of("  add 1\n AND 2 ")
    shares = [split_of(f"prompt {i}") for i in range(20000)]
    # 20,000 draws: a share's standard deviation is at most sqrt(.6 * .4 / 20000) = 0.0035.
    for name, share in (("train", 0.6), ("holdout", 0.2), ("test", 0.2)):
        assert abs(shares.count(name) / 20000 - share) < 5 * 0.0035


def test_counts_add_up_and_never_fall():
    assert _share_out_by_weight([1, 1, 1], 10) == [4, 3, 3]
    assert _share_out_by_weight([3, 1], 10) == [8, 2]  # 3 / 15 and 1 / 5 are alike: the tie goes to the first
    assert _share_out_by_weight([2, 1, 1], 0) == [0, 0, 0]
    # Largest remainders gave 4, 4, 2 and then 5, 5, 1. Webster: 3, 3, 1, 1, 1, .6, .6, .43, .43 make nine, and the next
    # three are 1/3 each, in the order of the components.
    assert _share_out_by_weight([3, 3, 1], 10) == [5, 4, 1]
    assert _share_out_by_weight([3, 3, 1], 11) == [5, 5, 1]
    assert _share_out_by_weight([3, 3, 1], 12) == [5, 5, 2]
    for weights in ([3, 3, 1], [1, 5, 24], [0.3, 0.25, 0.2, 7.0]):
        every = [_share_out_by_weight(weights, n) for n in range(200)]
        assert [sum(c) for c in every] == list(range(200))
        assert all(x <= y for c, d in itertools.pairwise(every) for x, y in zip(c, d, strict=True))
        assert all(abs(x / 199 - w / sum(weights)) < 1 / 199 for x, w in zip(every[-1], weights, strict=True))


def by_largest_remainders(weights, n):
    """How components were counted before."""
    exact = np.asarray(weights, dtype=float) / sum(weights) * n
    counts = np.floor(exact).astype(int)
    for i in np.argsort(-(exact - counts), kind="stable")[: n - counts.sum()]:
        counts[i] += 1
    return counts.tolist()


def test_equal_weights_give_the_counts_they_always_gave():
    for k in (1, 2, 3, 7, 15):
        for n in range(100):
            want = [n // k + (i < n % k) for i in range(k)]
            assert _share_out_by_weight([1.0] * k, n) == by_largest_remainders([1.0] * k, n) == want
    assert _share_out_by_weight([1.0] * 15, 6000) == [400] * 15


def test_as_tasks_shows_no_reference_and_fills_missing_columns():
    tasks = TaskSet([Task("a", "p", "secret", exact, {"family": "x"}), Task("b", "q", "secret", exact, {"level": 2})])
    view = tasks.as_feature_tasks()
    assert view.column_names == ("family", "level")
    assert view.column("family").tolist() == ["x", None]
    assert list(view.task_ids) == ["a", "b"]


def test_columns_known_only_afterwards_are_refused():
    with pytest.raises(InputError, match="response_length"):
        Task("a", "p", "r", exact, {"response_length": 3})


def test_ids_must_be_unique():
    with pytest.raises(InputError, match="two tasks"):
        TaskSet([Task("a", "p", "r", exact), Task("a", "q", "r", exact)])


def test_check_disjoint_sees_through_white_space():
    splits = TaskSplits(
        TaskSet([Task("a", "One  two", "", exact)]), TaskSet([]), TaskSet([Task("b", "one two", "", exact)])
    )
    with pytest.raises(InputError, match="both train and test"):
        check_splits_disjoint(splits)


class TestReasoningGym:
    @pytest.fixture(autouse=True)
    def _needs(self):
        pytest.importorskip("reasoning_gym")

    def test_splits_are_disjoint_whatever_the_seed(self):
        sources = parse_mixture("chain_sum(min_terms=2, max_terms=2, max_digits=2)*3 + gcd")
        one = draw_reasoning_gym_tasks(sources, train=120, holdout=40, test=40, seed=1)
        two = draw_reasoning_gym_tasks(sources, train=120, holdout=40, test=40, seed=2)
        check_splits_disjoint(one)
        assert [len(s) for s in one] == [120, 40, 40]
        assert [t.columns["family"] for t in one.train].count("chain_sum") == 90
        train = {normalise_prompt(t.prompt) for s in (one, two) for t in s.train}
        test = {normalise_prompt(t.prompt) for s in (one, two) for t in s.test}
        assert not train & test
        assert {t.id for t in one.test} != {t.id for t in two.test}

    def test_same_seed_same_tasks(self):
        a, b = (draw_reasoning_gym_tasks([ReasoningGymSource("gcd")], train=30, seed=4).train for _ in range(2))
        assert [(t.id, t.prompt, t.reference) for t in a] == [(t.id, t.prompt, t.reference) for t in b]

    def test_the_embedded_tasks_are_those_they_always_were(self, monkeypatch):
        now = load_tasks("embedded", train=0, holdout=64, test=20).holdout
        monkeypatch.setattr("rollonce.tasks.reasoning_gym._share_out_by_weight", by_largest_remainders)
        before = load_tasks("embedded", train=0, holdout=64, test=20).holdout
        assert [(t.id, t.prompt) for t in now] == [(t.id, t.prompt) for t in before]

    def test_a_weighted_mixture_that_grows_keeps_its_tasks(self):
        sources = parse_mixture("chain_sum*3 + gcd*3 + count_bits")
        few, more = ({t.id for t in draw_reasoning_gym_tasks(sources, holdout=n).holdout} for n in (10, 11))
        assert few < more

    def test_own_scorer_is_used_and_part_marks_are_not(self):
        source = ReasoningGymSource("prime_factorization", {"min_value": 12, "max_value": 12})
        task = next(t for split in ("train", "holdout", "test") for t in self._all(source, split))
        assert "12" in task.prompt
        # reasoning-gym gives 0.5 for factors that are not prime and 0.01 for any other attempt.
        responses = ["Answer: 2 × 2 × 3", "Answer: 3 × 2 × 2", "Answer: 4 × 3", "Answer: 5", "Answer: twelve"]
        assert grade([task] * 5, responses).rewards == [1.0, 1.0, 0.0, 0.0, 0.0]

    @staticmethod
    def _all(source, split):
        try:
            return getattr(draw_reasoning_gym_tasks([source], **{split: 1}), split)
        except InputError:
            return []

    def test_every_embedded_type_accepts_its_own_reference(self):
        n = len(EMBEDDED_SOURCES)
        assert n >= 12
        tasks = load_tasks("embedded", train=0, holdout=0, test=2 * n).test
        assert {(t.columns["family"], t.columns["level"]) for t in tasks} == {
            (s.family, s.level) for s in EMBEDDED_SOURCES
        }
        assert grade(list(tasks), [f"Some steps. So the answer is {t.reference}" for t in tasks]).rewards == [1.0] * (
            2 * n
        )
        assert sum(grade(list(tasks), ["So the answer is 987654321"] * (2 * n)).rewards) == 0

    def test_tasks_can_be_sent_to_other_processes(self):
        task = load_tasks("reasoning-gym:gcd", train=1, holdout=0, test=0).train[0]
        assert pickle.loads(pickle.dumps(task)) == task

    def test_too_few_prompts_is_said(self):
        with pytest.raises(InputError, match="too few different prompts"):
            draw_reasoning_gym_tasks([ReasoningGymSource("count_bits", {"min_n": 1, "max_n": 9})], train=50)

    def test_unknown_dataset_and_configuration(self):
        with pytest.raises(InputError, match=r"no dataset 'chain_summ'.*chain_sum"):
            load_tasks("reasoning-gym:chain_summ")
        with pytest.raises(InputError, match="refuses the configuration"):
            load_tasks("reasoning-gym:chain_sum(max_termz=3)")
        with pytest.raises(InputError, match="refuses the configuration"):
            load_tasks("reasoning-gym:chain_sum(min_terms=9)")


def test_parse_mixture():
    sources = parse_mixture("chain_sum(max_terms=3, digits=(1, 2))*0.5 + gcd + chain_sum")
    assert [(s.dataset, s.weight, s.level) for s in sources] == [
        ("chain_sum", 0.5, "1"),
        ("gcd", 1.0, ""),
        ("chain_sum", 1.0, "2"),
    ]
    assert sources[0].config == {"max_terms": 3, "digits": (1, 2)}
    for bad in (
        "",
        "chain_sum(",
        "chain_sum(3)",
        "chain_sum - gcd",
        "chain_sum(a=open('x'))",
        "3",
        "2*chain_sum",
        "chain_sum(**{})",
    ):
        with pytest.raises(InputError, match="no mixture"):
            parse_mixture(bad)


class TestGsm8k:
    @pytest.fixture
    def directory(self, tmp_path):
        def record(i):
            return {
                "question": f"What is {i} plus {i}?",
                "answer": f"{i} + {i} = <<{i}+{i}={2 * i}>>{2 * i}\n#### {2 * i:,}",
            }

        _write(tmp_path / "train.jsonl.gz", [record(i) for i in range(100, 160)] + [record(7)])
        _write(tmp_path / "test.jsonl", [record(i) for i in (5, 6, 7, 1000)])
        return tmp_path

    def test_splits_and_grades(self, directory):
        splits = load_tasks(f"gsm8k:{directory}", holdout=20)
        # The training line that is a test question as well is dropped: 61 - 1 - 20.
        assert [len(s) for s in splits] == [40, 20, 4]
        check_splits_disjoint(splits)
        last = splits.test[3]
        assert last.reference == "2000"
        assert grade([last] * 3, ["#### 2,000", "So the answer is $2000.", "2001"]).rewards == [1.0, 1.0, 0.0]

    def test_cut(self, directory):
        splits = load_tasks(f"gsm8k:{directory}", train=10, holdout=5, test=2, seed=3)
        assert [len(s) for s in splits] == [10, 5, 2]
        with pytest.raises(InputError, match="only 4"):
            load_tasks(f"gsm8k:{directory}", holdout=5, test=5)

    def test_bad_input(self, directory, tmp_path):
        with pytest.raises(InputError, match="no directory"):
            load_tasks("gsm8k:no/such/place")
        with pytest.raises(InputError, match="say where gsm8k lies"):
            load_tasks("gsm8k")
        _write(directory / "test.jsonl", [{"question": "q", "answer": "no marker"}])
        with pytest.raises(InputError, match=r"test.jsonl, line 1: the answer has no '####'"):
            load_tasks(f"gsm8k:{directory}")


def test_math500_from_a_directory(tmp_path):
    pytest.importorskip("math_verify")
    records = [
        {"problem": "Half of one?", "answer": r"\frac{1}{2}", "subject": "Prealgebra", "level": 1, "unique_id": "a"},
        {"problem": "Root of 8?", "answer": r"2\sqrt{2}", "subject": "Algebra", "level": 3, "unique_id": "b"},
    ]
    _write(tmp_path / "test.jsonl", records)
    splits = load_tasks(f"math500:{tmp_path}")
    assert [len(s) for s in splits] == [0, 0, 2]
    assert splits.test[1].columns == {"family": "Algebra", "level": "3"}
    grades = grade(list(splits.test), [r"It is $\boxed{0.5}$", r"It is $\boxed{\sqrt{8}}$"], time_limit=30)
    assert grades.rewards == [1.0, 1.0]


class TestJsonl:
    def test_reads_prompts_columns_and_graders(self, tmp_path):
        path = _write(
            tmp_path / "mine.jsonl",
            [
                {"id": "x", "question": "2+2", "answer": 4, "level": 1},
                {"prompt": [{"role": "user", "content": "sky?"}], "reference": "blue", "grader": "contains"},
            ],
        )
        tasks = load_jsonl_tasks(path, grader="numeric_exact", columns=["level"])
        assert [t.id for t in tasks] == ["x", "2"]
        assert tasks[0].grader is numeric_exact
        assert tasks.prompts == ["2+2", "sky?"]
        assert [t.columns["level"] for t in tasks] == [1, None]
        assert grade(list(tasks), ["4.0", "It is Blue."]).rewards == [1.0, 1.0]

    def test_registry_splits_by_content(self, tmp_path):
        path = _write(tmp_path / "many.jsonl", [{"prompt": f"p{i}", "answer": "1"} for i in range(200)])
        splits = load_tasks(f"jsonl:{path}")
        assert sum(len(s) for s in splits) == 200
        assert all(split_of(t.prompt) == name for name, tasks in splits._asdict().items() for t in tasks)

    @pytest.mark.parametrize(
        ("lines", "message"),
        [
            ('{"prompt": "a", "answer": "1"}\n{"prompt": ', r"line 2: this is no JSON"),
            ("[1]\n", "line 1: a task is a JSON object, not list"),
            ('{"text": "a", "answer": "1"}\n', "line 1: no prompt: none of the keys"),
            ('{"prompt": "a"}\n', "line 1: no reference"),
            ('{"prompt": "  ", "answer": "1"}\n', "line 1: the prompt is no text, or empty"),
            ('{"prompt": "a", "answer": null}\n', "line 1: the reference must be"),
            (
                '{"prompt": "a b", "answer": "1"}\n\n{"prompt": "A  B", "answer": "1"}\n',
                "line 3: the same prompt as line 1",
            ),
            ('{"prompt": "a", "answer": "1", "grader": "fuzzy"}\n', "line 1: there is no grader 'fuzzy'"),
            ('{"prompt": "a", "answer": "1", "id": "x"}\n{"prompt": "b", "answer": "1", "id": "x"}\n', "two tasks"),
            ("", "holds no tasks"),
        ],
    )
    def test_bad_lines_are_named(self, tmp_path, lines, message):
        path = tmp_path / "bad.jsonl"
        path.write_text(lines, encoding="utf-8")
        with pytest.raises(InputError, match=message) as caught:
            load_jsonl_tasks(path)
        assert caught.value.file == str(path)

    def test_files_that_are_none(self, tmp_path):
        with pytest.raises(InputError, match="cannot be opened"):
            load_jsonl_tasks(tmp_path / "absent.jsonl")
        (tmp_path / "fake.jsonl.gz").write_bytes(b"plain text")
        with pytest.raises(InputError, match="cannot be read"):
            load_jsonl_tasks(tmp_path / "fake.jsonl.gz")
        (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "a", "answer": "1"}\n' * 50)[:-12])
        with pytest.raises(InputError, match=r"cannot be read|the same prompt"):
            load_jsonl_tasks(tmp_path / "cut.jsonl.gz")
        (tmp_path / "latin.jsonl").write_bytes('{"prompt": "é", "answer": "1"}'.encode("latin-1"))
        with pytest.raises(InputError, match="cannot be read"):
            load_jsonl_tasks(tmp_path / "latin.jsonl")

    def test_an_absent_column_is_refused(self, tmp_path):
        path = _write(tmp_path / "a.jsonl", [{"prompt": "a", "answer": "1"}])
        with pytest.raises(InputError, match="no line has the column 'level'"):
            load_jsonl_tasks(path, columns=["level"])


def test_unknown_source():
    with pytest.raises(InputError, match="no source of tasks 'gsm9k'"):
        load_tasks("gsm9k:x")
    with pytest.raises(InputError, match="takes nothing after it"):
        load_tasks("embedded:2")


def test_a_source_is_one_registry_line(monkeypatch, tmp_path):
    """Whoever asks for tasks (training, collecting, noise, an experiment) learns from the registry what it needs."""
    from rollonce.collecting import CollectSettings
    from rollonce.collecting.settings import check_source_options
    from rollonce.collecting.sources import draw_tasks_by_seed

    def load(place, request):
        make = lambda split, i: Task(f"{split}{i}", f"{place} {split} {i}", "1", exact)  # noqa: E731
        numbers = request.numbers_with_defaults(train=9, holdout=8, test=7)
        return TaskSplits(*(TaskSet([make(split, i) for i in range(n)], split) for split, n in numbers.items()))

    monkeypatch.setitem(SOURCES, "mine", Source("mine", load, place="WORD", is_endless=True, usual_place="hello"))
    assert [len(part) for part in load_tasks("mine:hello", train=2)] == [2, 8, 7]
    assert "mine:WORD" in list_source_usages()
    assert usual_source_spec("mine") == "mine:hello"
    assert [usual_source_spec(n) for n in ("gsm8k", "embedded", "jsonl", "nothing")] == [
        "gsm8k:hub",
        "embedded",
        None,
        None,
    ]
    settings = CollectSettings("m", "mine:hello", str(tmp_path / "o.jsonl"), n_tasks=40)
    assert [task.id for task in draw_tasks_by_seed(settings)] == [f"holdout{i}" for i in range(40)]
    with pytest.raises(InputError, match="--grader belongs to tasks of jsonl:FILE, and those of mine have their own"):
        check_source_options("mine:hello", "contains", ())
    monkeypatch.setitem(SOURCES, "mine", Source("mine", load, place="WORD", takes_grader=True))
    check_source_options("mine:hello", "contains", ("level",))
    with pytest.raises(InputError, match=r"mine:hello has only 8 in the split 'holdout'.*all 24"):
        draw_tasks_by_seed(settings)
