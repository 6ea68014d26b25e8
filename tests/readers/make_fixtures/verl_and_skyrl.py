"""``python verl_and_skyrl.py VERL_SOURCE SKYRL_SOURCE`` (unpacked wheels): runs the writers' own functions.

Their modules need Ray and a GPU stack to import; the functions need json and os.
"""

import ast
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path(__file__).resolve().parents[1] / "fixtures"


def function(path: str, name: str, **names):
    """The function of this name, compiled from its source."""
    tree = ast.parse(Path(path).read_text())
    node = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name)
    node.decorator_list = []
    names = {"os": os, "json": json, "np": np, "Path": Path, "re": re, "Any": Any, "Dict": dict, "List": list, **names}
    exec(compile(ast.Module([node], []), path, "exec"), names)
    return names[name]


class Tokenizer:
    """Decodes ids to words."""

    def decode(self, ids):
        return " ".join(f"w{i}" for i in ids)


class Logger:
    """Says nothing."""

    def info(self, *args):
        pass


def main():
    verl, skyrl = sys.argv[1:]
    classic = function(f"{verl}/verl/trainer/ppo/ray_trainer.py", "_write_generations")
    for step, scores in ((1, [1.0, 0.0, 0.0, 1.0]), (2, [0.5, 1.0]), (10, [0.0])):
        prompts = ["user\n1+1=?", "user\n1+1=?", "user\n2+2=?", "user\n3+3=?"][: len(scores)]
        answers = ["2", "3", "5", "6"][: len(scores)]
        classic(
            prompts,
            answers,
            ["2", "2", "4", "6"][: len(scores)],
            scores,
            {"acc": [s > 0 for s in scores]},
            str(OUT / "verl"),
            step,
        )
    v1 = function(f"{verl}/verl/trainer/ppo/v1/trainer_base.py", "_write_generations")
    uids = ["aa_0_0", "aa_0_1", "aa_1_0", "bb_0_0"]  # the first session has two outputs
    prompts = ["user\ngo", "user\ngo\nassistant\nlook\ntool\nseen", "user\ngo", "user\nstop"]
    v1(
        prompts,
        ["look", "done", "no", "ok"],
        [None] * 4,
        [0.0, 1.0, 0.0, np.float32(0.25)],
        {"uid": uids},
        str(OUT / "verl_v1"),
        3,
    )

    dump = function(
        f"{skyrl}/skyrl/train/utils/trainer_utils.py",
        "dump_per_dataset_eval_results",
        sanitize_data_source=lambda s: s.replace("/", "_"),
        logger=Logger(),
        AutoTokenizer=object,
        GeneratorOutput=dict,
    )
    folder = OUT / "skyrl" / "dumped_evals" / "global_step_5_evals"
    folder.mkdir(parents=True, exist_ok=True)
    outputs = {
        "prompt_token_ids": [[1, 2], [1, 2], [3]],
        "response_ids": [[4], [5], [6, 7]],
        "rewards": [1.0, 0.0, [0.0, 0.5]],
        "stop_reasons": ["stop", "length", "stop"],
    }
    dump(
        folder,
        Tokenizer(),
        outputs,
        ["openai/gsm8k"] * 3,
        ["gsm8k"] * 3,
        [{"max_turns": 1}] * 3,
        {"eval/all/avg_score": 0.5},
    )


main()
