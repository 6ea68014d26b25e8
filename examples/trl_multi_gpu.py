"""TRL + accelerate + vLLM on several GPUs, one rollout per task: GSM8K with a tuned baseline.

    rollonce tune rollouts.jsonl --out baseline.json
    accelerate launch --num_processes 4 examples/trl_multi_gpu.py --baseline baseline.json --model
    Qwen/Qwen2.5-1.5B-Instruct

Every process sees the rewards of all (the adapter gathers them), computes the same baseline and takes its own rows'
advantages; the baseline runs on the CPU and takes no GPU memory. A step is ``per_device x processes x accumulation``
different tasks, here 16 x 4 x 2.

**Not run on GPUs**: the same adapter is tested with two CPU processes, and this file with ``--tiny``
    (tests/integrations/test_examples.py).
"""

from __future__ import annotations

import argparse
import re
from typing import Any

from datasets import Dataset, load_dataset

from rollonce.integrations.trl import SingleRolloutGRPOConfig, SingleRolloutGRPOTrainer


def reward(completions: list[Any], solution: list[str], **_: Any) -> list[float]:
    """1 where the last number of the completion is the reference's."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [float(number(t) == number(s)) for t, s in zip(texts, solution, strict=True)]


def number(text: str) -> str | None:
    """The last number in a text, without thousands separators."""
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return found[-1].replace(",", "") if found else None


def gsm8k() -> Dataset:
    """Questions as chat messages, and reference solutions."""
    data = load_dataset("openai/gsm8k", "main", split="train")
    return data.map(lambda row: {"prompt": [{"role": "user", "content": row["question"]}], "solution": row["answer"]})


def tiny() -> Dataset:
    """Sixteen sums, to try the script without a hub."""
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"{i} + {i}?"}], "solution": f"#### {2 * i}"} for i in range(16)]
    )


def main() -> None:
    """One run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--baseline", required=True, help="what `rollonce tune` wrote")
    parser.add_argument("--model", default="Qwen/Qwen2.5-1.5B-Instruct")
    parser.add_argument("--out", default="out/trl-gsm8k")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tiny", action="store_true", help="sixteen sums on the CPU, without vLLM")
    args = parser.parse_args()
    device: dict[str, Any] = {
        "bf16": True,
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.3,
    }
    if args.tiny:
        device = {"bf16": False, "use_cpu": True, "report_to": [], "disable_tqdm": True}
    config = SingleRolloutGRPOConfig(
        args.out,
        max_steps=args.steps,
        per_device_train_batch_size=8 if args.tiny else 16,
        gradient_accumulation_steps=1 if args.tiny else 2,
        max_completion_length=8 if args.tiny else 512,
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_steps=50,
        **device,
    )
    trainer = SingleRolloutGRPOTrainer(
        args.model, reward, config, train_dataset=tiny() if args.tiny else gsm8k(), baseline=args.baseline
    )
    trainer.train()


if __name__ == "__main__":
    main()
