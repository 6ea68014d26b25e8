"""Sampling and log-probabilities agree; seeds, greedy, truncation, LoRA, saving."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from conftest import tiny_model  # noqa: E402
from rollonce.errors import InputError  # noqa: E402
from rollonce.policies import LoraSettings, Samples, TransformersPolicy, policy_loss  # noqa: E402
from rollonce.policies.sampling import tokens_by_inverse_cdf  # noqa: E402

# Lengths from one token to dozens, so that nearly every row is padded.
PROMPTS = [
    "1",
    "State the final answer to the following arithmetic problem: 57 + 87 + 70 =",
    "abc " * 20,
    "héllo, wörld ✓",
    "12 34",
]
TOLERANCE = 1e-4  # float32: sampling uses a cache and left padding, evaluation neither


def test_importing_policies_loads_nothing_heavy():
    code = "import rollonce.policies, sys; print([m for m in ('torch', 'transformers', 'peft') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_a_missing_package_is_named_with_its_extra():
    code = (
        "import sys; sys.modules['torch'] = None\nimport rollonce.policies, rollonce.errors\ntry: "
        "rollonce.policies.load_embedded\nexcept rollonce.errors.MissingExtraError as e: print(e)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "rollonce[train]" in said
    assert "torch" in said


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_log_probs_of_sampling_are_recomputed(policy, temperature):
    samples = policy.sample(PROMPTS, max_new_tokens=24, temperature=temperature, generator=3)
    again_BT = policy.compute_log_probs(samples)
    assert again_BT.requires_grad
    assert torch.allclose(again_BT, samples.log_probs_BT, atol=TOLERANCE)
    assert (samples.log_probs_BT[samples.response_mask_BT] < 0).all()
    assert (again_BT[~samples.response_mask_BT] == 0).all()
    assert not samples.log_probs_BT.is_inference()


def test_log_probs_against_one_unpadded_row_at_a_time(policy):
    samples = policy.sample(PROMPTS, max_new_tokens=12, generator=5)
    for b in range(len(PROMPTS)):
        prompt = samples.prompt_ids_BP[b][samples.prompt_mask_BP[b]]
        response = samples.response_ids_BT[b][samples.response_mask_BT[b]]
        with torch.no_grad():
            logits = policy.model(torch.cat([prompt, response])[None]).logits[0]
        expected = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1].gather(1, response[:, None]).squeeze(1)
        assert torch.allclose(expected, samples.log_probs_BT[b, : len(response)], atol=TOLERANCE)


def test_entropies_and_hidden_states(llama):
    samples = llama.sample(PROMPTS, max_new_tokens=8, generator=1)
    found = llama.evaluate_rollouts(samples, hidden=True)
    assert found.hidden_BTD.shape == (*samples.response_ids_BT.shape, 32)
    # The hidden state before a token, put through the head, must give that token's log-probability.
    log_probs_BTV = torch.log_softmax(llama.model.lm_head(found.hidden_BTD), -1)
    picked_BT = log_probs_BTV.gather(2, samples.response_ids_BT[:, :, None]).squeeze(2)
    mask_BT = samples.response_mask_BT
    assert torch.allclose(picked_BT[mask_BT], found.log_probs_BT[mask_BT], atol=TOLERANCE)
    expected_BT = -(log_probs_BTV.exp() * log_probs_BTV).sum(-1)
    assert torch.allclose(expected_BT[mask_BT], found.entropies_BT[mask_BT], atol=1e-3)
    assert (found.entropies_BT[~mask_BT] == 0).all()


def test_greedy_is_generate(policy):
    ids_BP, mask_BP = policy.encode_prompts(PROMPTS)
    theirs = policy.model.generate(
        input_ids=ids_BP, attention_mask=mask_BP.long(), max_new_tokens=20, do_sample=False, pad_token_id=policy.pad_id
    )[:, ids_BP.shape[1] :]
    ours = policy.sample(PROMPTS, max_new_tokens=20, temperature=0).response_ids_BT
    assert torch.equal(ours, theirs[:, : ours.shape[1]])
    assert (theirs[:, ours.shape[1] :] == policy.pad_id).all()


def test_same_seed_same_rollouts_whatever_the_global_state(llama):
    torch.manual_seed(1)
    a = llama.sample(PROMPTS, max_new_tokens=16, generator=7)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    b = llama.sample(PROMPTS, max_new_tokens=16, generator=torch.Generator().manual_seed(7))
    assert torch.equal(before, torch.get_rng_state())
    assert a.texts == b.texts
    assert torch.equal(a.log_probs_BT, b.log_probs_BT)
    assert llama.sample(PROMPTS, max_new_tokens=16, generator=8).texts != a.texts


def test_the_generator_moves_by_a_fixed_amount(llama):
    generator = torch.Generator().manual_seed(0)
    llama.sample(PROMPTS[:2], max_new_tokens=16, generator=generator)
    expected = torch.Generator().manual_seed(0)
    torch.rand((2, 16), generator=expected, dtype=torch.float64)
    assert torch.equal(generator.get_state(), expected.get_state())


def test_sampling_in_parts_gives_the_same_rollouts(llama):
    whole = llama.sample(PROMPTS, max_new_tokens=16, generator=7)
    llama.sample_rows = 2
    parts = llama.sample(PROMPTS, max_new_tokens=16, generator=7)
    assert parts.texts == whole.texts
    assert torch.allclose(parts.log_probs_BT, whole.log_probs_BT, atol=TOLERANCE)
    assert torch.equal(parts.truncated_B, whole.truncated_B)


def test_sampled_frequencies_are_the_probabilities(llama):
    n = 4000
    samples = llama.sample(["1"] * n, max_new_tokens=1, generator=0)
    with torch.no_grad():
        ids_BP, _ = llama.encode_prompts(["1"])
        probabilities = torch.softmax(llama.model(ids_BP).logits[0, -1], -1)
    counts = torch.bincount(samples.response_ids_BT[:, 0], minlength=len(probabilities)).double()
    for token in torch.topk(probabilities, 5).indices.tolist():
        p = float(probabilities[token])
        assert abs(counts[token] / n - p) < 4.5 * (p * (1 - p) / n) ** 0.5
    # No top-k: at 4,000 draws more than 50 different tokens turn up.
    assert int((counts > 0).sum()) > 50


def test_inverse_cdf_by_hand():
    log_probs = torch.log(torch.tensor([[0.25, 0.0, 0.5, 0.25]]))
    draws = {0.0: 0, 0.2499: 0, 0.2501: 2, 0.7499: 2, 0.7501: 3, 1 - 2**-53: 3}
    for u, token in draws.items():
        assert tokens_by_inverse_cdf(log_probs, torch.tensor([u], dtype=torch.float64)).item() == token


def test_truncation_and_end_of_sequence(llama):
    # A head that gives the end of sequence 0.3 everywhere: lengths are then geometric, and known to be cut at the
    # limit.
    eos = llama.tokenizer.eos_token_id
    with torch.no_grad():
        llama.model.lm_head.weight.zero_()
    llama.model.lm_head.bias = torch.nn.Parameter(torch.zeros(len(llama.tokenizer)))
    with torch.no_grad():
        llama.model.lm_head.bias.fill_(-30.0)
        llama.model.lm_head.bias[eos], llama.model.lm_head.bias[10] = torch.log(torch.tensor([0.3, 0.7]))
    samples = llama.sample(["1"] * 2000, max_new_tokens=5, generator=0)
    ended_B = (samples.response_ids_BT == eos).any(dim=1)
    assert torch.equal(samples.truncated_B, ~ended_B)
    assert abs(float(samples.truncated_B.float().mean()) - 0.7**5) < 4.5 * (0.7**5 * (1 - 0.7**5) / 2000) ** 0.5
    assert (samples.lengths_B[samples.truncated_B] == 5).all()
    last_B = samples.response_ids_BT.gather(1, samples.lengths_B[:, None] - 1).squeeze(1)
    assert (last_B[ended_B] == eos).all()
    stop, go = math.log(0.3), math.log(0.7)
    log_expected_B = torch.where(ended_B, (samples.lengths_B - 1) * go + stop, 5 * torch.tensor(go))
    assert torch.allclose(samples.log_probs_BT.sum(1), log_expected_B, atol=1e-4)
    assert not any(llama.tokenizer.eos_token in t for t in samples.texts)


def test_take_split_concatenate(llama):
    samples = llama.sample(PROMPTS, max_new_tokens=16, generator=2)
    whole_BT = llama.compute_log_probs(samples).detach()
    seen = []
    for index, part in samples.split_into_micro_batches(2):
        seen += index
        part_BT = llama.compute_log_probs(part).detach()
        assert torch.allclose(part_BT, whole_BT[index][:, : part_BT.shape[1]], atol=TOLERANCE)
        assert part.prompts == [PROMPTS[i] for i in index]
    assert sorted(seen) == list(range(5))
    joined = Samples.concatenate_samples([samples.take_rollouts([0, 2]), samples.take_rollouts([1])])
    assert joined.texts == [samples.texts[i] for i in (0, 2, 1)]
    assert torch.allclose(llama.compute_log_probs(joined), joined.log_probs_BT, atol=TOLERANCE)
    with pytest.raises(InputError, match="different temperatures"):
        Samples.concatenate_samples([samples, llama.sample(["1"], max_new_tokens=2, temperature=0.5, generator=0)])


def test_micro_batches_and_checkpointing_give_the_same_gradient(llama):
    samples = llama.sample(PROMPTS, max_new_tokens=16, generator=2)
    advantages_B = torch.tensor([1.0, -1.0, 0.5, 0.0, 2.0])

    def gradient(rows, checkpointing):
        llama.gradient_checkpointing = checkpointing
        if checkpointing:
            llama.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        llama.model.zero_grad()
        for index, part in samples.split_into_micro_batches(rows):
            loss = policy_loss(
                llama.compute_log_probs(part),
                part.log_probs_BT,
                advantages_B[index],
                part.response_mask_BT,
                n_tokens=samples.n_tokens,
            )
            loss.backward()
        return torch.cat([p.grad.flatten() for p in llama.parameters()])

    whole = gradient(None, False)
    assert whole.norm() > 0
    assert torch.allclose(gradient(2, False), whole, atol=1e-5, rtol=1e-3)
    assert torch.allclose(gradient(2, True), whole, atol=1e-5, rtol=1e-3)


def test_lora_trains_adapters_only_and_round_trips(tokenizer, tmp_path):
    pytest.importorskip("peft")
    tiny_model(tokenizer).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    full = TransformersPolicy.load(tmp_path / "base")
    lora = TransformersPolicy.load(tmp_path / "base", lora=LoraSettings(rank=2))
    names = [n for n, _ in lora.named_parameters()]
    assert names
    assert all("lora_" in n for n in names)
    before = full.sample(PROMPTS, max_new_tokens=8, generator=1)
    # Adapters start at zero effect: the same policy.
    samples = lora.sample(PROMPTS, max_new_tokens=8, generator=1)
    assert samples.texts == before.texts
    assert torch.allclose(lora.compute_log_probs(samples), samples.log_probs_BT, atol=TOLERANCE)
    optimizer = torch.optim.SGD(lora.parameters(), lr=0.5)
    frozen = {n: p.clone() for n, p in lora.model.named_parameters() if not p.requires_grad}
    for _ in range(2):
        optimizer.zero_grad()
        (-lora.compute_log_probs(samples).sum() / samples.n_tokens).backward()
        optimizer.step()
    assert all(torch.equal(p, frozen[n]) for n, p in lora.model.named_parameters() if n in frozen)
    moved_BT = lora.compute_log_probs(samples).detach()
    assert float(moved_BT.sum()) > float(samples.log_probs_BT.sum())
    lora.save(tmp_path / "adapters")
    assert not (tmp_path / "adapters" / "model.safetensors").exists()
    again = TransformersPolicy.load(tmp_path / "adapters")
    assert torch.allclose(again.compute_log_probs(samples), moved_BT, atol=1e-6)
    assert [n for n, _ in again.named_parameters()] == names
    state = lora.state_dict()
    fresh = TransformersPolicy.load(tmp_path / "base", lora=LoraSettings(rank=2))
    fresh.load_state_dict(state)
    assert torch.equal(fresh.compute_log_probs(samples), lora.compute_log_probs(samples))
    with pytest.raises(InputError, match="another policy"):
        full.load_state_dict(state)
    with pytest.raises(InputError, match="holds adapters already"):
        TransformersPolicy.load(tmp_path / "adapters", lora=LoraSettings())


def test_lora_with_gradient_checkpointing_reaches_the_adapters(tokenizer, tmp_path):
    pytest.importorskip("peft")
    tiny_model(tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    policy = TransformersPolicy.load(tmp_path, lora=LoraSettings(rank=2), gradient_checkpointing=True)
    samples = policy.sample(PROMPTS, max_new_tokens=4, generator=1)
    policy.compute_log_probs(samples).sum().backward()
    assert sum(float(p.grad.abs().sum()) for p in policy.parameters() if p.grad is not None) > 0


def test_bf16_keeps_float32_parameters_and_is_close(tokenizer, tmp_path):
    tiny_model(tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    policy = TransformersPolicy.load(tmp_path, bf16=True)
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    samples = policy.sample(PROMPTS, max_new_tokens=8, generator=1)
    assert samples.log_probs_BT.dtype == torch.float32
    # bfloat16 keeps 8 bits: a log-probability of logits around 10 is good to a few hundredths, more where it is small.
    with torch.no_grad():
        assert float((policy.compute_log_probs(samples) - samples.log_probs_BT).abs().median()) < 0.1


def test_full_save_and_frozen_copy(llama, tmp_path):
    samples = llama.sample(PROMPTS, max_new_tokens=8, generator=1)
    reference = llama.make_frozen_copy()
    assert reference.parameters() == []
    with torch.no_grad():
        llama.parameters()[0].add_(0.1)
    assert torch.equal(reference.compute_log_probs(samples), reference.compute_log_probs(samples))
    assert torch.allclose(reference.compute_log_probs(samples), samples.log_probs_BT, atol=TOLERANCE)
    assert not torch.allclose(llama.compute_log_probs(samples), samples.log_probs_BT, atol=TOLERANCE)
    llama.save(tmp_path)
    assert torch.equal(TransformersPolicy.load(tmp_path).compute_log_probs(samples), llama.compute_log_probs(samples))


def test_templates(tokenizer, tmp_path):
    policy = TransformersPolicy(tiny_model(tokenizer), tokenizer, prompt_template="{prompt} Use {braces}.")
    assert policy.render_prompt("2+2") == "<|bos|>2+2 Use {braces}.<|reply|>"
    policy.save(tmp_path)
    assert TransformersPolicy.load(tmp_path).render_prompt("2+2") == policy.render_prompt("2+2")
    with pytest.raises(InputError, match="must hold"):
        TransformersPolicy(tiny_model(tokenizer), tokenizer, prompt_template="fixed")


def test_bad_input(llama, tmp_path):
    with pytest.raises(InputError, match="no prompts"):
        llama.sample([], max_new_tokens=1)
    with pytest.raises(InputError, match="at least 1"):
        llama.sample(["a"], max_new_tokens=0)
    with pytest.raises(InputError, match="not 1 and -1"):
        llama.sample(["a"], max_new_tokens=1, temperature=-1)
    with pytest.raises(InputError, match="there is no directory"):
        TransformersPolicy.load(tmp_path / "absent")
    with pytest.raises(InputError, match="no causal language model"):
        TransformersPolicy.load(tmp_path)
    with pytest.raises(InputError, match="no causal language model"):
        TransformersPolicy.load("nobody/no-such-model")


def test_empty_prompt_is_only_the_template(llama):
    samples = llama.sample(["", "1"], max_new_tokens=4, generator=0)
    assert torch.allclose(llama.compute_log_probs(samples), samples.log_probs_BT, atol=TOLERANCE)
