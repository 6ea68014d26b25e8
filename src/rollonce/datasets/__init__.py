"""Small public calibration sets, shipped with the package so that examples run anywhere (README.md here says where they
come from): eight without log-probabilities, and two with them.

>>> from rollonce import datasets
>>> table = datasets.load("game24_gpt4_cot")
>>> table.n_tasks, table.n_rollouts
(100, 10000)
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rollonce.errors import InputError
from rollonce.rollouts import Rollouts, Tasks

_HERE = Path(__file__).parent


class Dataset(NamedTuple):
    """What a set is and where it comes from.

    Attributes:
        name: Its name here.
        policy: What sampled the rollouts.
        reward: What the reward is.
        source: Repository @ commit and path.
        licence: SPDX name and copyright.
        licence_file: The licence's text in this package.
        family: A pattern that cuts the column ``family`` out of a task id, or None.
        has_log_probs: Whether its rollouts carry their log-probabilities.
    """

    name: str
    policy: str
    reward: str
    source: str
    licence: str
    licence_file: Path
    family: str | None = None
    has_log_probs: bool = False


def _make_dataset_entry(
    name: str, policy: str, reward: str, source: str, licence: str, file: str, family: str | None = None
) -> Dataset:
    return Dataset(name, policy, reward, source, licence, _HERE / "licences" / file, family)


def _make_log_prob_dataset(name: str, policy: str) -> Dataset:
    made = "rollouts made for this project by rollonce collect; tasks from open-thought/reasoning-gym"
    return _make_dataset_entry(name, policy, "0/1", made, *_RG)._replace(has_log_probs=True)


_TOT = ("MIT, Copyright (c) 2023 Shunyu Yao", "tree-of-thought-llm.MIT.txt")
_RG = ("Apache-2.0, Open-Thought community", "reasoning-gym.Apache-2.0.txt")
_SETS = {
    s.name: s
    for s in (
        _make_dataset_entry(
            "taubench_airline_gpt4o",
            "gpt-4o tool-calling agent (the prompt is the hidden user instruction)",
            "0/1",
            "sierra-research/tau-bench @59a200c6d575, historical_trajectories/gpt-4o-airline.json",
            "MIT, Copyright (c) 2024 Sierra",
            "tau-bench.MIT.txt",
        ),
        _make_dataset_entry(
            "game24_gpt4_cot",
            "GPT-4, chain of thought, T=0.7",
            "0/1",
            "princeton-nlp/tree-of-thought-llm @ab400345c5ea, logs/game24",
            *_TOT,
        ),
        _make_dataset_entry(
            "creative_writing_gpt4_judge",
            "GPT-4, chain of thought, T=1.0",
            "judge score / 10",
            "princeton-nlp/tree-of-thought-llm @ab400345c5ea, logs/text",
            *_TOT,
        ),
        _make_dataset_entry(
            "cruxeval_input_codellama7b_t02",
            "CodeLlama-7B, T=0.2",
            "0/1",
            "facebookresearch/cruxeval @190faf16d175, samples/evaluation_results",
            "MIT, Copyright (c) 2023 Meta",
            "cruxeval.MIT.txt",
        ),
        _make_dataset_entry(
            "amc_aime_llama3b_rg400",
            "a 3B instruct model after 400 RL steps, T=0.6",
            "0/1",
            "open-thought/reasoning-gym-eval @5f09fecc342a, math-evals/llama-3b-instruct/step_400",
            *_RG,
        ),
        _make_dataset_entry(
            "rg_easy_gemma3_27b_G3",
            "gemma-3-27b-it, zero-shot",
            "in [0, 1], mostly 0/1",
            "open-thought/reasoning-gym-eval @5f09fecc342a, zero-shot/easy",
            *_RG,
            r"^[^/]+/[^/]+",
        ),
        _make_dataset_entry(
            "gsm8k_qwen25coder_1.5b",
            "Qwen2.5-Coder-1.5B-Instruct (4-bit weights), 2-shot, T=1.0, at most 300 tokens",
            "0/1, exact number",
            "rollouts made for this project; questions from openai/grade-school-math, train split",
            "MIT, Copyright (c) 2021 OpenAI",
            "grade-school-math.MIT.txt",
        ),
        _make_dataset_entry(
            "rg_smollm2_135m",
            "SmolLM2-135M-Instruct, 4-shot, T=1.0, at most 24 tokens",
            "0/1",
            "rollouts made for this project; tasks from open-thought/reasoning-gym",
            *_RG,
            r"^rg-(.+)-s\d+-\d+$",
        ),
        _make_log_prob_dataset("logprob_embedded", "the embedded policy of rollonce, T=1.0, at most 96 tokens"),
        _make_log_prob_dataset("logprob_smollm2_short", "SmolLM2-135M-Instruct, 4-shot, T=1.0, at most 24 tokens"),
        _make_log_prob_dataset("logprob_smollm2_long", "SmolLM2-135M-Instruct, T=1.0, at most 224 tokens")._replace(
            source="rollouts and tasks made for this project (rollonce collect, studies/smollm2/make_tasks.py)",
            licence="Apache-2.0, this project",
            licence_file=_HERE / "licences" / "rollonce.Apache-2.0.txt",
        ),
    )
}


def list_dataset_names(*, with_log_probs: bool = True) -> tuple[str, ...]:
    """The names of the sets: all of them, or the eight that have no log-probabilities."""
    return tuple(name for name, about in _SETS.items() if with_log_probs or not about.has_log_probs)


def describe_dataset(name: str) -> Dataset:
    """Where a set comes from, its policy and licence. The beginning of a name will do, if only one set begins so.

    Raises:
        InputError: if there is no such set.
    """
    if name in _SETS:
        return _SETS[name]
    matches = [n for n in _SETS if name and n.startswith(name)]
    if len(matches) == 1:
        return _SETS[matches[0]]
    what = f"{name!r} could be {' or '.join(matches)}" if matches else f"no set {name!r}"
    raise InputError(f"{what}; the sets that come with rollonce are {', '.join(_SETS)}")


def locate_dataset_file(name: str) -> Path:
    """The set's file, gzipped JSON Lines that `rollonce.readers.read_rollouts` reads."""
    return _HERE / "data" / f"{describe_dataset(name).name}.jsonl.gz"


def load(name: str) -> Rollouts:
    """The set as a table, tasks in the order of the file, with the columns ``family`` and ``level`` where it has them.

    Raises:
        InputError: if there is no such set.
    """
    import orjson

    # The files are ours and right, so this needs none of the readers' checks (and the readers' layer may not be
    # imported from here).
    about, file = describe_dataset(name), locate_dataset_file(name)
    groups: dict[str, list[dict[str, object]]] = {}
    for line in gzip.decompress(file.read_bytes()).splitlines():
        row = orjson.loads(line)
        groups.setdefault(row["task_id"], []).append(row)
    rows = [row for group in groups.values() for row in group]
    columns = {c: [str(g[0][c]) for g in groups.values()] for c in ("family", "level") if c in rows[0]}
    if about.family is not None:
        found = [re.search(about.family, task) for task in groups]
        columns["family"] = [m.group(m.re.groups) for m in found if m is not None]
    length = "response_length" if "response_length" in rows[0] else "response_tokens"
    return Rollouts(
        about.name,
        Tasks([str(group[0]["prompt"]) for group in groups.values()], np.array(list(groups), dtype=object), columns),
        np.concatenate([[0], np.cumsum([len(g) for g in groups.values()])]).astype(np.int64),
        np.array([r["reward"] for r in rows], dtype=np.float64),
        np.array([r[length] for r in rows], dtype=np.float64),
        source=f"rollonce.datasets: {about.source}",
        format="generic",
        log_probs_R=np.array([r["log_prob"] for r in rows], dtype=np.float64) if about.has_log_probs else None,
    )
