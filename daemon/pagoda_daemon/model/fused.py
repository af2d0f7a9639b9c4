"""FusedDecoder: the forward pass out of the GPU's fused ops and cuBLAS. Called by `gpu`.

Computes what `model.decoder` computes, with the same roundings, in ten launches per layer instead of about forty: that one is its judge.
Reads nothing of a tensor on the host, so that a whole pass can be captured as a CUDA graph; layers of experts and tokens with an adapter
are the exceptions, computed by torch in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from pagoda_kernels.gpu.prefill_config import HEAD_DIMS
from pagoda_kernels.gpu.rms_norm import add_rms_norm, rms_norm
from pagoda_kernels.gpu.rope_kv_write import HeadNorms, KvPlace, Turn, rope_kv_write
from pagoda_kernels.gpu.silu_mul import silu_mul
from torch import Tensor

from pagoda_daemon.model.attention import KvCache
from pagoda_daemon.model.config import ModelSpec
from pagoda_daemon.model.lowrank import Adapted, add_low_rank
from pagoda_daemon.model.moe import mix_experts
from pagoda_daemon.model.rope import rope_table
from pagoda_daemon.model.weights import Layer, Mlp, Weights

_LARGEST_GROUP = 64  # query heads of one key head: the rows of a tile of the narrowest configuration


class Attention(Protocol):
    """Who sees whom in a step."""

    def attend(self, query: Tensor, place: KvPlace, window: int | None) -> Tensor:
        """`query` [tokens, heads, head_dim] over a layer's pages; of the same shape."""
        ...


@dataclass(frozen=True, slots=True)
class FusedStep:
    """A step's tokens, all on the device: ids and positions int32 [tokens], the slots of their keys and values int64 [tokens] (-1: none),
    and the flat indexes int64 of those whose states are wanted; None: all, in order. `adapted`: as in `decoder.Flat`."""

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    wanted: Tensor | None
    attention: Attention
    adapted: Adapted | None = None
    adapted_wanted: Adapted | None = None


def not_fused(spec: ModelSpec) -> str | None:
    """Why a model is not for the fused ops; None when it is."""
    if spec.head_dim not in HEAD_DIMS:
        return f"heads of {spec.head_dim}: the fused ops know {', '.join(map(str, HEAD_DIMS))}"
    if spec.heads // spec.kv_heads > _LARGEST_GROUP:
        return f"{spec.heads // spec.kv_heads} query heads per key head: the fused ops know at most {_LARGEST_GROUP}"
    return None


class FusedDecoder:
    """Weights, rotary tables and the launches between them."""

    def __init__(self, spec: ModelSpec, weights: Weights, max_len: int) -> None:
        self.spec = spec
        self.weights = weights
        self._tables = rope_table(spec, max_len, weights.norm.dtype)
        self._norms = tuple(_head_norms(spec, layer) for layer in weights.layers)

    def head(self, states: Tensor, out: Tensor | None = None) -> Tensor:
        """Logits of states, [rows, vocab]."""
        return torch.mm(states, self.weights.head.T) if out is None else torch.mm(states, self.weights.head.T, out=out)

    def states(self, step: FusedStep, kv: KvCache) -> Tensor:
        """Write the tokens' keys and values into `kv`; [wanted, hidden], the last layer's output after the norm."""
        turn = Turn(*self._tables, step.positions)
        hidden = self.weights.embedding.index_select(0, step.token_ids)
        normed, adapted = rms_norm(hidden, self.weights.layers[0].attention_norm, self.spec.norm_eps), step.adapted
        for index, layer in enumerate(self.weights.layers):
            mixed = self._mixed(index, normed, (turn, _place(kv, index, step.slots)), step)
            if layer is self.weights.layers[-1] and step.wanted is not None:
                mixed, hidden = mixed.index_select(0, step.wanted), hidden.index_select(0, step.wanted)
                adapted = step.adapted_wanted
            output = add_low_rank(layer.output.apply(mixed), mixed, adapted, index, "output")
            normed = add_rms_norm(output, hidden, layer.mlp_norm, self.spec.norm_eps)
            normed = add_rms_norm(_mlp(layer, normed, adapted, index), hidden, self._norm_behind(index), self.spec.norm_eps)
        return normed

    def _mixed(self, index: int, normed: Tensor, where: tuple[Turn, KvPlace], step: FusedStep) -> Tensor:
        spec, layer = self.spec, self.weights.layers[index]
        fused = add_low_rank(layer.qkv.apply(normed), normed, step.adapted, index, "qkv")
        query = fused.new_empty(fused.shape[0], spec.heads, spec.head_dim)
        rope_kv_write(fused, *where, self._norms[index], query=query)
        return step.attention.attend(query, where[1], spec.windows[index]).flatten(1)

    def _norm_behind(self, index: int) -> Tensor:
        """The norm that reads what layer `index` leaves."""
        following = index + 1
        return self.weights.norm if following == len(self.weights.layers) else self.weights.layers[following].attention_norm


def _place(kv: KvCache, layer: int, slots: Tensor) -> KvPlace:
    return KvPlace(kv.data[layer], slots, None if kv.scales is None else kv.scales[layer])


def _mlp(layer: Layer, normed: Tensor, adapted: Adapted | None, index: int) -> Tensor:
    if isinstance(layer.mlp, Mlp):
        inner = silu_mul(add_low_rank(layer.mlp.gate_up.apply(normed), normed, adapted, index, "gate_up"))
        return add_low_rank(layer.mlp.down.apply(inner), inner, adapted, index, "down")
    return mix_experts(normed, layer.mlp.experts, layer.mlp.router, layer.mlp.gate_up, layer.mlp.down)


def _head_norms(spec: ModelSpec, layer: Layer) -> HeadNorms | None:
    if layer.query_norm is None or layer.key_norm is None:
        return None
    return HeadNorms(layer.query_norm, layer.key_norm, spec.norm_eps)
