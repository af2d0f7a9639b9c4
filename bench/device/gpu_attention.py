"""The trials of paged attention: decode and prefill over pages in random order, beside torch on contiguous keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from types import ModuleType
from typing import Any

import gpu_peers
import numpy as np
import torch
from gpu_device import Call, Machine
from gpu_numbers import Cost, Sets, buffer_sets
from gpu_trial import OURS, Side, Trial, against, spoil
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

_BF16 = 2  # bytes
_SCORES = 1 << 27  # float64 numbers that the reference holds at once
_CHOSEN = "own choice"  # of the kernel, beside another config of it
WIDE = "pagoda-bf16"  # our kernel over the same keys and values in 16 bits
_BACKENDS = {"sdpa-flash": SDPBackend.FLASH_ATTENTION, "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION}


@dataclass(frozen=True, slots=True)
class Shape:
    """`contexts`: tokens of each row. `queries`: how many of the last tokens of each row ask; 1: decode."""

    contexts: tuple[int, ...]
    queries: tuple[int, ...]
    page: int = 64
    window: int | None = None
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    kept: torch.dtype = torch.bfloat16

    @property
    def item(self) -> int:
        """Bytes of a key's number."""
        return self.kept.itemsize

    @property
    def starts(self) -> list[int]:
        return [0, *accumulate(self.queries)]

    @property
    def even(self) -> bool:
        """All rows alike, and nothing is hidden by a window: what SDPA computes without a mask of its own."""
        return len(set(self.contexts)) == 1 and len(set(self.queries)) == 1 and self.window is None

    def cost(self) -> Cost:
        """Keys and values that any query sees, once; queries and results. Scores and sums of the pairs that are seen, as causal. Scales of
        8 bits are not counted: they are the form's price."""
        numbers = sum(min(context, asked - 1 + (self.window or context)) for context, asked in self.rows())
        moved = 2 * numbers * self.kv_heads * self.head_dim * self.item + 2 * sum(self.queries) * self.heads * self.head_dim * _BF16
        return Cost(moved, 4 * self.pairs() * self.heads * self.head_dim)

    def pairs(self) -> int:
        """Of a query and a token that it sees."""
        found = 0
        for context, asked in self.rows():
            seen = range(context - asked + 1, context + 1)
            found += sum(seen) if self.window is None else sum(min(one, self.window) for one in seen)
        return found

    def rows(self) -> list[tuple[int, int]]:
        return list(zip(self.contexts, self.queries, strict=True))

    def tiny(self) -> Shape:
        """For the interpreter: as many kinds of rows, few tokens."""
        uneven = 0 if self.even else 7
        contexts = tuple(min(one, 40 + uneven * index) for index, one in enumerate(self.contexts[:3]))
        queries = tuple(
            context if asked == whole else min(asked, 5)
            for asked, whole, context in zip(self.queries, self.contexts, contexts, strict=False)
        )
        window = None if self.window is None else 20
        return replace(self, contexts=contexts, queries=queries, window=window, heads=4, kv_heads=2, head_dim=32)


class Paged:
    """Several sets of rows in one pool of pages; each set has pages of its own, in random order."""

    def __init__(self, shape: Shape, sets: int, machine: Machine) -> None:
        self.shape, self.machine = shape, machine
        self._counts = [-(-context // shape.page) for context in shape.contexts]
        per_set = sum(self._counts)
        self.wide = self.kv = machine.randn(2, sets * per_set * shape.page, shape.kv_heads, shape.head_dim)
        self.scales: Tensor | None = None
        if shape.item == 1:
            self.kv, self.scales = _quantised(self.wide, shape)
            self.wide = self._exact(self.kv, slice(None)).bfloat16()
        self._blocks = torch.randperm(sets * per_set, device=machine.device).int().view(sets, per_set)
        self._firsts = [0, *accumulate(self._counts)]

    def pages(self, index: int) -> Any:
        from pagoda_kernels.gpu.pages import Pages

        starts, lengths = (self._ints(numbers) for numbers in (self._firsts[:-1], self.shape.contexts))
        # A copy is aligned as every other: a kernel may be compiled anew for a pointer that is not.
        return Pages(self._blocks[index].clone(), starts, lengths, self.shape.page)

    def contiguous(self, index: int) -> Tensor:
        """Keys and values of a set in 16 bits, row after row: [2, tokens, kv_heads, head_dim]."""
        return self.wide[:, self._slots(index)]

    def exact(self, index: int) -> Tensor:
        """The same, as what our kernel reads stands for."""
        return self._exact(self.kv, self._slots(index))

    def _exact(self, kv: Tensor, slots: Tensor | slice) -> Tensor:
        if self.scales is None:
            return kv[:, slots]
        return kv.view(torch.int8)[:, slots].view(kv.dtype).float() * self.scales.transpose(2, 3).flatten(1, 2)[:, slots, :, None]

    def _slots(self, index: int) -> Tensor:
        page = self.shape.page
        offsets = torch.arange(page, device=self.machine.device)
        slots = []
        for row, context in enumerate(self.shape.contexts):
            blocks = self._blocks[index, self._firsts[row] : self._firsts[row + 1]].long()
            slots.append((blocks[:, None] * page + offsets).flatten()[:context])
        return torch.cat(slots)

    def kept(self, *, wide: bool) -> tuple[Tensor, Tensor | None]:
        """What a kernel reads: the pool and its scales."""
        return (self.wide, None) if wide else (self.kv, self.scales)

    def _ints(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self.machine.device)


def _quantised(kv: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    from pagoda_kernels.reference.quantise import quantise

    return quantise(kv, shape.kept, shape.page)


@dataclass(frozen=True, slots=True)
class Buffers:
    """What all sides of one trial share. One output per set."""

    paged: Paged
    query: Tensor
    out: list[Tensor]
    sets: Sets

    @classmethod
    def of(cls, shape: Shape, machine: Machine) -> Buffers:
        sets = buffer_sets(shape.cost().bytes, machine.l2, machine.room)
        query = machine.randn(sum(shape.queries), shape.heads, shape.head_dim)
        return cls(Paged(shape, sets.number, machine), query, [torch.empty_like(query) for _ in range(sets.number)], sets)

    def side(self, call: Callable[[Any, Tensor], Call]) -> Side:
        """`call` makes a call for a set's pages and output."""
        return Side([call(self.paged.pages(index), out) for index, out in enumerate(self.out)])

    def trial(self, ours: Callable[[], Side], baselines: dict[str, Callable[[], Side]], limit: float) -> Trial:
        shape = self.paged.shape
        judge = against(lambda: attention(shape, self.query, self.paged.exact(0)))
        sides = {OURS: ours, **baselines}
        return Trial(shape.cost(), self.sets.resident, sides, partial(spoil, self.out[0]), judge, limit)


def decode(op: ModuleType, shape: Shape, machine: Machine, limit: float, config: Any = None) -> Trial:
    """One query per row. A `config` is measured beside the one that the kernel chooses, and the latter beside others' kernels."""
    shape = shape.tiny() if machine.dry else shape
    buffers, chosen = Buffers.of(shape, machine), op.decode_config(shape.head_dim, shape.item)
    if config is not None:
        return buffers.trial(partial(_decode, op, buffers, config), {_CHOSEN: partial(_decode, op, buffers, chosen)}, limit)
    if shape.item == 1:
        wide = partial(_decode, op, buffers, op.decode_config(shape.head_dim, _BF16), wide=True)
        return buffers.trial(partial(_decode, op, buffers, chosen), {WIDE: wide}, limit)
    return buffers.trial(partial(_decode, op, buffers, chosen), baselines(buffers) | gpu_peers.decode(machine.peers, buffers), limit)


def _decode(op: ModuleType, buffers: Buffers, config: Any, *, wide: bool = False) -> Side:
    shape, device = buffers.paged.shape, buffers.query.device
    work = op.decode_work(np.array(shape.contexts, np.int32), shape.window, config.split)
    scratch = op.DecodeScratch.of(int(work[0]), shape.heads, shape.head_dim, device)
    kv, scales = buffers.paged.kept(wide=wide)
    call = partial(op.paged_attention_decode, window=shape.window, config=config, scales=scales)
    listed = torch.from_numpy(work).to(device)
    return buffers.side(lambda pages, out: partial(call, buffers.query, kv, pages, listed, scratch, out=out))


def prefill(op: ModuleType, shape: Shape, machine: Machine, limit: float, config: Any = None) -> Trial:
    """Several queries per row, the last of its context; `config` as for decode."""
    shape = shape.tiny() if machine.dry else shape
    buffers, arch = Buffers.of(shape, machine), op.arch_of(machine.device)
    whole = op.choose_config(shape.head_dim, torch.bfloat16, arch)
    chosen = op.quantised_config(shape.head_dim, arch) if shape.item == 1 else whole
    if config is not None:
        return buffers.trial(partial(_prefill, op, buffers, config), {_CHOSEN: partial(_prefill, op, buffers, chosen)}, limit)
    if shape.item == 1:
        return buffers.trial(partial(_prefill, op, buffers, chosen), {WIDE: partial(_prefill, op, buffers, whole, wide=True)}, limit)
    return buffers.trial(partial(_prefill, op, buffers, chosen), baselines(buffers), limit)


def _prefill(op: ModuleType, buffers: Buffers, config: Any, *, wide: bool = False) -> Side:
    shape, device = buffers.paged.shape, buffers.query.device
    starts, lengths = np.array(shape.starts, np.int32), np.array(shape.contexts, np.int32)
    tile = config.block_m // (shape.heads // shape.kv_heads)
    work, begun = (torch.from_numpy(one).to(device) for one in (op.prefill_work(starts, tile, lengths), starts))
    kv, scales = buffers.paged.kept(wide=wide)
    call = partial(op.paged_attention_prefill, window=shape.window, config=config, scales=scales)
    return buffers.side(lambda pages, out: partial(call, buffers.query, kv, pages, begun, work, out=out))


def baselines(buffers: Buffers) -> dict[str, Callable[[], Side]]:
    """FlashAttention's and cuDNN's SDPA where all rows are alike, and the former's kernel for rows of any length."""
    shape = buffers.paged.shape
    found: dict[str, Callable[[], Side]] = {"flash-varlen": partial(_varlen, buffers)}
    if shape.even and (shape.contexts == shape.queries or set(shape.queries) == {1}):
        found |= {name: partial(_sdpa, buffers, backend) for name, backend in _BACKENDS.items()}
    return found


def _sdpa(buffers: Buffers, backend: SDPBackend) -> Side:
    """For decode the heads that share keys are queries of one head: SDPA reads the keys once, as ours does. For prefill, which computes
    more than it reads, the keys are repeated: not every backend knows heads that share them."""
    shape = buffers.paged.shape
    rows, asked = len(shape.contexts), shape.queries[0]
    group = 1 if asked == 1 else shape.heads // shape.kv_heads
    if asked == 1:
        query = buffers.query.view(rows, shape.kv_heads, -1, shape.head_dim)
    else:
        query = buffers.query.view(rows, asked, shape.heads, shape.head_dim).transpose(1, 2)

    def call(keys_values: Tensor) -> Tensor:
        key, value = keys_values.transpose(2, 3)
        with sdpa_kernel(SDPBackend.MATH if buffers.paged.machine.dry else backend):
            return scaled_dot_product_attention(query, key, value, is_causal=asked > 1)

    def seen(out: Tensor) -> Tensor:
        return (out if asked == 1 else out.transpose(1, 2)).reshape(buffers.query.shape)

    def repeated(index: int) -> Tensor:
        return buffers.paged.contiguous(index).view(2, rows, -1, shape.kv_heads, shape.head_dim).repeat_interleave(group, dim=3)

    return Side([partial(call, repeated(index)) for index in range(buffers.sets.number)], seen)


def _varlen(buffers: Buffers) -> Side:
    shape = buffers.paged.shape
    device = buffers.query.device
    starts, ends = (
        torch.tensor([0, *accumulate(numbers)], dtype=torch.int32, device=device) for numbers in (shape.queries, shape.contexts)
    )

    window = {} if shape.window is None else {"window_size_left": shape.window - 1, "window_size_right": 0}

    def call(keys_values: Tensor) -> Any:
        longest = max(shape.queries), max(shape.contexts)
        return torch.ops.aten._flash_attention_forward(  # noqa: SLF001 - SDPA has no rows of different lengths
            buffers.query, *keys_values, starts, ends, *longest, 0.0, longest[0] > 1, False, **window
        )

    return Side([partial(call, buffers.paged.contiguous(index)) for index in range(buffers.sets.number)], lambda found: found[0])


def attention(shape: Shape, query: Tensor, keys_values: Tensor) -> Tensor:
    """In float64: `query` [tokens, heads, head_dim], `keys_values` [2, tokens of all contexts, kv_heads, head_dim], row after row."""
    out = torch.empty_like(query, dtype=torch.float64)
    ends = list(accumulate(shape.contexts))
    for row, (context, asked) in enumerate(shape.rows()):
        keys, values = keys_values[:, ends[row] - context : ends[row]].double().transpose(1, 2)
        step = max(1, _SCORES // (shape.heads * context))
        for at in range(0, asked, step):
            here = slice(shape.starts[row] + at, shape.starts[row] + min(at + step, asked))
            positions = torch.arange(here.start, here.stop, device=query.device) - shape.starts[row] + context - asked
            out[here] = _attention(query[here].double(), keys, values, _hidden(positions, context, shape.window))
    return out


def _hidden(positions: Tensor, context: int, window: int | None) -> Tensor:
    """[queries, context]: which tokens a query does not see."""
    tokens = torch.arange(context, device=positions.device)
    behind = positions[:, None] - tokens
    return (behind < 0) if window is None else (behind < 0) | (behind >= window)


def _attention(query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
    """`query` [queries, heads, head_dim], `keys` and `values` [kv_heads, context, head_dim]."""
    asked, heads, head_dim = query.shape
    kv_heads = keys.shape[0]
    packed = query.view(asked, kv_heads, -1, head_dim).permute(1, 2, 0, 3)  # [kv_heads, group, queries, head_dim]
    scores = (packed @ keys[:, None].transpose(-1, -2)).mul_(head_dim**-0.5).masked_fill_(hidden, -torch.inf)
    return (scores.softmax(-1) @ values[:, None]).permute(2, 0, 1, 3).reshape(asked, heads, head_dim)
