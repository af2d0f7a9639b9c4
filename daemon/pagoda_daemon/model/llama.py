"""Llama: the forward pass over a flat batch of tokens with paged KV. Called by the torch worker; holds no state but its weights.

Numerics follow transformers: norms in fp32, the rest in the weights' dtype, logits for the sampling rows only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pagoda_daemon.model.attention import AttentionBatch, KvCache, attend
from pagoda_daemon.model.config import ModelSpec
from pagoda_daemon.model.rope import rope_table, rotate
from pagoda_daemon.model.weights import Layer, LlamaWeights


@dataclass(frozen=True, slots=True)
class Flat:
    """A step's tokens: ids and positions [tokens], and the indexes of those whose logits are wanted."""

    token_ids: Tensor
    positions: Tensor
    wanted: Tensor
    attention: AttentionBatch


class Llama:
    """Weights, rotary tables and the mathematics between them."""

    def __init__(self, spec: ModelSpec, weights: LlamaWeights, max_len: int) -> None:
        self.spec = spec
        self.weights = weights
        self._cos, self._sin = rope_table(spec, max_len, weights.norm.dtype)

    def logits(self, flat: Flat, kv: KvCache) -> Tensor:
        """Write the tokens' keys and values into `kv`; [wanted, vocab] in the weights' dtype."""
        turn = (self._cos[flat.positions][:, None], self._sin[flat.positions][:, None])
        hidden = self.weights.embedding[flat.token_ids]
        for index, layer in enumerate(self.weights.layers):
            hidden = hidden + self._attention(layer, hidden, turn, flat.attention, kv.data[index])
            hidden = hidden + self._mlp(layer, hidden)
        last = rms_norm(hidden[flat.wanted], self.weights.norm, self.spec.norm_eps)
        return functional.linear(last, self.weights.head)

    def _attention(self, layer: Layer, hidden: Tensor, turn: tuple[Tensor, Tensor], batch: AttentionBatch, kv: Tensor) -> Tensor:
        spec = self.spec
        normed = rms_norm(hidden, layer.attention_norm, spec.norm_eps)
        fused = functional.linear(normed, layer.qkv.weight, layer.qkv.bias).view(hidden.shape[0], -1, spec.head_dim)
        turned = rotate(fused[:, : spec.heads + spec.kv_heads], *turn)
        query, key = torch.split(turned, [spec.heads, spec.kv_heads], dim=1)
        mixed = attend((query, key, fused[:, spec.heads + spec.kv_heads :]), batch, kv)
        return functional.linear(mixed.flatten(1), layer.output.weight, layer.output.bias)

    def _mlp(self, layer: Layer, hidden: Tensor) -> Tensor:
        normed = rms_norm(hidden, layer.mlp_norm, self.spec.norm_eps)
        gate, up = functional.linear(normed, layer.gate_up.weight, layer.gate_up.bias).chunk(2, dim=-1)
        return functional.linear(functional.silu(gate) * up, layer.down.weight, layer.down.bias)


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row to a mean square of 1, in fp32, then by `weight`."""
    wide = hidden.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * normed.to(hidden.dtype)
