"""``python from_source.py``: fixtures of writers that could not be run here, written by hand after the writer's source.

* nemo_rl: NVIDIA-NeMo/RL, nemo_rl/algorithms/grpo.py (log_data) and nemo_rl/utils/logger.py (log_batched_dict_as_jsonl:
    slices of one).
* verifiers_legacy: PrimeIntellect-ai/verifiers @00d8320, verifiers/utils/save_utils.py (state_to_output).
* prime_rl_legacy: the same rows under prime-rl's rollouts/step_<N>/train_rollouts.jsonl; prime_rl_wire: a trace a line
    (docs of replay-v1).
* automationbench: Hert4/automationbench-opera-gemma4 @75d3d3e, scripts/slim_export.py and data/base_ab600.slim.json.
"""

import json
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "fixtures"


def write(path, rows):
    """JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


def legacy(example, prompt, reward, tokens, **more):
    """A row of results.jsonl."""
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]
    return {
        "example_id": example,
        "prompt": chat,
        "completion": [{"role": "assistant", "content": "2"}],
        "answer": "2",
        "reward": reward,
        "error": None,
        "timing": {"generation_ms": 1.0, "scoring_ms": 1.0, "total_ms": 2.0},
        "is_completed": True,
        "is_truncated": False,
        "stop_condition": "done",
        "metrics": {"right": reward, "num_turns": 1.0},
        "right": reward,
        "num_turns": 1.0,
        "tool_defs": None,
        "token_usage": {"input_tokens": 9.0, "output_tokens": tokens},
        **more,
    }


def main():
    for step, batch in (
        (1, [("1+1=?", 1.0, [0, 0, 1, 1]), ("1+1=?", 0.0, [0, 0, 1, 0]), ("2+2=?", 0.5, [0, 1, 1, 1])]),
        (2, [("3+3=?", 1.0, [0, 0, 0, 1])]),
    ):
        rows = [
            {
                "content": [[p, "an answer"]],
                "rewards": [r],
                "input_lengths": [4],
                "token_loss_mask": [mask],
                "sample_loss_mask": [1.0],
                "advantages": [[0.0] * 4],
                "generation_logprobs": [[-(j + 1) / 4 * m for j, m in enumerate(mask)]],
                "prev_logprobs": [[0.0] * 4],
                "idx": i,
            }
            for i, (p, r, mask) in enumerate(batch)
        ]
        write(OUT / "nemo_rl" / f"train_data_step{step}.jsonl", rows)
    rows = [legacy(0, "1+1=?", 1.0, 4.0), legacy(0, "1+1=?", 0.0, 6.0), legacy(1, "2+2=?", 0.5, 8.0)]
    write(OUT / "verifiers_legacy" / "results.jsonl", rows)
    (OUT / "verifiers_legacy" / "metadata.json").write_text(
        json.dumps({"env_id": "sums", "model": "m", "num_examples": 2, "rollouts_per_example": 2})
    )
    for step in (1, 2):
        write(
            OUT / "prime_rl_legacy" / "rollouts" / f"step_{step}" / "train_rollouts.jsonl",
            [legacy(0, "1+1=?", step - 1.0, 3.0, task="sums")],
        )
    trace = {
        "id": "t1",
        "task": {"type": "Sum", "data": {"idx": 0, "prompt": "1+1=?"}, "key": "k0"},
        "agent": {"name": "agent", "trainable": True},
        "nodes": [],
        "rewards": {"right": {"score": 1.0, "weight": 1.0}},
        "num_output_tokens": 5,
        "ok": True,
        "info": {"prime_rl": {"env_name": "sums"}},
    }
    write(OUT / "prime_rl_wire" / "rollouts" / "step_7" / "train_rollouts.jsonl", [trace])
    for run, score in (("run1", 0.75), ("run2", 1.0)):
        task = {
            "id": 1,
            "name": "sales.update_contact_phone",
            "score": score,
            "passed": score == 1.0,
            "assertions_total": 4,
            "assertions_passed": int(4 * score),
            "input_tokens": 60,
            "output_tokens": 34,
            "num_tool_calls": 1,
            "num_model_calls": 2,
            "steps": 2,
            "messages": [
                {"role": "system", "content": "You automate."},
                {"role": "user", "content": "Update the phone."},
                {"role": "assistant", "content": "Done."},
            ],
            "assertion_results": [{"type": "salesforce_contact_phone_equals", "passed": True, "excluded": False}],
        }
        document = {
            "meta": {"model": "m", "toolset": "api", "benchmark_version": "1.0.5"},
            "summary": {"avg_score": score},
            "tasks": [task],
        }
        (OUT / "automationbench").mkdir(exist_ok=True)
        (OUT / "automationbench" / f"{run}.json").write_text(json.dumps(document))


main()
