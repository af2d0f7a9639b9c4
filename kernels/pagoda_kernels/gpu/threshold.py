# ruff: noqa: ANN201  (what a device function returns has no type in Python)
"""Device functions that find the filters' threshold in one row of logits without a sort: one program per row.

Called by the kernels of `sample`. A threshold is the smallest float v for which the tokens above v weigh less than a target: fewer than k
tokens, or less than p of the mass. So it is the value of a token, and equal tokens share their fate.
"""

import triton
import triton.language as tl


@triton.jit
def _key(value):
    """Returns an int64 in the order of the float32 `value`."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.int64)


@triton.jit
def _value(key):
    bits = key.to(tl.int32)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def candidates(at, source, listed, logits, count, TILE: tl.constexpr):
    """Returns ids int32 [TILE] and logits float32 [TILE] (-inf past the end) of the candidates from number `at`.

    `source` holds `listed` ids, or `listed` is 0 and all of 0..`count` are candidates.
    """
    number = at + tl.arange(0, TILE)
    live = number < count
    ids = tl.where(listed > 0, tl.load(source + number, mask=number < listed, other=0), number)
    return ids, tl.load(logits + ids, mask=live, other=-float("inf")).to(tl.float32)


@triton.jit
def weight_above(thresholds, source, listed, logits, bulks, count, best, slope, MASS: tl.constexpr, FAN: tl.constexpr, TILE: tl.constexpr):
    """Returns float32 [FAN]: how many candidates are above each threshold.

    If MASS, the candidates are groups by their largest logit, and it is the least that their tokens above the threshold can weigh, each
    exp2((logit - best) * slope). `bulks`: what a group weighs, 1 for its largest. The other 63 are not above it or weigh what is left.
    """
    above = tl.zeros([FAN], tl.float32)
    for at in range(0, count, TILE):
        ids, x = candidates(at, source, listed, logits, count, TILE)
        weight = tl.full([TILE, FAN], 1.0, tl.float32)
        if MASS:
            peak = tl.exp2((x - best) * slope)
            bulk = tl.load(bulks + ids, mask=ids < count, other=0.0) * peak
            weight = tl.maximum(peak[:, None], bulk[:, None] - 63 * tl.exp2((thresholds - best) * slope)[None, :])
        above += tl.sum(tl.where(x[:, None] > thresholds[None, :], weight, 0.0), axis=0)
    return above


@triton.jit
def threshold(
    target, low, source, listed, logits, bulks, count, best, slope,
    PASSES: tl.constexpr, MASS: tl.constexpr, FAN: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Returns the smallest float32 in [`low`, `best`] above which the candidates weigh less than `target`, which is above 0.

    FAN thresholds are tried in each pass over the candidates: 9 passes with 16 at most. After fewer it is a lower bound.
    """
    start, end = _key(low), _key(best)
    passes = 0
    while (start < end) & (passes < PASSES):
        width = end - start
        keys = start + width * tl.arange(0, FAN).to(tl.int64) // FAN
        above = weight_above(_value(keys), source, listed, logits, bulks, count, best, slope, MASS, FAN, TILE)
        failed = tl.sum((above >= target).to(tl.int64), axis=0)
        end = tl.where(failed < FAN, start + width * failed // FAN, end)
        start = tl.where(failed > 0, start + width * (failed - 1) // FAN + 1, start)
        passes += 1
    return _value(start)


@triton.jit
def listed_groups(lowest, peaks, groups, out, TILE: tl.constexpr):
    """Writes the numbers of the groups whose largest logit is at least `lowest` to `out`, ascending; returns how many."""
    count = 0
    for at in range(0, groups, TILE):
        group = at + tl.arange(0, TILE)
        kept = (tl.load(peaks + group, mask=group < groups, other=-float("inf")) >= lowest).to(tl.int32)
        tl.store(out + count + tl.cumsum(kept, axis=0) - 1, group, mask=kept > 0)
        count += tl.sum(kept, axis=0)
    return count


@triton.jit
def listed_tokens(lowest, logits, vocab, group_list, groups, out, ROOM: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Writes the ids in the listed groups whose logit is at least `lowest` to `out`, ascending, up to ROOM; returns how many there are.

    It stops counting past ROOM.
    """
    count = 0
    at = 0
    while (at < groups * WIDTH) & (count <= ROOM):
        number = at + tl.arange(0, TILE)
        live = number < groups * WIDTH
        ids = tl.load(group_list + number // WIDTH, mask=live, other=0) * WIDTH + number % WIDTH
        x = tl.load(logits + ids, mask=live & (ids < vocab), other=-float("inf")).to(tl.float32)
        kept = (x >= lowest).to(tl.int32)
        place = count + tl.cumsum(kept, axis=0) - 1
        tl.store(out + place, ids, mask=(kept > 0) & (place < ROOM))
        count += tl.sum(kept, axis=0)
        at += TILE
    return count
