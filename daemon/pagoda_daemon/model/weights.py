"""Weights: preallocated tensors with q, k, v and gate, up fused, and the map from checkpoint names to their parts.

Called by the model worker, which hands the map to `model.loader`: each tensor of a file is read straight into its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn import functional

from pagoda_daemon.model.config import Experts, ModelSpec


@dataclass(frozen=True, slots=True)
class Linear:
    """weight [out, in] and bias [out]. A subclass keeps the weight in another format."""

    weight: Tensor
    bias: Tensor | None

    def apply(self, rows: Tensor) -> Tensor:
        """`rows` [tokens, in] times the weight transposed, plus the bias."""
        return functional.linear(rows, self.weight, self.bias)

    def warm(self) -> None:
        """Compile all that `apply` launches, whatever the number of rows."""

    @property
    def compiled_as(self) -> tuple[object, ...]:
        """Of two linear maps with the same, `warm` compiles the same."""
        return type(self), self.weight.shape, self.weight.dtype, self.bias is None


@dataclass(frozen=True, slots=True)
class Mlp:
    """gate and up fused, and down."""

    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class SparseMlp:
    """router [experts, hidden]; gate_up [experts, 2 * width, hidden]; down [experts, hidden, width]."""

    experts: Experts
    router: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer; `query_norm` and `key_norm` [head_dim] only where the family has them."""

    attention_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    mlp_norm: Tensor
    mlp: Mlp | SparseMlp


@dataclass(frozen=True, slots=True)
class Weights:
    """All of a model; `head` is `embedding` where they are tied."""

    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor


def allocate(spec: ModelSpec, dtype: torch.dtype) -> Weights:
    """Empty tensors of the right shapes."""
    embedding = torch.empty(spec.vocab_size, spec.hidden, dtype=dtype)
    return Weights(
        embedding=embedding,
        layers=tuple(_layer(spec, dtype, sparse) for sparse in spec.sparse),
        norm=torch.empty(spec.hidden, dtype=dtype),
        head=embedding if spec.tied else torch.empty(spec.vocab_size, spec.hidden, dtype=dtype),
    )


def destinations(spec: ModelSpec, weights: Weights) -> dict[str, Tensor]:
    """Checkpoint name → the part of `weights` that it fills; together they fill everything."""
    places = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm}
    if not spec.tied:
        places["lm_head.weight"] = weights.head
    for index, layer in enumerate(weights.layers):
        places |= {f"model.layers.{index}.{name}": part for name, part in _layer_places(spec, layer).items()}
    return places


def linears(layer: Layer) -> tuple[Linear, ...]:
    """The linear maps of a layer, but those of experts."""
    return layer.qkv, layer.output, *((layer.mlp.gate_up, layer.mlp.down) if isinstance(layer.mlp, Mlp) else ())


def with_linears(layer: Layer, made: Callable[[Linear], Linear]) -> Layer:
    """`layer` with what `made` makes of each of `linears`."""
    mlp = Mlp(made(layer.mlp.gate_up), made(layer.mlp.down)) if isinstance(layer.mlp, Mlp) else layer.mlp
    return replace(layer, qkv=made(layer.qkv), output=made(layer.output), mlp=mlp)


def weight_bytes(spec: ModelSpec, dtype: torch.dtype) -> int:
    """Bytes of `allocate`'s tensors, without allocating them. (On this device `empty_like` imports 480 modules, 2 s: not used.)"""
    with torch.device("meta"):
        weights = allocate(spec, dtype)
    return sum({id(tensor): tensor.nbytes for tensor in _tensors(weights)}.values())


def _tensors(value: object) -> Iterator[Tensor]:
    """Every tensor in a tree of these dataclasses; one that is there twice, twice."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for entry in value:
            yield from _tensors(entry)
    elif isinstance(value, Weights | Layer | Linear | Mlp | SparseMlp):
        for part in fields(value):
            yield from _tensors(getattr(value, part.name))


def _layer(spec: ModelSpec, dtype: torch.dtype, sparse: bool) -> Layer:
    heads = spec.heads * spec.head_dim

    def vector(size: int) -> Tensor:
        return torch.empty(size, dtype=dtype)

    return Layer(
        attention_norm=vector(spec.hidden),
        qkv=_linear(heads + 2 * spec.kv_heads * spec.head_dim, spec.hidden, dtype, spec.qkv_bias),
        query_norm=vector(spec.head_dim) if spec.qk_norm else None,
        key_norm=vector(spec.head_dim) if spec.qk_norm else None,
        output=_linear(spec.hidden, heads, dtype, spec.output_bias),
        mlp_norm=vector(spec.hidden),
        mlp=_sparse_mlp(spec.hidden, spec.experts, dtype) if sparse and spec.experts else _mlp(spec, dtype),
    )


def _linear(out: int, size: int, dtype: torch.dtype, bias: bool) -> Linear:
    return Linear(torch.empty(out, size, dtype=dtype), torch.empty(out, dtype=dtype) if bias else None)


def _mlp(spec: ModelSpec, dtype: torch.dtype) -> Mlp:
    return Mlp(
        gate_up=_linear(2 * spec.intermediate, spec.hidden, dtype, spec.mlp_bias),
        down=_linear(spec.hidden, spec.intermediate, dtype, spec.mlp_bias),
    )


def _sparse_mlp(hidden: int, experts: Experts, dtype: torch.dtype) -> SparseMlp:
    return SparseMlp(
        experts=experts,
        router=torch.empty(experts.count, hidden, dtype=dtype),
        gate_up=torch.empty(experts.count, 2 * experts.intermediate, hidden, dtype=dtype),
        down=torch.empty(experts.count, hidden, experts.intermediate, dtype=dtype),
    )


def _layer_places(spec: ModelSpec, layer: Layer) -> dict[str, Tensor]:
    kv = spec.kv_heads * spec.head_dim
    norms = {"self_attn.q_norm.weight": layer.query_norm, "self_attn.k_norm.weight": layer.key_norm}
    return {
        "input_layernorm.weight": layer.attention_norm,
        "post_attention_layernorm.weight": layer.mlp_norm,
        **{name: norm for name, norm in norms.items() if norm is not None},
        **_split(layer.qkv, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), (spec.heads * spec.head_dim, kv, kv)),
        **_split(layer.output, ("self_attn.o_proj",), (spec.hidden,)),
        **(_dense_places(spec, layer.mlp) if isinstance(layer.mlp, Mlp) else _expert_places(layer.mlp)),
    }


def _dense_places(spec: ModelSpec, mlp: Mlp) -> dict[str, Tensor]:
    return {
        **_split(mlp.gate_up, ("mlp.gate_proj", "mlp.up_proj"), (spec.intermediate, spec.intermediate)),
        **_split(mlp.down, ("mlp.down_proj",), (spec.hidden,)),
    }


def _expert_places(mlp: SparseMlp) -> dict[str, Tensor]:
    names, width = mlp.experts.names, mlp.experts.intermediate
    places = {f"{names.block}.gate.weight": mlp.router}
    for number in range(mlp.experts.count):
        expert = f"{names.block}.experts.{number}"
        places[f"{expert}.{names.gate}.weight"] = mlp.gate_up[number, :width]
        places[f"{expert}.{names.up}.weight"] = mlp.gate_up[number, width:]
        places[f"{expert}.{names.down}.weight"] = mlp.down[number]
    return places


def _split(linear: Linear, names: tuple[str, ...], sizes: tuple[int, ...]) -> dict[str, Tensor]:
    parts = {f"{name}.weight": part for name, part in zip(names, torch.split(linear.weight, list(sizes)), strict=True)}
    if linear.bias is not None:
        parts |= {f"{name}.bias": part for name, part in zip(names, torch.split(linear.bias, list(sizes)), strict=True)}
    return parts
