"""The shipped sets: whole, licensed, small, and the same through the loader and through the reader."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from rollonce import datasets
from rollonce.errors import InputError
from rollonce.readers import read_rollouts

# N and G as the source README gives them.
SHAPES = {
    "taubench_airline_gpt4o": (50, 4),
    "game24_gpt4_cot": (100, 100),
    "creative_writing_gpt4_judge": (100, 10),
    "cruxeval_input_codellama7b_t02": (800, 10),
    "amc_aime_llama3b_rg400": (70, 50),
    "rg_easy_gemma3_27b_G3": (1165, 3),
    "gsm8k_qwen25coder_1.5b": (64, 8),
    "rg_smollm2_135m": (64, 8),
    "logprob_embedded": (256, 8),
    "logprob_smollm2_short": (64, 8),
    "logprob_smollm2_long": (64, 4),
}
WITH_LOG_PROBS = [name for name in SHAPES if name.startswith("logprob_")]


def test_names() -> None:
    assert set(datasets.list_dataset_names()) == set(SHAPES)
    assert set(datasets.list_dataset_names(with_log_probs=False)) == set(SHAPES) - set(WITH_LOG_PROBS)


@pytest.mark.parametrize("name", SHAPES)
def test_a_set(name: str) -> None:
    table = datasets.load(name)
    n, g = SHAPES[name]
    assert table.n_tasks == n
    assert set(table.group_sizes_N.tolist()) == {g}
    assert np.isfinite(table.rewards_R).all()
    assert table.rewards_R.min() >= 0
    assert table.rewards_R.max() <= 1
    about = datasets.describe_dataset(name)
    assert "Copyright" in about.licence_file.read_text() or "Apache License" in about.licence_file.read_text()
    assert about.policy
    assert about.source
    read = read_rollouts(datasets.locate_dataset_file(name))
    assert read.tasks.prompts == table.tasks.prompts
    assert read.tasks.task_ids.tolist() == table.tasks.task_ids.tolist()
    np.testing.assert_array_equal(read.rewards_R, table.rewards_R)
    np.testing.assert_array_equal(read.lengths_R, table.lengths_R)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", WITH_LOG_PROBS)
def test_a_set_with_log_probabilities(name: str) -> None:
    table = datasets.load(name)
    log_probs_R, tokens_R = table.log_probs_R, table.lengths_R
    assert log_probs_R is not None
    assert tokens_R is not None
    read = read_rollouts(datasets.locate_dataset_file(name), columns=["family"])
    np.testing.assert_array_equal(read.log_probs_R, log_probs_R)  # pyright: ignore[reportArgumentType]
    assert read.tasks.column("family").tolist() == table.tasks.column("family").tolist()
    # Sums over tokens, at temperature 1: at most 0, and a few tenths of a nat to a few nats per token.
    assert (log_probs_R <= 0).all()
    assert 0.05 < -log_probs_R.sum() / tokens_R.sum() < 4
    # A policy is right oftener where it is sure: rewarded rollouts are the likelier ones.
    assert log_probs_R[table.rewards_R == 1].mean() > log_probs_R[table.rewards_R == 0].mean()
    if name == "logprob_smollm2_long":
        assert tokens_R.mean() >= 100
        assert table.rewards_R.mean() >= 0.05


def test_families() -> None:
    easy = datasets.load("rg_easy_gemma3_27b_G3").tasks
    families = easy.column("family")
    assert families[0] == "algebra/complex_arithmetic"
    assert len(families) == 1165
    small = datasets.load("rg_smollm2_135m").tasks.column("family")
    assert sorted({str(f): int((small == f).sum()) for f in small}.values()) == [8] * 8
    assert "count_primes" in small


def test_the_beginning_of_a_name_will_do_if_it_is_one() -> None:
    assert datasets.load("taubench").name == "taubench_airline_gpt4o"
    with pytest.raises(InputError, match=r"'rg' could be rg_easy_gemma3_27b_G3 or rg_smollm2_135m"):
        datasets.load("rg")
    with pytest.raises(InputError, match=r"no set .nothing.*game24_gpt4_cot"):
        datasets.load("nothing")


def test_small_and_quick_to_import() -> None:
    assert sum(datasets.locate_dataset_file(n).stat().st_size for n in datasets.list_dataset_names()) < 1_000_000
    code = (
        "import sys, rollonce.datasets; print([m for m in ('orjson', 'pyarrow', 'scipy', 'torch') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
