"""Sets of 80 long, distinct prompts with families by vocabulary, five rollouts each: self-tuning learns from 64 of them
and must keep up with the published TF-IDF kernel where that is good and with the leave-one-out mean where it is not."""

import numpy as np

from rollonce.baselines import LeaveOneOut, LinearSmoother, SelfTuning, published_tfidf
from rollonce.baselines.batch import Batch
from rollonce.rollouts import Rollouts, Tasks
from rollonce.scoring.crossfit import fit_copy_per_fold

N, G, FAMILIES = 80, 5, 10


def made_up_word(rng: np.random.Generator) -> str:
    return "".join(rng.choice(list("bcdfglmnprst")) + rng.choice(list("aeiou")) for _ in range(rng.integers(2, 5)))


def terminal_set(seed: int, family_sd: float) -> Rollouts:
    """Prompts of 60 to 250 words: common ones, those of the family, and some of their own; the log odds of success are
    a family's effect and a task's."""
    rng = np.random.default_rng(seed)
    common, *vocabulary = ([made_up_word(rng) for _ in range(n)] for n in (400, *[50] * FAMILIES))
    frequency = 1 / np.arange(1, 401)
    family = rng.integers(0, FAMILIES, N)
    prompts = []
    for k in family:
        own, mine = [made_up_word(rng) for _ in range(10)], rng.permutation(vocabulary[k])
        n = int(rng.integers(60, 250))
        source = rng.choice(3, n, p=[0.55, 0.35, 0.1])
        words = np.where(
            source == 0,
            rng.choice(common, n, p=frequency / frequency.sum()),
            np.where(source == 1, rng.choice(mine, n, p=_falling(50)), rng.choice(own, n)),
        )
        prompts.append(" ".join(words))
    effect = family_sd * rng.normal(size=FAMILIES)
    task_sd = np.sqrt(2 * 1.5**2 - family_sd**2)
    p = 1 / (1 + np.exp(0.5 - effect[family] - task_sd * rng.normal(size=N)))
    return Rollouts("terminal", Tasks(prompts), np.arange(N + 1) * G, (rng.random((N, G)) < p[:, None]).ravel() * 1.0)


def _falling(n: int) -> np.ndarray:
    w = np.arange(1, n + 1) ** -0.7
    return w / w.sum()


def mean_squared_advantage(baseline: LinearSmoother, table: Rollouts, rows: np.ndarray) -> np.ndarray:
    """``E (r_i - b_i)^2`` (rows,) with all other tasks visible, over which rollout of each task is drawn: exact."""
    r = table.rewards_R.reshape(N, G)
    w = baseline.weights(Batch(table.tasks, r[:, 0]))[rows]
    mean, var = r.mean(axis=1), r.var(axis=1)
    return var[rows] + (mean[rows] - w @ mean) ** 2 + w**2 @ var


def against(family_sd: float, seeds: range) -> tuple[float, float]:
    """Geometric mean over sets of the ratio to LOO: of cross-fitted self-tuning, and of the published kernel."""
    logs = []
    for seed in seeds:
        table = terminal_set(seed, family_sd)
        parts, fold_N = fit_copy_per_fold(SelfTuning(), table, 5, np.random.default_rng(seed))
        every = np.arange(N)
        tuned = np.concatenate(
            [mean_squared_advantage(part, table, np.flatnonzero(fold_N == f)) for f, part in enumerate(parts)]
        )
        loo, tfidf = (
            mean_squared_advantage(b.fit(table.tasks), table, every) for b in (LeaveOneOut(), published_tfidf())
        )
        logs.append(np.log([loo.mean() / tuned.mean(), loo.mean() / tfidf.mean()]))
    tuned, tfidf = np.exp(np.mean(logs, axis=0))
    return float(tuned), float(tfidf)


def test_where_words_tell_families_apart_it_keeps_up_with_the_published_kernel():
    tuned, tfidf = against(1.5, range(6))
    assert tfidf > 1.05
    assert tuned >= 0.99 * tfidf


def test_where_they_tell_nothing_it_stays_with_the_leave_one_out_mean():
    tuned, _ = against(0.0, range(3))
    assert tuned >= 0.98
