"""pack_decoder: a loaded decoder's weights in the order of the CPU's native ops. Called by `runner.native_worker`.

Each matrix is given up as soon as its packed twin exists, so that the peak is one model and one matrix.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from pagoda_kernels.cpu.native import Decoder, Layer, missing, unfit
from pagoda_kernels.cpu.pack import BF16, INT8, Arena, Packed, interleave, pack, packed_bytes
from torch import Tensor

from pagoda_daemon.model.config import ModelSpec
from pagoda_daemon.model.rope import rope_table
from pagoda_daemon.model.weights import Layer as LoadedLayer
from pagoda_daemon.model.weights import Linear, Mlp, SparseMlp, Weights

KINDS = {None: BF16, "int8": INT8}
"""`engine.quantization` → how matrices are packed. The embedding of an untied model stays bf16: a step reads one row per token of it."""


def not_native(spec: ModelSpec) -> str | None:
    """Why this machine or model is not for the native ops; None when it is."""
    if any(spec.sparse):
        return "experts are computed by torch"
    return missing() or unfit(spec.head_dim, spec.hidden, spec.intermediate)


def pack_decoder(spec: ModelSpec, weights: Weights, kind: int, positions: int, wide_rows: int = 0) -> Decoder:
    """Empties `weights`. Rotary tables reach up to `positions`."""
    arena = Arena(arena_bytes(weights, kind))
    layers = tuple(_layer(spec, index, layer, _Packer(kind, arena)) for index, layer in enumerate(weights.layers))
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


def arena_bytes(weights: Weights, kind: int) -> int:
    """What the packed matrices need."""
    matrices = [linear.weight for layer in weights.layers for linear in (layer.qkv, layer.output, *_dense(layer.mlp))]
    return sum(packed_bytes(matrix.shape[0], matrix.shape[1], kind) for matrix in (*matrices, weights.head))


class _Packer:
    """Packs matrix after matrix into one arena and gives up the original."""

    def __init__(self, kind: int, arena: Arena) -> None:
        self._kind = kind
        self._arena = arena

    def __call__(self, linear: Linear) -> Packed:
        packed = pack(linear.weight, linear.bias, self._kind, self._arena)
        _release(linear.weight)
        return packed

    def interleaved(self, linear: Linear) -> Packed:
        """gate and up, which lie one behind the other."""
        gate, up = linear.weight.chunk(2)
        bias = None if linear.bias is None else interleave(*linear.bias[:, None].chunk(2))[:, 0]
        mixed = Linear(interleave(gate, up), bias)
        _release(linear.weight)
        return self(mixed)


def _layer(spec: ModelSpec, index: int, layer: LoadedLayer, packer: _Packer) -> Layer:
    gate_up, down = _dense(layer.mlp)
    return Layer(
        qkv=packer(layer.qkv),
        output=packer(layer.output),
        gate_up=packer.interleaved(gate_up),
        down=packer(down),
        attention_norm=_floats(layer.attention_norm),
        mlp_norm=_floats(layer.mlp_norm),
        query_norm=None if layer.query_norm is None else _floats(layer.query_norm),
        key_norm=None if layer.key_norm is None else _floats(layer.key_norm),
        window=spec.windows[index] or 0,
    )


def _dense(mlp: Mlp | SparseMlp) -> tuple[Linear, Linear]:
    if isinstance(mlp, SparseMlp):
        raise TypeError("a layer of experts cannot be packed: `not_native` says so beforehand")
    return mlp.gate_up, mlp.down


def _release(weight: Tensor) -> None:
    """Give the memory back although others still hold the tensor."""
    weight.untyped_storage().resize_(0)


def _floats(values: Tensor) -> NDArray[np.float32]:
    wide: NDArray[np.float32] = values.float().contiguous().numpy()
    return wide
