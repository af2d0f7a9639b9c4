"""Packer: a decoder's weights in the order of the CPU's native ops, packed while they are read. Called by the runner's loading.

Each matrix is given up as soon as its packed twin exists, so that the peak is one packed model and a few matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from pagoda_kernels.cpu.native import Decoder, Layer, missing, unfit
from pagoda_kernels.cpu.pack import BF16, INT8, Arena, Packed, forget, interleave, pack, packed_bytes
from torch import Tensor

from pagoda_daemon.model.config import ModelSpec
from pagoda_daemon.model.rope import rope_table
from pagoda_daemon.model.weights import Layer as LoadedLayer
from pagoda_daemon.model.weights import Linear, Mlp, SparseMlp, Weights, allocate, destinations

KINDS: Final = {None: BF16, "int8": INT8}
"""`engine.quantization` → how matrices are packed. The embedding of an untied model stays bf16: a step reads one row per token of it."""

_ITEM: Final = 2  # bytes of a bf16


def not_native(spec: ModelSpec) -> str | None:
    """Why this machine or model is not for the native ops; None when it is."""
    if any(spec.sparse):
        return "experts are computed by torch"
    return missing() or unfit(spec.heads, spec.head_dim, spec.hidden, spec.intermediate)


def packed_weight_bytes(spec: ModelSpec, kind: int) -> int:
    """Bytes of the packed model, without allocating it."""
    with torch.device("meta"):
        weights = allocate(spec, torch.bfloat16)
    table = 0 if spec.tied else spec.vocab_size * spec.hidden * _ITEM
    return _arena_bytes(weights, kind) + table


@dataclass(slots=True)
class _Matrix:
    """A matrix while its parts arrive."""

    linear: Linear
    mixed: bool
    parts: int = 0
    packed: Packed | None = None


class Packer:
    """Made before loading; `filled` hears of every place that is; `decoder` has the result."""

    def __init__(self, spec: ModelSpec, weights: Weights, kind: int) -> None:
        self._spec = spec
        self._weights = weights
        self._kind = kind
        self._arena = Arena(_arena_bytes(weights, kind))
        self._matrices = {_place(linear.weight): _Matrix(linear, mixed) for linear, mixed in _linears(weights)}
        owners = {_place(matrix.linear.bias): matrix for matrix in self._matrices.values() if matrix.linear.bias is not None}
        places = {name: _place(part) for name, part in destinations(spec, weights).items()}
        self._of = {name: owners.get(place) or self._matrices.get(place) for name, place in places.items()}
        for owner in self._of.values():
            if owner is not None:
                owner.parts += 1

    def filled(self, name: str) -> None:
        """Pack the matrix that `name` completes."""
        matrix = self._of[name]
        if matrix is None:
            return
        matrix.parts -= 1
        if matrix.parts == 0:
            matrix.packed = self._pack(matrix)
            forget(matrix.linear.weight)

    def decoder(self, positions: int, wide_rows: int) -> Decoder:
        """The packed model; rotary tables reach up to `positions`."""
        spec, weights = self._spec, self._weights
        cos, sin = rope_table(spec, positions, torch.float32)
        half = spec.head_dim // 2
        return Decoder(
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            eps=spec.norm_eps,
            layers=[_layer(layer, spec.windows[index], self._packed) for index, layer in enumerate(weights.layers)],
            embedding=None if spec.tied else weights.embedding,
            norm=_floats(weights.norm),
            head=self._packed(Linear(weights.head, None)),
            cos=_floats(cos[:, :half]),
            sin=_floats(sin[:, :half]),
            wide_rows=wide_rows,
        )

    def _pack(self, matrix: _Matrix) -> Packed:
        weight, bias = matrix.linear.weight, matrix.linear.bias
        if matrix.mixed:
            weight = interleave(*weight.chunk(2))
            bias = None if bias is None else interleave(*bias[:, None].chunk(2))[:, 0]
        return pack(weight, bias, self._kind, self._arena)

    def _packed(self, linear: Linear) -> Packed:
        packed = next(matrix.packed for matrix in self._matrices.values() if matrix.linear.weight is linear.weight)
        if packed is None:
            raise RuntimeError("a matrix was asked for before all of its parts were read")
        return packed


def _linears(weights: Weights) -> list[tuple[Linear, bool]]:
    """Every matrix, and whether gate and up lie in it."""
    found = [(Linear(weights.head, None), False)]
    for layer in weights.layers:
        gate_up, down = _dense(layer.mlp)
        found += [(layer.qkv, False), (layer.output, False), (gate_up, True), (down, False)]
    return found


def _arena_bytes(weights: Weights, kind: int) -> int:
    return sum(packed_bytes(linear.weight.shape[0], linear.weight.shape[1], kind) for linear, _ in _linears(weights))


def _layer(layer: LoadedLayer, window: int | None, packed: Callable[[Linear], Packed]) -> Layer:
    gate_up, down = _dense(layer.mlp)
    return Layer(
        qkv=packed(layer.qkv),
        output=packed(layer.output),
        gate_up=packed(gate_up),
        down=packed(down),
        attention_norm=_floats(layer.attention_norm),
        mlp_norm=_floats(layer.mlp_norm),
        query_norm=None if layer.query_norm is None else _floats(layer.query_norm),
        key_norm=None if layer.key_norm is None else _floats(layer.key_norm),
        window=window or 0,
    )


def _dense(mlp: Mlp | SparseMlp) -> tuple[Linear, Linear]:
    if isinstance(mlp, SparseMlp):
        raise TypeError("a layer of experts cannot be packed: `not_native` says so beforehand")
    return mlp.gate_up, mlp.down


def _place(tensor: Tensor) -> int:
    """Where the memory is that a tensor is a part of; a matrix may be resized later, so this is asked before."""
    return tensor.untyped_storage().data_ptr()


def _floats(values: Tensor) -> NDArray[np.float32]:
    wide: NDArray[np.float32] = values.float().contiguous().numpy()
    return wide
