"""Small real TRL runs on the embedded policy, with everything that a test wants to look at recorded. Also run by
torchrun, see `main`."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollonce.baselines import KernelBaseline
from rollonce.integrations import trl as ours
from rollonce.policies import embedded_directory

PROMPTS = [
    f"{verb} {noun} number {i}"
    for i, (verb, noun) in enumerate((v, n) for v in ("add", "sort", "spell", "count") for n in "wxyz")
]


def digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")


def coin(prompts: list[Any], completions: list[Any], **_: Any) -> list[float | None]:
    """A reward in {0, 1/2, 1} that depends on prompt and completion, the same in every process."""
    text = lambda c: c if isinstance(c, str) else c[-1]["content"]  # noqa: E731
    return [digest(text(p) + text(c)) % 3 / 2 for p, c in zip(prompts, completions, strict=True)]


def data(prompts: list[str] = PROMPTS, chat: bool = False) -> Dataset:
    rows = [{"prompt": [{"role": "user", "content": p}] if chat else p, "family": p.split()[0]} for p in prompts]
    return Dataset.from_list(rows)


def model() -> tuple[Any, Any]:
    made = AutoModelForCausalLM.from_pretrained(embedded_directory(), dtype=torch.float32, attn_implementation="eager")
    return made, AutoTokenizer.from_pretrained(embedded_directory())


def settings(**changes: Any) -> dict[str, Any]:
    common = {
        "per_device_train_batch_size": 8,
        "max_completion_length": 6,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "max_steps": 2,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 1,
    }
    return {**common, **changes}


def recorded(cls: type) -> type:
    """The class, keeping what it was given and what it gave: ``batches`` (world rewards, prompts, own advantages) and
    ``in_loss``."""

    class Recorded(cls):
        def __init__(self, *a: Any, **k: Any) -> None:
            self.batches: list[dict[str, Any]] = []
            self.in_loss: list[list[float]] = []
            super().__init__(*a, **k)

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            out = super()._generate_and_score_completions(inputs)
            kept = getattr(self, "_kept", None)
            record = {"own": out["advantages"].tolist(), "training": self.model.training}
            if kept is not None:
                record |= {"prompts": kept[0], "rewards": kept[1].tolist()}
            self.batches.append(record)
            return out

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            self.in_loss.append(inputs["advantages"].tolist())
            return super()._compute_loss(model, inputs)

    Recorded.__name__ = cls.__name__
    return Recorded


def run(
    out: Path,
    *,
    baseline: Any = None,
    reward: Any = coin,
    train: Dataset | None = None,
    kind: str = "GRPO",
    **changes: Any,
) -> Any:
    """A trainer that has trained; ``changes`` that are the trainer's own go to it, the rest to the configuration."""
    own = {k: changes.pop(k) for k in ("whiten", "scale_by_std", "warn_after", "eval_dataset") if k in changes}
    resume = changes.pop("resume", None)
    weights, tokenizer = model()
    args = getattr(ours, f"SingleRollout{kind}Config")(str(out), **settings(**changes))
    trainer = recorded(getattr(ours, f"SingleRollout{kind}Trainer"))(
        weights,
        reward,
        args,
        train_dataset=data() if train is None else train,
        processing_class=tokenizer,
        baseline=KernelBaseline(window=12) if baseline is None else baseline,
        **own,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def main() -> None:
    """``torchrun --nproc_per_node 2 trl_runs.py OUT``: each rank writes what it saw."""
    torch.set_num_threads(1)
    trainer = run(
        Path(sys.argv[1]) / "run",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=3,
        reward=sometimes_none,
    )
    rank = trainer.accelerator.process_index
    seen = {"batches": trainer.batches, "state": trainer.hook.state_dict(), "world": trainer.accelerator.num_processes}
    seen["weights"] = float(sum(p.detach().double().abs().sum() for p in trainer.model.parameters()))
    (Path(sys.argv[1]) / f"rank{rank}.json").write_text(json.dumps(seen))


def sometimes_none(prompts: list[Any], completions: list[Any], **_: Any) -> list[float | None]:
    """`coin`, with no grade for a tenth of the completions."""
    return [
        None if digest(str(p) + str(c)) % 10 == 0 else r
        for p, c, r in zip(prompts, completions, coin(prompts, completions), strict=True)
    ]


def world_rewards(batch: dict[str, Any]) -> np.ndarray:
    """The rewards of a recorded batch (N,), NaN where no function graded."""
    each = np.asarray(batch["rewards"], dtype=float)
    return np.where(np.isnan(each).all(axis=1), np.nan, np.nansum(each, axis=1))


if __name__ == "__main__":
    main()
