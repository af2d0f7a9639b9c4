"""draw: a random token per row of finite logits: top_n_sigma, then temperature, min_p, top_k, top_p (vLLM's order), then by Gumbel noise.

Called by `sampler`. argmax(logits + noise) draws from the softmax, and a rounding error of 1e-6 in a logit changes the choice with a
probability of about 1e-6 (an inverse cumulative sum adds such errors up over the vocabulary). Two means keep it from 14 passes over every
logit: filtered rows look at their best few tokens (`best`), and at more only where these do not settle it; the others draw a group
of 64 tokens by the groups' sums first, then a token in it. Which way a row goes depends on that row alone, never on its company.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pagoda_daemon.core.arrays import Floats, Ints
from pagoda_daemon.core.sampling import DrawRows
from pagoda_daemon.runner.noise import gumbel

_WIDTHS = (64, 256, 2048)  # how many best tokens are looked at, before all
_FAN = 16  # tokens per group whose maximum tells whether the group can hold one of the best
_LOWEST = np.finfo(np.float32).min
_BELOW_ZERO = -1e-45  # the largest float32 below 0
_GROUP = 64  # tokens per group that is drawn first
_NEVER_DRAWN = -80.0  # below the best: more than all noise. exp of -inf takes 9 times as long as of a number
_GROUP_KEY = 2**30  # groups take their noise beside the tokens' ids


@dataclass(frozen=True, slots=True)
class Drawing:
    """Rows to draw: logits divided by temperature [rows, vocab], and how each of them draws."""

    logits: Tensor
    rows: DrawRows
    positions: Ints

    def of(self, chosen: NDArray[np.intp]) -> Drawing:
        if chosen.size == self.positions.size:
            return self
        return Drawing(self.logits[torch.from_numpy(chosen).to(self.logits.device)], self.rows[chosen], self.positions[chosen])

    def noise(self, ids: Tensor) -> Tensor:
        return gumbel(ids.int(), self.rows["seed"], self.positions)


def draw(logits: Tensor, rows: DrawRows, positions: Ints) -> Ints:
    """`logits` are float32 and left as they are; every row has a finite maximum."""
    heat = _column(rows["temperature"], logits)
    drawing = Drawing(near_best(logits / heat, logits, rows["top_n_sigma"]), rows, positions)
    filtered = (rows["top_k"] > 0) | (rows["top_p"] < 1) | (rows["min_p"] > 0)
    tokens = np.empty(positions.size, np.int32)
    if (free := np.flatnonzero(~filtered)).size:
        tokens[free] = _of_all(drawing.of(free))
    # A row with a small top_k starts with 64; the others would mostly come back.
    narrow = (rows["top_k"] > 0) & (rows["top_k"] < _WIDTHS[0])
    open_rows = {_WIDTHS[0]: np.flatnonzero(narrow), _WIDTHS[1]: np.flatnonzero(filtered & ~narrow)}
    left = np.zeros(0, np.intp)
    for width in (width for width in _WIDTHS if width < logits.shape[-1]):
        chosen = np.concatenate((left, open_rows.pop(width)) if width in open_rows else (left,))
        if chosen.size:
            tokens[chosen], settled = _of_best(drawing.of(chosen), width)
            left = chosen[~settled]
    left = np.concatenate((left, *open_rows.values()))
    if left.size:
        tokens[left] = _of_wide(drawing.of(left))
    return tokens


def near_best(scaled: Tensor, logits: Tensor, sigmas: Floats) -> Tensor:
    """`scaled`, in place, without tokens whose logit is more than so many standard deviations below the row's largest; 0 drops none."""
    chosen = np.flatnonzero(sigmas > 0)
    if chosen.size:
        wide = logits if chosen.size == sigmas.size else logits[torch.from_numpy(chosen).to(logits.device)]
        floors = np.full(sigmas.size, _LOWEST)
        floors[chosen] = np.maximum(_floors(wide.cpu().numpy(), sigmas[chosen]), _LOWEST)
        # 0 for what stays, -inf for the rest, in passes that vectorise: 0.8 ms for 32 rows of 32k, where masked_fill_ takes 3.3.
        scaled += torch.threshold_(logits - _column(floors, logits), _BELOW_ZERO, -torch.inf).clamp_(max=0)
    return scaled


def _floors(logits: Floats, sigmas: Floats) -> Floats:
    """The least logit of each row that stays. In numpy, whose sums along a row do not depend on the other rows."""
    variances = np.empty(sigmas.size, np.float32)
    partly = np.isneginf(logits.min(axis=-1))
    with np.errstate(over="ignore"):  # an infinite deviation keeps everything
        for rows, variance in ((~partly, _variance), (partly, _variance_of_free)):
            if rows.any():
                variances[rows] = variance(logits if rows.all() else logits[rows])
        floors: Floats = logits.max(axis=-1) - sigmas * np.sqrt(variances)
    return floors


def _variance(logits: Floats) -> Floats:
    """Of each row."""
    width = np.float32(logits.shape[-1])
    apart = logits - (logits.sum(axis=-1) / width)[:, None]
    found: Floats = np.square(apart, out=apart).sum(axis=-1) / width
    return found


def _variance_of_free(logits: Floats) -> Floats:
    """Of each row, where some tokens are banned: they count for nothing, as in llama.cpp."""
    free = logits > -np.inf
    count = np.count_nonzero(free, axis=-1).astype(np.float32)
    mean = np.where(free, logits, np.float32(0)).sum(axis=-1) / count
    apart = np.where(free, logits - mean[:, None], np.float32(0))
    found: Floats = np.square(apart, out=apart).sum(axis=-1) / count
    return found


def _of_all(drawing: Drawing) -> Ints:
    """A group by the logarithm of its mass, then a token in it: exact by the chain rule, with noise for 1/64 of the vocabulary."""
    groups = _grouped(drawing.logits, _GROUP)
    apart = groups - drawing.logits.amax(dim=-1)[:, None, None]
    mass = apart.clamp_(min=_NEVER_DRAWN).exp_().sum(dim=1).log_()
    count = mass.shape[-1]
    keys = torch.arange(_GROUP_KEY, _GROUP_KEY + count, dtype=torch.int32, device=mass.device)
    group = (mass + drawing.noise(keys)).argmax(dim=-1)
    ids = group[:, None] + torch.arange(_GROUP, device=mass.device) * count
    within = groups.gather(2, group[:, None, None].expand(-1, _GROUP, 1))[:, :, 0]
    return _token(ids, within + drawing.noise(ids))


def _of_best(drawing: Drawing, count: int) -> tuple[Ints, NDArray[np.bool_]]:
    """A token from the best `count` after filtering, and whether nothing else would have passed the filters."""
    values, ids = best(drawing.logits, count)
    least, settled = _least(values, drawing)
    tokens = _token(ids, (values + drawing.noise(ids)).masked_fill_(values < least, -torch.inf))
    return tokens, settled.cpu().numpy()


def _of_wide(drawing: Drawing) -> Ints:
    """For flat distributions, of which thousands of tokens pass: all values are sorted, which numpy does 8 times faster than torch."""
    logits = drawing.logits
    ordered = (
        torch.from_numpy(np.sort(logits.numpy(), axis=-1)).flip(-1) if logits.device.type == "cpu" else logits.sort(descending=True)[0]
    )
    least, _ = _least(ordered, drawing)
    return _of_all(replace(drawing, logits=logits.masked_fill(logits < least, -torch.inf)))


def _token(ids: Tensor, noisy: Tensor) -> Ints:
    tokens: Ints = ids.gather(1, noisy.argmax(dim=-1, keepdim=True))[:, 0].cpu().numpy().astype(np.int32)
    return tokens


def best(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest and their ids, best first, equal ones by id.

    The best n tokens lie in the n groups with the largest maxima: 32 rows of 32k take a tenth of the time of `topk` over all.
    """
    groups = _grouped(logits, _FAN)
    if count < groups.shape[-1]:
        places = _top(groups.amax(dim=1), count)
        ids = (places[:, None, :] + torch.arange(_FAN, device=logits.device)[:, None] * groups.shape[-1]).flatten(1)
        ids = ids.gather(1, _top(groups.gather(2, places[:, None, :].expand(-1, _FAN, -1)).flatten(1), count))
    else:
        ids = _top(logits, count)
    ids = ids.sort(dim=-1).values
    values, order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _top(values: Tensor, count: int) -> Tensor:
    """Indexes of the `count` largest in any order; numpy's partition is 5 times faster than torch's."""
    if values.device.type != "cpu":
        return values.topk(count, dim=-1, sorted=False).indices
    width = values.shape[-1]
    ordered = np.argpartition(values.numpy(), min(width - count, width - 1), axis=-1)
    return torch.from_numpy(ordered[:, width - count :])


def _grouped(logits: Tensor, size: int) -> Tensor:
    """[rows, size, groups]: group g holds the ids g, g + groups, g + 2 groups…, so that reductions over a group run along memory."""
    width = logits.shape[-1]
    groups = -(-width // size)
    padded = logits if width == size * groups else functional.pad(logits, (0, size * groups - width), value=-torch.inf)
    return padded.view(-1, size, groups)


def _least(values: Tensor, drawing: Drawing) -> tuple[Tensor, Tensor]:
    """The least value that passes the filters [rows, 1], and whether nothing behind `values`, the best of each row, passes [rows].

    Equal values share their fate, so that no order among them matters: bf16 logits often are equal.
    """
    rows, count = drawing.rows, values.shape[-1]
    min_p, top_p = _column(rows["min_p"], values), _column(rows["top_p"], values)
    top_k = _column(rows["top_k"].astype(np.int64), values)
    # Probabilities over the largest one. What is banned or beyond top_n_sigma is not kept, else fewer than top_k would look unsettled.
    kept = ((values - values[:, :1]).exp() >= min_p) & (values > -torch.inf)
    kept &= (top_k == 0) | (values >= values.gather(1, top_k.clamp(1, count) - 1))
    bounded = (min_p > 0) | (top_k > 0)
    ended = ~bounded | ~kept[:, -1:]
    mass = _mass(values, kept, bounded, drawing.logits)
    kept &= (mass.cumsum(dim=-1) - mass < top_p) | (top_p >= 1)
    least = values.gather(1, kept.sum(dim=-1, keepdim=True).clamp(min=1) - 1)
    return least, (ended & (least > values[:, -1:]))[:, 0]


def _column(numbers: NDArray[Any], like: Tensor) -> Tensor:
    """One number per row, beside `like`: [rows, 1]."""
    return torch.from_numpy(numbers).to(like.device)[:, None]


def _mass(values: Tensor, kept: Tensor, bounded: Tensor, logits: Tensor) -> Tensor:
    """Probabilities of `values`: among those kept where the row is bounded, else among all its logits."""
    among_kept = values.masked_fill(~kept, -torch.inf).softmax(dim=-1) if bool(bounded.any()) else None
    if among_kept is not None and bool(bounded.all()):
        return among_kept
    # By the kernel that treats each row alone: a plain reduction of one row splits it over the threads.
    among_all = (values - values[:, :1] + logits.log_softmax(dim=-1).amax(dim=-1, keepdim=True)).exp_()
    return among_all if among_kept is None else torch.where(bounded, among_kept, among_all)
