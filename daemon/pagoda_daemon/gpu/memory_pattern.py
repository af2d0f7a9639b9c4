"""MemoryPattern: whether a piece of the device's memory keeps what was written there. Used by `worker`, in steps that hold a deep check.

Each check compares the piece with what the last one wrote, and writes the opposite of every bit. What is compared has lain there since: the
steps in between use far more memory than the device's caches hold, so it is read from the memory itself. Nothing waits for it: the copy of
the finding comes to the host before the step that is launched next.

It finds memory, or a way to it, that is broken at large; a single cell elsewhere is ECC's to find.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_WORDS: Final = 2**18
"""1 MiB."""
_PATTERN: Final = 0x55555555


class MemoryPattern:
    """`check` and `finding` may be called by two threads, `finding` for each check in its turn."""

    def __init__(self, place: torch.device) -> None:
        self._ours = self._numbers(place).bitwise_xor_(_PATTERN)
        self._pattern = _PATTERN
        self._wrong = 0

    def check(self) -> Tensor:
        """Launched: how many words are not as they were written, int32 on the host; it is there when the next step's result is."""
        place = self._ours.device
        expected = self._numbers(place).bitwise_xor_(self._pattern)
        wrong = (self._ours != expected).sum(dtype=torch.int32)
        self._ours.copy_(expected.bitwise_not_())
        self._pattern = ~self._pattern
        if place.type == "cpu":
            return wrong
        host = torch.empty((), dtype=torch.int32, pin_memory=True)
        return host.copy_(wrong, non_blocking=True)

    def finding(self, wrong: Tensor) -> str | None:
        """A sentence if this or an earlier check found anything: such memory is not trusted again."""
        self._wrong += int(wrong)
        return f"{self._wrong} of {_WORDS} words of a test pattern in the device's memory have changed" if self._wrong else None

    @staticmethod
    def _numbers(place: torch.device) -> Tensor:
        """Each word its own, so that one that is written to another's place shows."""
        return torch.arange(_WORDS, dtype=torch.int32, device=place)
