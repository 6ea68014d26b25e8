"""``rollonce baselines``: the names that everything else uses."""

from __future__ import annotations

import json
from collections.abc import Callable

from cli_helpers import Ran

from rollonce import baselines
from rollonce.baselines.catalogue import named_baseline


def test_every_name_makes_what_its_line_says(rollonce: Callable[..., Ran]) -> None:
    ran = rollonce("baselines", "--json")
    assert ran.code == 0
    listed = json.loads(ran.out)
    assert {"none", "loo", "flashreinforce", "grpo", "tfidf", "kriging", "self_tuning"} <= {
        row["name"] for row in listed["baselines"]
    }
    for row in listed["baselines"]:
        made = named_baseline(row["name"])
        assert type(made) is getattr(baselines, row["python"])
        assert made.label == row["label"]
        assert row["formula"]
    assert [row["name"] for row in listed["baselines"] if row["published_example"]] == ["length_buckets", "tfidf"]
    for alias, name in listed["aliases"].items():
        assert named_baseline(alias).label == named_baseline(name).label


def test_it_reads_as_a_list(rollonce: Callable[..., Ran]) -> None:
    text = rollonce("baselines").out
    assert "tfidf  KernelBaseline, also tfidf_window, the post's example of GS1" in text
    assert "b = mean_{j != i} r_j" in text
