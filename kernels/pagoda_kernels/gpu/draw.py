# ruff: noqa: ANN201  (what a device function returns has no type in Python)
"""Device functions that draw one row's token: in a group of 64, or from what passes the filters. Called by the last kernel of `sample`."""

import triton
import triton.language as tl

from pagoda_kernels.gpu.noise import gumbel
from pagoda_kernels.gpu.threshold import candidates, listed_groups, listed_tokens, threshold

WIDTH = 64  # tokens per group
_WIDTH: tl.constexpr = tl.constexpr(WIDTH)
_GROUP_KEY: tl.constexpr = tl.constexpr(2**30)  # groups take their noise beside the tokens' ids
_NEVER: tl.constexpr = tl.constexpr(88.0)  # so far below the best, in units of the temperature, no token has mass in float32, nor is drawn
_LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
_ROUGH: tl.constexpr = tl.constexpr(4)  # passes over the groups: to 0.4 % of the largest logit
_EXACT: tl.constexpr = tl.constexpr(9)
_TILE: tl.constexpr = tl.constexpr(512)  # candidates beside FAN thresholds
_FEW: tl.constexpr = tl.constexpr(1024)  # listed candidates
_WIDE: tl.constexpr = tl.constexpr(4096)  # logits of the row
_FAN: tl.constexpr = tl.constexpr(16)


@triton.jit
def first_of(found, ids):
    """Returns the smallest of `ids` [n] among `found`; 0 if there is none, as in rows of NaN."""
    least = tl.min(tl.where(found, ids, 2**30), axis=0)
    return tl.where(least < 2**30, least, 0)


@triton.jit
def group_of(group, logits, vocab):
    """Returns the ids of a group and its logits, -inf past the vocabulary."""
    ids = group * _WIDTH + tl.arange(0, _WIDTH)
    return ids, tl.load(logits + ids, mask=ids < vocab, other=-float("inf")).to(tl.float32)


@triton.jit
def of_all(logits, vocab, best, heat, first, second, peaks, GROUPS: tl.constexpr):
    """Returns a token of a row without filters: a group by the logarithm of its mass and noise, then a token in it."""
    groups = tl.cdiv(vocab, _WIDTH)
    group = tl.arange(0, GROUPS)
    peak = tl.load(peaks + group, mask=group < groups, other=-float("inf"))
    bulk = tl.load(peaks + groups + group, mask=group < groups, other=1.0)
    # A group of banned tokens has peak -inf and bulk 0, any other a bulk of 1 or more.
    noisy = tl.log(tl.maximum(bulk, 1.0)) + (peak - best) / heat + gumbel(group + _GROUP_KEY, first, second)
    ids, x = group_of(first_of(noisy == tl.max(noisy, axis=0), group), logits, vocab)
    noisy = (x - best) / heat + gumbel(ids, first, second)
    return first_of(noisy == tl.max(noisy, axis=0), ids)


@triton.jit
def _mass_of_all(best, slope, peaks, groups, GROUPS: tl.constexpr):
    """Returns what all tokens of a row weigh, 1 for the best."""
    group = tl.arange(0, GROUPS)
    peak = tl.load(peaks + group, mask=group < groups, other=-float("inf"))
    return tl.sum(tl.load(peaks + groups + group, mask=group < groups, other=0.0) * tl.exp2((peak - best) * slope), axis=0)


@triton.jit
def of_kept(
    logits, vocab, best, heat, top_k, top_p, min_p, first, second, peaks, group_list, token_list, GROUPS: tl.constexpr, ROOM: tl.constexpr
):  # fmt: skip
    """Returns a token from those that pass the filters.

    A lower bound of the threshold comes first, from the groups' best logits and masses: at least k tokens are at least as large as the
    k-th best of these. What it leaves is listed and looked at again and again: some hundred tokens, seldom thousands. Where a top_k or a
    min_p bounds the row, top_p is a share of what they keep, else of all.
    """
    slope = _LOG2_E / heat
    groups = tl.cdiv(vocab, _WIDTH)
    lowest = best - _NEVER * heat
    if min_p > 0:
        lowest = tl.maximum(lowest, best + heat * tl.log(min_p))
    wanted = top_k.to(tl.float32)
    bulks = peaks + groups
    mass = _mass_of_all(best, slope, peaks, groups, GROUPS)
    if top_k > 0:
        lowest = threshold(wanted, lowest, group_list, 0, peaks, bulks, groups, best, slope, _ROUGH, False, _FAN, _TILE)
    elif min_p <= 0:
        lowest = threshold(top_p * mass, lowest, group_list, 0, peaks, bulks, groups, best, slope, _ROUGH, True, _FAN, _TILE)
    found = listed_groups(lowest, peaks, groups, group_list, _FEW)
    tl.debug_barrier()
    count = listed_tokens(lowest, logits, vocab, group_list, found, token_list, ROOM, _WIDTH, _WIDE)
    tl.debug_barrier()
    listed = tl.where(count <= ROOM, count, 0)
    count = tl.where(count <= ROOM, count, vocab)
    if top_k > 0:
        lowest = threshold(wanted, lowest, token_list, listed, logits, bulks, count, best, slope, _EXACT, False, _FAN, _TILE)
    if (top_p < 1) & ((top_k > 0) | (min_p > 0)):
        mass = _mass_above(lowest, True, token_list, listed, logits, count, best, slope, _FEW)
    target = tl.where(top_p < 1, top_p * mass, float("inf"))
    if listed > 0:
        return _accepted(target, lowest, token_list, listed, logits, count, best, heat, first, second, _FEW)
    return _accepted(target, lowest, token_list, 0, logits, count, best, heat, first, second, _WIDE)


@triton.jit
def _accepted(target, lowest, source, listed, logits, count, best, heat, first, second, TILE: tl.constexpr):
    """Returns the best noisy token from `lowest` up that has less mass above it than `target`.

    The best noisy one is tried first. If it does not pass, nothing at or below it does: each try halves what is left, on average.
    """
    token, x = _best_noisy(lowest, -float("inf"), source, listed, logits, count, best, heat, first, second, TILE)
    if target < float("inf"):
        while (x < best) & (_mass_above(x, False, source, listed, logits, count, best, _LOG2_E / heat, TILE) >= target):
            token, x = _best_noisy(lowest, x, source, listed, logits, count, best, heat, first, second, TILE)
    return token


@triton.jit
def _mass_above(value, equal: tl.constexpr, source, listed, logits, count, best, slope, TILE: tl.constexpr):
    """Returns what the candidates above `value`, or `equal` to it, weigh: 1 for the best."""
    mass = 0.0
    for at in range(0, count, TILE):
        _, x = candidates(at, source, listed, logits, count, TILE)
        higher = x >= value if equal else x > value
        mass += tl.sum(tl.where(higher, tl.exp2((x - best) * slope), 0.0), axis=0)
    return mass


@triton.jit
def _best_noisy(lowest, above, source, listed, logits, count, best, heat, first, second, TILE: tl.constexpr):
    """Returns the candidate from `lowest` up and above `above` with the largest sum of logit and noise, and its logit."""
    score = -float("inf")
    token = 0
    for at in range(0, count, TILE):
        ids, x = candidates(at, source, listed, logits, count, TILE)
        noisy = tl.where((x >= lowest) & (x > above), (x - best) / heat + gumbel(ids, first, second), -float("inf"))
        top = tl.max(noisy, axis=0)
        if top > score:
            score = top
            token = first_of(noisy == top, ids)
    return token, tl.load(logits + token).to(tl.float32)
