"""sample, greedy: logits to one token per row, without a sort and without a sync. Two launches: `_scan` reads every logit once, many
programs per row; `_choose` ends each row with one program.

Meaning, order of filters and noise are those of the daemon's sampler: temperature, then min_p and top_k, then top_p; equal logits share
their fate. A plain row draws a group of 64 tokens by the logarithm of its mass plus noise, then a token in it by its noise: exact by the
chain rule. A filtered row draws by the noise of its tokens alone. The groups here are runs of ids, so that a plain row has the daemon's
distribution but not its token of the same seed; a filtered row has its token, unless the daemon's draw went by groups (over 2,048 kept).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagoda_kernels.gpu.noise import gumbel, row_keys
from pagoda_kernels.gpu.threshold import candidates, listed_groups, listed_tokens, threshold

WIDTH = 64  # tokens per group
CHUNK = 4096  # tokens per program of the scan
ROOM = 8192  # candidates that are listed; rows with more look at all their logits in each pass
COLDEST = 1e-5  # colder is greedy, as in the daemon
_WIDTH: tl.constexpr = tl.constexpr(WIDTH)
_COLDEST: tl.constexpr = tl.constexpr(COLDEST)
_GROUPS: tl.constexpr = tl.constexpr(CHUNK // WIDTH)
_GROUP_KEY: tl.constexpr = tl.constexpr(2**30)  # groups take their noise beside the tokens' ids
_NEVER: tl.constexpr = tl.constexpr(88.0)  # so far below the best, in units of the temperature, no token has mass in float32, nor is drawn
_LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
_TILE: tl.constexpr = tl.constexpr(1024)
_FAN: tl.constexpr = tl.constexpr(16)


@dataclass(frozen=True, slots=True)
class Draws:
    """How each row draws; tensors [rows] on the device. `filtered` False promises that top_k, top_p and min_p are off in every row.

    temperature float32 (0: greedy), top_k int32 (0 or less: off), top_p float32 (1: off), min_p float32 (0: off), seed int64 or uint64,
    position int32 of the token to draw.
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
    """What the two launches hand over: 48 KiB per row of 128k. Holds no state between calls."""

    chunks: Tensor
    """float32 [rows, 3, chunks]: the best logit (NaN if any is), the best noisy group, the mass."""
    places: Tensor
    """int32 [rows, 2, chunks]: the groups of the best logit and of the best noisy group."""
    peaks: Tensor
    """float32 [rows, groups]: the best logit of each group."""
    group_list: Tensor
    """int32 [rows, groups]"""
    token_list: Tensor
    """int32 [rows, room]"""

    @classmethod
    def of(cls, rows: int, vocab: int, device: torch.device | str, room: int = ROOM) -> SampleScratch:
        """For up to so many rows; `room`: candidates that are listed."""
        chunks, groups = -(-vocab // CHUNK), -(-vocab // WIDTH)
        return cls(
            torch.empty(rows, 3, chunks, dtype=torch.float32, device=device),
            torch.empty(rows, 2, chunks, dtype=torch.int32, device=device),
            torch.empty(rows, groups, dtype=torch.float32, device=device),
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
        chunks = scratch.chunks.shape[2]
        heat = draws or _no_draws(scratch)
        modes = {"SAMPLED": draws is not None, "FILTERED": draws is not None and draws.filtered}
        shared = (scratch.chunks, scratch.places, scratch.peaks, chunks)
        one = (logits, logits.stride(0), vocab, heat.temperature, heat.seed, heat.position)
        _scan[(chunks, rows)](*one, *shared, **modes, num_warps=4)
        lists = (heat.top_k, heat.top_p, heat.min_p, scratch.group_list, scratch.token_list)
        _choose[(rows,)](
            *one,
            *shared,
            *lists,
            tokens,
            best,
            **modes,
            CHUNKS=triton.next_power_of_2(chunks),
            ROOM=scratch.token_list.shape[1],
            num_warps=8,
        )
    return tokens, best


def _no_draws(scratch: SampleScratch) -> Draws:
    """Pointers for arguments that a greedy launch never reads."""
    return Draws(scratch.peaks, scratch.places, scratch.peaks, scratch.peaks, scratch.places, scratch.places)


@triton.jit
def _first(found, ids):
    """Returns the smallest of `ids` [n] among `found`; 0 if there is none, as in rows of NaN."""
    least = tl.min(tl.where(found, ids, 2**30), axis=0)
    return tl.where(least < 2**30, least, 0)


@triton.jit
def _group(group, logits, vocab):
    """Returns the ids of a group and its logits, -inf past the vocabulary."""
    ids = group * _WIDTH + tl.arange(0, _WIDTH)
    return ids, tl.load(logits + ids, mask=ids < vocab, other=-float("inf")).to(tl.float32)


@triton.jit
def _scan(
    logits, stride, vocab, temperatures, seeds, positions, chunk_out, place_out, peak_out, chunks,
    SAMPLED: tl.constexpr, FILTERED: tl.constexpr,
):  # fmt: skip
    """One chunk of one row: its best logit and, where the row draws, its mass and its best noisy group."""
    chunk, row = tl.program_id(0), tl.program_id(1)
    group = chunk * _GROUPS + tl.arange(0, _GROUPS)
    ids = group[:, None] * _WIDTH + tl.arange(0, _WIDTH)[None, :]
    x = tl.load(logits + row.to(tl.int64) * stride + ids, mask=ids < vocab, other=-float("inf")).to(tl.float32)
    broken = tl.max(tl.max((x != x).to(tl.int32), axis=1), axis=0) > 0
    x = tl.where(x == x, x, -float("inf"))
    peaks = tl.max(x, axis=1)
    best = tl.max(peaks, axis=0)
    chunk_out += row * 3 * chunks + chunk
    place_out += row * 2 * chunks + chunk
    tl.store(chunk_out, tl.where(broken, float("nan"), best))
    tl.store(place_out, _first(peaks == best, group))
    if SAMPLED:
        heat = tl.load(temperatures + row)
        if (heat >= _COLDEST) & (tl.abs(best) < float("inf")):
            # Relative to the chunk's best: what is lost below e^-88 of it is drawn by no noise.
            mass = tl.sum(tl.exp2((x - best) * (_LOG2_E / heat)), axis=1)
            first, second = row_keys(tl.load(seeds + row), tl.load(positions + row))
            noisy = tl.log(tl.maximum(mass, 1e-37)) + gumbel(group + _GROUP_KEY, first, second)
            score = tl.max(noisy, axis=0)
            tl.store(chunk_out + chunks, score)
            tl.store(chunk_out + 2 * chunks, tl.sum(mass, axis=0))
            tl.store(place_out + chunks, _first(noisy == score, group))
        else:
            tl.store(chunk_out + chunks, -float("inf"))
            tl.store(chunk_out + 2 * chunks, 0.0)
            tl.store(place_out + chunks, 0)
        if FILTERED:
            groups = tl.cdiv(vocab, _WIDTH)
            tl.store(peak_out + row * groups + group, peaks, mask=group < groups)


@triton.jit
def _choose(
    logits, stride, vocab, temperatures, seeds, positions, chunk_in, place_in, peaks, chunks,
    top_ks, top_ps, min_ps, group_list, token_list, tokens, bests,
    SAMPLED: tl.constexpr, FILTERED: tl.constexpr, CHUNKS: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """One row: the token from the results of its chunks."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * stride
    chunk = tl.arange(0, CHUNKS)
    live = chunk < chunks
    chunk_in += row * 3 * chunks + chunk
    place_in += row * 2 * chunks + chunk
    best_of = tl.load(chunk_in, mask=live, other=-float("inf"))
    broken = tl.max((best_of != best_of).to(tl.int32), axis=0) > 0
    best_of = tl.where(best_of == best_of, best_of, -float("inf"))
    best = tl.max(best_of, axis=0)
    ids, x = _group(_first(best_of == best, tl.load(place_in, mask=live, other=0)), logits, vocab)
    token = _first(x == best, ids)
    tl.store(bests + row, tl.where(broken, float("nan"), best))
    if SAMPLED:
        heat = tl.load(temperatures + row)
        if (heat >= _COLDEST) & (tl.abs(best) < float("inf")) & (not broken):
            first, second = row_keys(tl.load(seeds + row), tl.load(positions + row))
            noisy = tl.load(chunk_in + chunks, mask=live, other=-float("inf")) + (best_of - best) / heat
            group = _first(noisy == tl.max(noisy, axis=0), tl.load(place_in + chunks, mask=live, other=0))
            if FILTERED:
                top_k, top_p, min_p = tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row)
                if (top_k > 0) | (min_p > 0) | (top_p < 1):
                    groups = tl.cdiv(vocab, _WIDTH)
                    masses = tl.load(chunk_in + 2 * chunks, mask=live, other=0.0)
                    mass = tl.sum(masses * tl.exp2((best_of - best) * (_LOG2_E / heat)), axis=0)
                    token = _of_kept(
                        logits, vocab, best, heat, mass, top_k, top_p, min_p, first, second,
                        peaks + row * groups, group_list + row * groups, token_list + row * ROOM, ROOM,
                    )  # fmt: skip
                else:
                    token = _of_group(group, logits, vocab, best, heat, first, second)
            else:
                token = _of_group(group, logits, vocab, best, heat, first, second)
    tl.store(tokens + row, token)


@triton.jit
def _of_group(group, logits, vocab, best, heat, first, second):
    ids, x = _group(group, logits, vocab)
    noisy = (x - best) / heat + gumbel(ids, first, second)
    return _first(noisy == tl.max(noisy, axis=0), ids)


@triton.jit
def _of_kept(logits, vocab, best, heat, mass, top_k, top_p, min_p, first, second, peaks, group_list, token_list, ROOM: tl.constexpr):
    """Returns a token from those that pass the filters.

    A lower bound of the threshold from the groups' best logits comes first: at least k tokens are at least as large as the k-th best of
    these. It leaves few candidates, which are listed and looked at again and again. `mass` is of all tokens, 1 for the best.
    """
    slope = _LOG2_E / heat
    groups = tl.cdiv(vocab, _WIDTH)
    lowest = best - _NEVER * heat
    if min_p > 0:
        lowest = tl.maximum(lowest, best + heat * tl.log(min_p))
    wanted = top_k.to(tl.float32)
    bounded = (top_k > 0) | (min_p > 0)
    if top_k > 0:
        lowest = threshold(wanted, lowest, group_list, peaks, 0, groups, best, slope, False, _FAN, _TILE)
    elif min_p <= 0:
        lowest = threshold(top_p * mass, lowest, group_list, peaks, 0, groups, best, slope, True, _FAN, _TILE)
    found = listed_groups(lowest, peaks, groups, group_list, _TILE)
    tl.debug_barrier()
    count = listed_tokens(lowest, logits, vocab, group_list, found, token_list, ROOM, _WIDTH, 4096)
    tl.debug_barrier()
    listed = tl.where(count <= ROOM, count, 0)
    count = tl.where(count <= ROOM, count, vocab)
    if top_k > 0:
        lowest = threshold(wanted, lowest, token_list, logits, listed, count, best, slope, False, _FAN, _TILE)
    if top_p < 1:
        if bounded:
            mass = _mass(lowest, token_list, logits, listed, count, best, slope)
        lowest = threshold(top_p * mass, lowest, token_list, logits, listed, count, best, slope, True, _FAN, _TILE)
    return _best_noisy(lowest, token_list, logits, listed, count, best, heat, first, second)


@triton.jit
def _mass(lowest, source, logits, listed, count, best, slope):
    mass = 0.0
    for at in range(0, count, _TILE):
        _, x = candidates(at, source, logits, listed, count, _TILE)
        mass += tl.sum(tl.where(x >= lowest, tl.exp2((x - best) * slope), 0.0), axis=0)
    return mass


@triton.jit
def _best_noisy(lowest, source, logits, listed, count, best, heat, first, second):
    score = -float("inf")
    token = 0
    for at in range(0, count, _TILE):
        ids, x = candidates(at, source, logits, listed, count, _TILE)
        noisy = tl.where(x >= lowest, (x - best) / heat + gumbel(ids, first, second), -float("inf"))
        top = tl.max(noisy, axis=0)
        if top > score:
            score = top
            token = _first(noisy == top, ids)
    return token
