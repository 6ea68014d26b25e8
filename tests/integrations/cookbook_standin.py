"""What the adapter touches of ``tinker_cookbook.rl.train``, in its shapes and call order (0.5.8 and 0.6.1), without a
service.

``tests/tinker`` holds the same adapter to the real package; its signature test holds this file's names to it too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass
class Chunk:
    tokens: list[int]


@dataclass
class Picture:
    length: int = 64


@dataclass
class Observation:
    chunks: list[Any]


@dataclass
class Action:
    """``TokensWithLogprobs``: one log-probability per token, or None for all."""

    tokens: list[int]
    maybe_logprobs: list[float] | None


@dataclass
class Transition:
    ob: Observation
    ac: Action
    reward: float


@dataclass(eq=False)
class Trajectory:
    transitions: list[Transition]


@dataclass(eq=False)
class TrajectoryGroup:
    trajectories_G: list[Trajectory]
    final_rewards_G: list[float]
    metrics_G: list[dict[str, Any]] = field(default_factory=list)

    def get_total_rewards(self) -> list[float]:
        return [
            sum(t.reward for t in tr.transitions) + f
            for tr, f in zip(self.trajectories_G, self.final_rewards_G, strict=True)
        ]


class Tokenizer:
    """One token per character."""

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


@dataclass
class Env:
    question: str

    def get_question(self) -> str:
        return self.question + self.question_suffix()

    @classmethod
    def question_suffix(cls) -> str:
        return " Box it."


@dataclass
class ProblemBuilder:
    question: str

    def env_thunk(self) -> Env:
        return Env(self.question)


class OtherBuilder:
    """A builder that knows no question."""


@dataclass
class Config:
    log_path: str
    remove_constant_reward_groups: bool = False
    stream_minibatch_config: Any = None


def render(question: str) -> str:
    """As a renderer with one worked example would."""
    return f"User: How many r's are in strawberry? Box it.\n\nAssistant: 3\n\nUser: {question} Box it.\n\nAssistant:"


def group_of(
    question: str, rewards: list[float], finals: list[float] | None = None, log_probs: list[float] | None = None
) -> TrajectoryGroup:
    tokens = [ord(c) for c in render(question)]
    action = Action([48] * len(log_probs or []), log_probs)
    trajectories = [Trajectory([Transition(Observation([Chunk(tokens)]), action, r)]) for r in rewards]
    return TrajectoryGroup(trajectories, finals or [0.0] * len(rewards), [{} for _ in rewards])


# ---- the loop

SENT: list[list[list[float]]] = []
"""Advantages that reached the data of each step, one list per group."""
PRINTED: list[list[float]] = []
CREATED: list[str] = []
"""What a run has made on the service."""
STEPS: list[list[tuple[ProblemBuilder, TrajectoryGroup]]] = []
"""What sampling will give, one list per step."""


def compute_advantages(trajectory_groups_P: list[TrajectoryGroup]) -> list[torch.Tensor]:
    rewards = [torch.tensor(g.get_total_rewards()) for g in trajectory_groups_P]
    return [r - r.mean() for r in rewards]


def print_group(traj_group: TrajectoryGroup, tokenizer: Tokenizer) -> None:
    some = TrajectoryGroup(traj_group.trajectories_G[:4], traj_group.final_rewards_G[:4], traj_group.metrics_G[:4])
    PRINTED.append(compute_advantages([some])[0].tolist())


async def prepare_minibatch(
    env_group_builders_P: list[Any],
    trajectory_groups_P: list[TrajectoryGroup],
    tokenizer: Tokenizer,
    kl_reference_client: Any,
    kl_penalty_coef: float,
    kl_discount_factor: float,
) -> tuple[list[list[float]], dict[str, Any]]:
    for group in trajectory_groups_P[:2]:
        print_group(group, tokenizer)
    return [a.tolist() for a in compute_advantages(trajectory_groups_P)], {"reward": 0.0}


async def do_train_step_and_get_sampling_client(
    config: Config,
    i_batch: int,
    training_client: Any,
    checkpoint_mgr: Any,
    kl_reference_client: Any,
    tokenizer: Tokenizer,
    env_group_builders_P: list[Any],
    trajectory_groups_P: list[TrajectoryGroup],
) -> tuple[Any, dict[str, Any]]:
    data, metrics = await prepare_minibatch(
        env_group_builders_P,
        trajectory_groups_P,
        tokenizer,
        kl_reference_client,
        kl_penalty_coef=0.0,
        kl_discount_factor=0.0,
    )
    SENT.append(data)
    return None, metrics


async def do_sync_training(start_batch: int, end_batch: int, num_batches: int, config: Config) -> list[dict[str, Any]]:
    out = []
    for i_batch in range(start_batch, end_batch):
        builders, groups = [b for b, _ in STEPS[i_batch]], [g for _, g in STEPS[i_batch]]
        _, metrics = await do_train_step_and_get_sampling_client(
            config, i_batch, None, None, None, Tokenizer(), builders, groups
        )
        out.append(metrics)
    return out


async def do_async_training(start_batch: int, end_batch: int, num_batches: int, config: Config) -> list[dict[str, Any]]:
    return await do_sync_training(start_batch, end_batch, num_batches, config)


async def do_sync_training_with_stream_minibatch(
    start_batch: int, end_batch: int, num_batches: int, config: Config
) -> list[dict[str, Any]]:
    return await do_sync_training(start_batch, end_batch, num_batches, config)


async def main(config: Config, start: int = 0, end: int | None = None) -> list[dict[str, Any]]:
    CREATED.append("a training client")
    loop = do_sync_training if config.stream_minibatch_config is None else do_sync_training_with_stream_minibatch
    end = len(STEPS) if end is None else end
    out = await loop(start_batch=start, end_batch=end, num_batches=end, config=config)
    with (Path(config.log_path) / "checkpoints.jsonl").open("a") as f:
        f.write(f'{{"name": "x", "batch": {end}, "state_path": "tinker://x"}}\n')
    return out
