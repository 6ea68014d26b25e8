"""What the evaluation grades is what the recipe grades: our path against ``MathEnv.step``, response by response."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tinker_cookbook import renderers
from tinker_cookbook.recipes.math_rl import math_env

from rollonce.experiments.derive import derive_settings
from rollonce.experiments.engines.cookbook import CookbookEngine
from rollonce.experiments.engines.cookbook_tasks import CookbookGrader
from rollonce.experiments.loading import load_specification
from rollonce.policies.samples import pad_rollouts_to_samples
from rollonce.tasks import Task

SPEC = Path(__file__).parents[2] / "specs" / "gs1_vs_grpo_gsm8k.spec.json"
END = "<|im_end|>"
RESPONSES = [
    "The answer is \\boxed{5}" + END,
    "The answer is \\boxed{6}" + END,
    "<think>\nis it \\boxed{5}?\n</think>\n\nIt is \\boxed{6}" + END,  # right only in the thinking part
    "<think>\nis it \\boxed{6}?\n</think>\n\nIt is \\boxed{5}" + END,
    "<think>\nit is \\boxed{5}\n</think>\n\nThe answer is five" + END,  # boxed only in the thinking part
    "<think>\nis it \\boxed{5}? Let me go on and on",  # cut off while thinking
    "It is \\boxed{5} and",  # cut off, but boxed
    "It is 5" + END,  # no box
    "\\boxed{6} no, \\boxed{5}" + END,
    "\\boxed{\\frac{10}{2}}" + END,
    "\\boxed{5.0}" + END,
    "",
]


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Any:
    """The tiny model's, with the tokens that Qwen's renderers ask for."""
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(str(model))
    made.add_special_tokens(
        {"additional_special_tokens": ["<|im_start|>", END, "<|endoftext|>", "<think>", "</think>"]}
    )
    return made


@pytest.mark.parametrize("name", ["qwen3", "qwen3_disable_thinking"])
def test_every_response_is_graded_as_the_recipe_does(tokenizer: Any, name: str) -> None:
    renderer = renderers.get_renderer(name, tokenizer=tokenizer)
    engine = CookbookEngine(spec := load_specification(SPEC).spec, derive_settings(spec))
    engine._renderer = (tokenizer, renderer, math_env.MathEnv.standard_fewshot_prefix())
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in RESPONSES]
    n = len(rows)
    truncated = [not text.endswith(END) for text in RESPONSES]
    texts = [tokenizer.decode(r, skip_special_tokens=True) for r in rows]
    zeros = [[0.0] * len(r) for r in rows]
    samples = pad_rollouts_to_samples(
        prompts=["q"] * n,
        texts=texts,
        prompt_ids=[[1, 2]] * n,
        response_ids=rows,
        log_probs=zeros,
        truncated=truncated,
        temperature=1.0,
        pad_id=0,
    )
    tasks = [Task(str(i), "What is 2 + 3?", "5", CookbookGrader(), {}) for i in range(n)]
    evaluated = engine._make_graded_answers(tasks, samples, training=False)
    trained = engine._make_graded_answers(tasks, samples, training=True)
    for text, row, exact, reward in zip(RESPONSES, rows, evaluated, trained, strict=True):
        env = math_env.MathEnv("What is 2 + 3?", "5", renderer, convo_prefix=engine._renderer[2])
        step = asyncio.run(env.step(row))
        assert exact.reward == step.metrics["correct"], text
        assert reward.reward == pytest.approx(step.reward), text
    assert [a.reward for a in evaluated[:5]] == [1.0, 0.0, 0.0, 1.0, 0.0]  # by hand: the thinking part does not count
