"""Grade responses without letting a grader hang, crash or fill a run: a time limit, and a reward of 0 with a reason
when it is broken.

A time limit by signal works in the main thread of a process only, and only where the grader returns to Python now and
then: ``10 ** 10 ** 9`` does not. So graders of foreign code run in one long-lived child process of ours, which is
killed and started anew when it overruns. Messages cost about 50 microseconds per response. Our own linear-time graders
(`rollonce.tasks.grading.TRUSTED`) run where they are called.

The child is a plain ``python -m rollonce.tasks.worker``: no fork (which deadlocks under a threaded torch) and no
``multiprocessing`` spawn (which runs the caller's main module again).
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import pickle
import queue
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rollonce.errors import InputError
from rollonce.tasks.base import Task
from rollonce.tasks.grading import TRUSTED

# The child raises a time-out within itself first, which costs nothing; only a grader stuck outside Python is killed,
# this much later (seconds).
_GRACE = 1.0
# Starting a child includes importing what the grader needs (sympy takes seconds on a busy machine); that is not the
# response's fault.
_START = 120.0


class Grade(NamedTuple):
    """A reward, and why it is 0 by rule: ``truncated``, ``time limit``, or the error; empty if the grader decided."""

    reward: float
    failure: str = ""


@dataclass(frozen=True)
class Grades:
    """The grades of B responses.

    Attributes:
        rewards: B rewards.
        failures: B reasons, empty where the grader decided.
    """

    rewards: list[float]
    failures: list[str]

    @property
    def counts(self) -> dict[str, int]:
        """How often each kind of failure occurred: ``truncated``, ``time limit``, ``ValueError`` ... for a log."""
        return dict(Counter(f.partition(":")[0] for f in self.failures if f))

    @property
    def n_failed(self) -> int:
        """Responses whose *grader* failed (truncated responses are the policy's doing and do not count)."""
        return sum(1 for f in self.failures if f and f != "truncated")


def _write_message(stream: Any, payload: bytes) -> None:
    stream.write(struct.pack("<Q", len(payload)) + payload)
    stream.flush()


def _read_message(stream: Any) -> bytes | None:
    head = stream.read(8)
    if len(head) < 8:
        return None
    return stream.read(struct.unpack("<Q", head)[0])


class Worker:
    """The child process. One request at a time; `grade` takes its lock, so threads may share it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: queue.Queue[bytes | None] = queue.Queue()
        self.lock = threading.Lock()
        self.restarts = 0

    def _start_process(self) -> None:
        # The same import path and threads as here, so that a user's module:callable is graded and sympy or numpy claim
        # one core only.
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rollonce.tasks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._answers = queue.Queue()
        # Pipes cannot be waited on with a time limit on every system; a thread that reads and a queue can.
        threading.Thread(target=self._forward_answers, args=(self._process, self._answers), daemon=True).start()
        try:
            ready = self._receive_message(_START)
        except queue.Empty:
            ready = None
        if ready is None:
            self.stop_process()
            raise InputError("the grading process did not start; its own message is above")

    @staticmethod
    def _forward_answers(process: subprocess.Popen[bytes], answers: queue.Queue[bytes | None]) -> None:
        while True:
            try:
                answer = _read_message(process.stdout)
            except (OSError, ValueError):
                answer = None
            answers.put(answer)
            if answer is None:
                return

    def _receive_message(self, seconds: float) -> bytes | None:
        """The next message; None if the child is gone.

        Raises:
            queue.Empty: it said nothing in time.
        """
        return self._answers.get(timeout=seconds)

    def stop_process(self) -> None:
        """End the child, if there is one. It starts again when next needed."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    stream.close()  # type: ignore[union-attr]

    def grade_response(self, grader: Any, response: str, reference: str, seconds: float) -> Grade:
        """Grade one response, in at most ``seconds`` plus a second's grace. Call it with the lock held."""
        try:
            packed = pickle.dumps(grader)
        except Exception as error:  # pickling runs the object's own code
            raise InputError(
                f"the grader {grader!r} cannot be sent to the grading process ({error}); define it in a module and "
                "name it module:callable"
            ) from error
        for attempt in range(2):
            if self._process is None or self._process.poll() is not None:
                self.stop_process()
                self._start_process()
            assert self._process is not None
            try:
                _write_message(self._process.stdin, pickle.dumps((packed, response, reference, seconds)))
                break
            except OSError:  # it died while idle (someone's clean-up): once more with a fresh one
                self.stop_process()
                if attempt:
                    return Grade(0.0, "GraderDied: the grading process ended twice before it was asked")
        # First word that it has the grader loaded (imports are not timed), then the grade.
        kind, value = self._receive_or_give_up(
            _START, "GraderDied: the grading process ended while it loaded the grader"
        )
        if kind == "unloadable":
            raise InputError(
                f"the grading process cannot load the grader {grader!r}: {value}; it must be importable by its "
                "module's name"
            )
        if kind == "loaded":
            kind, value = self._receive_or_give_up(seconds + _GRACE, "GraderDied: the grader ended its process")
        if kind == "grade":
            return Grade(float(value))
        return Grade(0.0, str(value))

    def _receive_or_give_up(self, seconds: float, if_dead: str) -> tuple[str, Any]:
        try:
            answer = self._receive_message(seconds)
        except queue.Empty:
            return self._stop_with_failure("time limit")
        return self._stop_with_failure(if_dead) if answer is None else pickle.loads(answer)

    def _stop_with_failure(self, why: str) -> tuple[str, Any]:
        self.stop_process()
        self.restarts += 1
        return "failure", why


_WORKER = Worker()
atexit.register(lambda: _WORKER.stop_process())


def _replace_worker_after_fork() -> None:
    """After a fork the child would share the parent's pipes, and each would read the other's grades: it gets a worker
    of its own."""
    global _WORKER
    _WORKER = Worker()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_worker_after_fork)


def _grade_from_reward(reward: Any) -> Grade:
    try:
        value = float(reward)
    except (TypeError, ValueError):
        return Grade(0.0, f"NoNumber: the grader gave {str(reward)[:60]!r}")
    return Grade(value) if math.isfinite(value) else Grade(0.0, f"NoNumber: the grader gave {value}")


def grade(
    tasks: Sequence[Task],
    responses: Sequence[str],
    *,
    truncated: Sequence[bool] | None = None,
    time_limit: float = 5.0,
) -> Grades:
    """Rewards of B responses to B tasks. Never raises for what a response or a grader does; may be called from any
    thread.

    Args:
        tasks: B tasks.
        responses: B texts.
        truncated: True where the response was cut off before its end: reward 0 without grading, unless the task's
            grader has a true attribute ``grades_truncated``. None: none was.
        time_limit: Seconds a response; loading a grader the first time is not counted.

    Raises:
        InputError: numbers of tasks and responses differ, or a grader that no other process could load.

    >>> from rollonce.tasks import Task, find_grader_by_name
    >>> task = Task("a", "6 x 7 = ?", "42", find_grader_by_name("numeric_exact"))
    >>> grade([task, task], ["Answer: 42", "Answer: 42 and"], truncated=[False, True])
    Grades(rewards=[1.0, 0.0], failures=['', 'truncated'])
    """
    if len(tasks) != len(responses) or (truncated is not None and len(truncated) != len(tasks)):
        raise InputError(
            f"{len(tasks)} tasks, {len(responses)} responses and {len(tasks if truncated is None else truncated)} "
            "truncation flags"
        )
    grades: list[Grade] = []
    for i, (task, response) in enumerate(zip(tasks, responses, strict=True)):
        if truncated is not None and truncated[i] and not getattr(task.grader, "grades_truncated", False):
            grades.append(Grade(0.0, "truncated"))
        elif task.grader in TRUSTED:
            try:
                grades.append(_grade_from_reward(task.grader(response, task.reference)))
            except Exception as error:
                grades.append(Grade(0.0, f"{type(error).__name__}: {error}"))
        else:
            worker = _WORKER
            with worker.lock:
                graded = worker.grade_response(task.grader, response, task.reference, time_limit)
            grades.append(graded if graded.failure else _grade_from_reward(graded.reward))
    return Grades([g.reward for g in grades], [g.failure for g in grades])
