"""Decoder: the forward pass over a flat batch of tokens with paged KV, for every family. Called by the model worker.

Holds no state but its weights. Each inner operation is one function of `model.ops`, `model.rope`, `model.attention` or `model.moe`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pagoda_daemon.model.attention import AttentionBatch, KvCache, attend
from pagoda_daemon.model.config import ModelSpec
from pagoda_daemon.model.lowrank import Adapted, add_low_rank
from pagoda_daemon.model.moe import mix_experts
from pagoda_daemon.model.ops import gated, linear, rms_norm
from pagoda_daemon.model.rope import rope_table, rotate
from pagoda_daemon.model.weights import Layer, Mlp, Weights


@dataclass(frozen=True, slots=True)
class Flat:
    """A step's tokens: ids and positions [tokens], and the indexes of those whose logits are wanted. `adapted` are those with an adapter,
    `adapted_wanted` the same among the wanted ones."""

    token_ids: Tensor
    positions: Tensor
    wanted: Tensor
    attention: AttentionBatch
    adapted: Adapted | None = None
    adapted_wanted: Adapted | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """What layer `index` needs besides its input: the tokens' cosines and sines, which tokens they see, the layer's keys and values, and
    which tokens have an adapter."""

    turn: tuple[Tensor, Tensor]
    batch: AttentionBatch
    kv: Tensor
    window: int | None
    index: int
    adapted: Adapted | None


class Decoder:
    """Weights, rotary tables and the mathematics between them."""

    def __init__(self, spec: ModelSpec, weights: Weights, max_len: int) -> None:
        self.spec = spec
        self.weights = weights
        self._cos, self._sin = rope_table(spec, max_len, weights.norm.dtype)
        self._head_norms = tuple(_head_norm(spec, layer) for layer in weights.layers)

    def logits(self, flat: Flat, kv: KvCache) -> Tensor:
        """Write the tokens' keys and values into `kv`; [wanted, vocab] in the weights' dtype."""
        return self.head(self.states(flat, kv))

    def head(self, states: Tensor) -> Tensor:
        """Logits of states."""
        return linear(states, self.weights.head)

    def states(self, flat: Flat, kv: KvCache) -> Tensor:
        """As `logits`, without the head: [wanted, hidden], the last layer's output after the norm."""
        turn = (self._cos[flat.positions][:, None], self._sin[flat.positions][:, None])
        hidden = self.weights.embedding[flat.token_ids]
        for index, layer in enumerate(self.weights.layers):
            place = Place(turn, flat.attention, kv.data[index], self.spec.windows[index], index, flat.adapted)
            hidden = hidden + self._attention(layer, self._head_norms[index], hidden, place)
            adapted = flat.adapted
            if layer is self.weights.layers[-1]:
                hidden = hidden[flat.wanted]  # nothing reads what the last MLP makes of the others: a prompt's tokens but one
                adapted = flat.adapted_wanted
            hidden = hidden + self._mlp(layer, hidden, index, adapted)
        return rms_norm(hidden, self.weights.norm, self.spec.norm_eps)

    def _attention(self, layer: Layer, head_norm: Tensor | None, hidden: Tensor, place: Place) -> Tensor:
        spec = self.spec
        normed = rms_norm(hidden, layer.attention_norm, spec.norm_eps)
        fused = add_low_rank(layer.qkv.apply(normed), normed, place.adapted, place.index, "qkv")
        fused = fused.view(hidden.shape[0], -1, spec.head_dim)
        turning, value = torch.split(fused, [spec.heads + spec.kv_heads, spec.kv_heads], dim=1)
        if head_norm is not None:
            turning = rms_norm(turning, head_norm, spec.norm_eps)
        query, key = torch.split(rotate(turning, *place.turn), [spec.heads, spec.kv_heads], dim=1)
        mixed = attend((query, key, value), place.batch, place.kv, place.window).flatten(1)
        return add_low_rank(layer.output.apply(mixed), mixed, place.adapted, place.index, "output")

    def _mlp(self, layer: Layer, hidden: Tensor, index: int, adapted: Adapted | None) -> Tensor:
        normed = rms_norm(hidden, layer.mlp_norm, self.spec.norm_eps)
        if isinstance(layer.mlp, Mlp):
            inner = gated(add_low_rank(layer.mlp.gate_up.apply(normed), normed, adapted, index, "gate_up"))
            return add_low_rank(layer.mlp.down.apply(inner), inner, adapted, index, "down")
        return mix_experts(normed, layer.mlp.experts, layer.mlp.router, layer.mlp.gate_up, layer.mlp.down)


def _head_norm(spec: ModelSpec, layer: Layer) -> Tensor | None:
    """[heads + kv_heads, head_dim]: one norm over the queries' and keys' heads at once, as they lie behind each other."""
    if layer.query_norm is None or layer.key_norm is None:
        return None
    return torch.cat((layer.query_norm.expand(spec.heads, -1), layer.key_norm.expand(spec.kv_heads, -1)))
