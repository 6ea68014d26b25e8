"""Graders that misbehave, imported by name in the grading process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time


def sleeps(response: str, reference: str) -> float:
    time.sleep(60)
    return 1.0


def swallows(response: str, reference: str) -> float:
    while True:
        with contextlib.suppress(Exception):
            time.sleep(60)


def computes(response: str, reference: str) -> float:
    return float(len(str(7 ** (10**9))))


def deaf(response: str, reference: str) -> float:
    # As code outside Python may be: no signal gets through, only a kill does.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(60)
    return 1.0


def raises(response: str, reference: str) -> float:
    raise RuntimeError("no such luck")


def quits(response: str, reference: str) -> float:
    sys.exit(3)


def dies(response: str, reference: str) -> float:
    os._exit(3)


def prints(response: str, reference: str) -> float:
    print("noise on standard output")
    os.write(1, b"more noise")
    return 0.5


def reads(response: str, reference: str) -> float:
    return float(sys.stdin.read() == "")


def not_a_number(response: str, reference: str) -> float:
    return float("nan")


def gives_text(response: str, reference: str) -> float:
    return "right"  # type: ignore[return-value]


def good(response: str, reference: str) -> float:
    return float(response == reference)


def lenient(response: str, reference: str) -> float:
    return 0.5


lenient.grades_truncated = True
