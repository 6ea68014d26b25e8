"""rollonce score: what it prints and writes."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_helpers import QUICK, Ran, rows, write

from rollonce.baselines import LeaveOneOut, published_tfidf
from rollonce.reports.columns import CSV_FIELDS

PROGRAM = [sys.executable, "-m", "rollonce.cli"]


def one_json(ran: Ran) -> dict:
    """stdout as the one JSON document that it must be."""
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_table_fits_80_columns_without_escapes(
    tmp_path: Path, rollonce: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = rollonce("score", write(tmp_path / "mine.jsonl", rows()), *QUICK)
    assert ran.code == 0, ran.err
    assert "\x1b" not in ran.out
    *lines, following = ran.out.splitlines()
    assert following.startswith("Next: ")  # one line, to be pasted
    assert max(map(len, lines)) <= 80
    for word in (
        "mine",
        "LOO mean",
        "B_eff",
        "x LOO",
        "oracle (true mean)",
        "Apart",
        "FlashREINFORCE",
        "SNR",
        "Groups of G",
    ):
        assert word in ran.out


def test_json_csv_and_report_agree(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    file, table, page = write(tmp_path / "mine.jsonl", rows()), tmp_path / "out.csv", tmp_path / "out.html"
    ran = rollonce("score", file, *QUICK, "--json", "--csv", table, "--report", page)
    found = one_json(ran)
    (board,) = found["boards"]
    assert board["name"] == "mine"
    assert board["batch_size"] == 4
    assert board["verdict"]["headline"]
    with open(table, newline="") as f:
        written = list(csv.DictReader(f))
    assert tuple(written[0]) == CSV_FIELDS
    assert [r["baseline"] for r in written] == [s["label"] for s in [*board["scores"], *board["apart"]]]
    assert float(written[0]["ratio"]) == board["scores"][0]["ratio"]["value"]
    assert [r["needs"] for r in written[-2:]] == ["repeats", "extra rollouts"]
    assert "<!doctype html>" in page.read_text()[:20]
    assert f"wrote {page}" in ran.err


def test_same_seed_same_json(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    file = write(tmp_path / "mine.jsonl", rows())
    assert one_json(rollonce("score", file, *QUICK, "--json")) == one_json(rollonce("score", file, *QUICK, "--json"))


def test_held_out_and_columns(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    records = [r | {"level": i // 3 % 2} for i, r in enumerate(rows(16))]
    file = write(tmp_path / "mine.jsonl", records)
    (board,) = one_json(rollonce("score", file, *QUICK, "--json", "--held-out", "0.5", "--columns", "level"))["boards"]
    assert board["settings"]["held_out"] == 0.5
    assert "same level" in [s["label"] for s in board["scores"]]
    assert any("scored on the other 50%" in note for note in board["notes"])


def test_groups_of_one_are_ranked_without_levels(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    file = write(tmp_path / "log.jsonl", rows(16, 1))
    (board,) = one_json(rollonce("score", file, *QUICK, "--json"))["boards"]
    assert board["scores"][0]["b_eff"]["value"] is None
    assert board["scores"][0]["ratio"]["value"] > 0
    ran = rollonce("score", file, *QUICK)
    assert "single rollout" in ran.out
    assert "E[A^2]" in ran.out


def test_equal_rewards_say_so(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    page = tmp_path / "out.html"
    ran = rollonce(
        "score", write(tmp_path / "same.jsonl", [r | {"reward": 1} for r in rows()]), *QUICK, "--report", page
    )
    assert ran.code == 0, ran.err
    assert "nothing can be learned" in " ".join(ran.out.split())
    assert "nan" not in ran.out.lower()
    assert "nan%" not in page.read_text()


def test_equal_rewards_within_each_task(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    file = write(tmp_path / "flat.jsonl", [r | {"reward": int(r["task_id"][1:]) % 2} for r in rows()])
    ran = rollonce("score", file, *QUICK, "--report", tmp_path / "out.html")
    assert ran.code == 0, ran.err
    assert "s2 = 0" in " ".join(ran.out.split())


def test_saved_baselines_join_the_board_as_they_were_fitted(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    file, saved = write(tmp_path / "mine.jsonl", rows()), tmp_path / "tuned one.json"
    published_tfidf().fit(["other words entirely"]).save(saved, {"tuned on": "elsewhere"})
    (board,) = one_json(rollonce("score", file, *QUICK, "--json", "--baseline", saved))["boards"]
    ratio = {s["label"]: s["ratio"]["value"] for s in board["scores"]}
    # Not one word of these prompts is in its vocabulary, so that it is the LOO mean; fitted anew it would not be.
    assert ratio["tuned one"] == pytest.approx(ratio["LOO mean"])
    assert ratio["softmax TF-IDF, T=0.1"] != pytest.approx(ratio["LOO mean"])
    assert any("elsewhere" in note for note in board["notes"])


def test_files_apart_or_together(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    fast = ["--batches", "10", "--resamples", "0", "--window", "4", "-B", "4"]
    for name in ("gsm_1.5b", "gsm_7b"):
        write(tmp_path / f"{name}.jsonl", rows())

    def names(*more):
        boards = one_json(rollonce("score", tmp_path, *fast, "--json", "--jobs", "1", *more))["boards"]
        return [board["name"] for board in boards]

    assert names() == ["gsm_1.5b", "gsm_7b"]
    run = tmp_path / "run"
    for step in (1, 2, 10):
        records = [
            {"input": r["prompt"], "output": "x", "gts": "y", "score": r["reward"], "step": step} for r in rows(12)
        ]
        write_to = run / f"{step}.jsonl"
        run.mkdir(exist_ok=True)
        write(write_to, records)
    (board,) = one_json(rollonce("score", run, *fast, "--json"))["boards"]
    assert (board["name"], board["moments"]["n_rollouts"]) == ("run", 108)
    apart = one_json(rollonce("score", run, *fast, "--json", "--separate", "--jobs", "1"))["boards"]
    assert [b["moments"]["n_rollouts"] for b in apart] == [36, 36, 36]
    shards = tmp_path / "shards"
    shards.mkdir()
    for k in range(2):
        write(shards / f"part-0000{k}-of-00002.jsonl", rows()[12 * k : 12 * (k + 1)])
    (board,) = one_json(rollonce("score", shards, *fast, "--json"))["boards"]
    assert board["moments"]["n_tasks"] == 8


def test_processes_give_what_one_gives(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    files = [write(tmp_path / f"{n}.jsonl", rows(n)) for n in (8, 9)]
    one, two = (one_json(rollonce("score", *files, *QUICK, "--json", "--jobs", n)) for n in (1, 2))
    assert one == two


def test_shipped_set_by_the_beginning_of_its_name(rollonce: Callable[..., Ran]) -> None:
    (board,) = one_json(
        rollonce("score", "taubench", "--json", "--batches", "20", "--resamples", "0", "--window", "16")
    )["boards"]
    assert board["name"] == "taubench_airline_gpt4o"
    assert board["moments"]["n_tasks"] == 50


def test_help_is_quick_and_reads_like_a_page(rollonce: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = rollonce("--help")
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= 80
    for verb in ("score", "watch", "check"):
        assert f"\n  {verb}" in ran.out
        of_verb = rollonce(verb, "--help")
        assert of_verb.code == 0
        assert "Examples:" in of_verb.out
        assert max(map(len, of_verb.out.splitlines())) <= 80
        assert f"rollonce {verb}" in of_verb.out
    assert rollonce().out == ran.out
    code = "import sys; from rollonce.cli import main; main(['--help'])\n"
    code += "print([m for m in ('numpy', 'rich', 'tyro', 'sklearn') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.rstrip().endswith("[]")


def test_completion_knows_commands_and_options(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(rollonce("--print-completion", "bash").out)
    ask = (
        f"source {script}; complete -p rollonce; "
        "for words in 'rollonce sc' 'rollonce score --save'; do COMP_WORDS=($words); "
        "COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); _tyro_rollonce; echo ${COMPREPLY[@]}; done"
    )
    said = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0] == "complete -F _tyro_rollonce rollonce"
    assert said[1] == "score"
    assert set(said[2].split()) == {"--save", "--save-best"}
    assert rollonce("--print-completion", "fish").code == 2


def test_ctrl_c_is_a_sentence(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", rows(4, 4))  # no whole step, so that nothing is ever ranked
    child = subprocess.Popen(
        [*PROGRAM, "watch", str(file), "--follow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stderr is not None
    assert "following" in child.stderr.readline()
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=600)
    assert child.returncode == 130
    assert "stopped by Ctrl-C" in err
    assert "Traceback" not in err


def test_ctrl_c_ends_following_with_the_ranking_and_the_decision(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", [r | {"step": s} for s in range(4) for r in rows(8, 1)])
    child = subprocess.Popen(
        [*PROGRAM, "watch", str(log), "--follow", "--poll", "0.05"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    for step in (1, 2, 3):  # a line for each that was scored; the fourth may go on
        assert child.stdout.readline().startswith(f"step {step}: ")
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=600)
    assert child.returncode == 0, err
    assert "following" in err
    assert "Traceback" not in err
    said = " ".join(out.split())
    assert "3 steps, 24 rollouts" in said
    assert "Left out: the last 8 of 32 rollouts, of a step still being written." in said
    assert "Is one rollout per task enough here? " in said
    assert out.splitlines()[-1].startswith("Next: ")


def test_ctrl_c_far_from_the_end_does_not_blame_the_log(tmp_path: Path) -> None:
    """300 whole steps, of which three are scored: the others are not "of a step still being written"."""
    log = write(tmp_path / "log.jsonl", [r | {"step": s} for s in range(300) for r in rows(8, 1)])
    child = subprocess.Popen(
        [*PROGRAM, "watch", str(log), "--follow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for _ in range(3):
        child.stdout.readline()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=600)
    assert child.returncode == 0, err
    said = " ".join(out.split())
    assert "rollouts, not scored yet when following ended." in said
    assert "still being written" not in said


def test_closed_pipe_is_quiet(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", rows())
    read_end, write_end = os.pipe()
    os.close(read_end)
    ran = subprocess.run(
        [*PROGRAM, "score", str(file), *QUICK], stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=600
    )
    os.close(write_end)
    assert ran.returncode == 141
    # A slow machine gets a line of progress every ten seconds; nothing else is said.
    assert [line for line in ran.stderr.splitlines() if not line.startswith("mine: ")] == []


def test_plain_output_in_an_ascii_terminal(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", rows())
    env = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    ran = subprocess.run([*PROGRAM, "score", str(file), *QUICK], capture_output=True, env=env, timeout=600, check=True)
    text = ran.stdout.decode("ascii")
    assert "\\u" not in text
    assert "o" in text


def test_check_passes_and_fails(tmp_path: Path, rollonce: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tmp_path / "loo.json"
    LeaveOneOut().fit(["a", "b"]).save(saved, {"tuned on": "gsm8k", "command": "rollonce tune gsm8k"})
    ran = rollonce("check", saved)
    assert ran.code == 0
    assert "tuned on: gsm8k" in ran.out
    assert "All" in ran.out
    (tmp_path / "leaky_mine.py").write_text(
        "def leaky(prompts, rewards):\n    return [rewards.mean()] * len(prompts)\n"
    )
    monkeypatch.chdir(tmp_path)
    ran = rollonce("check", "leaky_mine:leaky")
    assert ran.code == 1
    assert "FAIL" in ran.out
    assert "leave one out" in ran.out
    ran = rollonce("check", "leaky_mine:leaky", "--json")
    assert ran.code == 1
    found = json.loads(ran.out)
    assert found["passed"] is False
    assert "leave_one_out" in [c["name"] for c in found["checks"] if not c["passed"]]


def test_check_of_a_broken_module(
    tmp_path: Path, rollonce: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_mine.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    ran = rollonce("check", "broken_mine:f")
    assert ran.code == 2
    assert "ZeroDivisionError" in ran.err
    assert "Traceback" not in ran.err


def test_watch_replays_and_follows_alike(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    # The first step holds every prompt, so that following fits the same vocabulary as reading the whole log.
    records = [r | {"step": s} for s in range(4) for r in rows(8, 1)]
    log = write(tmp_path / "log.jsonl", records)
    replayed = json.loads(rollonce("watch", log, "--json").out)["scores"]
    ran = rollonce("watch", log, "--json", "--follow", "--idle", "0", "--poll", "0.05")
    assert ran.code == 0, ran.err
    followed = [json.loads(line) for line in ran.out.splitlines()]
    assert [f["scores"][0]["steps"] for f in followed] == [1, 2, 3, 4]
    assert followed[-1]["scores"] == replayed
    assert "LOO mean" in [s["label"] for s in replayed]
    text = rollonce("watch", log)
    assert "4 steps, 32 rollouts" in text.out
    assert "\x1b" not in text.out


def test_following_says_what_was_left_out(tmp_path: Path, rollonce: Callable[..., Ran]) -> None:
    log = write(tmp_path / "log.jsonl", rows(6, 3))  # 18 rollouts, no steps: two steps of 8, and two rows more
    replayed = rollonce("watch", log, "-B", 8, "--window", 4)
    followed = rollonce("watch", log, "-B", 8, "--window", 4, "--follow", "--idle", "0", "--poll", "0.05")
    for ran in (replayed, followed):
        said = " ".join(ran.out.split())
        assert "Left out: the last 2 of 18 rollouts, which make no whole step of 8" in said
        assert "Left out: the boosted trees" in said
        assert "Left out: baselines that need the same task again" in said
