"""NativeDecoder: one step of a decoder in C++. Built and called by the daemon's CPU runner; the structs mirror src/decoder.h.

Its judge is the torch decoder of the daemon, which computes the same and which runs wherever this one cannot (`missing` says why).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagoda_kernels.cpu import abi
from pagoda_kernels.cpu.choice import library
from pagoda_kernels.cpu.low_rank import MODULES, PackedAdapter
from pagoda_kernels.cpu.pack import GROUP, PANEL, Packed

BLOCK = 16
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

STAGES = ("embed", "norm", "qkv", "place", "attend", "output", "gate_up", "down", "head", "quantise", "shrink", "route", "mix")
"""Where a step's time goes; `place` is the rotary embedding and the writing of keys and values, `shrink` the first half of adapters,
`route` the choice of experts, `mix` what brings rows to experts and back."""

_MAX_HEAD_DIM = 256
_MAX_EXPERTS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Router:
    """Which of a layer's experts a token goes to: `per_token` of them; `normalised`: their shares sum to 1. `matrix` is bf16."""

    matrix: Packed
    per_token: int
    normalised: bool


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One decoder layer; norms fp32, `gate_up` interleaved (`pack.interleave`), `window` 0 for none. Without a router: one expert."""

    qkv: Packed
    output: Packed
    gate_up: Sequence[Packed]
    down: Sequence[Packed]
    attention_norm: Floats
    mlp_norm: Floats
    query_norm: Floats | None
    key_norm: Floats | None
    window: int
    router: Router | None = None

    @property
    def read(self) -> list[Packed]:
        """As many matrices as a token meets."""
        met = self.router.per_token if self.router else 1
        return [self.qkv, self.output, *self.gate_up[:met], *self.down[:met]]


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """All of a model. `embedding` [vocab, hidden] bf16, None where it is tied to `head`; `cos`, `sin` fp32 [positions, head_dim / 2].

    `wide_rows`: int8 weights meet bf16 activations up to this many rows of a step, 8-bit ones above; 0 makes a row's result the same
    in every batch."""

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    layers: Sequence[Layer]
    embedding: Tensor | None
    norm: Floats
    head: Packed
    cos: Floats
    sin: Floats
    wide_rows: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A step's tokens: int32 arrays, C-contiguous. `rows[i]` is the line of `tables` that token i uses; the tokens of a row stand
    together and in order. `wanted`: ascending indexes of the tokens whose logits are wanted; `places[i]` is the line of the answer for
    `wanted[i]`, i itself where absent. `adapters[i]` is the slot of the adapter that line i of `tables` goes with, 0 for none."""

    ids: Ints
    positions: Ints
    rows: Ints
    tables: Ints
    wanted: Ints
    places: Ints | None = None
    adapters: Ints | None = None

    def sizes(self) -> tuple[int, ...]:
        """What has no further bound in C++: one entry per token, then one per wanted token."""
        return (
            self.ids.size,
            self.positions.size,
            self.rows.size,
            self.wanted.size,
            self.wanted.size if self.places is None else self.places.size,
        )


def unfit(heads: int, head_dim: int, hidden: int, intermediate: int, experts: int = 0) -> str | None:
    """Why a decoder of these sizes cannot be packed; None when it can."""
    if experts > _MAX_EXPERTS:
        return f"a layer of {experts} experts has more than {_MAX_EXPERTS}"
    if head_dim % 16 or not 16 <= head_dim <= _MAX_HEAD_DIM:
        return f"a head of {head_dim} dimensions is none of 16, 32, … {_MAX_HEAD_DIM}"
    if hidden % GROUP or intermediate % GROUP or heads * head_dim % GROUP:
        return f"hidden {hidden}, intermediate {intermediate} and {heads} heads of {head_dim} are not all multiples of {GROUP}"
    return None


class _Places:
    """Arrays that never move, and the struct that points to them: finding an address takes a microsecond, and a step has ten."""

    def __init__(self, rows: int, width: int, blocks: int = 1) -> None:
        self._ids, self._positions = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
        self._tables, self._slots = np.zeros(blocks, np.int32), np.zeros(rows, np.int32)
        self._order = np.arange(rows, dtype=np.int32)
        self._logits = np.zeros((rows, width), np.float32)
        self.likeliest, self.best = np.zeros(rows, np.int32), np.zeros(rows, np.float32)
        inputs = _addresses(self._ids, self._positions, self._order, self._tables)
        outputs = _addresses(self._order, self._order, self._logits, self.likeliest, self.best)
        self._step = abi.Step(0, *inputs, 0, 0, None, 0, *outputs)
        self._adapters = _address(self._slots)
        self._pointer = ctypes.byref(self._step)

    def hold(self, tables: Ints) -> bool:
        """Whether there is room."""
        return len(tables) <= self._ids.size and tables.size <= self._tables.size

    def fill(self, ids: Ints, positions: Ints, tables: Ints, adapters: Ints | None) -> ctypes._CArgObject:
        """One token for each row; what to hand to the library."""
        step, (rows, width) = self._step, tables.shape
        self._ids[:rows], self._positions[:rows] = ids, positions
        self._tables[: tables.size] = tables.ravel()
        step.tokens = step.table_rows = step.wanted_count = rows
        step.table_width = width
        step.adapters = None if adapters is None else self._adapters
        if adapters is not None:
            self._slots[:rows] = adapters
        return self._pointer


class NativeDecoder:
    """Holds weights and pages; not thread-safe. `pages` [layers, 2, blocks, kv_heads, 16 * head_dim] is zeros at first."""

    def __init__(self, decoder: Decoder, blocks: int, threads: int) -> None:
        self._library = library()
        self._kept = decoder
        self._adapters: dict[int, PackedAdapter] = {}
        self.vocab, self.hidden = decoder.head.outputs, decoder.norm.size
        self._width = -(-self.vocab // PANEL) * PANEL
        size = (len(decoder.layers), 2, blocks, decoder.kv_heads, BLOCK * decoder.head_dim)
        self.pages = torch.zeros(size, dtype=torch.bfloat16)
        if threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        self._layers = layers = (abi.Layer * len(decoder.layers))(*map(_layer, decoder.layers))  # keeps the lists of experts
        self._places = _Places(1, self._width)
        self._handle: int | None = self._library.pagoda_decoder_new(ctypes.byref(_shape(decoder, self.pages, threads)), layers)
        if self._handle is None:
            raise MemoryError(f"no memory for a decoder's scratch, or no further thread: {threads} were wanted")

    def close(self) -> None:
        """Ends the threads; the decoder is unusable afterwards. Called twice, it does nothing."""
        if self._handle is not None:
            self._library.pagoda_decoder_free(self._handle)
            self._handle = None

    def step(self, batch: Batch, states: Floats | None = None) -> Floats:
        """Write the keys and values of `batch`; the logits of the wanted tokens, [n, vocab]. Releases the interpreter's lock meanwhile.
        `states` [n, hidden], where given, is filled with what the head reads of each wanted token: the last layer's output after the norm.
        ValueError, and nothing written, where a number points outside of weights, tables or pages."""
        tokens, positions, rows, wanted, filled = batch.sizes()
        if not tokens == positions == rows or wanted != filled:
            raise ValueError(
                f"token ids, positions and rows must be equal in number, got {tokens}, {positions}, {rows}; "
                f"wanted tokens and places too, got {wanted}, {filled}"
            )
        places = np.arange(wanted, dtype=np.int32) if batch.places is None else batch.places
        logits = np.empty((wanted, self._width), np.float32)
        inputs = _addresses(batch.ids, batch.positions, batch.rows, batch.tables)
        if states is not None and (states.shape != (wanted, self.hidden) or states.dtype != np.float32 or not states.flags.c_contiguous):
            raise ValueError(f"states must be {(wanted, self.hidden)}, contiguous fp32, got {states.shape} {states.dtype}")
        outputs = _addresses(batch.wanted, places, logits, None, None, states)
        step = abi.Step(tokens, *inputs, *batch.tables.shape, _address(batch.adapters), wanted, *outputs)
        _raise(self._library.pagoda_decoder_step(self._open(), ctypes.byref(step)))
        return logits[:, : self.vocab]

    def likeliest(self, ids: Ints, positions: Ints, tables: Ints, adapters: Ints | None = None) -> tuple[Ints, Floats]:
        """`step` for one token of each row, token i using line i of `tables` and of `adapters`: the first largest logit of each and its
        value, NaN where any logit is. Takes 20 us of Python where `step` and an argmax take 80: a step of a small model is 800."""
        if not ids.size == positions.size == len(tables):
            raise ValueError(f"token ids, positions and tables must be equal in number, got {ids.size}, {positions.size}, {len(tables)}")
        if not self._places.hold(tables):
            self._places = _Places(2 * ids.size, self._width, 2 * tables.size)
        places = self._places
        _raise(self._library.pagoda_decoder_step(self._open(), places.fill(ids, positions, tables, adapters)))
        return places.likeliest[: ids.size].copy(), places.best[: ids.size].copy()

    def hold(self, slot: int, adapter: PackedAdapter | None) -> None:
        """Rows with `slot` have this adapter from the next step on; None: the slot is free again."""
        modules, wanted = None if adapter is None else adapter.modules, len(self._kept.layers) * len(MODULES)
        if modules is not None and len(modules) != wanted:
            raise ValueError(f"an adapter of this decoder must have {wanted} modules, got {len(modules)}")
        _raise(self._library.pagoda_decoder_hold(self._open(), slot, modules))
        if adapter is None:
            self._adapters.pop(slot, None)
        else:
            self._adapters[slot] = adapter

    def spent(self) -> dict[str, int]:
        """Per stage, time-stamp counts since the start; their shares are what matters."""
        counts = ctypes.cast(self._library.pagoda_decoder_spent(self._open()), ctypes.POINTER(ctypes.c_uint64))
        return dict(zip(STAGES, counts[: len(STAGES)], strict=True))

    @property
    def read_bytes(self) -> int:
        """Bytes of the matrices that a step of one token reads, once."""
        return self._kept.head.nbytes + sum(linear.nbytes for layer in self._kept.layers for linear in layer.read)

    def copy_blocks(self, pairs: Ints) -> None:
        """Copy whole blocks, `pairs` [n, 2] source → destination, in all layers."""
        _raise(self._library.pagoda_decoder_copy(self._open(), _address(pairs), len(pairs)))

    def _open(self) -> int:
        if self._handle is None:
            raise ValueError("the decoder is closed")
        return self._handle


def read_bytes(memory: NDArray[np.uint8], threads: int) -> int:
    """Read `memory` once, as fast as it can be read; a checksum. For benchmarks."""
    checksum: int = library().pagoda_read(memory.ctypes.data, memory.size, threads)
    return checksum


def _raise(why: bytes | None) -> None:
    if why is not None:
        raise ValueError(why.decode())


def _address(array: NDArray[Any] | None) -> int | None:
    return None if array is None else array.ctypes.data


def _addresses(*arrays: NDArray[Any] | None) -> list[int | None]:
    return [_address(array) for array in arrays]


def _linear(packed: Packed) -> abi.Linear:
    scale = None if packed.scale is None else packed.scale.data_ptr()
    return abi.Linear(packed.weight.data_ptr(), scale, _address(packed.bias), packed.outputs, packed.inputs, packed.kind)


def _layer(layer: Layer) -> abi.Layer:
    router, norms = layer.router, _addresses(layer.attention_norm, layer.mlp_norm, layer.query_norm, layer.key_norm)
    matrices = (_linear(layer.qkv), _linear(layer.output), _linears(layer.gate_up), _linears(layer.down))
    if router is None:
        return abi.Layer(*matrices, abi.Linear(), *norms, layer.window, 0, 0, 0)
    return abi.Layer(*matrices, _linear(router.matrix), *norms, layer.window, len(layer.down), router.per_token, router.normalised)


def _linears(packed: Sequence[Packed]) -> ctypes.Array[abi.Linear]:
    return (abi.Linear * len(packed))(*map(_linear, packed))


def _shape(decoder: Decoder, pages: Tensor, threads: int) -> abi.Shape:
    intermediate = max((layer.down[0].inputs for layer in decoder.layers if layer.router is None), default=0)
    sizes = (decoder.norm.size, decoder.heads, decoder.kv_heads, decoder.head_dim, intermediate, decoder.head.outputs)
    embedding = None if decoder.embedding is None else decoder.embedding.data_ptr()
    arrays = _addresses(decoder.norm, decoder.cos, decoder.sin)
    scale = decoder.head_dim**-0.5
    counts = (len(decoder.layers), pages.shape[2], threads, decoder.cos.shape[0], decoder.wide_rows)
    return abi.Shape(*sizes, *counts, decoder.eps, scale, embedding, *arrays, pages.data_ptr(), _linear(decoder.head))
