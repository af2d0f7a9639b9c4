"""Staging: arrays of a step to the device in one copy that nobody waits for. One per worker.

The copy reads pinned host memory while later steps are prepared, so there are several such buffers, and one is written again only after its
copy has ended: with two steps in flight and two copies per step that was always long ago.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagoda_daemon.gpu.inputs import fill, places

_BUFFERS: Final = 6
_WORDS: Final = 2**16


class Staging:
    """`place` is the device. On a CPU (in tests) all is copied at once."""

    def __init__(self, place: torch.device) -> None:
        self._place = place
        self._cuda = place.type == "cuda"
        self._buffers = [_Buffer(self._cuda) for _ in range(_BUFFERS)]
        self._next = 0

    def send(self, arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, Tensor]:
        """`arrays` on the device, each in its type."""
        where = places(arrays)
        target = torch.empty(_end(where), dtype=torch.int32, device=self._place)
        self.send_to(target, arrays, where)
        return views(target, arrays, where)

    def send_to(self, target: Tensor, arrays: Mapping[str, NDArray[np.generic]], where: Mapping[str, slice]) -> None:
        """`arrays` into `target` int32 [words], at the places `where`."""
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % _BUFFERS
        buffer.write(target, arrays, where)


class _Buffer:
    """Pinned words, and when they may be written again."""

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._words = torch.empty(_WORDS, dtype=torch.int32, pin_memory=pinned)
        self._copied = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def write(self, target: Tensor, arrays: Mapping[str, NDArray[np.generic]], where: Mapping[str, slice]) -> None:
        if self._copied is not None:
            self._copied.synchronize()
        if self._words.numel() < _end(where):
            self._words = torch.empty(2 * _end(where), dtype=torch.int32, pin_memory=self._pinned)
        used = fill(self._words.numpy(), arrays, where)
        target[:used].copy_(self._words[:used], non_blocking=self._pinned)
        if self._copied is not None:
            self._copied.record()


def views(words: Tensor, arrays: Mapping[str, NDArray[np.generic]], where: Mapping[str, slice]) -> dict[str, Tensor]:
    """The arrays in `words`: int64 and float32 ones as such."""
    return {name: _typed(words[where[name]], array.dtype) for name, array in arrays.items()}


def _typed(words: Tensor, dtype: np.dtype[np.generic]) -> Tensor:
    if dtype == np.int32:
        return words
    return words.view(torch.float32 if dtype == np.float32 else torch.int64)


def _end(where: Mapping[str, slice]) -> int:
    return max((place.stop for place in where.values()), default=0)
