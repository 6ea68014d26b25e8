"""OPO and James-Stein: worked out by hand, and what they promise."""

import numpy as np
import pytest

from rollonce.baselines import Batch, JamesStein, LeaveOneOut, Opo, Rloo
from rollonce.errors import InputError
from rollonce.testing import check_baseline

IDS = ["x", "x", "x", "y", "y", "z", "z"]
REWARDS = [1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0]
LENGTHS = [10.0, 30.0, 20.0, 5.0, 15.0, 8.0, 2.0]


@pytest.mark.parametrize(
    "baseline",
    [Opo(), Opo(own=False), Opo(over="batch"), Opo(over="batch", own=False), JamesStein()],
    ids=lambda b: b.label,
)
def test_contract(baseline):
    check_baseline(baseline, raise_on_failure=True)


def batch(**known) -> Batch:
    return Batch.of(["p"] * 7, REWARDS, task_ids=IDS, **known)


def test_opo_is_the_mean_weighted_by_lengths():
    b = Opo().predict(batch(response_lengths=LENGTHS)).baseline_B
    np.testing.assert_allclose(b, [0.5] * 3 + [1.0] * 2 + [0.2] * 2)  # 30/60, 20/20, 2/10
    b = Opo(own=False).predict(batch(response_lengths=LENGTHS)).baseline_B
    np.testing.assert_allclose(b, [20 / 50, 1.0, 10 / 40, 1.0, 1.0, 1.0, 0.0])
    b = Opo(over="batch").predict(batch(response_lengths=LENGTHS)).baseline_B
    np.testing.assert_allclose(b, [52 / 90] * 7)
    b = Opo(over="batch", own=False).predict(batch(response_lengths=LENGTHS)).baseline_B
    np.testing.assert_allclose(b, [(52 - r * l) / (90 - l) for r, l in zip(REWARDS, LENGTHS, strict=True)])


def test_opo_without_lengths_is_the_plain_mean():
    for known in ({}, {"response_lengths": [np.nan] * 7}, {"response_lengths": [4.0] * 7}):
        given = batch(**known)
        np.testing.assert_allclose(Opo(own=False).predict(given).baseline_B, Rloo().predict(given).baseline_B)
        np.testing.assert_allclose(
            Opo(over="batch", own=False).predict(given).baseline_B, LeaveOneOut().predict(given).baseline_B
        )
    some = Opo(over="batch", own=False).predict(batch(response_lengths=[np.nan, 30.0, *[np.nan] * 4, 10.0]))
    np.testing.assert_allclose(some.baseline_B[[0, 1, 6]], [0.25, 1.0, 0.0])  # of those with a length


def test_james_stein_by_hand():
    # For group x, from y and z: s2 = (0 + 0.5) / 2, means 1 and 0.5, tau2 = 0.125 - 0.25 / 2 = 0: all the way to 0.75.
    # For y, from x and z: s2 = (2/3 + 1/2) / 3, means 2/3 and 1/2: tau2 = 1/72 - s2 * (1/3 + 1/2) / 2 < 0: all the way.
    # For z, from x and y: s2 = (2/3) / 3 = 2/9, means 2/3 and 1: tau2 = 1/18 - 2/9 * 5/12 < 0: all the way to 4/5.
    b = JamesStein().predict(batch()).baseline_B
    np.testing.assert_allclose(b, [0.75] * 3 + [3 / 5] * 2 + [0.8] * 2)


def test_james_stein_in_between():
    # Three groups of two with means 0, 1 and 1/2. For the last, from the other two: s2 = 0, so nothing is shrunk. For
    # the first: s2 = (0 + 1/2) / 2 = 1/4, tau2 = var(1, 1/2) - 1/4 * 1/2 = 1/8 - 1/8 = 0, so all the way to 3/4.
    given = Batch.of(["p"] * 6, [0, 0, 1, 1, 0, 1], task_ids=["a", "a", "b", "b", "c", "c"])
    b = JamesStein().predict(given).baseline_B
    np.testing.assert_allclose(b, [0.75, 0.75, 0.25, 0.25, 1.0, 0.0])
    # Groups of four with means 0, 1 and, judged, 1/2 beside a fourth with 1/4 (within sum of squares 3/4): for it
    # s2 = (0 + 0 + 3/4) / 9 = 1/12, tau2 = var(0, 1, 1/4) - s2 / 4 = 13/48 - 1/48 = 1/4, v = s2 / 3 = 1/36, a = 1/10.
    rewards = [0] * 4 + [1] * 4 + [1, 0, 0, 0] + [1, 1, 0, 0]
    given = Batch.of(["p"] * 16, rewards, task_ids=[t for t in "abcd" for _ in range(4)])
    b = JamesStein().predict(given).baseline_B[12:]
    np.testing.assert_allclose(b, 0.9 * np.array([1, 1, 2, 2]) / 3 + 0.1 * 5 / 12)
    two = Batch.of(["p"] * 4, [0, 1, 1, 1], task_ids=["a", "a", "b", "b"])
    np.testing.assert_array_equal(JamesStein().predict(two).baseline_B, Rloo().predict(two).baseline_B)


def test_the_audit_sees_the_own_length():
    class Leaky(Opo):
        def predict(self, batch, history=None):
            own = Opo(over="batch").predict(batch)
            return type(own).of(batch, own.baseline_B)

    failed = {r.name for r in check_baseline(Leaky(over="batch", own=False)) if not r.passed}
    assert {"response_length", "leave_one_out"} <= failed


def test_lengths_are_checked():
    with pytest.raises(InputError, match="response length of rollout 1"):
        Batch.of(["a", "b"], [0, 1], response_lengths=[3, -1])
    with pytest.raises(InputError, match="one response length each"):
        Batch.of(["a", "b"], [0, 1], response_lengths=[3])
    joined = Batch.concatenate_batches([Batch.of(["a"], [0], response_lengths=[3]), Batch.of(["b"], [1])])
    np.testing.assert_array_equal(joined.response_lengths_B, [3, np.nan])
    with pytest.raises(InputError, match="over"):
        Opo(over="task")
