"""The adapter in the real tinker-cookbook on a real server, at both versions that it claims."""

from __future__ import annotations

import ast
import json
import os
import signal
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import HERE, Recipe
from rollonce.baselines import Baseline, LeaveOneOut, published_length_buckets, published_tfidf
from rollonce.integrations.tinker_cookbook import PATCHED, TESTED
from rollonce.reference import gs1_kernel_baseline, tfidf_similarity

VERSIONS = ["0.5.8", "0.6.1"]
GS1 = ("group_size=1", "groups_per_batch=32")


def source(wanted: str) -> Path:
    """``rl/train.py`` of a version."""
    if wanted == "0.6.1":
        return Path(os.environ["COOKBOOK_061"]) / "tinker_cookbook" / "rl" / "train.py"
    import tinker_cookbook

    return Path(tinker_cookbook.__path__[0]) / "rl" / "train.py"


def metrics(log: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    return [m for m in lines if "env/all/reward/total" in m]


def advantages(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (log / "rollonce" / "advantages.jsonl").read_text().splitlines()]


def saved(baseline: Baseline, directory: Path) -> Path:
    questions = [f"What is {x} + {y}?" for x in range(0, 101, 5) for y in range(0, 101, 5)]
    baseline.fit(questions).save(directory / "baseline.json")
    return directory / "baseline.json"


def test_the_versions_are_those_that_the_adapter_names() -> None:
    assert tuple(sorted(VERSIONS)) == TESTED
    assert version("tinker-cookbook") == "0.5.8"  # what pip install 'rollonce[tinker]' gives here


@pytest.mark.parametrize("wanted", VERSIONS)
def test_names_parameters_and_call_sites(wanted: str) -> None:
    tree = ast.parse(source(wanted).read_text(encoding="utf-8"))
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    imported = {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    for name, parameters in PATCHED.items():
        if name == "compute_advantages":
            assert name in imported  # by name, from rl.data_processing: so replacing it here is what counts
            continue
        got = [a.arg for a in functions[name].args.args]
        assert set(parameters) <= set(got), name

    def callers(called: str) -> set[str]:
        return {
            f.name
            for f in functions.values()
            for n in ast.walk(f)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == called
        }

    assert callers("compute_advantages") == {"print_group", "prepare_minibatch"}
    assert callers("prepare_minibatch") == {
        "do_train_step_and_get_sampling_client",
        "do_train_step_streaming_and_get_sampling_client",
    }
    assert callers("do_train_step_and_get_sampling_client") == {"do_sync_training", "do_async_training"}
    assert callers("do_train_step_streaming_and_get_sampling_client") == {
        "do_sync_training_with_stream_minibatch",
        "do_async_training",
    }
    # What is refused is read from the configuration under these names.
    fields = {n.target.id for c in tree.body if isinstance(c, ast.ClassDef) and c.name == "Config" for n in c.body if isinstance(n, ast.AnnAssign)}  # fmt: skip  # noqa: E501
    assert {"stream_minibatch_config", "remove_constant_reward_groups", "log_path", "async_config"} <= fields


def test_the_stock_recipe_runs_to_its_end(recipe: Recipe, tmp_path: Path) -> None:
    code, output = recipe.run(
        recipe.command(
            "tinker_cookbook.recipes.math_rl.train",
            tmp_path / "log",
            "group_size=4",
            "groups_per_batch=8",
            "max_steps=2",
        )
    )
    assert code == 0, output[-3000:]
    log = metrics(tmp_path / "log")
    assert [m["step"] for m in log] == [0, 1]
    assert all(m["env/all/total_episodes"] == 32 for m in log)
    assert all(
        m["env/all/reward/total"] == pytest.approx(-0.1) for m in log
    )  # nothing right, nothing well formed: the format term


def test_unpatched_at_group_size_one_the_gradient_is_exactly_zero(recipe: Recipe, tmp_path: Path) -> None:
    code, output = recipe.run(recipe.command("dense_math_rl", tmp_path / "log", *GS1, "max_steps=1"))
    assert code == 0, output[-3000:]
    (first,) = metrics(tmp_path / "log")
    assert first["env/all/total_episodes"] == 32
    assert first["skyrl.ai/grad_norm"] == 0.0


@pytest.mark.parametrize("wanted", VERSIONS)
def test_patched_at_group_size_one_it_learns_from_32_rollouts_and_the_advantages_are_the_reference_s(
    recipe: Recipe, tmp_path: Path, wanted: str
) -> None:
    baseline = saved(published_tfidf(), tmp_path)
    code, output = recipe.run(
        recipe.command("dense_math_rl", tmp_path / "log", *GS1, "max_steps=2", baseline=baseline), wanted
    )
    assert code == 0, output[-3000:]
    log, ours = metrics(tmp_path / "log"), advantages(tmp_path / "log")
    assert [m["step"] for m in log] == [r["step"] for r in ours] == [0, 1]
    rng_questions = [questions(0), questions(1)]
    for m, record, expected in zip(log, ours, rng_questions, strict=True):
        assert m["skyrl.ai/grad_norm"] > 0
        assert record["rollouts"] == m["env/all/total_episodes"] == 32
        assert record["prompts"] == expected
        assert np.mean(record["rewards"]) == pytest.approx(m["env/all/reward/total"])
        r = np.array(record["rewards"])
        np.testing.assert_allclose(record["baselines"], reference_tfidf(record["prompts"], r), atol=1e-9)
        np.testing.assert_allclose(record["loo_means"], (r.sum() - r) / 31, atol=1e-12)
        np.testing.assert_allclose(record["advantages"], r - record["baselines"], atol=1e-12)
        assert record["self_weight_max"] == 0.0
        assert record["mean_abs_baseline_minus_loo"] > 0
    assert json.loads((tmp_path / "log" / "rollonce" / "run.json").read_text())["tinker_cookbook"] in (wanted, "0.5.8")
    # What print_group showed on the console are the advantages that were trained with, not the zeros of a group of one.
    assert "Trajectory Group" in output


def questions(step: int) -> list[str]:
    """The recipe's own arithmetic tasks of a step, from its generator."""
    rng = np.random.RandomState(step)
    return [f"What is {rng.randint(0, 101)} + {rng.randint(0, 101)}?" for _ in range(32)]


def reference_tfidf(prompts: list[str], rewards: np.ndarray) -> np.ndarray:
    """The post's recipe in plain numpy, fitted on what `saved` fits."""
    fitted = [f"What is {x} + {y}?" for x in range(0, 101, 5) for y in range(0, 101, 5)]
    return gs1_kernel_baseline(tfidf_similarity(prompts, fitted), rewards)


def test_a_killed_run_resumes_with_its_history_and_no_step_twice(recipe: Recipe, tmp_path: Path) -> None:
    baseline = saved(published_length_buckets(), tmp_path)
    command = recipe.command("dense_math_rl", tmp_path / "log", *GS1, "max_steps=4", "save_every=1", baseline=baseline)
    process = recipe.start(command)
    checkpoints, deadline = tmp_path / "log" / "checkpoints.jsonl", time.monotonic() + 200
    while (
        time.monotonic() < deadline
        and process.poll() is None
        and not (checkpoints.is_file() and checkpoints.read_text().count("\n") >= 2)
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    last = [json.loads(line)["batch"] for line in checkpoints.read_text().splitlines()][-1]
    assert 1 <= last < 4
    before = {r["step"]: r for r in advantages(tmp_path / "log") if r["step"] < last}
    code, output = recipe.run(command)
    assert code == 0, output[-3000:]
    ours = advantages(tmp_path / "log")
    assert [r["step"] for r in ours] == [0, 1, 2, 3]
    assert {r["step"]: r for r in ours if r["step"] < last} == before
    # The history is every earlier step's rollouts, in order, each once: the baseline of the last step worked out from
    # the log alone.
    again = Baseline.load(baseline)
    from rollonce.baselines import Batch

    for record in ours:
        batch = Batch.of(record["prompts"], record["rewards"])
        np.testing.assert_allclose(record["baselines"], again.predict(batch).baseline_B, atol=1e-12)
        again.observe(batch)


def test_stream_minibatches_are_refused_before_anything_is_sampled(recipe: Recipe, tmp_path: Path) -> None:
    baseline = saved(LeaveOneOut(), tmp_path)
    settings = ("stream_minibatch_config.groups_per_batch=32", "stream_minibatch_config.num_minibatches=2")
    code, output = recipe.run(
        recipe.command("dense_math_rl", tmp_path / "log", *GS1, *settings, "max_steps=1", baseline=baseline)
    )
    assert code == 2, output[-3000:]
    assert "stream_minibatch_config" in output
    assert "leave it out" in output
    assert "Traceback" not in output
    assert not (tmp_path / "log" / "metrics.jsonl").exists() or not metrics(tmp_path / "log")


def test_the_stand_in_of_the_ordinary_suite_has_the_cookbooks_signatures() -> None:
    """`tests/integrations/cookbook_standin.py` is only worth something while it looks like the real thing."""
    tree = ast.parse((HERE.parent / "integrations" / "cookbook_standin.py").read_text(encoding="utf-8"))
    mine = {
        n.name: [a.arg for a in n.args.args] for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    real = ast.parse(source("0.5.8").read_text(encoding="utf-8"))
    theirs = {
        n.name: [a.arg for a in n.args.args] for n in real.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for name in ("prepare_minibatch", "print_group", "do_train_step_and_get_sampling_client"):
        assert mine[name] == [p for p in theirs[name] if p in mine[name]], name
