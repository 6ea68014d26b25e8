"""The post's recipe once more: one plain float64 numpy file that imports nothing of ours.

What this is for. The fast code of this package (sparse TF-IDF, kernels in log space, compiled simulation) is checked
against this file, a specification pins it by its hash, and its loop is the yardstick in the benchmark. It was written
from the formulas alone, without looking at the fast code, and it prefers the obvious line to the quick one. It asks for
numpy and the standard library only, so it can be copied out and read beside the post.

Source of the recipe: "You Only Rollout Once", Trajectory Labs,
    https://www.trajectory.ai/field-notes/you-only-rollout-once (GS1).

Notation, the same in every docstring:

* `x` a task, `r` the reward of one rollout, `mu_x = E[r | x]`, `s2_x = Var[r | x]`;
* `s2` the mean over tasks of `s2_x`, `tau2` the variance over tasks of `mu_x`, difficulty SNR `= tau2 / s2`;
* a batch is `B` distinct tasks with one rollout each; `V >= B` rows are *visible*: the batch first, then the window of
  earlier rows;
* a baseline `b_i` never uses rollout i's own reward; the advantage is `A_i = r_i - b_i`.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Array = np.ndarray
BaselineOnTasks = Callable[[Array, Array], Array]  # (task indices (V,), rewards (V,)) -> b of the first B rows


# ----------------------------------------------------------------------------------------------------------------
# features


def split_into_words(text: str) -> list[str]:
    """The words of a text as scikit-learn's TfidfVectorizer finds them by default: lower case, two or more word
    characters.

    Source: scikit-learn, `TfidfVectorizer(lowercase=True, token_pattern=r"(?u)\\b\\w\\w+\\b")`.
    """
    return re.findall(r"(?u)\b\w\w+\b", text.lower())


def fit_tfidf_vocabulary(prompts: Sequence[str]) -> tuple[dict[str, int], Array]:
    """Vocabulary and inverse document frequencies of n prompts.

    `idf_t = ln((1 + n) / (1 + df_t)) + 1`, with `df_t` the number of prompts that contain word t ("smooth" idf, the
    default of scikit-learn). Returns `(word -> column, idf (D,))`, columns in alphabetical order.
    """
    document_frequency = Counter(word for prompt in prompts for word in set(split_into_words(prompt)))
    vocabulary = {word: column for column, word in enumerate(sorted(document_frequency))}
    idf = np.array(
        [math.log((1 + len(prompts)) / (1 + document_frequency[word])) + 1.0 for word in vocabulary], dtype=np.float64
    )
    return vocabulary, idf


def tfidf_unit_vectors(prompts: Sequence[str], vocabulary: dict[str, int], idf: Array) -> Array:
    """TF-IDF rows of unit Euclidean length, dense, shape (n, D): `x_t = count_t * idf_t`, then `x / |x|`.

    Words outside the vocabulary are ignored; a prompt without any known word is a row of zeros.
    """
    x = np.zeros((len(prompts), len(vocabulary)))
    for row, prompt in enumerate(prompts):
        for word, count in Counter(split_into_words(prompt)).items():
            if word in vocabulary:
                x[row, vocabulary[word]] = count * idf[vocabulary[word]]
    norm = np.sqrt((x * x).sum(axis=1, keepdims=True))
    return x / np.where(norm > 0, norm, 1.0)


def tfidf_similarity(prompts: Sequence[str], fitted_on: Sequence[str] | None = None) -> Array:
    """Cosine similarities of the prompts' word TF-IDF vectors, shape (n, n); vocabulary and idf from `fitted_on`
    (default: themselves)."""
    x = tfidf_unit_vectors(prompts, *fit_tfidf_vocabulary(prompts if fitted_on is None else fitted_on))
    return x @ x.T


# ---------------------------------------------------------------------------------------------------------------
# baselines


def leave_one_out_mean(rewards: Sequence[float] | Array, batch_size: int | None = None, prior: float = 0.0) -> Array:
    """Leave-one-out mean, shape (B,): `b_i = sum_{j != i} r_j / (V - 1)` over the V visible rows, of which the first B
    are the batch.

    With nobody else visible (V = 1) there is nothing to average and `b = prior`.
    """
    r = np.asarray(rewards, dtype=np.float64)
    b = len(r) if batch_size is None else batch_size
    if len(r) == 1:
        return np.full(b, float(prior))
    return (r.sum() - r[:b]) / (len(r) - 1)


def weighted_baseline(weights: Array, rewards: Sequence[float] | Array, prior: float = 0.0) -> Array:
    """Kernel baseline from raw weights: `b_i = sum_{j != i} w_ij r_j / sum_{j != i} w_ij`, shape (B,).

    `weights` (B, V), not negative; column j is visible row j, so column i is row i itself and is set to zero here
    whatever it holds. A row whose weights are all zero falls back to the leave-one-out mean. Source: the post, MATH.md
    section 1.
    """
    w = np.array(weights, dtype=np.float64)  # a copy: the diagonal is about to be written
    r = np.asarray(rewards, dtype=np.float64)
    rows = np.arange(len(w))
    w[rows, rows] = 0.0
    total = w.sum(axis=1)
    fallback = leave_one_out_mean(r, len(w), prior)
    return np.where(total > 0, (w @ r) / np.where(total > 0, total, 1.0), fallback)


def gs1_kernel_baseline(
    prompts_or_similarity: Sequence[str] | Array, rewards: Sequence[float] | Array, T: float = 0.1, prior: float = 0.0
) -> Array:
    """The post's example kernel, shape (B,): `w_ij = exp(s_ij / T)`, `w_ii = 0`, `b_i = sum_j w_ij r_j / sum_j w_ij`.

    `prompts_or_similarity` is B prompts (then s is the cosine of their word TF-IDF vectors, fitted on these prompts) or
    a matrix s of shape (B, V) with the batch in the first B columns. T > 0 is the temperature; the published value is
    0.1. Each row's largest exponent is subtracted first, which cancels in the ratio and keeps every T finite.
    """
    if isinstance(prompts_or_similarity, np.ndarray):
        s = prompts_or_similarity
    else:
        s = tfidf_similarity(prompts_or_similarity)
    r = np.asarray(rewards, dtype=np.float64)
    if s.shape[1] == 1:
        return np.full(1, float(prior))
    logits = s / T
    rows = np.arange(len(s))
    logits[rows, rows] = -np.inf
    w = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (w @ r) / w.sum(axis=1)


def two_cluster_baseline(cluster: Sequence[int] | Array, rewards: Sequence[float] | Array, T: float) -> Array:
    """What `gs1_kernel_baseline` must give when prompts are identical within two clusters and orthogonal across, shape
    (B,).

    `b_i = (e^(1/T) * sum of the others in i's cluster + sum of the other cluster) / (e^(1/T) * (n_own - 1) + n_other)`.
    The "forced activation" case (docs/mathematics.md, "The kernel baseline"): test it at T = 1 with unequal clusters,
    where a wrong formula shows.
    """
    c, r = np.asarray(cluster), np.asarray(rewards, dtype=np.float64)
    e = math.exp(1.0 / T)
    b = np.empty(len(r))
    for i in range(len(r)):
        own, other = r[c == c[i]], r[c != c[i]]
        b[i] = (e * (own.sum() - r[i]) + other.sum()) / (e * (len(own) - 1) + len(other))
    return b


def quantile_buckets(values: Sequence[float] | Array, buckets: int = 5) -> Array:
    """Bucket 0..buckets-1 of each value, shape (V,): edges at the 1/buckets, 2/buckets, ... quantiles, intervals closed
    on the right.

    As `pandas.qcut(values, buckets, duplicates="drop")` cuts (quantiles interpolate linearly), so equal values share a
    bucket.
    """
    v = np.asarray(values, dtype=np.float64)
    edges = np.quantile(v, np.arange(1, buckets) / buckets)
    return np.array([(value > edges).sum() for value in v])


def length_bucket_baseline(
    lengths: Sequence[float] | Array, rewards: Sequence[float] | Array, batch_size: int | None = None, buckets: int = 5
) -> Array:
    """The post's second example kernel: the mean reward of the other visible rows in the same bucket of log prompt
    length, shape (B,).

    `lengths` (V,), at least 1, and `rewards` (V,): the batch first, then the window (the post: the previous 16
    batches). The edges are quantiles over all visible rows. A row alone in its bucket falls back to the leave-one-out
    mean.
    """
    n = len(lengths) if batch_size is None else batch_size
    bucket = quantile_buckets(np.log(np.asarray(lengths, dtype=np.float64)), buckets)
    same = (bucket[:n, None] == bucket[None, :]).astype(np.float64)
    return weighted_baseline(same, rewards)


def kriging_baseline(covariance: Array, noise: float | Array, rewards: Sequence[float] | Array) -> Array:
    """Kriging (BLUP) leave-one-out prediction by brute force, shape (B,): row i is deleted and everything solved again.

    With `K` the covariance of the others' means plus their noise, `k_i` row i's covariance with them and 1 a vector of
    ones: `m = 1' K^-1 r / 1' K^-1 1` (generalised least squares mean) and `b_i = m + k_i' K^-1 (r - m 1)`. `covariance`
    is (V, V) of the tasks' means, `noise` the rollouts' variance (a scalar or (V,)). Source: universal kriging; MATH.md
    section 2.
    """
    r = np.asarray(rewards, dtype=np.float64)
    v = np.broadcast_to(np.asarray(noise, dtype=np.float64), r.shape)
    b = np.empty(len(r))
    for i in range(len(r)):
        others = np.delete(np.arange(len(r)), i)
        k = covariance[np.ix_(others, others)] + np.diag(v[others])
        ones = np.ones(len(others))
        mean = (ones @ np.linalg.solve(k, r[others])) / (ones @ np.linalg.solve(k, ones))
        b[i] = mean + covariance[i, others] @ np.linalg.solve(k, r[others] - mean)
    return b


# ----------------------------------------------------------------------------------------------------- effective batch
# size


class Moments(NamedTuple):
    """`s2` mean within-task variance, `tau2` variance of task means, `snr` = tau2 / s2 (reward units squared; snr has
    none)."""

    s2: float
    tau2: float
    snr: float


class Simulated(NamedTuple):
    """What `simulate_effective_batch_size` returns: B_eff, the MSE it comes from, its Monte-Carlo standard error (over
    batches), and s2."""

    b_eff: float
    mse: float
    mse_se: float
    s2: float


def reward_moments(rewards: Sequence[Sequence[float]] | Array) -> Moments:
    """Moments of a calibration set: `rewards[x]` are the rewards of task x's rollouts (two or more each; groups may
    differ in size).

    `s2 = mean_x var(r_x, ddof=1)`, `tau2 = var(task means, ddof=1) - mean_x(s2_x / G_x)`. tau2 is unbiased and can come
    out below zero.
    """
    groups = [np.asarray(group, dtype=np.float64) for group in rewards]
    if len(groups) < 2 or min(len(group) for group in groups) < 2:
        raise ValueError("moments need two tasks or more with two rollouts or more each")
    means = np.array([group.mean() for group in groups])
    s2_x = np.array([group.var(ddof=1) for group in groups])
    sizes = np.array([len(group) for group in groups])
    s2 = float(s2_x.mean())
    tau2 = float(means.var(ddof=1) - (s2_x / sizes).mean())
    return Moments(s2, tau2, tau2 / s2 if s2 > 0 else math.nan)


def effective_batch_size(s2: float, mse: float, B: int) -> float:
    """`B_eff = B * s2 / (s2 + MSE)`; the perfect baseline (MSE = 0) gives B. Source: the post."""
    return B * s2 / (s2 + mse)


def loo_beff_closed_form(snr: float, B: int) -> float:
    """B_eff of the leave-one-out mean over all batches: `B / (1 + SNR * B/(B-1) + 1/(B-1))`.

    From `MSE = tau2 * B/(B-1) + s2/(B-1)`: the mean of B-1 other tasks has variance `(tau2 + s2)/(B-1)`, and the task's
    own mean differs from the population's by tau2. SNR 2.36 gives 9.2 at B = 32 (the post measured 9.3 and 9.4).
    """
    return B / (1 + snr * B / (B - 1) + 1 / (B - 1))


def closed_form_squared_error(weights: Array, means: Array, variances: Array, s2_over_G: Array) -> Array:
    """Unbiased MSE of a linear smoother on one batch of tasks, with the draw of rollouts integrated out, shape (B,).

    `E_i = (sum_j w_ij m_j - m_i)^2 + sum_j w_ij^2 v_j - s2_i / G`. `weights` (B, V), rows sum to 1, own weight zero;
    `means` and `variances` (V,) are the mean and *biased* variance (ddof=0) of each visible task's G rollouts;
    `s2_over_G` (B,) is the batch tasks' ddof=1 variance over G. Single entries can be negative; their mean over many
    batches estimates the MSE. Source: docs/mathematics.md, "Effective batch size".
    """
    w = np.asarray(weights, dtype=np.float64)
    return (w @ means - means[: len(w)]) ** 2 + (w * w) @ variances - s2_over_G


def simulate_effective_batch_size(
    rewards: Sequence[Sequence[float]] | Array,
    baseline: BaselineOnTasks,
    *,
    batch_size: int = 32,
    window: int = 0,
    batches: int = 10_000,
    seed: int = 0,
) -> Simulated:
    """The post's recipe by a plain loop over batches.

    Draw `batch_size` distinct tasks (and `window` other tasks, whose rewards are visible too) with one random rollout
    each; compute the baseline; compare with the mean of the task's other G-1 rollouts; average the squares and subtract
    `s2/(G-1)`, the noise of that mean. (When groups differ in size, the mean over tasks of `s2_x/(G_x - 1)`, which is
    the same thing when they do not.)

    `rewards[x]` are task x's rewards, two rollouts or more each. `baseline(tasks, rewards)` gets the indices (V,) and
    rewards (V,) of the visible rows, the batch first, and returns the `batch_size` baselines; `make_gs1_on_tasks` and
    `make_loo_on_tasks` make such functions.
    """
    groups = [np.asarray(group, dtype=np.float64) for group in rewards]
    sizes = np.array([len(group) for group in groups])
    if sizes.min() < 2:
        raise ValueError(
            "the post's recipe compares with a task's other rollouts: every task needs two rollouts or more"
        )
    n, visible = len(groups), batch_size + window
    if visible > n:
        raise ValueError(
            f"a batch of {batch_size} with a window of {window} needs {visible} distinct tasks; there are {n}"
        )
    table = np.zeros((n, int(sizes.max())))
    for x, group in enumerate(groups):
        table[x, : len(group)] = group
    totals = table.sum(axis=1)
    s2_x = np.array([group.var(ddof=1) for group in groups])
    noise_of_target = float((s2_x / (sizes - 1)).mean())

    rng = np.random.default_rng(seed)
    squared = np.empty(batches)
    for step in range(batches):
        tasks = rng.choice(n, size=visible, replace=False)
        drawn = table[tasks, rng.integers(0, sizes[tasks])]
        b = baseline(tasks, drawn)
        batch = tasks[:batch_size]
        target = (totals[batch] - drawn[:batch_size]) / (sizes[batch] - 1)
        squared[step] = ((b - target) ** 2).mean()

    s2 = float(s2_x.mean())
    mse = float(squared.mean()) - noise_of_target
    return Simulated(
        effective_batch_size(s2, mse, batch_size), mse, float(squared.std(ddof=1) / math.sqrt(batches)), s2
    )


def make_gs1_on_tasks(similarity: Array, T: float = 0.1, batch_size: int | None = None) -> BaselineOnTasks:
    """`gs1_kernel_baseline` for `simulate_effective_batch_size`: `pairwise_similarity` (N, N) between all tasks of the
    set, computed once."""

    def gs1_of_visible_rows(tasks: Array, rewards: Array) -> Array:
        rows = tasks if batch_size is None else tasks[:batch_size]
        return gs1_kernel_baseline(similarity[rows[:, None], tasks], rewards, T)

    return gs1_of_visible_rows


def make_loo_on_tasks(batch_size: int | None = None) -> BaselineOnTasks:
    """`leave_one_out_mean` for `simulate_effective_batch_size`."""

    def loo_of_visible_rows(tasks: Array, rewards: Array) -> Array:
        return leave_one_out_mean(rewards, batch_size)

    return loo_of_visible_rows
