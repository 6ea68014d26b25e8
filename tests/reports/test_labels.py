"""Short labels stay apart from each other and fit a narrow table; the post's examples are marked."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rollonce.baselines.catalogue import default_board_baselines
from rollonce.noise.report import NoiseRow
from rollonce.reports.labels import is_published_example, shorten_baseline_label
from rollonce.reports.noise import make_noise_table
from rollonce.rollouts import Tasks
from rollonce.scoring import Estimate


def test_labels_of_a_board_fit_24_characters_and_stay_apart() -> None:
    labels = [b.label for b in default_board_baselines(Tasks(["a", "b"], columns={"level": [1, 2]}), 512)]
    short = [shorten_baseline_label(label) for label in labels]
    assert len(set(short)) == len(set(labels))
    assert max(map(len, short)) <= 24


def test_the_posts_examples_are_marked() -> None:
    labels = [b.label for b in default_board_baselines(Tasks(["a", "b"]), 512)]
    assert [label for label in labels if is_published_example(label)] == [
        "buckets log length, n=5, window 512",
        "softmax TF-IDF, T=0.1",
    ]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_label_wraps_in_the_table_of_noise(width: int) -> None:
    tasks = Tasks(["a", "b"], columns={"level": [1, 2]})
    value = Estimate(1.25, 1.0, 1.5)
    rows = [
        NoiseRow(b.label, value, value, 1.25, value, value, value, value, 1.0, 20.0, value)
        for b in default_board_baselines(tasks, 512)
    ]
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(make_noise_table(console, rows, None))
    assert isinstance(console.file, io.StringIO)
    heading, *lines = console.file.getvalue().splitlines()
    assert len(lines) == len(rows)
    assert ("norms" in heading) == (width >= 100)
