"""sample, greedy: logits to one token per row, without a sort and without a sync. Two launches: `_scan` reads every logit once, many
programs per row; `_choose` ends each row with one program.

Meaning, order of filters and noise are those of the daemon's sampler: temperature, then min_p and top_k, then top_p; equal logits share
their fate. A plain row draws a group of 64 tokens by the logarithm of its mass plus noise, then a token in it by its noise: exact by the
chain rule. A filtered row draws by the noise of its tokens alone. The groups here are runs of ids, so that a plain row has the daemon's
distribution but not its token of the same seed; a filtered row has its token, unless the daemon draws that row by groups
(its best 2,048 tokens do not settle it).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagoda_kernels.exports import Bands, Export
from pagoda_kernels.gpu.draw import WIDTH, first_of, group_of, of_all, of_kept
from pagoda_kernels.gpu.launch import cached
from pagoda_kernels.gpu.noise import row_keys

CHUNK = 4096  # tokens per program of the scan
ROOM = 8192  # candidates that are listed; rows with more look at all their logits in each pass
SCAN_WARPS, CHOOSE_WARPS = 4, 16
COLDEST = 1e-5  # colder is greedy, as in the daemon
_WIDTH: tl.constexpr = tl.constexpr(WIDTH)
_COLDEST: tl.constexpr = tl.constexpr(COLDEST)
_CHUNK: tl.constexpr = tl.constexpr(CHUNK)
_GROUPS: tl.constexpr = tl.constexpr(CHUNK // WIDTH)
_LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True, slots=True)
class Draws:
    """How each row draws; tensors [rows] on the device. `filtered` False promises that top_k, top_p and min_p are off in every row.

    temperature float32 (0: greedy), top_k int32 (0 or less: off), top_p float32 (1: off), min_p float32 (0: off), seed int64 or uint64,
    position int32 of the token to draw. The daemon's filter by standard deviations is not among them: it needs a pass of its own over the
    logits before.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    position: Tensor
    filtered: bool = True


@dataclass(frozen=True, slots=True)
class SampleScratch:
    """What the two launches hand over: 56 KiB per row of 128k. Holds no state between calls."""

    bests: Tensor
    """float32 [rows, chunks]: the best logit, infinity if any is NaN."""
    places: Tensor
    """int32 [rows, chunks]: the first group that has it."""
    peaks: Tensor
    """float32 [rows, 2, groups]: the best logit of each group, and its mass (1 for its best)."""
    group_list: Tensor
    """int32 [rows, groups]"""
    token_list: Tensor
    """int32 [rows, room]"""

    @classmethod
    def of(cls, rows: int, vocab: int, device: torch.device | str, room: int = ROOM) -> SampleScratch:
        """For up to so many rows; `room`: candidates that are listed."""
        chunks, groups = -(-vocab // CHUNK), -(-vocab // WIDTH)
        return cls(
            torch.empty(rows, chunks, dtype=torch.float32, device=device),
            torch.empty(rows, chunks, dtype=torch.int32, device=device),
            torch.empty(rows, 2, groups, dtype=torch.float32, device=device),
            torch.empty(rows, groups, dtype=torch.int32, device=device),
            torch.empty(rows, room, dtype=torch.int32, device=device),
        )


def greedy(logits: Tensor, *, scratch: SampleScratch | None = None, out: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Returns the first largest of each row int32 [rows] and its value float32 [rows], NaN if any logit of the row is.

    `logits` [rows, vocab] bf16, fp16 or fp32, rows contiguous. The token of a row whose best is not finite means nothing.
    """
    return _run(logits, None, scratch, out)


def sample(logits: Tensor, draws: Draws, *, scratch: SampleScratch, out: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Returns the drawn token of each row int32 [rows] and the row's best logit float32 [rows], NaN if any logit of the row is.

    `logits` as for `greedy`. A row's token depends on its logits and its draw alone. Rows with a best that is not finite: as `greedy`.
    """
    return _run(logits, draws, scratch, out)


def _run(logits: Tensor, draws: Draws | None, scratch: SampleScratch | None, out: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    rows, vocab = logits.shape
    if vocab < 1 or logits.stride(1) != 1:
        raise ValueError(f"logits must have contiguous rows of at least 1 token, got shape {tuple(logits.shape)}, stride {logits.stride()}")
    scratch = scratch or SampleScratch.of(rows, vocab, logits.device)
    tokens, best = out or (
        torch.empty(rows, dtype=torch.int32, device=logits.device),
        torch.empty(rows, dtype=torch.float32, device=logits.device),
    )
    if rows:
        heat = draws or _no_draws(scratch)
        sampled = draws is not None
        shared = (scratch.bests, scratch.places, scratch.peaks, chunks := scratch.bests.shape[1])
        one = (logits, logits.stride(0), vocab, heat.temperature)
        _scan[(chunks, rows)](*one, *shared, SAMPLED=sampled, num_warps=SCAN_WARPS)
        lists = (heat.top_k, heat.top_p, heat.min_p, scratch.group_list, scratch.token_list)
        modes = {"SAMPLED": sampled, "FILTERED": sampled and heat.filtered}
        sizes = {"CHUNKS": triton.next_power_of_2(chunks), "ROOM": scratch.token_list.shape[1]}
        _choose[(rows,)](*one, heat.seed, heat.position, *shared, *lists, tokens, best, **modes, **sizes, num_warps=CHOOSE_WARPS)
    return tokens, best


def _no_draws(scratch: SampleScratch) -> Draws:
    """Pointers for the arguments that a greedy launch never reads."""
    return Draws(scratch.peaks, scratch.places, scratch.peaks, scratch.peaks, scratch.places, scratch.places)


@cached
@triton.jit
def _scan(logits, stride, vocab, temperatures, best_out, place_out, peak_out, chunks, SAMPLED: tl.constexpr):
    """One chunk of one row: its best logit and the group of it; if SAMPLED also the best logit and the mass of each group."""
    chunk, row = tl.program_id(0), tl.program_id(1)
    group = chunk * _GROUPS + tl.arange(0, _GROUPS)
    ids = group[:, None] * _WIDTH + tl.arange(0, _WIDTH)[None, :]
    x = tl.load(logits + row.to(tl.int64) * stride + ids, mask=ids < vocab, other=-float("inf")).to(tl.float32)
    # Infinity stands for NaN, which a maximum may lose; `_choose` tells them apart.
    x = tl.where(x == x, x, float("inf"))
    peaks = tl.max(x, axis=1)
    best = tl.max(peaks, axis=0)
    tl.store(best_out + row * chunks + chunk, best)
    tl.store(place_out + row * chunks + chunk, first_of(peaks == best, group))
    if SAMPLED:  # noqa: SIM102  (a constant)
        if best < float("inf"):
            groups = tl.cdiv(vocab, _WIDTH)
            slope = _LOG2_E / tl.maximum(tl.load(temperatures + row), _COLDEST)
            base = tl.where(peaks > -float("inf"), peaks, 0.0)
            bulks = tl.sum(tl.exp2((x - base[:, None]) * slope), axis=1)
            place = peak_out + row * 2 * groups + group
            tl.store(place, peaks, mask=group < groups)
            tl.store(place + groups, bulks, mask=group < groups)


@cached
@triton.jit
def _choose(
    logits, stride, vocab, temperatures, seeds, positions, best_in, place_in, peaks, chunks,
    top_ks, top_ps, min_ps, group_list, token_list, tokens, bests,
    SAMPLED: tl.constexpr, FILTERED: tl.constexpr, CHUNKS: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """One row: the token from the results of its chunks."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * stride
    chunk = tl.arange(0, CHUNKS)
    best_of = tl.load(best_in + row * chunks + chunk, mask=chunk < chunks, other=-float("inf"))
    place_of = tl.load(place_in + row * chunks + chunk, mask=chunk < chunks, other=0)
    best = tl.max(best_of, axis=0)
    ids, x = group_of(first_of(best_of == best, place_of), logits, vocab)
    token = first_of(x == best, ids)
    if best == float("inf"):
        best += _nan_of(logits, vocab)
    tl.store(bests + row, best)
    if SAMPLED:
        heat = tl.load(temperatures + row)
        if (heat >= _COLDEST) & (tl.abs(best) < float("inf")):
            first, second = row_keys(tl.load(seeds + row), tl.load(positions + row))
            groups = tl.cdiv(vocab, _WIDTH)
            peaks += row * 2 * groups
            if FILTERED:
                top_k, top_p, min_p = tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row)
                if (top_k > 0) | (min_p > 0) | (top_p < 1):
                    token = of_kept(
                        logits, vocab, best, heat, top_k, top_p, min_p, first, second,
                        peaks, group_list + row * groups, token_list + row * ROOM, CHUNKS * _GROUPS, ROOM,
                    )  # fmt: skip
                else:
                    token = of_all(logits, vocab, best, heat, first, second, peaks, CHUNKS * _GROUPS)
            else:
                token = of_all(logits, vocab, best, heat, first, second, peaks, CHUNKS * _GROUPS)
    tl.store(tokens + row, token)


@triton.jit
def _nan_of(logits, vocab):
    """Returns NaN if any logit of the row is, else 0."""
    broken = 0
    for at in range(0, vocab, _CHUNK):
        ids = at + tl.arange(0, _CHUNK)
        x = tl.load(logits + ids, mask=ids < vocab, other=0.0).to(tl.float32)
        broken = tl.maximum(broken, tl.max((x != x).to(tl.int32), axis=0))
    return tl.where(broken > 0, float("nan"), 0.0)


def _export(kernel: Any, mode: str, dtype: str) -> Export:
    """`mode`: greedy, plain or filtered. For a vocabulary of 128k."""
    scan = kernel is _scan
    outs = ("best_out", "place_out", "peak_out") if scan else ("best_in", "place_in", "peaks")
    filters = {"top_ks": "*i32", "top_ps": "*fp32", "min_ps": "*fp32", "group_list": "*i32", "token_list": "*i32"}
    more = {} if scan else {**filters, "tokens": "*i32", "bests": "*fp32"}
    return Export(
        name=f"sample_{'scan' if scan else 'choose'}_{mode}_{dtype}",
        kernel=kernel,
        signature={
            "logits": f"*{dtype}",
            "stride": "i32",
            "vocab": "i32",
            "temperatures": "*fp32",
            **({} if scan else {"seeds": "*i64", "positions": "*i32"}),
            **dict(zip(outs, ("*fp32", "*i32", "*fp32"), strict=True)),
            "chunks": "i32",
            **more,
        },
        constants={"SAMPLED": mode != "greedy"} | ({} if scan else {"FILTERED": mode == "filtered", "CHUNKS": 32, "ROOM": ROOM}),
        options={"num_warps": SCAN_WARPS if scan else CHOOSE_WARPS},
        bands=Bands(registers=80, wide_loads=0.5) if scan else Bands(registers=128),
        aligned=("stride", "vocab"),
    )


EXPORTS = (
    *(_export(_scan, mode, dtype) for mode in ("greedy", "plain") for dtype in ("bf16", "fp32")),
    *(_export(_choose, mode, "bf16") for mode in ("greedy", "plain")),
    # Each takes seconds to compile.
    replace(_export(_choose, "filtered", "bf16"), archs=("sm_80", "sm_90", "gfx942")),
    replace(_export(_choose, "filtered", "fp32"), archs=("sm_90",)),
)
