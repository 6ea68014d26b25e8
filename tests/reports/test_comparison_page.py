"""The comparison's page, Markdown and words, and the command that makes them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from browser import look

sys.path.append(str(Path(__file__).parents[1] / "comparison"))
from synthetic_runs import Planted, write_runs

from rollonce.cli import main
from rollonce.comparison import Analysis, analyse_comparison, load_finished_runs
from rollonce.reports.comparison_markdown import render_comparison_markdown
from rollonce.reports.comparison_page import format_p_value, render_comparison_page, write_comparison_page
from rollonce.reports.comparison_svg import choose_round_marks
from rollonce.reports.comparison_words import (
    format_learning_rate,
    format_seconds,
    format_signed_points,
    make_comparison_verdict,
)

EVIL = '<script>window.pwned=1</script><img src="http://example.invalid/x.png">'
SEED = (-0.004, 0.0, 0.008, 0.002, -0.006)


def level(end: float, twist: float = 1.0):
    """0.3 to ``end``; seeds differ by under a point, items by family."""
    return lambda seed, step, item: (
        0.3 + 0.05 * (item % 2) + (end - 0.3 + twist * SEED[(seed * (1 if twist > 0 else 2)) % 5]) * step / 40
    )


def arms() -> dict[str, Planted]:
    """A reference, one 10 points below, one alike, a critic that is slow and 10 points above, and groups."""
    slow = {"sample": 0.5, "grade": 0.1, "advantage": 0.0, "critic": 0.9, "update": 0.4}
    groups = {"group_size": 8, "rollouts_per_step": 32, "learning_rate": 2e-4}
    return {
        "flashreinforce": Planted(level(0.45)),
        "none": Planted(level(0.35, -1.0)),
        "gs1_tfidf": Planted(level(0.451, -1.0)),
        "critic": Planted(level(0.55, -1.0), seconds=slow),
        "grpo": Planted(level(0.449, -1.0), entry=groups),
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runs(tmp_path_factory.mktemp("runs") / "out", arms(), seeds=range(5))


@pytest.fixture(scope="module")
def found(root: Path) -> Analysis:
    return analyse_comparison(load_finished_runs(root))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Long and hostile names, a grid of rates, a run that is left out with a hostile message, twelve families."""
    entry = {"learning_rate": 1e-3, "group_size": 1, "rollouts_per_step": 32}
    planted = {
        "a_name_" * 12 + "end": Planted(level(0.4), shadow={"loo": 0.25, EVIL: 0.2}),
        **{f"hot@{r:g}": Planted(level(0.5 - r * 100, -1.0),
                              entry=entry | {"arm": "hot", "learning_rate": r}, holdout=level(0.4))
           for r in (1e-4, 3e-4, 1e-3)},
    }  # fmt: skip
    items = [(f"{EVIL} family {k % 12} " + "long_" * 12, f"t{k}") for k in range(36)]
    root = write_runs(tmp_path_factory.mktemp("hostile") / "out", planted, seeds=range(3), items=items)
    for folder in (
        root / "runs"
    ).iterdir():  # the first arm has no hold-out items: not an error, each split stands for itself
        (folder / "seed2" / "result.json").write_text(json.dumps({"status": "disk", "message": EVIL, "steps": 40}))
    return analyse_comparison(load_finished_runs(root))


@pytest.mark.parametrize("width", [375, 1180])
def test_in_a_browser(found: Analysis, tmp_path: Path, width: int) -> None:
    path = tmp_path / "out.html"
    write_comparison_page(str(path), found, "rollonce report out")
    seen = look(path, width)
    assert seen["width"] == width
    assert seen["wide"] == []
    assert seen["scroll"] <= seen["client"] <= width
    assert (seen["console"], seen["seen"], seen["requests"]) == ([], [], [])
    assert seen["scripts"] == 1  # the probe's own
    assert seen["lines"] == 2 * 5  # both learning curves of five arms
    assert seen["bars"] >= 2 * (5 + 4) + 5  # levels and differences in both modes, and times
    assert seen["smallest"] >= 10
    assert {"rollouts", "CPU seconds"} <= set(seen["texts"])
    assert "What a token-level critic would cost at 1 to 8 billion parameters" not in seen["headings"]  # not measured


@pytest.mark.parametrize("width", [375, 1180])
def test_hostile_names_in_a_browser(hostile: Analysis, tmp_path: Path, width: int) -> None:
    path = tmp_path / "out.html"
    write_comparison_page(str(path), hostile, f"rollonce report '{EVIL}'")
    seen = look(path, width)
    assert seen["wide"] == []
    assert seen["scroll"] <= seen["client"] <= width
    assert (seen["console"], seen["seen"], seen["requests"], seen["pwned"]) == ([], [], [], 0)
    assert "learning rate" in seen["texts"]


def test_nothing_hostile_and_nothing_from_elsewhere(hostile: Analysis, found: Analysis) -> None:
    for text in (render_comparison_page(hostile, EVIL), render_comparison_page(found, "x")):
        assert "<script" not in text
        assert "<img" not in text
        assert not re.search(r"(?:src|href)=\"(?!#|data:,)", text)
        assert not re.search(r"url\(|@import|@font-face", text)
        assert not re.search(r"\bnan\b|NaN|\binf\b|None", text)
    assert "ended as &#39;disk&#39;" in render_comparison_page(hostile, "x")


def test_the_verdict_claims_what_the_intervals_hold(found: Analysis) -> None:
    verdict = make_comparison_verdict(found)
    assert verdict.headline == (
        "critic (+10.0 points) ended above flashreinforce; none (−10.0 points) ended below flashreinforce. "
        "No difference could be shown for gs1_tfidf and grpo."
    )
    text = " ".join(verdict.more)
    assert "gs1_tfidf +0.1 points [" in text
    assert "critic spends 47% of its CPU time on its critic; a rollout costs 1.90 times flashreinforce's." in text
    # Seeds differ by half a point: five of them would have shown two points.
    assert "a true difference of 2 points would most likely have shown" in text


def test_seeds_needed_are_said(tmp_path: Path) -> None:
    # Seeds differ by five points or so, and nothing else does.
    big = (-0.06, 0.0, 0.05)
    planted = {
        "flashreinforce": Planted(lambda s, t, i: 0.3 + big[s] * t / 40),
        "none": Planted(lambda s, t, i: 0.31 + big[(s + 1) % 3] * t / 40),
    }
    found = analyse_comparison(load_finished_runs(write_runs(tmp_path / "out", planted)))
    verdict = make_comparison_verdict(found)
    assert verdict.headline == "No difference to flashreinforce could be shown for none, with 3 seeds each."
    needed = found.differences[0].seeds_needed
    assert needed is not None
    # sd of a difference .0954 a seed; (z .975 + z .8)^2 (.0954 / .02)^2 = 178.6, and t asks for two or so more.
    assert 178 <= needed <= 183
    assert f"about {needed} seeds per arm would be needed to tell a difference of 2 points" in verdict.more[0]


def test_one_seed_makes_no_claim(tmp_path: Path) -> None:
    found = analyse_comparison(load_finished_runs(write_runs(tmp_path / "out", arms(), seeds=[0])))
    verdict = make_comparison_verdict(found)
    assert verdict.headline.startswith("One seed per arm cannot tell arms apart")
    assert not re.search(r"\bnan\b|NaN", render_comparison_page(found, "x"))
    assert "nan" not in render_comparison_markdown(found, "x")


def test_one_item_is_not_called_one_seed(tmp_path: Path) -> None:
    found = analyse_comparison(
        load_finished_runs(write_runs(tmp_path / "out", arms(), seeds=range(3), items=[("family", "t0")]))
    )
    verdict = make_comparison_verdict(found)
    assert verdict.headline == "One item cannot tell arms apart: what another item would have given is not known."
    assert not re.search(r"\bnan\b|NaN", render_comparison_page(found, "x") + render_comparison_markdown(found, "x"))


def test_saturated_arms_prove_nothing(tmp_path: Path) -> None:
    # Both solve everything with every seed; a third varies, so that there is a variance to be pooled.
    full = Planted(lambda seed, step, item: 0.3 + 0.7 * step / 40)
    planted = {"flashreinforce": full, "full": full, "none": Planted(level(0.45))}
    found = analyse_comparison(load_finished_runs(write_runs(tmp_path / "out", planted, seeds=range(5))))
    verdict = make_comparison_verdict(found)
    assert verdict.headline.startswith(
        "none (−52.5 points) ended below flashreinforce."
    )  # .45, and .05 for half of the items
    text = " ".join(verdict.more)
    assert (
        "full 0.0 points: the same with every seed and item, so nothing is known of what others would have given"
        in text
    )
    assert "would most likely have shown" not in text
    cells = next(
        line for line in render_comparison_markdown(found, "x").splitlines() if line.startswith("| full | 0.0")
    )
    assert cells.split("|")[5:7] == [" - ", " - "]  # told apart at, seeds needed
    apart = analyse_comparison(
        load_finished_runs(
            write_runs(tmp_path / "apart", {"flashreinforce": full, "none": Planted(lambda *_: 0.0)}, seeds=[0, 1])
        )
    )
    assert make_comparison_verdict(apart).headline == "Nothing can be said of differences to flashreinforce."


def test_one_arm_alone(tmp_path: Path) -> None:
    found = analyse_comparison(
        load_finished_runs(write_runs(tmp_path / "out", {"none": arms()["none"]}, seeds=range(5)))
    )
    assert "nothing to compare it with" in make_comparison_verdict(found).headline
    assert "<h1>One arm, none" in render_comparison_page(found, "x")
    assert "nan" not in render_comparison_markdown(found, "x")


def test_markdown(found: Analysis) -> None:
    text = render_comparison_markdown(found, "rollonce report out")
    assert "| none | 5 | 37.5%" in text
    assert "Made by `rollonce report out`" in text
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1


def test_same_runs_same_page(found: Analysis, root: Path) -> None:
    assert render_comparison_page(analyse_comparison(load_finished_runs(root)), "x") == render_comparison_page(
        found, "x"
    )


def test_small_words() -> None:
    assert [format_signed_points(v) for v in (0.0123, -0.004, 0.0, 0.0001)] == ["+1.2", "−0.4", "0.0", "0.0"]
    assert [format_learning_rate(v) for v in (2e-4, 1e-3, 1.5e-5, float("nan"))] == ["2e-4", "1e-3", "1.5e-5", "-"]
    assert [format_seconds(v) for v in (0.0123, 4.0, 12345.0, float("inf"))] == [
        "0.0123 s",
        "4 s",
        "12,345 s",
        "not reached",
    ]
    assert [format_p_value(p) for p in (0.5, 0.0004, 0.05, 1.0)] == [".500", "< .001", ".050", "1.000"]
    assert choose_round_marks(0, 47) == (0, 10, 20, 30, 40)
    assert choose_round_marks(-3.2, 3.2, 4) == (-2, 0, 2)


# The command
# ------------------------------------------------------------------------------------------------------------------


def test_the_command(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html, markdown = tmp_path / "out.html", tmp_path / "out.md"
    assert main(["report", str(root), "--report", str(html), "--markdown", str(markdown)]) == 0
    printed = capsys.readouterr()
    assert "ended above flashreinforce" in printed.out
    assert re.search(r"none +5 +37\.5%", printed.out)
    assert f"wrote {html}" in printed.err
    assert html.read_text().startswith("<!doctype html>")
    assert markdown.read_text().startswith("# ")


def test_the_command_as_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(root), "--json", "--reference", "none", "--difference", "0.01"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["reference"] == "none"
    assert out["settings"]["difference"] == 0.01
    flash = next(d for d in out["differences"] if d["arm"] == "flashreinforce")
    assert flash["final"]["sampled"]["estimate"]["value"] == pytest.approx(0.1, abs=1e-6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no DIR given"),
        (["nowhere"], "no such directory"),
        (["ROOT", "--reference", "nobody"], "is no arm with a run that can be used; there are"),
        (["ROOT", "--difference", "2"], "between 0 and 1"),
        (["ROOT", "--level", "40"], "the level to reach is a share from 0 to 1 (0.4 is 40%), not 40"),
        (["ROOT", "--seed", "-1"], "seed must be at least 0, not -1"),
        (["ROOT", "--report", "nowhere/x.html"], "cannot be written"),
    ],
)
def test_bad_use_is_a_sentence(words: list[str], said: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *(str(root) if w == "ROOT" else w for w in words)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert "Traceback" not in printed.err


def test_it_needs_no_torch(root: Path) -> None:
    import subprocess

    code = (
        "import sys\nclass Blocker:\n    def find_spec(self, name, path=None, target=None):\n        if "
        "name.split('.')[0] in ('torch', 'transformers', 'peft', 'reasoning_gym'):\n            raise "
        "ImportError('blocked: ' + name)\nsys.meta_path.insert(0, Blocker())\nfrom rollonce.cli import "
        f"main\nsys.exit(main(['report', {str(root)!r}, '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["reference"] == "flashreinforce"
