"""Packer: a decoder's weights in the order of the CPU's native ops, packed while they are read. Called by the runner's loading.

Each matrix is given up as soon as its packed twin exists, so that the peak is one packed model and a few matrices.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from pagoda_kernels.cpu.choice import missing
from pagoda_kernels.cpu.native import Decoder, Layer, Router, unfit
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
    widths = {spec.experts.intermediate if sparse and spec.experts else spec.intermediate for sparse in spec.sparse}
    experts = spec.experts.count if spec.experts else 0
    reasons = (unfit(spec.heads, spec.head_dim, spec.hidden, width, experts) for width in sorted(widths))
    return missing() or next(filter(None, reasons), None)


def packed_weight_bytes(spec: ModelSpec, kind: int) -> int:
    """Bytes of the packed model, without allocating it."""
    with torch.device("meta"):
        weights = allocate(spec, torch.bfloat16)
    table = 0 if spec.tied else spec.vocab_size * spec.hidden * _ITEM
    return _arena_bytes(weights, kind) + table


@dataclass(slots=True)
class _Matrix:
    """A matrix while its parts arrive; `mixed`: gate and up lie in it. `kind` is none of the configuration's where it is given."""

    linear: Linear
    mixed: bool = False
    kind: int | None = None
    parts: int = 0
    packed: Packed | None = None

    def tensors(self) -> list[Tensor]:
        return [self.linear.weight] if self.linear.bias is None else [self.linear.weight, self.linear.bias]


class Packer:
    """Made before loading; `filled` hears of every place that is; `decoder` has the result."""

    def __init__(self, spec: ModelSpec, weights: Weights, kind: int) -> None:
        self._spec = spec
        self._weights = weights
        self._kind = kind
        self._arena = Arena(_arena_bytes(weights, kind))
        matrices = _matrices(weights)
        self._matrices = {matrix.linear.weight.data_ptr(): matrix for matrix in matrices}
        spans = [(tensor.data_ptr(), tensor.nbytes, matrix) for matrix in matrices for tensor in matrix.tensors()]
        spans.sort(key=itemgetter(0))
        self._of = {name: _owner(spans, part.data_ptr()) for name, part in destinations(spec, weights).items()}
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
            layers=[self._layer(layer, spec.windows[index]) for index, layer in enumerate(weights.layers)],
            embedding=None if spec.tied else weights.embedding,
            norm=_floats(weights.norm),
            head=self._packed(weights.head),
            cos=_floats(cos[:, :half]),
            sin=_floats(sin[:, :half]),
            wide_rows=wide_rows,
        )

    def _pack(self, matrix: _Matrix) -> Packed:
        weight, bias = matrix.linear.weight, matrix.linear.bias
        if matrix.mixed:
            weight = interleave(*weight.chunk(2))
            bias = None if bias is None else interleave(*bias[:, None].chunk(2))[:, 0]
        return pack(weight, bias, self._kind if matrix.kind is None else matrix.kind, self._arena)

    def _packed(self, weight: Tensor) -> Packed:
        packed = self._matrices[weight.data_ptr()].packed
        if packed is None:
            raise RuntimeError("a matrix was asked for before all of its parts were read")
        return packed

    def _layer(self, layer: LoadedLayer, window: int | None) -> Layer:
        gate_ups, downs = _experts(layer.mlp)
        return Layer(
            qkv=self._packed(layer.qkv.weight),
            output=self._packed(layer.output.weight),
            gate_up=[self._packed(one.weight) for one in gate_ups],
            down=[self._packed(one.weight) for one in downs],
            attention_norm=_floats(layer.attention_norm),
            mlp_norm=_floats(layer.mlp_norm),
            query_norm=None if layer.query_norm is None else _floats(layer.query_norm),
            key_norm=None if layer.key_norm is None else _floats(layer.key_norm),
            window=window or 0,
            router=self._router(layer.mlp) if isinstance(layer.mlp, SparseMlp) else None,
        )

    def _router(self, mlp: SparseMlp) -> Router:
        return Router(self._packed(mlp.router), mlp.experts.per_token, mlp.experts.normalised)


def _matrices(weights: Weights) -> list[_Matrix]:
    """All of them, packed or to be. A router stays bf16: which experts a token goes to is not left to rounding."""
    found = [_Matrix(Linear(weights.head, None))]
    for layer in weights.layers:
        gate_ups, downs = _experts(layer.mlp)
        found += [_Matrix(layer.qkv), _Matrix(layer.output), *(_Matrix(one, mixed=True) for one in gate_ups), *map(_Matrix, downs)]
        if isinstance(layer.mlp, SparseMlp):
            found.append(_Matrix(Linear(layer.mlp.router, None), kind=BF16))
    return found


def _arena_bytes(weights: Weights, kind: int) -> int:
    found = [(matrix.linear.weight, kind if matrix.kind is None else matrix.kind) for matrix in _matrices(weights)]
    return sum(packed_bytes(weight.shape[0], weight.shape[1], one) for weight, one in found)


def _experts(mlp: Mlp | SparseMlp) -> tuple[list[Linear], list[Linear]]:
    """gate_up and down of each expert; a dense layer has one."""
    if isinstance(mlp, Mlp):
        return [mlp.gate_up], [mlp.down]
    return [Linear(one, None) for one in mlp.gate_up], [Linear(one, None) for one in mlp.down]


def _owner(spans: Sequence[tuple[int, int, _Matrix]], place: int) -> _Matrix | None:
    """Of the memory at `place`; None where no matrix is."""
    start, size, matrix = spans[bisect_right(spans, place, key=itemgetter(0)) - 1]
    return matrix if start <= place < start + size else None


def _floats(values: Tensor) -> NDArray[np.float32]:
    wide: NDArray[np.float32] = values.float().contiguous().numpy()
    return wide
