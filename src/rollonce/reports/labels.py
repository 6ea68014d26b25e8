"""Labels of baselines where there is little room, and which of them were published."""

from __future__ import annotations

import re

from rich.console import Console

from rollonce.baselines.catalogue import CATALOGUE

_SHORTER = (
    (r", window (\d+)", r" w\1"),
    (r"\bsoftmax ", ""),
    (r"\bbuckets log length, n=\d+", "length buckets"),
    (r"\bchar_wb TF-IDF \d-\d", "char TF-IDF"),
    (r"\bRBF log length, l=[\d.]+", "RBF length"),
    (r"\bFlashREINFORCE batch mean", "FlashREINFORCE"),
    (r" \(whitened\)", ""),
    (r"\bboosted-trees critic", "boosted trees"),
    (r"\bridge critic", "ridge"),
    (r"\bper-task tracker", "tracker"),
    (r"\bREINFORCE without a baseline", "REINFORCE, no baseline"),
)


def is_published_example(label: str) -> bool:
    """Whether a row is an example of GS1 as the post gives it: TF-IDF in the batch, length buckets with a window."""
    without_window, with_window, _ = label.partition(", window ")
    return any(
        entry.make(0).label == without_window and bool(with_window) == (entry.published_example == "history")
        for entry in CATALOGUE
        if entry.published_example
    )


def shorten_baseline_label(label: str) -> str:
    """A label for a narrow table; ``w512`` is a window of 512 rows.

    >>> shorten_baseline_label("softmax TF-IDF, T=0.1, window 512")
    'TF-IDF, T=0.1 w512'
    """
    for pattern, shorter in _SHORTER:
        label = re.sub(pattern, shorter, label)
    return label


def fit_label_to_console(console: Console, label: str) -> str:
    """The label, shortened where the console has little room."""
    return label if console.width > 110 else shorten_baseline_label(label)
