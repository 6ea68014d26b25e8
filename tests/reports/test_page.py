"""The page, as text and in a browser."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from browser import look

from rollonce.reports import svg
from rollonce.reports.page import render_board_page, write_board_page
from rollonce.rollouts import Rollouts
from rollonce.scoring import Board, Estimate, score_rollouts

EVIL = '<script>window.pwned=1</script><img src="http://example.invalid/x.png">'


def table(name: str, group: int = 4, n_tasks: int = 24) -> Rollouts:
    """Rewards that differ over two families of prompts; the family's name, the prompts and ids are hostile."""
    rewards = [[float((t * 7 + g * 5) % 6 > (1 if t % 2 else 4)) for g in range(group)] for t in range(n_tasks)]
    prompts = [f"{EVIL} family {t % 2} item {t} " + "word " * (t % 5) for t in range(n_tasks)]
    return Rollouts.from_groups(rewards, prompts, task_ids=[f"{EVIL}{t}" for t in range(n_tasks)], name=name)


def board(name: str, group: int = 4) -> Board:
    rollouts = table(name, group)
    return score_rollouts(rollouts, batch_size=8, window=8, n_batches=20, resamples=5)


@pytest.fixture(scope="module")
def boards() -> list[Board]:
    """Three sets: an ordinary one, one with a hostile name and hostile notes, one without repeats and with a very long
    name."""
    first, second, third = board("plain"), board(EVIL), board("a_name_" * 20 + "x" * 120, 1)
    second.notes.append(EVIL)
    second.source = EVIL
    second.scores[0] = second.scores[0]._replace(label="same " + EVIL)
    return [first, second, third]


@pytest.fixture(scope="module")
def page(boards: list[Board], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "out.html"
    write_board_page(str(path), boards, f"rollonce score '{EVIL}' --report out.html")
    return path


@pytest.mark.parametrize("width", [375, 1180])
def test_in_a_browser(page: Path, width: int) -> None:
    found = look(page, width)
    assert found["width"] == width
    assert found["scroll"] <= found["client"] <= width, found["wide"]
    assert found["wide"] == []
    assert found["console"] == []
    assert found["seen"] == []
    assert found["requests"] == []
    assert found["pwned"] == 0
    assert found["scripts"] == 1  # the probe's own
    assert found["bars"] >= 3 * 2 * 15
    assert found["columns"] == 3 * 20
    assert found["lines"] >= 2 * 3
    assert {"mean reward of a task", "batch size B"} <= set(found["texts"])
    assert found["smallest"] >= 10
    assert EVIL in found["headings"]


def test_one_set_in_a_browser(boards: list[Board], tmp_path: Path) -> None:
    path = tmp_path / "one.html"
    write_board_page(str(path), boards[:1], "rollonce score plain")
    found = look(path, 375)
    assert found["scroll"] <= found["client"] <= 375
    assert found["h1"].replace("Beff", "B_eff").endswith(".")


def test_nothing_hostile_and_nothing_from_elsewhere(page: Path) -> None:
    text = page.read_text()
    assert "<script" not in text
    assert "<img" not in text
    assert not re.search(r"(?:src|href)=\"(?!#|data:,)", text)
    assert not re.search(r"url\(|@import|@font-face", text)
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    assert "NaN" not in text
    assert not re.search(r"\bnan\b", text)


def test_settings_command_version_and_notes_are_there(boards: list[Board], page: Path) -> None:
    from rollonce import __version__

    text = page.read_text()
    assert "--report out.html" in text
    assert f"rollonce {__version__}" in text
    assert "20 batches, 5 resamples" in text
    assert "Every task has a single rollout" in text
    assert "crossing" in text


def test_same_boards_same_page(boards: list[Board]) -> None:
    assert render_board_page(boards, "rollonce score") == render_board_page(boards, "rollonce score")


def test_an_unwritable_place_is_a_sentence(boards: list[Board], tmp_path: Path) -> None:
    from rollonce.errors import InputError

    with pytest.raises(InputError, match="cannot be written"):
        write_board_page(str(tmp_path / "nowhere" / "out.html"), boards, "")


@pytest.mark.parametrize(
    "ratios",
    [
        [(1.0, 0.97, 1.02)],
        [(1.38, 1.02, 1.85), (0.56, 0.46, 0.67)],
        [(3.5, 2.0, 6.0)],
        [(0.2, 0.1, 0.4), (1.1, 1.0, 1.2)],
        [(8.0, 5.0, 12.0), (0.35, 0.2, 0.5)],
        [(1.0, 0.999, 1.001)],
        [(1.02, 1.01, 1.02), (1.36, 1.15, 1.61)],
    ],
)
def test_ratio_axes_have_marks_on_both_sides_of_one_and_hold_every_value(ratios) -> None:
    scale = svg.make_ratio_scale([Estimate(*r) for r in ratios])
    assert min(scale.marks) < 1 < max(scale.marks)
    assert 1.0 in scale.marks
    assert not any(scale.is_value_outside(value) for value, _, _ in ratios)
    at = [scale.position_in_percent(mark) for mark in scale.marks]
    assert min(b - a for a, b in itertools.pairwise(at)) > 6  # room for the text between two
    assert len(at) <= 9
