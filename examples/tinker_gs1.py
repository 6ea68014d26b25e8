"""One rollout a task on a Tinker-compatible service (Tinker, Modal's Spindle, SkyRL's server ...), the whole loop in
sight.

    export TINKER_API_KEY=tml-...  TINKER_BASE_URL=https://...
    python examples/tinker_gs1.py --model Qwen/Qwen3.5-2B --renderer chat --tasks gsm8k:hub --steps 60

``--baseline`` is any of `rollonce train`'s names (gs1_tfidf, gs1_kriging, loo, flashreinforce, critic_prompt, none) or
a baseline.json that ``rollonce tune`` wrote. ``rollonce train`` does the same with resume, evaluation and metrics; this
is what it comes down to.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from rollonce.baselines import Baseline
from rollonce.integrations import AdvantageHook
from rollonce.policies import AdamSettings, TinkerPolicy
from rollonce.tasks import grade, load_tasks
from rollonce.training.arms import named_baseline


def main() -> None:
    """One run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the base model's name on the service")
    parser.add_argument("--renderer", default="chat", help="text, chat (the tokenizer's template) or cookbook:NAME")
    parser.add_argument("--tasks", default="gsm8k:hub", help="gsm8k:DIR, gsm8k:hub, jsonl:FILE or reasoning-gym:NAME")
    parser.add_argument("--baseline", default="gs1_tfidf")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32, help="tasks per step, one rollout each")
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=3e-5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/tinker_gs1"))
    args = parser.parse_args()

    tasks = load_tasks(args.tasks, seed=args.seed).train
    baseline = Baseline.load(args.baseline) if args.baseline.endswith(".json") else named_baseline(args.baseline)
    hook = AdvantageHook(baseline)
    hook.fit(tasks.prompts)  # vocabulary and scales; a tuned file brings its own

    policy = TinkerPolicy.connect(
        args.model,
        renderer=args.renderer,
        local_only=False,  # the tokenizer may come from the hub
        loss="importance_sampling",
        adam=AdamSettings(beta1=0.9, beta2=0.95, eps=1e-8),
        lora_rank=32,
        seed=args.seed,
        prompt_template="{prompt} Put the final answer after 'Answer:'.",
    )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "facts.json").write_text(json.dumps(policy.facts(), indent=1))

    order = torch.randperm(len(tasks), generator=torch.Generator().manual_seed(args.seed)).tolist()
    with (args.out / "metrics.jsonl").open("w") as log:
        for step in range(args.steps):
            start = step * args.batch % (len(tasks) - args.batch + 1)
            batch = [tasks[i] for i in order[start : start + args.batch]]
            samples = policy.sample(
                [t.prompt for t in batch], max_new_tokens=args.max_tokens, seed=args.seed * 100_003 + step
            )
            grades = grade(batch, samples.texts, truncated=samples.truncated_B.tolist())
            result = hook.advantages([t.prompt for t in batch], grades.rewards)
            told = policy.update(samples, torch.from_numpy(result.advantages_N), learning_rate=args.learning_rate)
            # On-policy the trainer's log-probabilities are the sampler's: a drift here is the first thing to look at
            # when learning stalls.
            drift = float((told.log_probs_BT - samples.log_probs_BT).abs().max())
            record = {
                "step": step,
                **result.metrics,
                "grad_norm": told.grad_norm,
                "drift": drift,
                "tokens": samples.n_tokens,
            }
            log.write(json.dumps(record) + "\n")
            log.flush()
            print(f"step {step}: reward {record['reward']:.3f}, E[A^2] against LOO {_ratio(record):.3f}")
    print("weights:", policy.save_for_sampling("tinker-gs1-final"))
    policy.close()


def _ratio(record: dict[str, float]) -> float:
    return record["squared_advantage"] / record["squared_advantage_loo"] if record["squared_advantage_loo"] else 1.0


if __name__ == "__main__":
    main()
