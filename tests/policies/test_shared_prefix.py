"""What all prompts begin with is computed once: same rollouts, log-probabilities and gradients, fewer tokens."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from conftest import tiny_model  # noqa: E402
from rollonce.policies import LoraSettings, TransformersPolicy  # noqa: E402
from rollonce.policies.sampling import draw_padded_rollouts  # noqa: E402
from rollonce.policies.shared_prefix import (  # noqa: E402
    SHORTEST_SHARED_PREFIX,
    compute_shared_prefix,
    count_shared_tokens,
)

TOLERANCE = 2e-4
EXAMPLES = "1 + 2 = 3 ; 4 + 5 = 9 ; 7 - 6 = 1 ; 3 * 3 = 9 ; 8 - 1 = 7 ; 2 * 4 = 8 ; "
PROMPTS = [EXAMPLES + tail for tail in ("1 + 1 =", "2 * 3 - 1 + 4 * 2 =", "7 =", "9 - 1 + 0 =")]


class TokenCounter:
    """Counts the tokens that go through the model's first layer."""

    def __init__(self, policy):
        self.n_tokens = 0
        policy.model.get_input_embeddings().register_forward_hook(self._count)

    def _count(self, module, inputs, output):
        self.n_tokens += inputs[0].numel()


def sample_through_transformers(policy, **options):
    """Without the code of its own that a small Llama has for it."""
    ids_BP, mask_BP = policy.encode_prompts(PROMPTS)
    drawn = draw_padded_rollouts(policy.model, ids_BP, mask_BP, eos_ids=policy.eos_ids, pad_id=policy.pad_id, **options)
    return ids_BP, mask_BP, drawn


def one_row_log_probs(policy, ids_T, response_t):
    with torch.no_grad():
        logits_LV = policy.model(torch.cat([ids_T, response_t])[None]).logits[0]
    return torch.log_softmax(logits_LV, -1)[len(ids_T) - 1 : -1].gather(1, response_t[:, None]).squeeze(1)


def test_count_by_hand():
    ids_BP = torch.tensor([[0, 0, 4, 5, 6], [4, 5, 6, 7, 8], [0, 4, 5, 6, 9]])
    # The rows begin with 4, 5, 6 all three, but the 6 is the last token of the first.
    assert count_shared_tokens(ids_BP, ids_BP > 0) == 2
    assert count_shared_tokens(ids_BP[1:], ids_BP[1:] > 0) == 3
    assert count_shared_tokens(ids_BP[:, 3:], ids_BP[:, 3:] > 0) == 0


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gpt2"])
def test_sampled_log_probs_against_one_unpadded_row_at_a_time(tokenizer, architecture):
    policy = TransformersPolicy(tiny_model(tokenizer, architecture), tokenizer)
    counter = TokenCounter(policy)
    uniform_BT = torch.rand((4, 6), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ids_BP, mask_BP, drawn = sample_through_transformers(
        policy, max_new_tokens=6, temperature=1.0, uniform_BT=uniform_BT
    )
    shared = count_shared_tokens(ids_BP, mask_BP)
    assert shared >= SHORTEST_SHARED_PREFIX
    assert counter.n_tokens <= shared + 4 * (ids_BP.shape[1] - shared) + 4 * 5
    for b in range(4):
        response_t = drawn.ids_BT[b][drawn.mask_BT[b]]
        expected_t = one_row_log_probs(policy, ids_BP[b][mask_BP[b]], response_t)
        assert torch.allclose(expected_t, drawn.log_probs_BT[b, : len(response_t)], atol=TOLERANCE)


def weighted_gradient(policy, samples, rows):
    policy.model.zero_grad()
    weights_B = torch.tensor([1.0, -1.0, 0.5, 2.0])
    found = {}
    for index, part in samples.split_into_micro_batches(rows):
        evaluation = policy._evaluate_padded(part, hidden=True)
        (evaluation.log_probs_BT.sum(dim=1) * weights_B[index]).sum().backward()
        for i, log_probs, hidden, mask in zip(
            index, evaluation.log_probs_BT, evaluation.hidden_BTD, part.response_mask_BT, strict=True
        ):
            found[i] = (log_probs[mask].detach(), hidden[mask].detach())
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    return gradient, [found[i] for i in range(len(samples))]


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gpt2", "lora"])
def test_gradients_log_probs_and_hidden_states_are_those_of_single_rows(tokenizer, tmp_path, architecture):
    if architecture == "lora":
        pytest.importorskip("peft")
        tiny_model(tokenizer).save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        policy = TransformersPolicy.load(tmp_path, lora=LoraSettings(rank=2))
        with torch.no_grad():  # away from the start, where one of the two factors has no gradient
            for p in policy.parameters():
                p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    else:
        policy = TransformersPolicy(tiny_model(tokenizer, architecture), tokenizer)
    samples = policy.sample(PROMPTS, max_new_tokens=8, generator=1)
    alone, rows_alone = weighted_gradient(policy, samples, 1)  # a single row shares nothing
    counter = TokenCounter(policy)
    together, rows_together = weighted_gradient(policy, samples, None)
    shared = count_shared_tokens(samples.prompt_ids_BP, samples.prompt_mask_BP)
    assert counter.n_tokens <= shared + 4 * (samples.prompt_ids_BP.shape[1] + 8 - shared)
    assert alone.norm() > 0
    assert float((together - alone).norm() / alone.norm()) < 1e-4
    if architecture != "lora":  # the state before a token, put through the head, gives that token's log-probability
        head, mask_BT = policy.model.get_output_embeddings(), samples.response_mask_BT
        for (log_probs, hidden), ids, mask in zip(rows_together, samples.response_ids_BT, mask_BT, strict=True):
            of_state = torch.log_softmax(head(hidden), -1).gather(1, ids[mask][:, None]).squeeze(1)
            assert torch.allclose(of_state, log_probs, atol=TOLERANCE)
    for (log_probs, hidden), (log_probs_alone, hidden_alone) in zip(rows_together, rows_alone, strict=True):
        assert torch.allclose(log_probs, log_probs_alone, atol=TOLERANCE)
        assert torch.allclose(hidden, hidden_alone, atol=1e-3)


def test_short_prefixes_single_rows_and_sliding_windows_share_nothing(tokenizer):
    llama = TransformersPolicy(tiny_model(tokenizer), tokenizer)
    ids_BP, mask_BP = llama.encode_prompts(PROMPTS)
    assert compute_shared_prefix(llama.model, ids_BP[:1], mask_BP[:1]).cache is None
    few_BP, few_mask_BP = llama.encode_prompts(["1 + 1 = 2 ; 1 + 2 =", "1 + 1 = 2 ; 3 + 3 ="])
    assert compute_shared_prefix(llama.model, few_BP, few_mask_BP).n_tokens == 0
    assert compute_shared_prefix(llama.model, ids_BP, mask_BP).cache is not None
    assert compute_shared_prefix(tiny_model(tokenizer, "mistral"), ids_BP, mask_BP).cache is None
