"""Every registered baseline, and a wide grid of settings, keeps the contract; with every RuntimeWarning an error."""

import warnings

import numpy as np
import pytest

from rollonce.baselines import (
    Baseline,
    Blend,
    BoostedTrees,
    Constant,
    FlashReinforce,
    FunctionBaseline,
    Grpo,
    KernelBaseline,
    Kriging,
    LeaveOneOut,
    NoBaseline,
    Oracle,
    ReinforcePlusPlus,
    Ridge,
    Rloo,
    SelfTuning,
    Tracker,
    family_mean_baseline,
    published_length_buckets,
    published_tfidf,
)
from rollonce.component import registered_types
from rollonce.features import CategoryColumn, LogLength, NumberColumn, Tfidf
from rollonce.kernels import Buckets, Cosine, Kernel, Mixture, Nearest, Product, Rbf, Same, Softmax, Uniform
from rollonce.testing import check_baseline


def product():
    return Product([Softmax(), Nearest(k=4), Rbf()])


def mixture():
    return Mixture([Softmax(), Buckets(), Same()], [0.5, 0.3, 0.2])


def blend():
    return Blend([LeaveOneOut(), KernelBaseline()], [1.0, 1.0])


def small_trees():
    return BoostedTrees(iterations=10, refit_every=3)


def oracle():
    return Oracle({f"q{i}": i / 50 for i in range(50)})


KERNELS = [
    Uniform,
    Softmax,
    lambda: Softmax(temperature=1e-12),
    lambda: Softmax(temperature=1e-3),
    lambda: Softmax(temperature=50.0),
    lambda: Softmax(Tfidf(analyzer="char_wb", ngrams=(2, 3), sublinear=True)),
    lambda: Softmax(Tfidf(skeleton=True, min_df=2, max_features=8)),
    lambda: Softmax(NumberColumn("level"), temperature=0.5),
    Cosine,
    Rbf,
    lambda: Rbf(length_scale=1e-6),
    lambda: Rbf(Tfidf(), length_scale=0.4),
    Nearest,
    lambda: Nearest(k=1),
    lambda: Nearest(LogLength(), k=2),
    Buckets,
    lambda: Buckets(n=3),
    lambda: Buckets(NumberColumn("level"), n=2),
    Same,
    lambda: Same(CategoryColumn("source")),
    lambda: Product([Softmax(), Same()]),
    product,
    mixture,
    lambda: Mixture([Same(), Uniform()], [1.0, 0.0]),
]

OTHERS = [
    NoBaseline,
    Constant,
    lambda: Constant(-3.0),
    FlashReinforce,
    ReinforcePlusPlus,
    Grpo,
    lambda: Grpo("group"),
    Rloo,
    SelfTuning,
    LeaveOneOut,
    lambda: LeaveOneOut(window=512),
    lambda: LeaveOneOut(window=30, decay=0.8),
    lambda: LeaveOneOut(window=512, decay=1e-9),
    lambda: published_tfidf(window=64),
    published_length_buckets,
    lambda: family_mean_baseline(window=25),
    Kriging,
    lambda: Kriging(window=64),
    lambda: Kriging(window=64, decay=0.9),
    lambda: Kriging(window=512, decay=1e-9, nugget=0.0),
    lambda: Kriging([Softmax(temperature=0.3), Same()], [2.0, 1.0], nugget=0.0),
    lambda: Kriging([Product([Cosine(), Rbf()])], [1.0], window=40),
    lambda: Kriging([Uniform(), Cosine()], [5.0, 0.0]),
    lambda: Kriging(window=20, decay=0.9, shrinkage=1.0),
    lambda: Ridge(window=40, shrinkage=0.5),
    lambda: Blend([KernelBaseline(window=16), Kriging()], [1.0, 2.0], shrinkage=0.25),
    lambda: SelfTuning(window=40, min_rows=16, refit_every=3, noise="bernoulli", shrinkage=0.4),
    blend,
    lambda: Blend([LeaveOneOut(window=64), KernelBaseline(), Kriging(window=20)], [1.0, 2.0, 3.0]),
    lambda: Blend([LeaveOneOut(window=64, decay=0.9), Ridge(window=30)], [1.0, 0.0]),
    Ridge,
    lambda: Ridge([NumberColumn("level"), Tfidf()], 0.1, window=30, decay=0.9),
    lambda: Ridge(window=512, decay=1e-9),
    small_trees,
    lambda: BoostedTrees([LogLength(), NumberColumn("level")], iterations=10, window=30, min_rows=20, refit_every=2),
    Tracker,
    lambda: Tracker(discount=1.0, strength=0.0),
    lambda: Tracker(prior_mean=0.3),
    oracle,
]


# Baselines that cannot be made without settings, or are slow with their own: how the suite makes them.
def mean_of_others(prompts, rewards):
    """What a user might write."""
    n = len(rewards)
    return (rewards.sum() - rewards) / (n - 1) if n > 1 else np.zeros(n)


MADE = {
    "function": lambda: FunctionBaseline(mean_of_others),
    "blend": blend,
    "boosted_trees": small_trees,
    "oracle": oracle,
}


def audit(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        return check_baseline(make, raise_on_failure=True)


def ours(kind):
    return sorted(
        (
            name
            for name, cls in registered_types().items()
            if issubclass(cls, kind) and cls.__module__.startswith("rollonce.")
        ),
        key=str,
    )


@pytest.mark.parametrize("make", OTHERS, ids=lambda make: make().label)
def test_baselines(make):
    audit(make)


@pytest.mark.parametrize(
    "settings", [{}, {"window": 40}, {"window": 25, "decay": 0.7, "shrinkage": 0.3}], ids=["batch", "window", "mixed"]
)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda make: KernelBaseline(make()).label)
def test_kernel_baselines(kernel, settings):
    audit(lambda: KernelBaseline(kernel(), **settings))


@pytest.mark.parametrize("name", ours(Baseline))
def test_every_registered_baseline(name):
    """Also those that were added after this file was written."""
    audit(MADE.get(name, registered_types()[name]))


@pytest.mark.parametrize("name", ours(Kernel))
def test_every_registered_kernel(name):
    """Also those that were added after this file was written."""
    kernel = {"product": product, "mixture": mixture}.get(name, registered_types()[name])
    audit(lambda: KernelBaseline(kernel(), window=30))


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize(
    "make",
    [published_tfidf, Kriging, lambda: Ridge(window=30), published_length_buckets, Tracker],
    ids=lambda m: m().label,
)
def test_other_seeds(make, seed):
    check_baseline(make, seed=seed, raise_on_failure=True)


def test_which_checks_apply():
    names = {r.name for r in audit(lambda: Kriging(window=20))}
    assert {
        "leave_one_out",
        "neutral",
        "shift_equivariant",
        "scale_equivariant",
        "weights",
        "history",
        "saves",
        "order",
        "odd_prompts",
    } <= names
    assert "needs_groups" in {r.name for r in audit(Rloo)}
    assert "self_inclusive" in {r.name for r in audit(ReinforcePlusPlus)}
    assert "leave_one_out" not in {r.name for r in audit(FlashReinforce)}
