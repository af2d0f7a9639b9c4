"""Which experts compute a token, and in what order the tokens lie for them. Called by `moe_grouped`.

Nothing of it is read on the host: arrays have the size that the worst case takes, and what is behind their end is never read. Pairs of a
token and an expert of its own are sorted by expert, and within one by token, so that an expert's rows lie behind each other; a tile is at
most BLOCK_M of them.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from pagoda_kernels.exports import Bands, Export
from pagoda_kernels.gpu.launch import cached
from pagoda_kernels.gpu.rows import check_rows

MOST_EXPERTS = 1024
_TOKENS = 32  # of a program: up to so many, one does all, in one launch
_WARPS = 8  # of these: with 4 of them, or of 64 tokens with 16, registers are spilled
LINE = 4  # numbers of a tile in `Routed.tiles`: its expert, its first row, its rows, and one that is not used


class Routing(NamedTuple):
    """Each token goes to `top_k` experts; `normalised`: their weights sum to 1."""

    top_k: int
    normalised: bool


class Routed(NamedTuple):
    """weights: fp32 [tokens, top_k]. order: int32 [tokens * top_k], of each row the pair `token * top_k + rank` that it is.
    tiles: int32 [1 + most tiles, LINE]; line 0 begins with their number."""

    weights: Tensor
    order: Tensor
    tiles: Tensor


@triton.jit
def _counted(live, token, tokens, LIVE: tl.constexpr):
    """Which of the tokens go to experts at all."""
    real = token < tokens
    if LIVE:
        real = real & (tl.load(live + token, mask=real, other=-1) >= 0)
    return real


@triton.jit
def _chosen(logits, token, tokens, real, EXPERTS: tl.constexpr, TOP_K: tl.constexpr, NORMALISED: tl.constexpr, BLOCK_E: tl.constexpr,
            BLOCK_K: tl.constexpr):  # fmt: skip
    """Of each token, in falling order: its experts and their weights [tokens, BLOCK_K]. Of equal ones the lower number comes first. And
    1 where a token that is real goes to an expert, int32 [tokens, BLOCK_E]."""
    expert = tl.arange(0, BLOCK_E)[None, :]
    rank = tl.arange(0, BLOCK_K)[None, :]
    at = logits + token.to(tl.int64)[:, None] * EXPERTS + expert
    score = tl.load(at, mask=(token < tokens)[:, None] & (expert < EXPERTS), other=0.0).to(tl.float32)
    score = tl.where(expert < EXPERTS, score, float("-inf"))
    share = tl.exp(score - tl.max(score, 1)[:, None])
    share = share / tl.sum(share, 1)[:, None]
    # Bits that are ordered as the numbers are, above the expert: one reduction finds both. A NaN is a number like others there, so that
    # every token has top_k different experts; its weights are NaN.
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    nothing: tl.constexpr = -(2**63)
    key = (bits.to(tl.int64) << 32) | (BLOCK_E - expert).to(tl.int64)
    key = tl.where(expert < EXPERTS, key, nothing)
    experts = tl.zeros([token.shape[0], BLOCK_K], tl.int32)
    weights = tl.zeros([token.shape[0], BLOCK_K], tl.float32)
    total = tl.zeros([token.shape[0]], tl.float32)
    for index in range(TOP_K):  # not unrolled: the compiler takes 10 s for eight times as much of it
        best = tl.max(key, 1)
        found = key == best[:, None]
        weight = tl.sum(tl.where(found, share, 0.0), 1)
        key = tl.where(found, nothing, key)
        experts = tl.where(rank == index, BLOCK_E - (best & 0xFFFFFFFF).to(tl.int32)[:, None], experts)
        weights = tl.where(rank == index, weight[:, None], weights)
        total += weight
    if NORMALISED:
        weights = weights / total[:, None]
    marks = ((key == nothing) & (expert < EXPERTS) & real[:, None]).to(tl.int32)
    return experts, weights, marks


@triton.jit
def _marks(experts, real, TOP_K: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr):
    """As the third of _chosen."""
    expert = tl.arange(0, BLOCK_E)[None, :]
    rank = tl.arange(0, BLOCK_K)[None, :]
    marks = tl.zeros([experts.shape[0], BLOCK_E], tl.int32)
    for index in range(TOP_K):
        mine = tl.sum(tl.where(rank == index, experts, 0), 1)
        marks += (expert == mine[:, None]).to(tl.int32)
    return tl.where(real[:, None], marks, 0)


@triton.jit
def _sort(order, experts, marks, before, token, real, TOP_K: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr):
    """Write the pairs of these tokens to their rows. before [BLOCK_E]: the first row of an expert that is theirs."""
    expert = tl.arange(0, BLOCK_E)[None, :]
    rank = tl.arange(0, BLOCK_K)[None, :]
    rows = tl.cumsum(marks, 0) - marks + before[None, :]
    for index in range(TOP_K):
        mine = tl.sum(tl.where(rank == index, experts, 0), 1)
        row = tl.sum(tl.where(expert == mine[:, None], rows, 0), 1)
        tl.store(order + row, token * TOP_K + index, mask=real)


@triton.jit
def _cut(tiles, counts, BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr, LINE: tl.constexpr):
    """Write the tiles of the experts, which have `counts` [BLOCK_E] rows."""
    expert = tl.arange(0, BLOCK_E)
    first = tl.cumsum(counts, 0) - counts
    number = (counts + BLOCK_M - 1) // BLOCK_M
    place = tl.cumsum(number, 0) - number
    tl.store(tiles, tl.sum(number, 0))
    for index in range(tl.max(number, 0)):
        line = tiles + LINE * (1 + place + index)
        mine = index < number
        tl.store(line, expert, mask=mine)
        tl.store(line + 1, first + index * BLOCK_M, mask=mine)
        tl.store(line + 2, tl.minimum(counts - index * BLOCK_M, BLOCK_M), mask=mine)


@cached
@triton.jit(do_not_specialize=["tokens"])
def _route_kernel(
    logits, live, experts_of, weights_of, counts_of, order, tiles, tokens,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, NORMALISED: tl.constexpr, LIVE: tl.constexpr, ALONE: tl.constexpr, LINE: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Choose the experts of BLOCK_T tokens, and count them. ALONE: there are no other tokens, and they are sorted here."""
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    rank = tl.arange(0, BLOCK_K)[None, :]
    real = _counted(live, token, tokens, LIVE)
    experts, weights, marks = _chosen(logits, token, tokens, real, EXPERTS, TOP_K, NORMALISED, BLOCK_E, BLOCK_K)
    inside = (token < tokens)[:, None] & (rank < TOP_K)
    at = token.to(tl.int64)[:, None] * TOP_K + rank
    tl.store(weights_of + at, weights, mask=inside)
    counts = tl.sum(marks, 0)
    if ALONE:
        _sort(order, experts, marks, tl.cumsum(counts, 0) - counts, token, real, TOP_K, BLOCK_E, BLOCK_K)
        _cut(tiles, counts, BLOCK_E, BLOCK_M, LINE)
    else:
        tl.store(experts_of + at, experts, mask=inside)
        tl.store(counts_of + tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E), counts)


@cached
@triton.jit(do_not_specialize=["tokens", "blocks"])
def _sort_kernel(
    live, experts_of, counts_of, order, tiles, tokens, blocks,
    TOP_K: tl.constexpr, LIVE: tl.constexpr, LINE: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Sort the tokens of one program of _route_kernel: each adds up what all of them have counted, which is quicker than a launch more."""
    me = tl.program_id(0)
    token = me * BLOCK_T + tl.arange(0, BLOCK_T)
    rank = tl.arange(0, BLOCK_K)[None, :]
    expert = tl.arange(0, BLOCK_E)[None, :]
    counts = tl.zeros([BLOCK_E], tl.int32)
    before = tl.zeros([BLOCK_E], tl.int32)
    for start in range(0, blocks, BLOCK_T):
        block = (start + tl.arange(0, BLOCK_T))[:, None]
        some = tl.load(counts_of + block * BLOCK_E + expert, mask=block < blocks, other=0)
        counts += tl.sum(some, 0)
        before += tl.sum(tl.where(block < me, some, 0), 0)
    at = token.to(tl.int64)[:, None] * TOP_K + rank
    experts = tl.load(experts_of + at, mask=(token < tokens)[:, None] & (rank < TOP_K), other=0)
    real = _counted(live, token, tokens, LIVE)
    marks = _marks(experts, real, TOP_K, BLOCK_E, BLOCK_K)
    _sort(order, experts, marks, before + tl.cumsum(counts, 0) - counts, token, real, TOP_K, BLOCK_E, BLOCK_K)
    if me == 0:
        _cut(tiles, counts, BLOCK_E, BLOCK_M, LINE)


def most_tiles(rows: int, experts: int, block_m: int) -> int:
    """Return how many tiles `rows` rows make at most, however they are spread over the experts."""
    return (rows + (block_m - 1) * min(rows, experts)) // block_m


def moe_route(logits: Tensor, routing: Routing, block_m: int, live: Tensor | None = None) -> Routed:
    """Return where the tokens of `logits` [tokens, experts] go, in tiles of `block_m` rows: the softmax in fp32, and its largest ones.

    fp32, bf16 or fp16, contiguous, at least one token. live: int64 [tokens]; a token of less than 0 goes nowhere, and has no rows.
    ValueError for what the kernels do not take.
    """
    tokens, experts = logits.shape
    _check(logits, routing, live)
    rows = tokens * routing.top_k
    numbers = partial(torch.empty, dtype=torch.int32, device=logits.device)
    order, tiles = numbers(rows), numbers(1 + most_tiles(rows, experts, block_m), LINE)
    weights = torch.empty(tokens, routing.top_k, dtype=torch.float32, device=logits.device)
    sizes = {"BLOCK_E": triton.next_power_of_2(experts), "BLOCK_K": triton.next_power_of_2(routing.top_k), "BLOCK_M": block_m}
    chosen = {"EXPERTS": experts, "TOP_K": routing.top_k, "NORMALISED": routing.normalised, "LINE": LINE, "LIVE": live is not None}
    if tokens <= _TOKENS:
        block, warps = _alone(tokens)
        _route_kernel[(1,)](
            logits, live, order, weights, order, order, tiles, tokens, **chosen, **sizes, ALONE=True, BLOCK_T=block, num_warps=warps
        )
        return Routed(weights, order, tiles)
    blocks = triton.cdiv(tokens, _TOKENS)
    experts_of, counts = numbers(rows), numbers(blocks, sizes["BLOCK_E"])
    _route_kernel[(blocks,)](
        logits, live, experts_of, weights, counts, order, tiles, tokens, **chosen, **sizes, ALONE=False, BLOCK_T=_TOKENS, num_warps=_WARPS
    )
    _sort_kernel[(blocks,)](
        live,
        experts_of,
        counts,
        order,
        tiles,
        tokens,
        blocks,
        TOP_K=routing.top_k,
        LIVE=live is not None,
        LINE=LINE,
        **sizes,
        BLOCK_T=_TOKENS,
        num_warps=_WARPS,
    )
    return Routed(weights, order, tiles)


def _alone(tokens: int) -> tuple[int, int]:
    """Tokens and warps of the one program: few numbers of them, since each is compiled on its own."""
    return (1, 1) if tokens == 1 else (16, 4) if tokens <= 16 else (_TOKENS, _WARPS)


def _check(logits: Tensor, routing: Routing, live: Tensor | None) -> None:
    tokens, experts = logits.shape
    if live is not None:
        check_rows((live,), (tokens,), torch.int64)
    if not 1 <= routing.top_k <= experts <= MOST_EXPERTS:
        raise ValueError(f"a token must go to 1 to {experts} of at most {MOST_EXPERTS} experts, got {routing.top_k} of {experts}")
    if not tokens or not logits.is_contiguous() or not logits.dtype.is_floating_point:
        raise ValueError(f"logits must be contiguous, floating, and of at least one token, got {logits.dtype} {list(logits.shape)}")


def _route_export(tokens: int, warps: int, *, alone: bool) -> Export:
    lists = dict.fromkeys(("experts_of", "counts_of", "order", "tiles"), "*i32")
    return Export(
        name=f"moe_route_{tokens}{'_alone' if alone else ''}",
        kernel=_route_kernel,
        signature={"logits": "*bf16", "live": "*i64", "weights_of": "*fp32", "tokens": "i32"} | lists,
        constants={"EXPERTS": 128, "TOP_K": 8, "NORMALISED": True, "LIVE": True, "ALONE": alone, "LINE": LINE}
        | {"BLOCK_T": tokens, "BLOCK_E": 128, "BLOCK_K": 8, "BLOCK_M": 16},
        options={"num_warps": warps},
        bands=Bands(registers=255),
    )


EXPORTS = (
    *(_route_export(*_alone(tokens), alone=True) for tokens in (1, 16, _TOKENS)),
    _route_export(_TOKENS, _WARPS, alone=False),
    Export(
        name="moe_sort",
        kernel=_sort_kernel,
        signature=dict.fromkeys(("experts_of", "counts_of", "order", "tiles"), "*i32") | {"live": "*i64", "tokens": "i32", "blocks": "i32"},
        constants={"TOP_K": 8, "LIVE": True, "LINE": LINE, "BLOCK_T": _TOKENS, "BLOCK_E": 128, "BLOCK_K": 8, "BLOCK_M": 128},
        options={"num_warps": _WARPS},
        bands=Bands(registers=255),
    ),
)
