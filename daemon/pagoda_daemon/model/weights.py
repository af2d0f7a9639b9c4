"""LlamaWeights: preallocated tensors with q, k, v and gate, up fused, and the map from checkpoint names to their parts.

Called by the torch worker, which hands the map to `model.loader`: each tensor of a file is copied straight to its place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pagoda_daemon.model.config import ModelSpec


@dataclass(frozen=True, slots=True)
class Linear:
    """weight [out, in] and bias [out]."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer."""

    attention_norm: Tensor
    qkv: Linear
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """All of a model; `head` is `embedding` where they are tied."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor


def allocate(spec: ModelSpec, dtype: torch.dtype) -> LlamaWeights:
    """Empty tensors of the right shapes."""
    embedding = torch.empty(spec.vocab_size, spec.hidden, dtype=dtype)
    return LlamaWeights(
        embedding=embedding,
        layers=tuple(_layer(spec, dtype) for _ in range(spec.layers)),
        norm=torch.empty(spec.hidden, dtype=dtype),
        head=embedding if spec.tied else torch.empty_like(embedding),
    )


def destinations(spec: ModelSpec, weights: LlamaWeights) -> dict[str, Tensor]:
    """Checkpoint name → the part of `weights` that it fills; together they fill everything."""
    places = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm}
    if not spec.tied:
        places["lm_head.weight"] = weights.head
    for index, layer in enumerate(weights.layers):
        places |= {f"model.layers.{index}.{name}": part for name, part in _layer_places(spec, layer).items()}
    return places


def _layer(spec: ModelSpec, dtype: torch.dtype) -> Layer:
    heads = spec.heads * spec.head_dim

    def linear(out: int, size: int, bias: bool) -> Linear:
        return Linear(torch.empty(out, size, dtype=dtype), torch.empty(out, dtype=dtype) if bias else None)

    return Layer(
        attention_norm=torch.empty(spec.hidden, dtype=dtype),
        qkv=linear(heads + 2 * spec.kv_heads * spec.head_dim, spec.hidden, spec.attention_bias),
        output=linear(spec.hidden, heads, spec.attention_bias),
        mlp_norm=torch.empty(spec.hidden, dtype=dtype),
        gate_up=linear(2 * spec.intermediate, spec.hidden, spec.mlp_bias),
        down=linear(spec.hidden, spec.intermediate, spec.mlp_bias),
    )


def _layer_places(spec: ModelSpec, layer: Layer) -> dict[str, Tensor]:
    kv = spec.kv_heads * spec.head_dim
    return {
        "input_layernorm.weight": layer.attention_norm,
        "post_attention_layernorm.weight": layer.mlp_norm,
        **_split(layer.qkv, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), (spec.heads * spec.head_dim, kv, kv)),
        **_split(layer.output, ("self_attn.o_proj",), (spec.hidden,)),
        **_split(layer.gate_up, ("mlp.gate_proj", "mlp.up_proj"), (spec.intermediate, spec.intermediate)),
        **_split(layer.down, ("mlp.down_proj",), (spec.hidden,)),
    }


def _split(linear: Linear, names: tuple[str, ...], sizes: tuple[int, ...]) -> dict[str, Tensor]:
    parts = {f"{name}.weight": part for name, part in zip(names, torch.split(linear.weight, list(sizes)), strict=True)}
    if linear.bias is not None:
        parts |= {f"{name}.bias": part for name, part in zip(names, torch.split(linear.bias, list(sizes)), strict=True)}
    return parts
