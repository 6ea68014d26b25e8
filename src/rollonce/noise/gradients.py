"""The score gradient of every trajectory, one backward pass each, kept only as inner products.

The policy gradient of a batch is ``sum_i A_i g_i / B`` with ``g_i`` the gradient of trajectory i's log-probability, so
its noise under any baseline at all needs nothing but the Gram matrix ``<g_i, g_j>`` (R, R). Gradients of a model of P
parameters are hashed into D buckets with random signs as they come (CountSketch): inner products stay unbiased, with a
relative error of about ``sqrt(2 / D)``, and R x P numbers are never held. Squared norms are kept exactly.

Source: Charikar, Chen and Farach-Colton 2002 (CountSketch); Weinberger et al. 2009 (its inner products).

Shapes: ``_R`` rollouts, ``_T`` tokens, ``_P`` parameters, ``_D`` buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rollonce.errors import InputError
from rollonce.policies.samples import Samples
from rollonce.rollouts import FloatArray, IntArray

Aggregation = Literal["token", "sequence"]
Metric = Literal["plain", "adam"]
MAX_GRAM = 20_000


class OnPolicy(NamedTuple):
    """How far the policy that sampled is from the one whose gradient is taken, by the tokens sampled.

    Attributes:
        mean_abs_log_ratio: Mean over tokens of ``|log p_trainer - log p_sampler|`` (nats).
        max_abs_log_ratio: Largest of them.
        rollout_log_ratio_sd: Standard deviation over rollouts of the whole trajectory's log ratio (nats).
        effective_share: ``(sum w)^2 / (R sum w^2)`` of the trajectories' importance weights: 1 on-policy.
    """

    mean_abs_log_ratio: float
    max_abs_log_ratio: float
    rollout_log_ratio_sd: float
    effective_share: float


class ScoreGradients(NamedTuple):
    """Inner products of R trajectories' score gradients.

    Attributes:
        gram_RR: ``<g_i, g_j>``, float64; the diagonal is exact. Of ``gram_rows`` alone where those were given.
        squared_norms_R: ``|g_i|^2``, exact.
        sketches_RD: The hashed gradients, float32 (the gradients themselves where nothing was hashed), of the
            same rows as the Gram matrix.
        lengths_R: Response tokens.
        n_parameters: P.
        buckets: D; 0 where the gradients are exact.
        sketch_error: Root mean square over trajectories of the relative error of ``|g|^2`` by the sketch: ``sqrt(2 /
            D)`` is expected.
        on_policy: Sampler against trainer.
        weights: What each parameter's gradient was multiplied by; None for the plain metric.
        coordinates_RD: The plain gradients on randomly chosen parameters, float32: what a coordinate-wise optimizer
            sees of them.
        surprisals_R: ``-log pi`` of each rollout under the policy whose gradient it is (nats).
    """

    gram_RR: FloatArray
    squared_norms_R: FloatArray
    sketches_RD: FloatArray
    lengths_R: FloatArray
    n_parameters: int
    buckets: int
    sketch_error: float
    on_policy: OnPolicy
    weights: list[Tensor] | None
    coordinates_RD: np.ndarray
    surprisals_R: FloatArray


class Sketch:
    """A seeded CountSketch of vectors of P numbers into D buckets; the vector itself where P <= D or D is 0.

    Args:
        n_parameters: P.
        buckets: D; 0 for no sketch.
        seed: Of the hash and the signs.
        device: Where the vectors are.
    """

    def __init__(self, n_parameters: int, buckets: int, seed: int, device: torch.device | str = "cpu") -> None:
        self.buckets = 0 if n_parameters <= buckets else buckets
        self.size = self.buckets or n_parameters
        self._place_P = None
        if self.buckets:
            generator = torch.Generator().manual_seed(seed)
            # Twice the buckets: what falls into the upper half counts with a minus, so that no sign need be stored or
            # multiplied.
            self._place_P = torch.randint(2 * buckets, (n_parameters,), generator=generator, dtype=torch.int32).to(
                device
            )

    def __call__(self, vector_P: Tensor) -> Tensor:
        if self._place_P is None:
            return vector_P.float()
        both = torch.zeros(2 * self.buckets, dtype=torch.float32, device=vector_P.device).index_add_(
            0, self._place_P, vector_P.float()
        )
        return both[: self.buckets] - both[self.buckets :]


def score_gradients(
    policy: Any,
    samples: Samples,
    *,
    aggregation: Aggregation = "token",
    metric: Metric = "plain",
    buckets: int = 16384,
    coordinates: int = 20_000,
    seed: int = 0,
    weights: list[Tensor] | None = None,
    token_weights: Sequence[FloatArray] | None = None,
    gram_rows: IntArray | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ScoreGradients:
    """Gradients of ``sum_t ratio_t`` of each trajectory: the loss's own, per unit of advantage.

    On-policy the importance ratio ``exp(log p_trainer - log p_sampler)`` is 1 and this is the score; with samples of
    another policy each token's score is weighted by its ratio, as in the loss (unclipped).

    Args:
        policy: Whose parameters; a `rollonce.policies.TransformersPolicy`.
        samples: R rollouts.
        aggregation: ``token`` (the loop's token mean): the sum over the trajectory's tokens over the mean length of all
            R, the one denominator common to all batches and baselines; ``sequence``: each trajectory's own mean over
            its tokens.
        metric: ``plain``, or ``adam``: every parameter in units of its own root mean square gradient over the R
            rollouts (with a floor of 1e-4 of all parameters'), as Adam's steps see it. Takes two passes.
        buckets: D; 0 keeps whole gradients (R x P float32).
        coordinates: How many randomly chosen parameters to keep the plain gradients of; all of them if there are fewer.
        seed: Of the sketch and of the chosen parameters: two calls with one seed can be compared by their sketches.
        weights: With ``adam``: those of another call, in place of these rollouts' own. Two samplers' noise is a ratio
            of one quantity only in one metric.
        token_weights: Advantages of each rollout's tokens (T_r,), for arms that have them: the gradient is then that of
            ``sum_t weight_t ratio_t``.
        gram_rows: Rollouts whose inner products are wanted, in rising order; None for all. Progress and the exponent
            need none of them, so that R is bounded by the chosen parameters alone.
        progress: Called with (done, R).

    Raises:
        InputError: too many rollouts for a Gram matrix, nothing trainable, or a gradient that is not finite.
    """
    parameters = policy.parameters()
    n_parameters = sum(p.numel() for p in parameters)
    if not n_parameters:
        raise InputError("the policy has no trainable parameters, so its gradient has no noise")
    gram_rows = np.arange(len(samples)) if gram_rows is None else gram_rows
    if len(gram_rows) > MAX_GRAM:
        raise InputError(
            f"{len(gram_rows)} rollouts need a Gram matrix of as many rows; at most {MAX_GRAM} fit: fewer tasks or "
            "rollouts"
        )
    if buckets < 0:
        raise InputError(f"buckets of the sketch must be at least 0, not {buckets}")
    sketch = Sketch(n_parameters, buckets, seed, parameters[0].device)
    if len(gram_rows) * sketch.size > 2**31:
        raise InputError(
            f"{len(gram_rows)} gradients of {sketch.size} numbers do not fit into memory; pass --sketch 16384, or "
            "fewer rollouts"
        )
    sketches_RD = torch.empty((len(gram_rows), sketch.size), dtype=torch.float32)
    place_of_row = {int(row): place for place, row in enumerate(gram_rows)}
    norms_R = np.empty(len(samples))
    surprisals_R = np.empty(len(samples))
    chosen = _chosen_parameters(n_parameters, coordinates, seed)
    coordinates_RD = np.empty((len(samples), len(chosen)), dtype=np.float32)
    lengths_R = samples.lengths_B.double().numpy()
    # One array for all: small pieces kept between gradients of megabytes would pin the heap, a megabyte per rollout.
    log_ratio_RT = np.full(tuple(samples.response_mask_BT.shape), np.nan)
    own = metric == "adam" and weights is None
    passes = 2 if own else 1
    tell = progress or (lambda done, total: None)
    if metric == "plain":
        weights = None
    if own:
        squares = [torch.zeros_like(p) for p in parameters]
        for i, grads, _, _ in _gradient_of_each(policy, samples, parameters, aggregation, token_weights):
            for total, g in zip(squares, grads, strict=True):
                total.addcmul_(g, g, value=1 / len(samples))
            tell(i + 1, passes * len(samples))
        floor = 1e-4 * float(np.sqrt(sum(float(x.sum()) for x in squares) / n_parameters))
        weights = [1 / (x.sqrt() + max(floor, 1e-30)) for x in squares]
    for i, grads, log_ratio_BT, surprisals_R[i] in _gradient_of_each(
        policy, samples, parameters, aggregation, token_weights
    ):
        coordinates_RD[i] = torch.cat([g.reshape(-1) for g in grads])[chosen.to(grads[0].device)].float().cpu().numpy()
        if weights is not None:
            grads = [g * w for g, w in zip(grads, weights, strict=True)]
        if i in place_of_row:
            sketches_RD[place_of_row[i]] = sketch(torch.cat([g.reshape(-1) for g in grads])).cpu()
        # float32 within a tensor (torch sums in a tree), float64 across: converting first would cost as much as half
        # the backward pass.
        norms_R[i] = sum(float(g.square().sum()) for g in grads)
        log_ratio_RT[i, : log_ratio_BT.shape[1]] = log_ratio_BT.double().cpu().numpy()[0]
        if not np.isfinite(norms_R[i]):
            raise InputError(f"the gradient of rollout {i} is not finite; a policy like that cannot be trained either")
        tell((passes - 1) * len(samples) + i + 1, passes * len(samples))
    gram_RR, error = _gram_with_exact_norms(sketches_RD, norms_R[gram_rows], sketch.buckets > 0)
    return ScoreGradients(
        gram_RR=gram_RR,
        squared_norms_R=norms_R,
        sketches_RD=sketches_RD.numpy(),
        lengths_R=lengths_R,
        n_parameters=n_parameters,
        buckets=sketch.buckets,
        sketch_error=error,
        on_policy=_compare_sampler_to_trainer(log_ratio_RT),
        weights=weights,
        coordinates_RD=coordinates_RD,
        surprisals_R=surprisals_R,
    )


def _chosen_parameters(n_parameters: int, n_chosen: int, seed: int) -> Tensor:
    """Positions of the parameters whose gradients are kept, in random order: stretches of them are samples as well."""
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randperm(n_parameters, generator=generator)[:n_chosen]


def _gradient_of_each(
    policy: Any,
    samples: Samples,
    parameters: list[Tensor],
    aggregation: Aggregation,
    token_weights: Sequence[FloatArray] | None,
) -> Iterator[tuple[int, list[Tensor], Tensor, float]]:
    """(position, gradient by tensor, log ratio of its tokens, surprisal) of every rollout."""
    mean_length = samples.n_tokens / len(samples)
    for i in range(len(samples)):
        one = samples.take_rollouts([i])
        log_probs_BT = policy.evaluate_rollouts(one).log_probs_BT
        log_ratio_BT = log_probs_BT - one.log_probs_BT.to(log_probs_BT)
        scale = 1 / (mean_length if aggregation == "token" else one.n_tokens)
        ratio_BT = torch.exp(log_ratio_BT)
        if token_weights is not None:
            ratio_BT = ratio_BT[:, : len(token_weights[i])] * torch.as_tensor(token_weights[i]).to(ratio_BT)
        grads = torch.autograd.grad(ratio_BT.sum() * scale, parameters, allow_unused=True)
        yield (
            i,
            [torch.zeros_like(p) if g is None else g for g, p in zip(grads, parameters, strict=True)],
            log_ratio_BT.detach(),
            -float(log_probs_BT.detach().double().sum()),
        )


def _gram_with_exact_norms(sketches_RD: Tensor, norms_R: FloatArray, sketched: bool) -> tuple[FloatArray, float]:
    """Inner products with the exact squared norms on the diagonal, and the root mean square relative error of the
    sketched ones."""
    gram_RR = _compute_gram_matrix(sketches_RD)
    own_R, known_R = np.diag(gram_RR).copy(), norms_R > 0
    error = 0.0
    if sketched and known_R.any():
        error = float(np.sqrt(np.mean((own_R[known_R] / norms_R[known_R] - 1) ** 2)))
    gram_RR[np.diag_indices(len(norms_R))] = norms_R
    return gram_RR, error


def _compute_gram_matrix(rows_RD: Tensor, step: int = 2048) -> FloatArray:
    """Inner products, float32 within a stretch of ``step`` numbers and float64 across."""
    out = torch.zeros((len(rows_RD), len(rows_RD)), dtype=torch.float64)
    for start in range(0, rows_RD.shape[1], step):
        part = rows_RD[:, start : start + step]
        out += part @ part.T
    return out.numpy()


def _compare_sampler_to_trainer(log_ratio_RT: FloatArray) -> OnPolicy:
    known_RT = np.isfinite(log_ratio_RT)
    tokens = np.abs(log_ratio_RT[known_RT])
    rollout_R = np.where(known_RT, log_ratio_RT, 0.0).sum(axis=1)
    weights_R = np.exp(rollout_R - rollout_R.max())
    share = float(weights_R.sum() ** 2 / (len(weights_R) * np.square(weights_R).sum()))
    spread = float(rollout_R.std(ddof=1)) if len(rollout_R) > 1 else 0.0
    return OnPolicy(float(tokens.mean()), float(tokens.max()), spread, share)


__all__ = ["Aggregation", "Metric", "OnPolicy", "ScoreGradients", "Sketch", "score_gradients"]
