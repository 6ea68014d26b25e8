"""A fixed batch, the datums that would be sent for it, and their loss and gradient on a tiny float64 model on this
machine.

A service returns neither loss terms nor gradients. So the gradient of what would be sent is taken here, to the
log-probabilities and to the parameters of a small recurrent model with fixed weights. It shows that two lists of datums
are the same training signal; it says nothing about the service's own arithmetic.

Shapes: ``_D`` datums, ``_T`` tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rollonce.experiments.spec import Tolerance
from rollonce.rollouts import FloatArray

VOCABULARY, WIDTH = 97, 16


class Datum(NamedTuple):
    """One rollout as it is trained on: at position t the model has read ``inputs[:t + 1]`` and is judged on
    ``targets[t]``."""

    inputs: list[int]
    targets: list[int]
    old_log_probs: list[float]
    advantages: list[float]
    mask: list[float]


class FixedBatch(NamedTuple):
    """Rollouts that no model ever made: fixed tokens, lengths, rewards and behaviour log-probabilities."""

    prompts: list[str]
    task_ids: list[str]
    prompt_tokens: list[list[int]]
    response_tokens: list[list[int]]
    old_log_probs: list[list[float]]
    rewards: FloatArray


def make_fixed_batch(prompts: Sequence[str], group_size: int, seed: int = 0) -> FixedBatch:
    """``group_size`` rollouts of each prompt; rewards 0, 1 and a few between, so that no wrong formula hides behind
    symmetry.

    Behaviour log-probabilities are the tiny model's own, moved by up to 0.2: ratios differ from 1 and carry through.
    """
    rng = np.random.default_rng(seed)
    model = TinyModel()
    ids, texts, first, response, old = [], [], [], [], []
    for task, prompt in enumerate(prompts):
        tokens = rng.integers(1, VOCABULARY, size=int(rng.integers(3, 9))).tolist()
        for _ in range(group_size):
            said = rng.integers(1, VOCABULARY, size=int(rng.integers(2, 13))).tolist()
            whole = tokens + said
            with torch.no_grad():
                log_probs = model([whole[:-1]], [whole[1:]])[0][len(tokens) - 1 :].numpy()
            ids.append(str(task))
            texts.append(prompt)
            first.append(tokens)
            response.append(said)
            old.append((log_probs + rng.uniform(-0.2, 0.2, size=len(said))).tolist())
    rewards = rng.choice([0.0, 0.0, 1.0, 1.0, 0.5, -0.1], size=len(ids))
    return FixedBatch(texts, ids, first, response, old, rewards)


def make_plain_datums(batch: FixedBatch, advantages_B: FloatArray) -> list[Datum]:
    """The batch with one advantage per rollout, on response positions only."""
    out = []
    for p, r, old, a in zip(batch.prompt_tokens, batch.response_tokens, batch.old_log_probs, advantages_B, strict=True):
        whole, before = p + r, len(p) - 1
        zeros = [0.0] * before
        ones = [1.0] * len(r)
        out.append(Datum(whole[:-1], whole[1:], zeros + list(old), zeros + [float(a)] * len(r), zeros + ones))
    return out


class TinyModel:
    """Embedding, one GRU layer, output layer: float64, fixed weights, a few thousand parameters."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        draw = lambda *shape: (torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.4).requires_grad_()  # noqa: E731
        self.embedding, self.output = draw(VOCABULARY, WIDTH), draw(WIDTH, VOCABULARY)
        self.read, self.carry, self.bias = draw(WIDTH, 3 * WIDTH), draw(WIDTH, 3 * WIDTH), draw(3 * WIDTH)

    def parameters(self) -> list[Tensor]:
        return [self.embedding, self.output, self.read, self.carry, self.bias]

    def __call__(self, inputs: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Tensor]:
        """Log-probability of each target (T,), one tensor per sequence."""
        return [
            self._sequence_log_probs([i % VOCABULARY for i in x], [i % VOCABULARY for i in y])
            for x, y in zip(inputs, targets, strict=True)
        ]

    def _sequence_log_probs(self, inputs: list[int], targets: list[int]) -> Tensor:
        state = torch.zeros(WIDTH, dtype=torch.float64)
        states = []
        for row in self.embedding[torch.tensor(inputs)] @ self.read + self.bias:
            z, r, n = (
                row + torch.cat([(state @ self.carry)[: 2 * WIDTH], torch.zeros(WIDTH, dtype=torch.float64)])
            ).split(WIDTH)
            new = torch.tanh(n + torch.sigmoid(r) * (state @ self.carry[:, 2 * WIDTH :]))
            keep = torch.sigmoid(z)
            state = keep * state + (1 - keep) * new
            states.append(state)
        logits = torch.stack(states) @ self.output
        return torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(targets)[:, None])[:, 0]


class Signal(NamedTuple):
    """Loss, and its gradient to the log-probabilities (all tokens end to end) and to the parameters (all end to
    end)."""

    loss: float
    to_log_probs: FloatArray
    to_parameters: FloatArray


def compute_training_signal(datums: Sequence[Datum], *, token_mean: bool) -> Signal:
    """By torch: ``-sum ratio A`` over response tokens (importance sampling), over their number with ``token_mean``."""
    model = TinyModel()
    log_probs = torch.cat(model([d.inputs for d in datums], [d.targets for d in datums]))
    old, advantages, mask = (
        torch.tensor([x for d in datums for x in getattr(d, f)], dtype=torch.float64) for f in _TERMS
    )
    loss = -(torch.exp(log_probs - old) * advantages * mask).sum()
    if token_mean:
        loss = loss / mask.sum()
    to_log_probs, *to_parameters = torch.autograd.grad(loss, [log_probs, *model.parameters()])
    return Signal(loss.item(), to_log_probs.numpy(), torch.cat([g.flatten() for g in to_parameters]).numpy())


def compute_reference_signal(datums: Sequence[Datum], *, token_mean: bool) -> Signal:
    """By numpy and by hand: ``dL / d log p = -ratio A``; the chain to the parameters is the model's Jacobian
    (torch)."""
    model = TinyModel()
    log_probs = torch.cat(model([d.inputs for d in datums], [d.targets for d in datums]))
    old, advantages, mask = (np.array([x for d in datums for x in getattr(d, f)], dtype=np.float64) for f in _TERMS)
    ratio = np.exp(log_probs.detach().numpy() - old)
    n = mask.sum() if token_mean else 1.0
    to_log_probs = -ratio * advantages * mask / n
    to_parameters = torch.autograd.grad(log_probs, model.parameters(), grad_outputs=torch.from_numpy(to_log_probs))
    loss = float(-(ratio * advantages * mask).sum() / n)
    return Signal(loss, to_log_probs, torch.cat([g.flatten() for g in to_parameters]).numpy())


_TERMS = ("old_log_probs", "advantages", "mask")


class Comparison(NamedTuple):
    """Two signals against their tolerances.

    Attributes:
        what: Which two.
        loss, other_loss: The two losses.
        loss_ok: Within tolerance.
        gradient_difference: Largest difference of a gradient's entry (parameters and log-probabilities).
        cosine: The smaller of the two cosines.
        gradient_ok: Every entry within tolerance, and both cosines at least ``min_cosine``.
        passed: Both.
    """

    what: str
    loss: float
    other_loss: float
    loss_ok: bool
    gradient_difference: float
    cosine: float
    gradient_ok: bool
    passed: bool

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()


def compare_signals(what: str, ours: Signal, other: Signal, loss: Tolerance, gradient: Tolerance) -> Comparison:
    """``other`` is what is right: tolerances are relative to it. Gradients of zero throughout are no agreement but
    nothing to compare."""
    loss_ok = abs(ours.loss - other.loss) <= loss.atol + loss.rtol * abs(other.loss)
    cosines, ok, largest = [], True, 0.0
    for a, b in ((ours.to_log_probs, other.to_log_probs), (ours.to_parameters, other.to_parameters)):
        if a.shape != b.shape:
            largest, cosines, ok = float("inf"), [0.0], False
            break
        ok = ok and bool((np.abs(a - b) <= gradient.atol + gradient.rtol * np.abs(b)).all())
        largest = max(largest, float(np.abs(a - b).max()))
        norm = float(np.linalg.norm(a) * np.linalg.norm(b))
        cosines.append(float(a @ b) / norm if norm > 0 else 0.0)
    ok = ok and min(cosines) >= (gradient.min_cosine if gradient.min_cosine is not None else -1.0)
    return Comparison(
        what=what,
        loss=ours.loss,
        other_loss=other.loss,
        loss_ok=loss_ok,
        gradient_difference=largest,
        cosine=min(cosines),
        gradient_ok=ok,
        passed=loss_ok and ok,
    )
