"""Score gradients of real (tiny) models against autograd of the training loss, and the sketch against its theory."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("reasoning_gym")

from embedded_tokenizer import build_tokenizer  # noqa: E402
from rollonce.errors import InputError  # noqa: E402
from rollonce.noise.gradients import Sketch, score_gradients  # noqa: E402
from rollonce.policies import Samples, TransformersPolicy, policy_loss  # noqa: E402

PROMPTS = ["What is 3 + 4?", "What is 12 + 30 + 5?", "Reverse: abc", "How many 1 bits are there in 5?"] * 2


@pytest.fixture(scope="module")
def policy():
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = build_tokenizer()
    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
    }
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        **ids,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.mul_(6)  # far from uniform
    return TransformersPolicy(model, tokenizer)


@pytest.fixture(scope="module")
def samples(policy):
    parts = [
        policy.sample(PROMPTS[i : i + 2], max_new_tokens=n, generator=i) for i, n in ((0, 9), (2, 4), (4, 7), (6, 1))
    ]
    return Samples.concatenate_samples(parts)


def loss_gradient(policy, samples, advantages, weights_BT=None):
    """Of the loop's loss on the whole batch at once."""
    e = policy.evaluate_rollouts(samples)
    a = torch.as_tensor(advantages)
    loss = policy_loss(
        e.log_probs_BT, samples.log_probs_BT, a if weights_BT is None else a[:, None] * weights_BT, e.mask_BT
    )
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, policy.parameters())]).double().numpy()


def test_the_batch_gradient_is_that_of_the_token_mean_loss(policy, samples):
    a = np.random.default_rng(0).standard_normal(8)
    got = score_gradients(policy, samples, buckets=0)
    assert got.buckets == 0
    assert got.sketch_error == 0
    wanted = loss_gradient(policy, samples, a)
    assert -(a @ got.sketches_RD) / 8 == pytest.approx(wanted, abs=1e-5 * np.abs(wanted).max())
    assert a @ got.gram_RR @ a / 64 == pytest.approx(wanted @ wanted, rel=1e-4)
    assert got.lengths_R.sum() == samples.n_tokens
    assert got.n_parameters == sum(p.numel() for p in policy.parameters())


def test_norms_and_kept_parameters_are_of_all_rollouts_and_inner_products_of_some(policy, samples, monkeypatch):
    full = score_gradients(policy, samples, buckets=0, coordinates=50)
    assert full.squared_norms_R == pytest.approx(np.diag(full.gram_RR))
    monkeypatch.setattr("rollonce.noise.gradients.MAX_GRAM", 4)
    with pytest.raises(InputError, match="Gram matrix"):
        score_gradients(policy, samples)
    rows = np.array([0, 3, 6])
    bare = score_gradients(policy, samples, buckets=0, coordinates=50, gram_rows=rows)
    assert bare.gram_RR == pytest.approx(full.gram_RR[np.ix_(rows, rows)], rel=1e-6)
    assert bare.sketches_RD == pytest.approx(full.sketches_RD[rows])
    assert bare.squared_norms_R == pytest.approx(full.squared_norms_R, rel=1e-6)
    assert np.array_equal(bare.coordinates_RD, full.coordinates_RD)
    assert np.array_equal(bare.surprisals_R, full.surprisals_R)


def test_sequence_aggregation_takes_each_rollouts_own_mean(policy, samples):
    a = np.random.default_rng(1).standard_normal(8)
    assert len(set(samples.lengths_B.tolist())) > 1  # or it would be the same as token-mean
    got = score_gradients(policy, samples, aggregation="sequence", buckets=0)
    per_token = (samples.n_tokens / samples.lengths_B.double())[:, None].expand(samples.response_mask_BT.shape)
    wanted = loss_gradient(policy, samples, a, per_token) / 8  # sum_i A_i mean_t(...) / 8
    assert -(a @ got.sketches_RD) / 8 == pytest.approx(wanted, abs=1e-5 * np.abs(wanted).max())


def test_adams_metric_weighs_each_parameter_by_its_own_size(policy, samples):
    plain = score_gradients(policy, samples, buckets=0).sketches_RD.astype(np.float64)
    size = np.sqrt((plain**2).mean(axis=0))
    wanted = plain / (size + 1e-4 * np.sqrt((plain**2).mean()))
    seen = []
    got = score_gradients(
        policy, samples, metric="adam", buckets=0, progress=lambda done, total: seen.append((done, total))
    )
    assert got.sketches_RD == pytest.approx(wanted, rel=1e-3, abs=1e-3)
    assert np.diag(got.gram_RR) == pytest.approx((wanted**2).sum(axis=1), rel=1e-3)
    assert seen[-1] == (16, 16)
    assert len(seen) == 16


def test_another_samplers_gradients_in_the_same_metric(policy, samples):
    # The lagged sampler's noise over that on-policy: in metrics of their own each would be measured by its own size.
    seen = []
    on = score_gradients(policy, samples, metric="adam", buckets=0)
    plain = score_gradients(policy, samples, buckets=0).sketches_RD.astype(np.float64)
    assert on.weights is not None
    # A sampler with log-probabilities log 2 higher on every token: gradients half as large, for each ratio is 1/2.
    lagged = samples.replace_log_probs(samples.log_probs_BT + float(np.log(2)))
    got = score_gradients(
        policy, lagged, metric="adam", buckets=0, weights=on.weights, progress=lambda *at: seen.append(at)
    )
    assert np.diag(got.gram_RR) == pytest.approx(np.diag(on.gram_RR) / 4, rel=1e-3)
    assert got.sketches_RD == pytest.approx(
        plain / 2 * torch.cat([w.reshape(-1) for w in on.weights]).numpy(), rel=1e-3, abs=1e-3
    )
    assert seen[-1] == (8, 8)  # one pass
    own = score_gradients(policy, lagged, metric="adam", buckets=0)
    assert np.diag(own.gram_RR) == pytest.approx(
        np.diag(on.gram_RR), rel=1e-3
    )  # what was compared before: 1 whatever the sampler
    assert score_gradients(policy, samples, buckets=0).weights is None


def test_on_policy_ratios_are_one_and_off_policy_they_weigh_the_tokens(policy, samples):
    on = score_gradients(policy, samples, buckets=0).on_policy
    assert on.max_abs_log_ratio < 1e-4
    assert on.effective_share == pytest.approx(1, abs=1e-6)
    # A sampler whose log-probabilities lay half a nat higher on every token: all ratios exp(-1/2).
    shifted = samples.replace_log_probs(samples.log_probs_BT + 0.5)
    off = score_gradients(policy, shifted, buckets=0)
    assert off.on_policy.mean_abs_log_ratio == pytest.approx(0.5, abs=1e-4)
    a = np.random.default_rng(2).standard_normal(8)
    wanted = loss_gradient(policy, shifted, a)
    assert -(a @ off.sketches_RD) / 8 == pytest.approx(wanted, abs=1e-5 * np.abs(wanted).max())
    log_ratio = -0.5 * samples.lengths_B.double().numpy()
    w = np.exp(log_ratio)
    assert off.on_policy.effective_share == pytest.approx(w.sum() ** 2 / (8 * (w**2).sum()), rel=1e-4)
    assert off.on_policy.rollout_log_ratio_sd == pytest.approx(log_ratio.std(ddof=1), rel=1e-3)


def test_the_sketch_keeps_inner_products(policy, samples):
    exact = score_gradients(policy, samples, buckets=0).gram_RR
    rough = score_gradients(policy, samples, buckets=1024, seed=1)
    assert rough.sketches_RD.shape == (8, 1024)
    assert np.diag(rough.gram_RR) == pytest.approx(np.diag(exact))  # the diagonal is exact
    error = (rough.gram_RR - exact) / np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
    assert 0 < np.abs(error).max() < 5 * np.sqrt(2 / 1024)
    assert 0 < rough.sketch_error < 4 * np.sqrt(2 / 1024)


def test_the_sketch_is_unbiased_with_the_error_of_theory():
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((2, 500))
    y += 0.5 * x
    tx, ty = torch.from_numpy(x), torch.from_numpy(y)
    products, norms = [], []
    for seed in range(600):
        sketch = Sketch(500, 64, seed)
        sx, sy = sketch(tx).double(), sketch(ty).double()
        products.append(float(sx @ sy))
        norms.append(float(sx @ sx))
    se = np.std(products, ddof=1) / np.sqrt(600)
    assert abs(np.mean(products) - x @ y) < 4 * se
    assert np.std(norms) / (x @ x) == pytest.approx(np.sqrt(2 / 64), rel=0.15)


def test_equal_seeds_are_one_sketch_and_short_vectors_are_kept():
    v = torch.randn(100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Sketch(100, 16, 5)(v), Sketch(100, 16, 5)(v))
    assert not torch.equal(Sketch(100, 16, 5)(v), Sketch(100, 16, 6)(v))
    assert torch.equal(Sketch(100, 100, 5)(v), v)


def test_what_has_no_gradient_is_refused(policy, samples):
    with pytest.raises(InputError, match="no trainable parameters"):
        score_gradients(policy.make_frozen_copy(), samples)
    with pytest.raises(InputError, match="at least 0"):
        score_gradients(policy, samples, buckets=-1)
    broken = samples.replace_log_probs(torch.full_like(samples.log_probs_BT, -float("inf")))
    with pytest.raises(InputError, match="not finite"):
        score_gradients(policy, broken)
