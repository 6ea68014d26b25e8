"""A grader never crashes or hangs a run."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from rollonce.errors import InputError
from rollonce.tasks import Task, find_grader_by_name, grade, sandbox


@pytest.fixture(autouse=True)
def _zoo(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def _task(name: str, reference: str = "yes") -> Task:
    return Task(name, "prompt", reference, find_grader_by_name(f"grader_zoo:{name}"))


@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("sleeps", "time limit"),
        ("swallows", "time limit"),
        ("computes", "time limit"),
        ("deaf", "time limit"),
        ("raises", "RuntimeError: no such luck"),
        ("quits", "SystemExit: 3"),
        ("dies", "GraderDied: the grader ended its process"),
        ("not_a_number", "NoNumber: the grader gave nan"),
        ("gives_text", "ValueError: could not convert string to float: 'right'"),
    ],
)
def test_failures_are_zero_and_told_and_the_next_is_graded(name, failure):
    # Only what never ends by itself meets a short limit: on a busy machine anything else may.
    grades = grade([_task(name)], ["no"], time_limit=0.3 if failure == "time limit" else 600.0)
    assert (grades.rewards, grades.failures) == ([0.0], [failure])
    assert grades.counts == {failure.partition(":")[0]: 1}
    assert grades.n_failed == 1
    assert grade([_task("good")], ["yes"], time_limit=600.0).rewards == [1.0]


def test_noise_does_not_reach_the_answers():
    assert grade([_task("prints"), _task("reads"), _task("good")], ["", "", "yes"]).rewards == [0.5, 1.0, 1.0]


def test_a_grader_may_ask_for_truncated_responses_too():
    from grader_zoo import lenient

    grades = grade([Task("a", "prompt", "yes", lenient), _task("good")], ["cut o", "yes"], truncated=[True, True])
    assert grades.rewards == [0.5, 0.0]


def test_truncated_is_zero_without_grading_and_no_grader_failure():
    grades = grade([_task("dies"), _task("good")], ["yes", "yes"], truncated=[True, False])
    assert grades.rewards == [0.0, 1.0]
    assert grades.counts == {"truncated": 1}
    assert grades.n_failed == 0


def test_time_limit_holds_in_threads():
    found: dict[int, list[float]] = {}

    def work(i: int) -> None:
        found[i] = grade([_task("sleeps")], [""], time_limit=0.2).rewards
        found[i] += grade([_task("good")], ["yes"], time_limit=600.0).rewards

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=600)
    assert found == {i: [0.0, 1.0] for i in range(3)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_a_worker_of_its_own():
    assert grade([_task("good")], ["yes"]).rewards == [1.0]
    child = os.fork()
    if child == 0:
        right = all(grade([_task("good"), _task("good")], ["yes", "no"]).rewards == [1.0, 0.0] for _ in range(20))
        sandbox._WORKER.stop_process()
        os._exit(0 if right else 1)
    assert all(grade([_task("good"), _task("good")], ["no", "yes"]).rewards == [0.0, 1.0] for _ in range(20))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_bad_reference_is_a_failure_not_a_crash():
    task = Task("a", "prompt", "forty-two", find_grader_by_name("numeric_exact"))
    grades = grade([task], ["42"])
    assert grades.rewards == [0.0]
    assert grades.failures[0].startswith("ValueError: the reference")


def test_a_grader_that_cannot_travel_is_bad_input():
    with pytest.raises(InputError, match="cannot be sent to the grading process"):
        grade([Task("a", "prompt", "1", lambda response, reference: 1.0)], ["1"])


def test_numbers_must_agree():
    with pytest.raises(InputError, match="1 tasks, 2 responses"):
        grade([_task("good")], ["a", "b"])
