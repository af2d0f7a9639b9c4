"""pack_decoder: a loaded decoder's weights in the order of the CPU's native ops. Called by `runner.native_worker`.

Each matrix is given up as soon as its packed twin exists, so that the peak is one model and one matrix.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from pagoda_kernels.cpu.native import Decoder, Layer
from pagoda_kernels.cpu.pack import BF16, INT8, Arena, Packed, interleave, pack, packed_bytes
from torch import Tensor

from pagoda_daemon.model.config import ModelSpec
from pagoda_daemon.model.rope import rope_table
from pagoda_daemon.model.weights import Layer as LoadedLayer
from pagoda_daemon.model.weights import Linear, LlamaWeights

KINDS = {None: BF16, "int8": INT8}
"""`engine.quantization` → how matrices are packed. The embedding of an untied model stays bf16: a step reads one row per token of it."""


def pack_decoder(spec: ModelSpec, weights: LlamaWeights, kind: int, positions: int, wide_rows: int = 0) -> Decoder:
    """Empties `weights`. Rotary tables reach up to `positions`."""
    arena = Arena(arena_bytes(spec, weights, kind))
    layers = tuple(_layer(spec, layer, kind, arena) for layer in weights.layers)
    head = pack(weights.head, None, kind, arena)
    if spec.tied:
        _release(weights.embedding)
    else:
        _release(weights.head)
    cos, sin = rope_table(spec, positions, torch.float32)
    half = spec.head_dim // 2
    return Decoder(
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        eps=spec.norm_eps,
        layers=layers,
        embedding=None if spec.tied else weights.embedding,
        norm=_floats(weights.norm),
        head=head,
        cos=_floats(cos[:, :half]),
        sin=_floats(sin[:, :half]),
        wide_rows=wide_rows,
    )


def arena_bytes(spec: ModelSpec, weights: LlamaWeights, kind: int) -> int:
    """What the packed matrices need."""
    matrices = [linear.weight for layer in weights.layers for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)]
    # Every part is aligned to a cache line.
    return sum(packed_bytes(*matrix.shape, kind) + 64 for matrix in (*matrices, weights.head))


def _layer(spec: ModelSpec, layer: LoadedLayer, kind: int, arena: Arena) -> Layer:
    gate_up = layer.gate_up
    mixed = Linear(interleave(*gate_up.weight.split(spec.intermediate)), _interleaved_bias(gate_up.bias, spec.intermediate))
    _release(gate_up.weight)
    return Layer(
        qkv=_packed(layer.qkv, kind, arena),
        output=_packed(layer.output, kind, arena),
        gate_up=_packed(mixed, kind, arena),
        down=_packed(layer.down, kind, arena),
        attention_norm=_floats(layer.attention_norm),
        mlp_norm=_floats(layer.mlp_norm),
        query_norm=None,
        key_norm=None,
        window=0,
    )


def _interleaved_bias(bias: Tensor | None, intermediate: int) -> Tensor | None:
    if bias is None:
        return None
    gate, up = bias[:, None].split(intermediate)
    return interleave(gate, up)[:, 0]


def _packed(linear: Linear, kind: int, arena: Arena) -> Packed:
    packed = pack(linear.weight, linear.bias, kind, arena)
    _release(linear.weight)
    return packed


def _release(weight: Tensor) -> None:
    """Give the memory back although others still hold the tensor."""
    weight.untyped_storage().resize_(0)


def _floats(values: Tensor) -> NDArray[np.float32]:
    wide: NDArray[np.float32] = values.float().contiguous().numpy()
    return wide
