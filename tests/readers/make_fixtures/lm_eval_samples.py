"""``python lm_eval_samples.py`` with lm-eval 0.4.13: three seeded runs of its dummy model on two documents, and one
with repeats."""

import json
import random
import shutil
import tempfile
import textwrap
from pathlib import Path

import lm_eval
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

OUT = Path(__file__).resolve().parents[1] / "fixtures"


def run(folder, tasks, task, seed):
    """One run, its samples saved as the command line does."""
    random.seed(seed)
    tracker = EvaluationTracker(output_path=str(folder))
    results = lm_eval.simple_evaluate(
        model="dummy",
        tasks=[task],
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        log_samples=True,
        random_seed=seed,
        evaluation_tracker=tracker,
        bootstrap_iters=0,
    )
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    tracker.save_results_samples(task_name=task, samples=samples[task])


def main():
    tasks = Path(tempfile.mkdtemp())
    with open(tasks / "docs.jsonl", "w") as f:
        for q, a in (("1+1=", 0), ("2+2=", 1)):
            f.write(json.dumps({"q": q, "choices": ["2", "4"], "a": a}) + "\n")
    base = f"""
        dataset_path: json
        dataset_kwargs: {{data_files: {{test: {tasks / "docs.jsonl"}}}}}
        test_split: test
        doc_to_text: "Q: {{{{q}}}}"
    """
    base = textwrap.dedent(base)
    choice = "task: sums\noutput_type: multiple_choice\n"
    choice += "doc_to_target: a\ndoc_to_choice: choices\nmetric_list: [{metric: acc}, {metric: acc_norm}]\n"
    repeats = (
        "task: sums_repeated\noutput_type: generate_until\nrepeats: 2\ndoc_to_target: '{{choices[a]}}'\n"
        "metric_list: [{metric: exact_match}]\nfilter_list: [{name: first, filter: [{function: take_first}]}]\n"
    )
    (tasks / "sums.yaml").write_text(base + choice)
    (tasks / "sums_repeated.yaml").write_text(base + repeats)
    for folder in ("lm_eval", "lm_eval_repeats"):
        shutil.rmtree(OUT / folder, ignore_errors=True)
    for seed in (1, 2, 3):
        run(OUT / "lm_eval" / f"seed{seed}", tasks, "sums", seed)
    run(OUT / "lm_eval_repeats", tasks, "sums_repeated", 1)
    for path in sorted(OUT.glob("lm_eval*/**/*.json")):
        path.unlink()  # the aggregated results: not read, and they name this machine
    for path in sorted(OUT.glob("lm_eval*/**/*.jsonl")):
        path = path.rename(path.parent.parent / path.name)  # out of a folder with a random name
        print(path, [(r["doc_id"], r.get("acc")) for r in map(json.loads, path.open())])


main()
