"""LoRA in the forward pass: what an adapter adds to a layer's linear maps, for those tokens of a step that have one. Called by
`model.decoder`.

A step's tokens are sorted by adapter once. In each layer the sorted tokens are gathered, each adapter computes its part of them, and one
addition puts all parts back. So the path is the same for every number of adapters, and tokens without one are never touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pagoda_daemon.core.arrays import Ints

Part = Literal["qkv", "output", "gate_up", "down"]


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """What is added to one linear map: `shrink` [rank, in], `expand` [out, rank] with the scale in it. Where the map is fused from several,
    the ranks of all stand behind each other."""

    shrink: Tensor
    expand: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """A loaded adapter: of each layer the maps that it changes. `digest` names its content, `rank` is the largest of any module."""

    digest: str
    rank: int
    layers: tuple[Mapping[Part, LowRank], ...]


@dataclass(frozen=True, slots=True)
class Adapted:
    """The tokens that have an adapter: [tokens] flat indexes sorted by adapter, and where each adapter's begin and end there."""

    tokens: Tensor
    spans: tuple[tuple[Adapter, int, int], ...]


def adapted(slots: Ints, held: Mapping[int, Adapter], device: torch.device) -> Adapted | None:
    """`slots[i]` is the slot of token i's adapter, 0 for none; None where no token has one."""
    chosen = np.flatnonzero(slots)
    if not chosen.size:
        return None
    order = chosen[np.argsort(slots[chosen], kind="stable")]
    found, begins = np.unique(slots[order], return_index=True)
    ends = [*begins[1:].tolist(), order.size]
    spans = tuple((held[slot], begin, end) for slot, begin, end in zip(found.tolist(), begins.tolist(), ends, strict=True))
    return Adapted(torch.from_numpy(order).to(device), spans)


def add_low_rank(out: Tensor, hidden: Tensor, tokens: Adapted | None, layer: int, part: Part) -> Tensor:
    """`out`, which is changed: to the rows of `tokens` what their adapters make of `hidden` is added."""
    if tokens is None:
        return out
    changed = [(adapter.layers[layer].get(part), begin, end) for adapter, begin, end in tokens.spans]
    if all(ranks is None for ranks, _, _ in changed):
        return out
    mine = hidden.index_select(0, tokens.tokens)
    parts = [_added(ranks, mine[begin:end], out) for ranks, begin, end in changed]
    return out.index_add_(0, tokens.tokens, parts[0] if len(parts) == 1 else torch.cat(parts))


def _added(ranks: LowRank | None, hidden: Tensor, out: Tensor) -> Tensor:
    if ranks is None:
        return out.new_zeros(hidden.shape[0], out.shape[1])
    return (hidden @ ranks.shrink.T) @ ranks.expand.T


def fused(ranks: Sequence[tuple[Tensor, Tensor] | None], sizes: Sequence[int]) -> LowRank | None:
    """One map of several behind each other, of which some are changed: shrink matrices stacked, expand matrices along a diagonal."""
    known = [pair for pair in ranks if pair is not None]
    if not known:
        return None
    expand = known[0][1].new_zeros(sum(sizes), sum(pair[0].shape[0] for pair in known))
    row = column = 0
    for pair, size in zip(ranks, sizes, strict=True):
        if pair is not None:
            expand[row : row + size, column : column + pair[0].shape[0]] = pair[1]
            column += pair[0].shape[0]
        row += size
    return LowRank(torch.cat([pair[0] for pair in known]), expand)
