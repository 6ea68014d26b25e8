"""A small Llama that samples on a CPU: transformers' numbers up to rounding, in a fraction of the time.

At a hidden size of a hundred, a decoding step of transformers is mostly the cost of *calling* operators and of padding.
Here torch multiplies the matrices and four compiled functions do everything between the products. Only tokens that are
there are computed: prompts stand end to end without padding, prompts that are the same (a group's) are read once, and a
rollout that has ended leaves at once.

It stands in for `rollonce.policies.sampling.draw` and the model in it; `packed_hidden_states` is the forward pass of
the update, with gradient, over the same tokens without padding. All larger models are transformers' own.

Shapes: ``_B`` rollouts, ``_A`` those that go on, ``_N`` tokens of a forward pass, ``_D`` hidden features, ``_S``
    features of a head, ``_L`` positions, ``_T`` response tokens, ``_V`` vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from rollonce.policies.sampling import Drawn

Numbers = NDArray[Any]
"""float32 but for uniform numbers (float64), token ids and positions (int64) and bit patterns (int32)."""
LARGEST_HIDDEN = 512
"""Above this, arithmetic rather than calls is what takes the time."""
_GROW = 128  # positions that the cache grows by
_ATTEND_TOGETHER = 8  # sequences alike in length, in one attention of the update
_FAST = {"reassoc", "contract", "nsz"}
_LOG2_E, _LN2_HIGH, _LN2_LOW = np.float32(1.4426950408889634), np.float32(0.693359375), np.float32(-2.12194440e-4)
_LOWEST = np.float32(-87.0)  # below, exp is 0 in float32
# Minimax polynomial of exp on half an octave around 0 (Cephes' expf).
_C0, _C1, _C2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_C3, _C4, _C5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)


@njit(cache=True, fastmath=_FAST, inline="always")
def _exponentiate_in_place(x_n: Numbers, bits_n: Numbers, n: int) -> None:
    """``exp`` of the first n numbers in place, for numbers of at most 0 or little more; ``bits_n`` is int32 scratch.

    Compilers do not vectorize the library's ``exp``; this one they do.
    """
    powers_n = bits_n.view(np.float32)
    for i in range(n):
        x = max(x_n[i], _LOWEST)
        octave = np.floor(x * _LOG2_E + np.float32(0.5))
        r = x - octave * _LN2_HIGH - octave * _LN2_LOW
        series = ((((_C0 * r + _C1) * r + _C2) * r + _C3) * r + _C4) * r + _C5
        bits_n[i] = (np.int32(octave) + np.int32(127)) << np.int32(23) if x_n[i] > _LOWEST else np.int32(0)
        x_n[i] = series * r * r + r + np.float32(1)
    for i in range(n):
        x_n[i] *= powers_n[i]


@njit(cache=True, fastmath=_FAST)
def _root_mean_square_norm(x_ND: Numbers, weight_D: Numbers, epsilon: float, out_ND: Numbers) -> None:
    N, D = x_ND.shape
    for n in range(N):
        squares = np.float32(0)
        for d in range(D):
            squares += x_ND[n, d] * x_ND[n, d]
        scale = np.float32(1) / np.sqrt(squares / np.float32(D) + np.float32(epsilon))
        for d in range(D):
            out_ND[n, d] = x_ND[n, d] * scale * weight_D[d]


@njit(cache=True, fastmath=_FAST)
def _attend_over_cache(
    joint_NF: Numbers,
    row_N: Numbers,
    position_N: Numbers,
    cosine_LS: Numbers,
    sine_LS: Numbers,
    keys_BHSL: Numbers,
    values_BHLS: Numbers,
    out_ND: Numbers,
) -> None:
    """Turn queries and keys by their positions, join the cache, and mix the values. ``joint_NF`` has queries, keys and
    values side by side; a row's tokens stand in order, so that each finds those before it in the cache."""
    N, (_, shared, S, L) = len(row_N), keys_BHSL.shape
    heads, half = out_ND.shape[1] // S, S // 2
    per_key = heads // shared
    query_S, scores_L, bits_L = np.empty(S, np.float32), np.empty(L, np.float32), np.empty(L, np.int32)
    scaling = np.float32(1) / np.sqrt(np.float32(S))
    for n in range(N):
        row, position = row_N[n], position_N[n]
        for h in range(shared):
            key_at, value_at = (heads + h) * S, (heads + shared + h) * S
            for s in range(half):
                first, second = joint_NF[n, key_at + s], joint_NF[n, key_at + half + s]
                cosine, sine = cosine_LS[position, s], sine_LS[position, s]
                keys_BHSL[row, h, s, position] = first * cosine - second * sine
                keys_BHSL[row, h, half + s, position] = second * cosine + first * sine
            for s in range(S):
                values_BHLS[row, h, position, s] = joint_NF[n, value_at + s]
        for head in range(heads):
            for s in range(half):
                first, second = joint_NF[n, head * S + s], joint_NF[n, head * S + half + s]
                cosine, sine = cosine_LS[position, s] * scaling, sine_LS[position, s] * scaling
                query_S[s] = first * cosine - second * sine
                query_S[half + s] = second * cosine + first * sine
            keys_SL, values_LS = keys_BHSL[row, head // per_key], values_BHLS[row, head // per_key]
            scores_L[: position + 1] = 0
            for s in range(half):  # two at once: half as often through the scores
                factor, other = query_S[s], query_S[half + s]
                for at in range(position + 1):
                    scores_L[at] += factor * keys_SL[s, at] + other * keys_SL[half + s, at]
            highest = scores_L[0]
            for at in range(1, position + 1):
                highest = max(highest, scores_L[at])
            for at in range(position + 1):
                scores_L[at] -= highest
            _exponentiate_in_place(scores_L, bits_L, position + 1)
            total = np.float32(0)
            for at in range(position + 1):
                total += scores_L[at]
            query_S[:] = 0  # now the mixture
            for at in range(position + 1):
                share = scores_L[at]
                for s in range(S):
                    query_S[s] += share * values_LS[at, s]
            for s in range(S):
                out_ND[n, head * S + s] = query_S[s] / total


@njit(cache=True, fastmath=_FAST)
def _multiply_silu_gate(gate_up_NI: Numbers, out_NI: Numbers) -> None:
    """``silu(gate) * up`` of gates and ups side by side."""
    N, width = out_NI.shape
    sign_I, bits_I = np.empty(width, np.float32), np.empty(width, np.int32)
    for n in range(N):
        for i in range(width):
            sign_I[i] = -abs(gate_up_NI[n, i])
        _exponentiate_in_place(sign_I, bits_I, width)
        for i in range(width):
            gate, small = gate_up_NI[n, i], sign_I[i]
            out_NI[n, i] = (
                gate * (np.float32(1) if gate > 0 else small) / (np.float32(1) + small) * gate_up_NI[n, width + i]
            )


@njit(cache=True, fastmath=_FAST)
def _choose_next_tokens(
    logits_AV: Numbers, temperature: float, uniform_A: Numbers, token_A: Numbers, log_prob_A: Numbers
) -> None:
    """A token for each row: that whose stretch of the cumulative distribution holds ``uniform_A``, or the likeliest at
    temperature 0; and its log-probability (at temperature 0, that at temperature 1)."""
    A, V = logits_AV.shape
    weight_V, bits_V, inverse = np.empty(V, np.float32), np.empty(V, np.int32), np.float32(1)
    if temperature > 0:
        inverse = np.float32(1 / temperature)
    for a in range(A):
        best = np.argmax(logits_AV[a])
        highest = logits_AV[a, best]
        for v in range(V):
            weight_V[v] = (logits_AV[a, v] - highest) * inverse
        _exponentiate_in_place(weight_V, bits_V, V)
        total = 0.0
        for v in range(V):
            total += np.float64(weight_V[v])
        token = best
        if temperature > 0:
            target, passed = uniform_A[a] * total, 0.0
            for v in range(V):
                passed += np.float64(weight_V[v])
                if passed > target:
                    token = v
                    break
        token_A[a] = token
        log_prob_A[a] = np.float64((logits_AV[a, token] - highest) * inverse) - np.log(total)


class _Layer(NamedTuple):
    """Matrices transposed for ``x @ matrix``, and the norms' weights."""

    attention_norm: Numbers
    query_key_value: Tensor
    output: Tensor
    mlp_norm: Numbers
    gate_up: Tensor
    down: Tensor


class _Scratch:
    """Where N tokens are computed: tensors for torch, each with its numpy view."""

    def __init__(self, N: int, D: int, joint: int, intermediate: int, V: int) -> None:
        self.x, self.normed, self.mixed = (torch.empty((N, D)) for _ in range(3))
        self.joint, self.gate_up = torch.empty((N, joint)), torch.empty((N, 2 * intermediate))
        self.gated, self.logits = torch.empty((N, intermediate)), torch.empty((N, V))
        self.arrays = {name: tensor.numpy() for name, tensor in vars(self).items()}


class SmallLlama:
    """The weights of a Llama as they are now, put together for sampling. Make a new one after each update.

    Args:
        model: What `is_small_plain_llama` says yes to.
    """

    def __init__(self, model: Any) -> None:
        config, inner = model.config, model.model
        self.heads, self.shared, self.head_size = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        self.epsilon, self.intermediate = config.rms_norm_eps, config.intermediate_size
        self.frequencies = inner.rotary_emb.inv_freq.float()
        self.embedding, self.head = inner.embed_tokens.weight.detach(), model.lm_head.weight.detach().t()
        self.last_norm = inner.norm.weight.detach().numpy()
        self.layers = [
            _Layer(
                layer.input_layernorm.weight.detach().numpy(),
                torch.cat([p.weight.detach() for p in (a.q_proj, a.k_proj, a.v_proj)]).t(),
                a.o_proj.weight.detach().t(),
                layer.post_attention_layernorm.weight.detach().numpy(),
                torch.cat([layer.mlp.gate_proj.weight.detach(), layer.mlp.up_proj.weight.detach()]).t(),
                layer.mlp.down_proj.weight.detach().t(),
            )
            for layer in inner.layers
            for a in [layer.self_attn]
        ]

    def draw_padded_rollouts(
        self,
        prompt_ids_BP: Tensor,
        prompt_mask_BP: Tensor,
        *,
        max_new_tokens: int,
        temperature: float,
        uniform_BT: Tensor | None,
        eos_ids: Collection[int],
        pad_id: int,
    ) -> Drawn:
        """See `rollonce.policies.sampling.draw`."""
        prompts = [ids[mask].numpy() for ids, mask in zip(prompt_ids_BP, prompt_mask_BP, strict=True)]
        B, longest = len(prompts), prompt_ids_BP.shape[1]
        angles = torch.arange(longest + max_new_tokens)[:, None] * self.frequencies
        self.cosine, self.sine = angles.cos().numpy(), angles.sin().numpy()
        room = (B, self.shared, self.head_size, longest + min(_GROW, max_new_tokens))
        self.keys = [np.empty(room, np.float32) for _ in self.layers]
        self.values = [np.empty((*room[:2], room[3], room[2]), np.float32) for _ in self.layers]
        uniform = np.zeros((B, max_new_tokens)) if uniform_BT is None else uniform_BT.numpy()
        eos = np.array(sorted(eos_ids))
        ids_BT = np.full((B, max_new_tokens), pad_id)
        log_probs_BT = np.zeros((B, max_new_tokens), np.float32)
        length_B = np.full(B, max_new_tokens)
        truncated_B = np.ones(B, bool)

        logits_AV = self._logits_after_prompts(prompts)
        row_A, position_A = np.arange(B), np.array([len(p) for p in prompts])
        token_A, log_prob_A = np.empty(B, np.int64), np.empty(B, np.float32)
        scratch = self._make_scratch_space(B)
        for t in range(max_new_tokens):
            _choose_next_tokens(logits_AV, temperature, np.ascontiguousarray(uniform[row_A, t]), token_A, log_prob_A)
            ids_BT[row_A, t], log_probs_BT[row_A, t] = token_A, log_prob_A
            ended_A = (token_A[:, None] == eos).any(axis=1)
            if ended_A.any():
                length_B[row_A[ended_A]], truncated_B[row_A[ended_A]] = t + 1, False
                row_A, position_A, token_A = row_A[~ended_A], position_A[~ended_A], token_A[~ended_A]
                log_prob_A, scratch = np.empty(len(row_A), np.float32), self._make_scratch_space(len(row_A))
            if not len(row_A) or t == max_new_tokens - 1:
                break
            self._make_room_in_cache(longest + t + 1)
            logits_AV = self._logits_of_new_tokens(token_A, row_A, position_A, scratch, None)
            position_A = position_A + 1
        self.keys, self.values = [], []  # gigabytes where many rows were drawn
        T = int(length_B.max())
        mask_BT = torch.from_numpy(np.arange(T) < length_B[:, None])
        ids, log_probs = torch.from_numpy(ids_BT[:, :T].copy()), torch.from_numpy(log_probs_BT[:, :T].copy())
        return Drawn(ids, mask_BT, log_probs, torch.from_numpy(truncated_B))

    def _logits_after_prompts(self, prompts: list[Numbers]) -> Numbers:
        """Logits after each prompt (B, V), with equal prompts read once."""
        first = {}
        source_B = np.array([first.setdefault(p.tobytes(), b) for b, p in enumerate(prompts)])
        distinct = np.array(list(first.values()))
        length = np.array([len(prompts[b]) for b in distinct])
        logits = self._logits_of_new_tokens(
            np.concatenate([prompts[b] for b in distinct]),
            np.repeat(distinct, length),
            np.concatenate([np.arange(n) for n in length]),
            self._make_scratch_space(int(length.sum())),
            np.cumsum(length) - 1,
        )
        copies = np.flatnonzero(source_B != np.arange(len(prompts)))
        for cached in (*self.keys, *self.values):
            cached[copies] = cached[source_B[copies]]
        return logits[np.searchsorted(distinct, source_B)]

    def _make_scratch_space(self, N: int) -> _Scratch:
        V, D = self.embedding.shape
        return _Scratch(N, D, (self.heads + 2 * self.shared) * self.head_size, self.intermediate, V)

    def _make_room_in_cache(self, positions: int) -> None:
        if positions > (old := self.keys[0].shape[3]):
            grown = ((0, 0), (0, 0), (0, 0), (0, max(_GROW, old // 2)))
            self.keys = [np.pad(k, grown) for k in self.keys]
            self.values = [np.pad(v, (*grown[:2], grown[3], grown[2])) for v in self.values]

    def _logits_of_new_tokens(
        self, ids_N: Numbers, row_N: Numbers, position_N: Numbers, scratch: _Scratch, wanted: Numbers | None
    ) -> Numbers:
        """Logits of the ``wanted`` ones of N new tokens, or of all."""
        s, arrays = scratch, scratch.arrays
        torch.index_select(self.embedding, 0, torch.from_numpy(ids_N), out=s.x)
        for layer, keys, values in zip(self.layers, self.keys, self.values, strict=True):
            _root_mean_square_norm(arrays["x"], layer.attention_norm, self.epsilon, arrays["normed"])
            torch.mm(s.normed, layer.query_key_value, out=s.joint)
            _attend_over_cache(
                arrays["joint"], row_N, position_N, self.cosine, self.sine, keys, values, arrays["mixed"]
            )
            s.x.addmm_(s.mixed, layer.output)
            _root_mean_square_norm(arrays["x"], layer.mlp_norm, self.epsilon, arrays["normed"])
            torch.mm(s.normed, layer.gate_up, out=s.gate_up)
            _multiply_silu_gate(arrays["gate_up"], arrays["gated"])
            s.x.addmm_(s.gated, layer.down)
        _root_mean_square_norm(arrays["x"], self.last_norm, self.epsilon, arrays["normed"])
        if wanted is not None:
            return torch.mm(s.normed[torch.from_numpy(wanted)], self.head).numpy()
        torch.mm(s.normed, self.head, out=s.logits)
        return arrays["logits"]


def packed_hidden_states(model: Any, ids_N: Tensor, lengths: Sequence[int]) -> Tensor:
    """Last hidden states (N, D), with gradient, of sequences that stand end to end: token n of a sequence has seen the
    first n + 1 of it.

    Args:
        model: What `is_small_plain_llama` says yes to.
        ids_N: Tokens of all sequences.
        lengths: Of each sequence, descending: those alike in length share an attention, and little of it is padding.
    """
    inner, S = model.model, model.config.head_dim
    position_N = torch.cat([torch.arange(n) for n in lengths])
    angle_N1S = (position_N[:, None] * inner.rotary_emb.inv_freq.repeat(2))[:, None]
    cosine_N1S, sine_N1S = angle_N1S.cos(), angle_N1S.sin()
    groups, start = [], 0
    for at in range(0, len(lengths), _ATTEND_TOGETHER):
        length_G = torch.tensor(lengths[at : at + _ATTEND_TOGETHER])
        end = start + int(length_G.sum())
        mask_GL = torch.arange(int(length_G[0])) < length_G[:, None]
        groups.append((slice(start, end), mask_GL))
        start = end

    def rotate_by_positions(x_NF: Tensor) -> Tensor:
        x = x_NF.unflatten(-1, (-1, S))
        left, right = x.chunk(2, dim=-1)
        return x * cosine_N1S + torch.cat([-right, left], dim=-1) * sine_N1S

    def attend_in_groups(joint_NHS: Tensor) -> Tensor:
        parts = []
        for tokens, mask_GL in groups:
            padded_GLHS = joint_NHS.new_zeros((*mask_GL.shape, *joint_NHS.shape[1:]))
            padded_GLHS = padded_GLHS.index_put(mask_GL.nonzero(as_tuple=True), joint_NHS[tokens])
            query, key, value = padded_GLHS.transpose(1, 2).split([heads, shared, shared], dim=1)
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=heads != shared)
            parts.append(mixed.transpose(1, 2)[mask_GL])
        return torch.cat(parts).flatten(1)

    heads, shared = model.config.num_attention_heads, model.config.num_key_value_heads
    x_ND = inner.embed_tokens(ids_N)
    for layer in inner.layers:
        a, mlp = layer.self_attn, layer.mlp
        normed = layer.input_layernorm(x_ND)
        query_key = rotate_by_positions(torch.cat([a.q_proj(normed), a.k_proj(normed)], dim=1))
        x_ND = x_ND + a.o_proj(attend_in_groups(torch.cat([query_key, a.v_proj(normed).unflatten(-1, (-1, S))], dim=1)))
        normed = layer.post_attention_layernorm(x_ND)
        x_ND = x_ND + mlp.down_proj(F.silu(mlp.gate_proj(normed)) * mlp.up_proj(normed))
    return inner.norm(x_ND)


def is_small_plain_llama(model: Any) -> bool:
    """Whether `SmallLlama` computes what this model does: a plain Llama, small, in float32 on the CPU."""
    config = model.config
    if type(model).__name__ != "LlamaForCausalLM" or config.hidden_size > LARGEST_HIDDEN:
        return False
    rope = getattr(config, "rope_parameters", None) or {}
    plain = (
        rope.get("rope_type", "default") == "default"
        and config.hidden_act == "silu"
        and not config.attention_bias
        and not config.mlp_bias
        and model.lm_head.bias is None
    )
    return plain and all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())
