"""Matrices in 8 or 4 bits for a GPU's fused ops, made of bf16 ones while they are read. Called by `gpu.load`.

A format is an entry of FORMATS, and a subclass of Linear that the decoder applies like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import torch
from pagoda_kernels.cpu.pack import forget
from pagoda_kernels.gpu.levels import ScaledRows
from pagoda_kernels.gpu.matrices import linear_w4a16 as w4a16
from pagoda_kernels.gpu.matrices.linear_w8a8 import WARMED_BY, linear_w8a8
from pagoda_kernels.gpu.matrices.w4_weights import Weights4, quantised_w4, w4_bytes
from pagoda_kernels.gpu.quantise_rows import quantise_rows
from torch import Tensor

from pagoda_daemon.model.config import ModelSpec
from pagoda_daemon.model.weights import Layer, Linear, Weights, allocate, destinations, linears, weight_bytes, with_linears

_SCALE: Final = 4  # bytes of a float32
_MULTIPLE: Final = 16
_MOST_OUTPUTS: Final = 2**20  # of a matrix of 4 bits


@dataclass(frozen=True, slots=True)
class Linear8(Linear):
    """`weight` holds levels [out, in] in fp8 or int8; an output's stand for `scales` float32 [out] times as much. Rows are quantised when
    they are multiplied, each by itself."""

    scales: Tensor
    dtype: torch.dtype

    def apply(self, rows: Tensor) -> Tensor:
        return self.apply_levels(quantise_rows(rows, self.weight.dtype))

    def apply_levels(self, rows: ScaledRows) -> Tensor:
        """Of rows that are quantised already, to numbers of `dtype`."""
        return linear_w8a8(rows, ScaledRows(self.weight, self.scales), self.bias, dtype=self.dtype)

    def warm(self) -> None:
        for rows in WARMED_BY:
            self.apply(torch.zeros(rows, self.weight.shape[1], dtype=self.dtype, device=self.weight.device))


@dataclass(frozen=True, slots=True)
class Linear4(Linear):
    """The parts of Weights4, of which `weight` is what is packed. Rows stay as they are, in `dtype`."""

    scales: Tensor
    zeros: Tensor | None
    outputs: int
    inputs: int
    dtype: torch.dtype

    @classmethod
    def of(cls, weights: Weights4, bias: Tensor | None, dtype: torch.dtype) -> Linear4:
        return cls(weights.packed, bias, weights.scales, weights.zeros, weights.outputs, weights.inputs, dtype)

    def apply(self, rows: Tensor) -> Tensor:
        packed = Weights4(self.weight, self.scales, self.zeros, self.outputs, self.inputs)
        return w4a16.linear_w4a16(rows, packed, _scratch(rows.device), self.bias)

    def warm(self) -> None:
        for rows in w4a16.WARMED_BY:
            self.apply(torch.zeros(rows, self.inputs, dtype=self.dtype, device=self.weight.device))

    @property
    def compiled_as(self) -> tuple[object, ...]:
        """As of `Linear`: weights with and without zeros have a kernel each."""
        return type(self), self.weight.shape, self.inputs, self.scales.dtype, self.zeros is None, self.bias is None


@cache
def _scratch(place: torch.device) -> w4a16.W4Scratch:
    """One for all matrices of a device, which are multiplied one after the other."""
    return w4a16.W4Scratch.of(_MOST_OUTPUTS, place)


@dataclass(frozen=True, slots=True)
class Format:
    """`make`: of a bf16 matrix on the device, whose memory it must not keep. `size`: bytes of [out, in]. `least`: compute capability."""

    make: Callable[[Linear], Linear]
    size: Callable[[int, int], int]
    least: tuple[int, int]


def _eight_bits(dtype: torch.dtype, least: tuple[int, int]) -> Format:
    def make(linear: Linear) -> Linear:
        rows = quantise_rows(linear.weight, dtype)
        return Linear8(rows.levels, linear.bias, rows.scales, linear.weight.dtype)

    return Format(make, lambda out, size: out * (size + _SCALE), least)


FORMATS: Final[Mapping[str, Format]] = {
    "fp8": _eight_bits(torch.float8_e4m3fn, (8, 9)),
    "int8": _eight_bits(torch.int8, (8, 0)),
    "int4": Format(lambda linear: Linear4.of(quantised_w4(linear.weight), linear.bias, linear.weight.dtype), w4_bytes, (8, 0)),
}
"""`engine.quantization` on a GPU."""


def not_quantised(spec: ModelSpec, quantization: str, capability: tuple[int, int] | None) -> str | None:
    """Why a model's matrices cannot be in this format on a device of a compute capability (None: in the interpreter); None if they can."""
    if quantization not in FORMATS:
        return f"quantization {quantization} is not built for a GPU; available are {', '.join(FORMATS)}"
    if any(spec.sparse):
        return f"quantization {quantization} is not built for experts"
    sizes = (spec.hidden, spec.intermediate, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim)
    if any(size % _MULTIPLE for size in sizes):
        return f"quantization {quantization} needs matrices whose sizes are multiples of {_MULTIPLE}"
    least = FORMATS[quantization].least
    if capability is not None and capability < least:
        needed, found = ("{}.{}".format(*pair) for pair in (least, capability))
        return f"quantization {quantization} needs compute capability {needed}, the device has {found}"
    return None


def quantised_bytes(spec: ModelSpec, dtype: torch.dtype, kind: Format) -> int:
    """As `weight_bytes`: embedding, head, norms and biases stay in `dtype`."""
    with torch.device("meta"):
        layers = allocate(spec, dtype).layers
    shapes = [linear.weight.shape for layer in layers for linear in linears(layer)]
    return weight_bytes(spec, dtype) - sum(out * size * dtype.itemsize - kind.size(out, size) for out, size in shapes)


def quantised(weights: Weights, kind: Format) -> Weights:
    """Of weights that are on the device already."""
    return replace(weights, layers=tuple(with_linears(layer, kind.make) for layer in weights.layers))


class Quantiser:
    """Made before loading; `filled` hears of every one of `places` that is; `weights` has the result.

    Matrices are read into memory of the host, of which a page is taken when it is written. One that is whole goes to the device, is
    quantised there, and gives both memories back: the device holds one bf16 matrix at a time.
    """

    def __init__(self, spec: ModelSpec, dtype: torch.dtype, place: torch.device, kind: Format) -> None:
        self._place = place
        self._kind = kind
        with place:
            around = allocate(replace(spec, sparse=()), dtype)  # embedding, norm and head
        with torch.device("cpu"):
            self._weights = replace(around, layers=allocate(spec, dtype).layers)
        self.places = destinations(spec, self._weights)
        self._linears = {_storage(linear.weight): linear for layer in self._weights.layers for linear in linears(layer)}
        self._of = {name: _storage(part) for name, part in self.places.items()}
        self._missing = Counter(self._of.values())
        self._made: dict[int, Linear] = {}

    def filled(self, name: str) -> None:
        """Quantise the matrix that `name` completes."""
        storage = self._of[name]
        self._missing[storage] -= 1
        if not self._missing[storage] and (linear := self._linears.get(storage)) is not None:
            self._made[id(linear)] = self._kind.make(Linear(linear.weight.to(self._place), None))
            forget(linear.weight)

    def weights(self) -> Weights:
        """All of them, on the device."""
        return replace(self._weights, layers=tuple(self._moved(layer) for layer in self._weights.layers))

    def _moved(self, layer: Layer) -> Layer:
        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(self._place)

        return replace(
            with_linears(layer, lambda linear: replace(self._made[id(linear)], bias=moved(linear.bias))),
            attention_norm=layer.attention_norm.to(self._place),
            query_norm=moved(layer.query_norm),
            key_norm=moved(layer.key_norm),
            mlp_norm=layer.mlp_norm.to(self._place),
        )


def _storage(tensor: Tensor) -> int:
    """Which memory a tensor is a part of."""
    return tensor.untyped_storage().data_ptr()
