"""``python evalplus_results.py`` with evalplus 0.3.1: evaluates two samples each of two tasks of a small dataset with
its own command.

Set HUMANEVAL_OVERRIDE_PATH to fixtures/evalplus/dataset.jsonl first (evalplus's own way to another dataset); it runs
the samples' code.
"""

import json
import os
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "fixtures" / "evalplus"


def main():
    OUT.mkdir(exist_ok=True)
    tasks = []
    for i, (name, body, wrong) in enumerate((("add", "a + b", "a - b"), ("mul", "a * b", "a + b"))):
        prompt = f'def {name}(a, b):\n    """The {name} of two numbers."""\n'
        tasks.append(
            {
                "task_id": f"HumanEval/{i}",
                "prompt": prompt,
                "entry_point": name,
                "canonical_solution": f"    return {body}\n",
                "test": "",
                "contract": "",
                "base_input": [[2, 2], [0, 0]],
                "plus_input": [[3, 5]],
                "atol": 0,
                "wrong": wrong,
            }
        )
    with open(OUT / "dataset.jsonl", "w") as f:
        for t in tasks:
            f.write(json.dumps({k: v for k, v in t.items() if k != "wrong"}) + "\n")
    with open("samples.jsonl", "w") as f:
        for t in tasks:
            for body in (t["canonical_solution"], f"    return {t['wrong']}\n"):
                f.write(json.dumps({"task_id": t["task_id"], "solution": t["prompt"] + body}) + "\n")
    os.environ["HUMANEVAL_OVERRIDE_PATH"] = str(OUT / "dataset.jsonl")
    from evalplus.evaluate import evaluate

    evaluate("humaneval", samples="samples.jsonl", parallel=1, i_just_wanna_run=True)
    Path("samples_eval_results.json").replace(OUT / "samples_eval_results.json")


main()
