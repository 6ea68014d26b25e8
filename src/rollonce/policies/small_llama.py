"""A small Llama's forward pass for sampling on a CPU: transformers' numbers up to rounding, in a third of the calls.

At a hidden size of a hundred, a decoding step is mostly the cost of *calling* operators. Here there are a third as
many: the norms' weights and the attention's scale are folded into matrices, query, key and value are one product, gate
and up another, the rotation of positions is one complex product, and the cache is written in place. Prompts that are
the same (a group's) are read once.

It stands in for the model in `rollonce.policies.sampling.draw` alone. Gradients, log-probabilities of given rollouts
and all larger models are transformers' own.

Shapes: ``_A`` rows, ``_P`` new tokens of each, ``_L`` tokens so far, ``_V`` vocabulary.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

LARGEST_HIDDEN = 512
"""Above this, arithmetic rather than calls is what takes the time."""
_GROW = 64


class _Layer(NamedTuple):
    query_key_value: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor


class _Cache:
    """Keys and values (layers, 2, A, heads, capacity, head size), of which ``length`` tokens are there."""

    def __init__(self, states: Tensor, padded: bool) -> None:
        self.states, self.length, self.padded = states, 0, padded

    def make_room(self, n: int) -> None:
        if self.length + n > self.states.shape[4]:
            self.states = F.pad(self.states, (0, 0, 0, max(_GROW, n)))

    def batch_select_indices(self, keep: Tensor) -> None:
        self.states = self.states.index_select(2, keep)


class Output(NamedTuple):
    """What `draw` reads of a forward pass: logits of the last token (A, 1, V), and the cache to go on with."""

    logits: Tensor
    past_key_values: _Cache


class SmallLlama:
    """The weights of a Llama as they are now, put together for decoding. Make a new one after each update.

    Args:
        model: What `fits` says yes to.
    """

    def __init__(self, model: Any) -> None:
        config, inner = model.config, model.model
        self.heads, self.head_size, self.eps = config.num_attention_heads, config.head_dim, config.rms_norm_eps
        self.width, self.embedding = config.hidden_size, inner.embed_tokens.weight
        frequencies = inner.rotary_emb.inv_freq.float()
        positions = torch.arange(config.max_position_embeddings, dtype=torch.float32)
        angles = positions[:, None] * frequencies
        self.rotation = torch.polar(torch.ones_like(angles), angles)
        self.layers = [self._layer(layer) for layer in inner.layers]
        self.head = model.lm_head.weight * self._scale(inner.norm)

    def _layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        scaled_query = attention.q_proj.weight * attention.scaling
        parts = [
            self._by_pairs(scaled_query),
            self._by_pairs(self._for_each_head(attention.k_proj.weight)),
            self._for_each_head(attention.v_proj.weight),
        ]
        return _Layer(
            torch.cat(parts) * self._scale(layer.input_layernorm),
            attention.o_proj.weight,
            torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]) * self._scale(layer.post_attention_layernorm),
            mlp.down_proj.weight,
        )

    def _scale(self, norm: Any) -> Tensor:
        """What a norm does besides dividing by the root of the sum of squares, for the matrix after it."""
        return norm.weight * math.sqrt(self.width)

    def _for_each_head(self, weight: Tensor) -> Tensor:
        """Keys and values that heads share, once for each head."""
        shared = weight.view(-1, self.head_size, self.width)
        return shared.repeat_interleave(self.heads // len(shared), dim=0).reshape(-1, self.width)

    def _by_pairs(self, weight: Tensor) -> Tensor:
        """The two coordinates that are rotated together next to each other: real and imaginary part of a number."""
        halves = weight.view(self.heads, 2, self.head_size // 2, self.width)
        return halves.transpose(1, 2).reshape(-1, self.width)

    def __call__(
        self,
        *,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor,
        past_key_values: _Cache | None,
        **_: Any,
    ) -> Output:
        """One forward pass over new tokens (A, P), as `draw` asks for it."""
        if past_key_values is not None:
            cache, bias = past_key_values, None
            if cache.padded:
                bias = self._hidden_bias(attention_mask)
            return Output(self._forward(input_ids, position_ids, cache, bias), cache)
        both = torch.stack([input_ids, attention_mask], dim=2).flatten(1)
        _, same_A = torch.unique(both, dim=0, return_inverse=True)
        n_different = int(same_A.max()) + 1
        first = torch.full((n_different,), len(same_A)).scatter_reduce_(0, same_A, torch.arange(len(same_A)), "amin")
        ids_DP, position_DP, mask_DP = input_ids[first], position_ids[first], attention_mask[first]
        D, P = ids_DP.shape
        padded = not bool(mask_DP.all())
        states = torch.empty((len(self.layers), 2, D, self.heads, P + _GROW, self.head_size))
        cache = _Cache(states, padded)
        bias = torch.full((P, P), torch.finfo(torch.float32).min).triu_(1)[None, None]
        if padded:
            bias = torch.maximum(bias + self._hidden_bias(mask_DP), torch.tensor(torch.finfo(torch.float32).min))
        logits = self._forward(ids_DP, position_DP, cache, bias)
        cache.batch_select_indices(same_A)
        return Output(logits[same_A], cache)

    @staticmethod
    def _hidden_bias(mask_AL: Tensor) -> Tensor:
        """What is added to the scores of padding (A, 1, 1, L): as good as minus infinity, and finite where all is
        padding."""
        return ((1 - mask_AL) * torch.finfo(torch.float32).min)[:, None, None]

    def _normed(self, x: Tensor) -> Tensor:
        """Over the root of the *sum* of squares: the width, like the norm's weight, is in the matrix that follows."""
        return x * (x * x).sum(dim=-1, keepdim=True).add_(self.width * self.eps).rsqrt_()

    def _forward(self, ids_AP: Tensor, position_AP: Tensor, cache: _Cache, bias: Tensor | None) -> Tensor:
        A, P = ids_AP.shape
        cache.make_room(P)
        start, end = cache.length, cache.length + P
        turn = self.rotation[position_AP][:, :, None, None]
        x = F.embedding(ids_AP, self.embedding)
        for layer, (keys, values) in zip(self.layers, cache.states, strict=True):
            qkv = F.linear(self._normed(x), layer.query_key_value).view(A, P, 3, self.heads, self.head_size)
            turned = torch.view_as_complex(qkv[:, :, :2].unflatten(-1, (-1, 2))) * turn
            query, key = torch.view_as_real(turned).flatten(-2).transpose(1, 3).unbind(2)
            keys[:, :, start:end] = key
            values[:, :, start:end] = qkv[:, :, 2].transpose(1, 2)
            scores = query @ keys[:, :, :end].transpose(2, 3)
            if bias is not None:
                scores += bias
            mixed = torch.softmax(scores, dim=-1) @ values[:, :, :end]
            x = x + F.linear(mixed.transpose(1, 2).flatten(2), layer.output)
            gate, up = F.linear(self._normed(x), layer.gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate).mul_(up), layer.down)
        cache.length = end
        return F.linear(self._normed(x[:, -1:]), self.head)


def fits(model: Any) -> bool:
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
