"""What `rollonce score` adds to a board: the self-tuning baseline, cross-fitted."""

from __future__ import annotations

import json
from pathlib import Path

from rollonce import datasets
from rollonce.baselines import SelfTuning
from rollonce.boards import BoardSettings, make_baseline_board
from rollonce.cli import main
from rollonce.scoring import Scorer, cross_fit_baseline, score_group_baselines, score_rollouts

TABLE = datasets.load(
    "gsm8k_qwen25coder_1.5b"
)  # where self-tuning with a window is the best, so that the groups follow


def test_self_tuning_is_on_the_board_and_cross_fitted():
    board = make_baseline_board(TABLE, BoardSettings(n_batches=300, resamples=0))
    by_label = {s.label: s for s in board.scores}
    for label, window in (("self-tuning", 0), ("self-tuning, window 512", 512)):
        scorer = Scorer(TABLE, n_batches=300, n_batches_expensive=300, resamples=0, shared_windows=True)
        alone = scorer.score_baseline(cross_fit_baseline(SelfTuning(window=window), TABLE))
        assert by_label[label].b_eff.value == alone.b_eff.value
        assert by_label[label].ratio.value > 1.0  # untuned it would be the LOO mean, ratio 1
    assert any("cross-fitted" in note for note in board.notes)
    ratios = [s.ratio.value for s in board.scores]
    assert ratios == sorted(ratios, reverse=True)
    assert board.groups == score_group_baselines(TABLE, 32, board.scores[0].b_eff.value)
    in_batch = next(s.label for s in board.scores if not s.window and not s.scored_as)
    assert in_batch in board.curve  # the curve is of the best in-batch baseline, whichever it is


def test_the_public_function_gives_the_board_that_the_command_prints(capsys):
    few = {"n_batches": 30, "resamples": 0}
    assert main(["score", "gsm8k", "--batches", "30", "--resamples", "0", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["boards"][0]
    called = score_rollouts(TABLE, **few).to_dict()
    assert printed["scores"] == json.loads(json.dumps(called["scores"]))
    assert printed["curve"] == json.loads(json.dumps(called["curve"]))


def test_markdown_and_an_opened_page(tmp_path, monkeypatch, capsys):
    """A browser is what cannot run here: it is told the page's address and nothing else."""
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(opened.append(address)))
    few = ["game24", "--only", "loo", "--batches", "20", "--resamples", "4"]
    assert main(["score", *few, "--open", "--markdown", str(tmp_path / "board.md")]) == 0
    (address,) = opened
    page = Path(address.removeprefix("file://"))
    assert "game24_gpt4_cot" in page.read_text()
    page.unlink()
    said = capsys.readouterr().err
    assert f"no browser here; open {page} with one" in said
    text = (tmp_path / "board.md").read_text()
    assert text.startswith("## game24\\_gpt4\\_cot, batches of 32")
    assert "| LOO mean |" in text
    assert main(["score", *few, "--open", "--report", str(tmp_path / "page.html")]) == 0
    assert opened[1] == (tmp_path / "page.html").as_uri()


def test_held_out_boards_leave_it_out():
    board = make_baseline_board(TABLE, BoardSettings(n_batches=20, resamples=0, held_out=0.5))
    assert not any(s.label.startswith("self-tuning") for s in board.scores)


def test_without_a_window_there_is_no_history_and_no_critic(capsys):
    assert (
        main(["score", "taubench_airline_gpt4o", "--window", "0", "--batches", "50", "--resamples", "0", "--json"]) == 0
    )
    labels = [row["label"] for row in json.loads(capsys.readouterr().out)["boards"][0]["scores"]]
    assert labels
    assert len(set(labels)) == len(labels)
    assert not [label for label in labels if "window" in label or "ridge" in label or "trees" in label]


def test_without_a_terminal_each_row_is_a_line_as_it_comes(monkeypatch, capsys):
    happened = []
    score = Scorer.score_baseline
    monkeypatch.setattr(Scorer, "score_baseline", lambda *a, **k: [happened.append("scored"), score(*a, **k)][1])
    monkeypatch.setattr("rollonce.commands.boards.print_remark", lambda text: happened.append(text))
    only = ["--only", "loo", "--only", "constant", "--batches", "20", "--resamples", "4"]
    assert main(["score", "gsm8k", *only]) == 0
    assert happened[::2] == ["scored", "scored"]
    assert happened[1].startswith("gsm8k_qwen25coder_1.5b: 1 of 2, LOO mean: B_eff 1")
    assert "1.00 [1.00, 1.00] x LOO" in happened[1]
    assert happened[3].startswith("gsm8k_qwen25coder_1.5b: 2 of 2, constant 0.5: B_eff ")
    assert "LOO mean" in capsys.readouterr().out
