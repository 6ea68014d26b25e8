"""Short labels stay apart from each other and fit a narrow table; the post's examples are marked."""

from __future__ import annotations

from rollonce.baselines.catalogue import default_board_baselines
from rollonce.reports.labels import is_published_example, shorten_baseline_label
from rollonce.rollouts import Tasks


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
