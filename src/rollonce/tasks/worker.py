"""The child that `rollonce.tasks.sandbox` talks to. Reads requests on its standard input, answers on what was its
standard output."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import sys
from typing import Any

from rollonce.tasks.sandbox import _read_message, _write_message


class _OutOfTimeError(BaseException):
    """No ``Exception``: a grader's own ``except Exception`` must not swallow the time limit."""


def _raise_out_of_time(signum: int, frame: Any) -> None:
    raise _OutOfTimeError


def _grade_within_limit(grader: Any, response: str, reference: str, seconds: float) -> tuple[str, Any]:
    timed = hasattr(signal, "setitimer")  # not on Windows; there the parent's kill is the only limit
    try:
        if timed:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
        try:
            value = grader(response, reference)
        finally:
            if timed:
                signal.setitimer(signal.ITIMER_REAL, 0)
        return "grade", float(value)
    except _OutOfTimeError:
        return "failure", "time limit"
    except BaseException as error:
        # SystemExit and KeyboardInterrupt of a grader as well: they are its failure, not this process's end.
        return "failure", f"{type(error).__name__}: {str(error)[:200]}"


def main() -> None:
    """Answer requests until the input closes."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    # A grader that prints must not write into the answers, nor one that reads eat the requests.
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    sys.stdout = sys.stderr
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _raise_out_of_time)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    load = functools.lru_cache(maxsize=512)(pickle.loads)
    _write_message(answers, pickle.dumps(("ready", None)))
    while (request := _read_message(requests)) is not None:
        packed, response, reference, seconds = pickle.loads(request)
        try:
            grader = load(packed)
            if hasattr(grader, "warm_up"):
                grader.warm_up()
        except BaseException as error:
            _write_message(answers, pickle.dumps(("unloadable", f"{type(error).__name__}: {str(error)[:200]}")))
            continue
        _write_message(answers, pickle.dumps(("loaded", None)))
        _write_message(answers, pickle.dumps(_grade_within_limit(grader, response, reference, seconds)))


if __name__ == "__main__":
    main()
