"""What a later sitting reads of an engine's own files: only what the ledger knows, and by the recipe's own logs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiment_fakes import SEED_SPEC

from rollonce.errors import InputError
from rollonce.experiments.derive import derive_settings
from rollonce.experiments.engines.loop import discard_unnoted_training
from rollonce.experiments.engines.recipe import make_recipe_command, make_recipe_environment
from rollonce.experiments.engines.recipe_log import find_final_checkpoint, read_recipe_steps
from rollonce.experiments.ledger import Ledger
from rollonce.experiments.loading import load_specification
from rollonce.experiments.spec import ArmSpec
from rollonce.integrations.rows import stable_task_id
from rollonce.run_directory import CHECKPOINT_FILE

LOG = "arms/a/log.jsonl"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    (tmp_path / "run/arms/a").mkdir(parents=True)
    return Ledger(tmp_path / "run")


def reopened(ledger: Ledger) -> Ledger:
    return Ledger(ledger.directory)


def test_a_noted_log_that_was_changed_is_refused(ledger: Ledger) -> None:
    file = ledger.directory / LOG
    file.write_text('{"sampler_path": "tinker://mine"}\n')
    ledger.note_file_digest(LOG)
    file.write_text('{"sampler_path": "tinker://your"}\n')
    with pytest.raises(InputError, match="was changed or removed since the run left it"):
        reopened(ledger).check_noted_file(LOG, cut=True)


def test_what_grew_on_a_log_after_it_was_noted_is_cut_off(ledger: Ledger) -> None:
    file = ledger.directory / LOG
    file.write_text("one\n")
    ledger.note_file_digest(LOG)
    file.write_text("one\ntwo\n")
    reopened(ledger).check_noted_file(LOG, cut=True)
    assert file.read_text() == "one\n"


def test_a_log_that_nobody_noted_is_removed(ledger: Ledger) -> None:
    (ledger.directory / LOG).write_text("forged before the run came to it\n")
    ledger.check_noted_file(LOG, cut=True)
    assert not (ledger.directory / LOG).exists()


@pytest.mark.parametrize("forged", [None, b"other weights"])
def test_our_own_loop_goes_on_from_its_own_checkpoint_alone(ledger: Ledger, forged: bytes | None) -> None:
    directory = ledger.directory / "arms/a"
    checkpoint = directory / CHECKPOINT_FILE
    checkpoint.write_bytes(b"weights after step 3")
    ledger.append_noted_line(LOG, {"step": 3})
    ledger.note_file_digest(f"arms/a/{CHECKPOINT_FILE}")
    if forged is not None:
        checkpoint.write_bytes(forged)
    later = reopened(ledger)
    remarks = discard_unnoted_training(directory, "arms/a", later)
    if forged is None:
        assert remarks == []
        assert checkpoint.exists()
    else:
        assert "started anew: " in remarks[0]
        assert not directory.exists()
        assert list(later.read_noted_lines(LOG)) == []


def gsm8k(folder: Path, n: int) -> list[str]:
    """n questions on disk; their ids in the recipe's order for seed 0 (one permutation of numpy's generator)."""
    questions = [f"Question {i}?" for i in range(n)]
    folder.mkdir()
    lines = [json.dumps({"question": q, "answer": f"#### {i}"}) + "\n" for i, q in enumerate(questions)]
    (folder / "train.jsonl").write_text("".join(lines))
    return [stable_task_id(questions[i]) for i in np.random.default_rng(0).permutation(n)]


def write_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_stock_recipes_steps_are_read_from_its_own_logs(tmp_path: Path) -> None:
    """Two steps of two groups of two. Group k of a step is row k of that step's part of the shuffle."""
    order = gsm8k(tmp_path / "data", 8)
    log = tmp_path / "arm/log"
    totals = {"env/all/total_ob_tokens": 40, "env/all/total_ac_tokens": 12}
    write_lines(log / "metrics.jsonl", [{"step": s, "optim/lr": 3e-5, "time/total": 2.5, **totals} for s in (0, 1)])
    for step in (0, 1):
        rows = [
            {"split": "train", "group_idx": g, "traj_idx": t, "total_reward": float(g == t)}
            for g in (1, 0)
            for t in (0, 1)
        ]
        rows.append({"split": "test", "group_idx": 0, "traj_idx": 0, "total_reward": 9.0})
        write_lines(log / f"iteration_{step:06d}/train_rollout_summaries.jsonl", rows)
    arm = ArmSpec(name="a", advantage="group_mean", group_size=2, groups_per_batch=2, lr=3e-5, seed=0, steps=2)
    steps = read_recipe_steps(f"gsm8k:{tmp_path / 'data'}", arm, 2, tmp_path / "arm")
    assert [s.step for s in steps] == [1, 2]
    assert steps[1].task_ids == [order[2], order[2], order[3], order[3]]
    assert steps[0].rewards == [1.0, 0.0, 0.0, 1.0]
    assert steps[0].advantages == [0.5, -0.5, -0.5, 0.5]
    assert (steps[0].group_size, steps[0].prompt_tokens, steps[0].response_tokens) == (2, 40, 12)


def test_the_final_checkpoint_is_the_one_that_the_recipe_calls_final(tmp_path: Path) -> None:
    file = tmp_path / "log/checkpoints.jsonl"
    write_lines(file, [{"name": "000059", "sampler_path": "tinker://59", "state_path": "tinker://s59"}])
    assert find_final_checkpoint(tmp_path) is None
    with file.open("a") as f:
        f.write(json.dumps({"name": "final", "sampler_path": "tinker://a", "state_path": "tinker://b"}) + "\n")
        f.write('{"name": "final", "sampler_path": "tinker://cut sho')
    assert json.loads(find_final_checkpoint(tmp_path) or "") == {"sampler": "tinker://a", "state": "tinker://b"}


def test_given_files_have_a_datasets_cache_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole run trained on the cached rows of another folder: the cache is keyed by paths, not by content."""
    monkeypatch.delenv("HF_DATASETS_CACHE", raising=False)
    given = make_recipe_environment("gsm8k:/somewhere", tmp_path)
    assert given["HF_DATASETS_CACHE"] == str(tmp_path / "cache")
    assert "HF_DATASETS_CACHE" not in make_recipe_environment("gsm8k:hub", tmp_path)


def test_the_recipe_is_given_every_option_of_the_registered_command(tmp_path: Path) -> None:
    """The words of the request's file itself: "python -m RECIPE name=value ...", and for the treatment "the same recipe
    with group_size=1 groups_per_batch=32"."""
    spec = load_specification(SEED_SPEC).spec
    line = next(line for line in spec.command.splitlines() if line.startswith("python -m "))
    _, _, recipe, *options = line.split()
    registered = dict(word.split("=", 1) for word in options)
    settings = derive_settings(spec).with_command_option("base_url", "http://service", "--base-url")
    given = {}
    for arm in spec.arms:
        command = make_recipe_command(
            spec, settings, arm, arm.steps, tmp_path, renderer="role_colon", train_prompts=["How many?", "How far?"]
        )
        assert recipe in command, shlex.join(command)
        given[arm.name] = dict(word.split("=", 1) for word in command[command.index(recipe) + 1 :])
    stock, treated = given["grpo_g8"], given["gs1_tfidf_g1"]
    numbers = {"learning_rate"}  # 3e-5 there, 3e-05 here
    for name, value in registered.items():
        if name not in ("base_url", "log_path"):
            assert float(stock[name]) == float(value) if name in numbers else stock[name] == value, name
    assert (stock["seed"], stock["base_url"]) == ("0", "http://service")
    changed = {name for name in stock if stock[name] != treated[name]}
    assert changed == {"group_size", "groups_per_batch"}
    assert (treated["group_size"], treated["groups_per_batch"]) == ("1", "32")
