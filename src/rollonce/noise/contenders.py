"""What `rollonce noise` measures the progress of: baselines at one rollout per task, groups, the oracle and critics.

Shapes: ``_N`` tasks, ``_G`` rollouts of a task, ``_R`` rollouts in task order, ``_T`` tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from rollonce.baselines import Grpo, JamesStein, Opo, ReinforcePlusPlus, Rloo
from rollonce.noise.gradients import Aggregation, ScoreGradients, score_gradients
from rollonce.noise.streams import Contender, GradientSample
from rollonce.policies.critic import TokenCritic, generalised_advantages
from rollonce.policies.samples import Samples
from rollonce.rollouts import FloatArray, Rollouts

ORACLE = "oracle (true mean)"
TOKEN_CRITIC = "critic, token level"
_CRITIC_PASSES = 2
_CRITIC_BATCH = 32


def gradient_sample(gradients: ScoreGradients) -> GradientSample:
    """What `measure_progress` needs of them. Where there are not the inner products of all, or they are in Adam's
    metric, norms of batches are estimated from the chosen parameters."""
    kept_RD, gram_RR = gradients.coordinates_RD, gradients.gram_RR
    usable = gradients.weights is None and len(gram_RR) == len(kept_RD)
    return GradientSample(kept_RD, gram_RR if usable else None, gradients.n_parameters)


def default_contenders(rollouts: Rollouts, baselines: Sequence[Any], batch_size: int) -> list[Contender]:
    """The baselines given, REINFORCE++ as the trainers make it and OPO over the batch, RLOO, GRPO, OPO and James-Stein
    at the same number of rollouts, and the oracle.

    Args:
        rollouts: N tasks, G rollouts each.
        baselines: Fitted ones that work at one rollout per task.
        batch_size: B; groups are of 2, 4 and 8 where there are as many rollouts and B is a multiple.
    """
    g = int(rollouts.group_sizes_N[0])
    out = [Contender(b.label, b) for b in baselines]
    out.append(Contender(ReinforcePlusPlus().label, ReinforcePlusPlus()))
    one_each = Opo(over="batch", own=False)
    out.append(Contender(one_each.label, one_each))
    sizes = [size for size in (2, 4, 8) if size <= g and batch_size % size == 0 and size < batch_size]
    for size in sizes:
        shape = f"{batch_size // size} x {size}"
        out.append(Contender(f"RLOO, {shape}", Rloo(), group_size=size, note="GRPO without std has the same direction"))
    if sizes:
        shape = f"{batch_size // sizes[-1]} x {sizes[-1]}"
        out.append(Contender(f"GRPO with std, {shape}", Grpo(scale="group"), group_size=sizes[-1]))
        out += [Contender(f"{b.label}, {shape}", b, group_size=sizes[-1]) for b in (Opo(), JamesStein())]
    if g >= 3:
        note = f"ceiling: the mean of the task's other {g - 1} rollouts stands for its true mean"
        out.append(Contender(ORACLE, None, values_R=mean_of_other_rollouts(rollouts), note=note))
    return out


def mean_of_other_rollouts(rollouts: Rollouts) -> FloatArray:
    """The mean reward of each rollout's task, without itself (R,)."""
    g = rollouts.group_sizes_N
    total_R = np.repeat(rollouts.means_N * g, g)
    return (total_R - rollouts.rewards_R) / (np.repeat(g, g) - 1)


def token_critic_contender(
    policy: Any,
    samples: Samples,
    rollouts: Rollouts,
    *,
    aggregation: Aggregation = "token",
    buckets: int = 16384,
    coordinates: int = 20_000,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Contender:
    """A value head on the policy's last hidden state, trained on the rollouts of *other* tasks, with GAE(1, 1).

    The tasks are halved; the critic that judges one half learned from the other, in two passes over its rollouts
    with four updates each, as in training. Its advantages are of tokens, so every rollout has a gradient of its own
    under them: one more pass over all rollouts.

    Args:
        policy: The fixed policy.
        samples: R rollouts in task order.
        rollouts: Their rewards.
        aggregation, buckets, coordinates, seed: As of the gradients that the other contenders use.
        progress: Called with (done, R) while gradients are taken.
    """
    g = int(rollouts.group_sizes_N[0])
    order_N = np.random.default_rng([seed, 61]).permutation(rollouts.n_tasks)
    weights: list[FloatArray] = [np.zeros(0)] * len(samples)
    for judged, learned in ((0, 1), (1, 0)):
        halves = [np.sort(order_N[: len(order_N) // 2]), np.sort(order_N[len(order_N) // 2 :])]
        rows = [(h[:, None] * g + np.arange(g)).ravel() for h in halves]
        critic = _train_token_critic(policy, samples, rollouts.rewards_R, rows[learned], seed)
        for start in range(0, len(rows[judged]), 256):
            some = rows[judged][start : start + 256]
            part = samples.take_rollouts(some.tolist())
            rewards_B = torch.from_numpy(rollouts.rewards_R[some]).float()
            advantages_BT, _ = generalised_advantages(
                rewards_B, critic.predict_token_values(part).values_BT, part.response_mask_BT
            )
            for i, row in enumerate(some):
                weights[row] = advantages_BT[i, : int(part.lengths_B[i])].double().numpy()
    gradients = score_gradients(
        policy,
        samples,
        aggregation=aggregation,
        buckets=buckets,
        coordinates=coordinates,
        seed=seed,
        token_weights=weights,
        progress=progress,
    )
    note = "a value head trained on the other half's rollouts of this policy"
    return Contender(TOKEN_CRITIC, None, gradients=gradient_sample(gradients), note=note)


def _train_token_critic(
    policy: Any, samples: Samples, rewards_R: FloatArray, rows: np.ndarray, seed: int
) -> TokenCritic:
    critic = TokenCritic(policy, seed=seed)
    rng = np.random.default_rng([seed, 62])
    critic.start_at_mean_reward(float(rewards_R[rows].mean()))
    for _ in range(_CRITIC_PASSES):
        order = rng.permutation(rows)
        for start in range(0, len(order), _CRITIC_BATCH):
            some = order[start : start + _CRITIC_BATCH]
            part = samples.take_rollouts(some.tolist())
            old = critic.predict_token_values(part)
            rewards_B = torch.from_numpy(rewards_R[some]).float()
            _, targets_BT = generalised_advantages(rewards_B, old.values_BT, part.response_mask_BT)
            critic.learn_from_targets(part, old, targets_BT)
    return critic


__all__ = [
    "ORACLE",
    "TOKEN_CRITIC",
    "default_contenders",
    "gradient_sample",
    "mean_of_other_rollouts",
    "token_critic_contender",
]
