"""Scoring and advantages: ratios measured side by side in one run, on one thread unless it says two.

    python benchmarks/scoring.py [--quick]

Prints a Markdown table. The yardstick of the first part is the plain numpy loop in rollonce/reference.py, on the same
table.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "2" if "--two-threads" in sys.argv else "1"

import numpy as np

from rollonce import reference
from rollonce.baselines import Batch, History, KernelBaseline, Kriging, LeaveOneOut, published_tfidf
from rollonce.features import LogLength, Tfidf
from rollonce.features.base import Feature
from rollonce.kernels import Buckets, Nearest, Rbf, Softmax
from rollonce.rollouts import Rollouts, Tasks
from rollonce.scoring import Scorer


class Given(Feature):
    """Dense features that are at hand already (an embedding, say)."""

    type = "given"

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = matrix

    def config(self) -> dict:
        return {"type": self.type, "id": id(self.matrix)}

    def nested_components(self) -> dict:
        return {}

    def compute_feature_matrix(self, tasks: Tasks) -> np.ndarray:
        return self.matrix[np.array([int(t) for t in tasks.task_ids])]


def prompts(n: int, words: int = 40, vocabulary: int = 5000, seed: int = 0) -> list[str]:
    """Prompts whose words follow Zipf's law, as text does."""
    rng = np.random.default_rng(seed)
    p = 1 / np.arange(1, vocabulary + 1)
    picks = rng.choice(vocabulary, size=(n, words), p=p / p.sum())
    return [" ".join(f"word{w}" for w in row) for row in picks]


def table(n: int, g: int, seed: int = 0) -> Rollouts:
    rng = np.random.default_rng(seed)
    p = rng.beta(0.7, 0.7, size=n)
    return Rollouts.from_groups((rng.random((n, g)) < p[:, None]).astype(float), prompts(n))


def cpu(f) -> tuple[float, object]:
    start = time.process_time()
    out = f()
    return time.process_time() - start, out


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def against_reference() -> None:
    print("\n### N = 512, G = 8, 10,000 batches of 32, in batch\n")
    print("| scorer | CPU seconds | times faster | B_eff |\n|---|---|---|---|")
    t = table(512, 8)
    groups = [t.group(n) for n in range(t.n_tasks)]
    kernel = published_tfidf().fit(t.tasks)
    similarity = reference.tfidf_similarity(t.tasks.prompts)
    Scorer(t, n_batches=10, resamples=0).score_baseline(kernel)  # compile, and compute the features once for both
    for name, plain, ours in (
        ("LOO mean", reference.make_loo_on_tasks(), LeaveOneOut()),
        ("TF-IDF softmax, T = 0.1", reference.make_gs1_on_tasks(similarity, 0.1), kernel),
    ):
        slow, result = cpu(lambda plain=plain: reference.simulate_effective_batch_size(groups, plain, batches=10_000))
        scorer = Scorer(t, n_batches=10_000, resamples=0)
        columns_cpu, columns = cpu(lambda scorer=scorer: scorer.draw_common_batches(0))
        errors_cpu, errors = cpu(
            lambda scorer=scorer, ours=ours, columns=columns: scorer.unbiased_squared_errors(ours, columns, 0)
        )
        b_eff = 32 * scorer.s2 / (scorer.s2 + errors.mean())
        print(f"| {name}: plain numpy loop (reference.py) | {slow:.3f} | 1 | {result.b_eff:.2f} |")
        fast = columns_cpu + errors_cpu
        print(f"| {name}: closed form, drawing the batches included | {fast:.3f} | {slow / fast:.0f} | {b_eff:.2f} |")


def in_batches_and_tasks(quick: bool) -> None:
    print("\n### Linear in batches, flat in N (TF-IDF softmax, G = 2, batches of 32; each N in a process of its own)\n")
    print("| N | batches | CPU seconds | CPU ms a batch | peak memory, MiB |\n|---|---|---|---|---|", flush=True)
    for n, batches in ((4_000, 1_000), (4_000, 2_000), (20_000, 1_000), (100_000, 1_000), (100_000, 2_000))[
        : 3 if quick else 5
    ]:
        subprocess.run([sys.executable, __file__, "--one", str(n), str(batches)], check=True)


def one(n: int, batches: int) -> None:
    t = table(n, 2)
    kernel = KernelBaseline(Softmax(Tfidf(max_features=5000))).fit(t.tasks.take(np.arange(2_000)))
    kernel.kernel.feature.transform_tasks(t.tasks)  # type: ignore[attr-defined]
    Scorer(t, n_batches=10, resamples=0).score_baseline(kernel)
    scorer = Scorer(t, n_batches=batches, resamples=0)
    seconds, _ = cpu(lambda: scorer.unbiased_squared_errors(kernel, scorer.draw_common_batches(0), 0))
    print(f"| {n:,} | {batches:,} | {seconds:.2f} | {1000 * seconds / batches:.2f} | {peak_mb():.0f} |", flush=True)


def advantages_32() -> None:
    print("\n### Advantages of a training batch of 32\n")
    print("| baseline | feature transform of 32 new prompts, ms | the rest, features at hand, ms |\n|---|---|---|")
    text = prompts(600, seed=1)
    rng = np.random.default_rng(0)
    for name, baseline in (
        ("LOO mean", LeaveOneOut()),
        ("TF-IDF softmax", published_tfidf()),
        ("TF-IDF softmax, window 512", published_tfidf(512)),
        ("5 length buckets, window 512", KernelBaseline(Buckets(), window=512)),
        ("Kriging", Kriging()),
        ("Kriging, window 512", Kriging(window=512)),
    ):
        baseline.fit(text)
        for step in range(16):
            past = slice(32 * step + 32, 32 * step + 64)
            batch = Batch.of(text[past], rng.random(32))
            baseline.predict(batch)
            baseline.observe(batch)
        cold, warm = [], []
        for _ in range(20):
            batch = Batch.of(text[:32], rng.random(32))
            first = time.perf_counter()
            baseline.advantages(batch)
            second = time.perf_counter()
            baseline.advantages(batch)
            third = time.perf_counter()
            cold.append((second - first) - (third - second))
            warm.append(third - second)
        print(f"| {name} | {1000 * max(0.0, float(np.median(cold))):.2f} | {1000 * float(np.median(warm)):.2f} |")


def advantages_large() -> None:
    print("\n### A batch of 4,096 with a window of 65,536 rows, features at hand, float32 in blocks, two threads\n")
    print(
        "| kernel | seconds | CPU seconds | peak memory of the process, MiB | largest error, 32 rows "
        "|\n|---|---|---|---|---|",
        flush=True,
    )
    for name in ("buckets", "rbf", "softmax", "softmax-embedding", "nearest"):
        subprocess.run([sys.executable, __file__, "--two-threads", "--large", name], check=True)


def large(name: str) -> None:
    n_batch, n_window = 4096, 65_536
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n_batch + n_window, 384))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    title, kernel = {
        "buckets": ("5 length buckets", Buckets()),
        "rbf": ("RBF, log length", Rbf(LogLength())),
        "softmax": ("softmax, word TF-IDF", Softmax(Tfidf(max_features=5000))),
        "softmax-embedding": ("softmax, 384-wide embedding", Softmax(Given(x))),
        "nearest": ("8 nearest, 384-wide embedding", Nearest(Given(x), k=8)),
    }[name]
    text = prompts(n_batch + n_window, seed=2) if name in ("buckets", "rbf", "softmax") else [""] * (n_batch + n_window)
    rewards = (rng.random(n_batch + n_window) < 0.4).astype(float)
    ids = [str(i) for i in range(n_batch + n_window)]
    batch = Batch.of(text[:n_batch], rewards[:n_batch], task_ids=ids[:n_batch])
    ages = 1 + np.arange(n_window)[::-1] // n_batch
    history = History(Tasks(text[n_batch:], ids[n_batch:]), rewards[n_batch:], ages)
    baseline = KernelBaseline(kernel, window=n_window)
    if name == "softmax":
        kernel.feature.fit(text[:5000])
    feature: Feature = kernel.feature
    feature.transform_tasks(batch.tasks)
    feature.transform_tasks(history.tasks)
    small = Batch(batch.tasks.take(np.arange(64)), batch.rewards_B[:64])
    short = History(
        history.tasks.take(np.arange(200_000 // 64)), history.rewards_H[: 200_000 // 64], ages[: 200_000 // 64]
    )
    from rollonce.baselines.large import predict_large_batch

    ones = np.ones(64 + len(short))
    both = Tasks.concat(small.tasks, short.tasks)
    predict_large_batch(kernel, both, n_rows=64, rewards_M=ones, recency_M=ones, shrinkage=0.0)  # compile
    start, start_cpu = time.perf_counter(), time.process_time()
    b = baseline.predict(batch, history).baseline_B
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    memory = peak_mb()
    # The same rows in float64: the first 32 as rows, everything as columns.
    both = Tasks.concat(batch.tasks, history.tasks)
    visible = np.ones((1, 32, len(both)), dtype=bool)
    visible[0, np.arange(32), np.arange(32)] = False
    log_w = kernel.log_weights(both, np.arange(32)[None], np.arange(len(both))[None], visible)[0]
    log_w[~visible[0]] = -np.inf
    w = np.exp(log_w - log_w.max(axis=1, keepdims=True))
    exact = (w @ rewards) / w.sum(axis=1)
    print(
        f"| {title} | {seconds:.2f} | {cpu_seconds:.2f} | {memory:.0f} | {np.abs(b[:32] - exact).max():.1e} |",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--two-threads", action="store_true")
    parser.add_argument("--one", nargs=2, type=int)
    parser.add_argument("--large")
    args = parser.parse_args()
    if args.one:
        one(*args.one)
    elif args.large:
        large(args.large)
    else:
        against_reference()
        in_batches_and_tasks(args.quick)
        advantages_32()
        advantages_large()
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import rollonce"], check=True)
        with_import = time.perf_counter() - start
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        print(f"\n`import rollonce` takes {with_import - (time.perf_counter() - start):.3f} s beyond starting Python.")
