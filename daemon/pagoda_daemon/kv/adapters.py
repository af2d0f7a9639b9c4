"""AdapterTable: which adapter has which slot, and until when. Held by `scheduler.state`; pure.

The front holds an adapter once for each version of a name, and each request of the engine uses one. A slot is free again when neither is
left, so a request keeps the version it began with however often its name changes.
"""

from __future__ import annotations

import heapq

NO_ADAPTER = 0


class AdapterTable:
    """Slots count from 1; 0 is the model without an adapter."""

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._digests: dict[int, str] = {}
        self._holds: dict[int, int] = {}
        self._uses: dict[int, int] = {}
        self._spare: list[int] = []
        self._made = 0
        self._freed: list[int] = []

    def __len__(self) -> int:
        return len(self._slots)

    def slot_of(self, digest: str) -> int | None:
        """NO_ADAPTER where there is no digest; None where the adapter is not held."""
        return self._slots.get(digest) if digest else NO_ADAPTER

    def hold(self, digest: str) -> int | None:
        """Once more; its slot if it had none before, which is to be filled."""
        known = self._slots.get(digest)
        if known is not None:
            self._holds[known] += 1
            return None
        slot = heapq.heappop(self._spare) if self._spare else self._made + 1
        self._made = max(self._made, slot)
        self._slots[digest], self._digests[slot], self._holds[slot], self._uses[slot] = slot, digest, 1, 0
        return slot

    def release(self, digest: str) -> None:
        """Once less."""
        slot = self._slots[digest]
        self._holds[slot] -= 1
        self._tidy(slot)

    def use(self, slot: int, change: int) -> None:
        """A request begins (1) or is over (-1)."""
        if slot:
            self._uses[slot] += change
            self._tidy(slot)

    def take_freed(self) -> list[int]:
        """Slots that became free since the last call: what is in them is to be dropped, and they may be filled anew."""
        freed, self._freed = self._freed, []
        for slot in freed:
            heapq.heappush(self._spare, slot)
        return freed

    def users(self) -> dict[str, tuple[int, int]]:
        """Digest → slot and requests, of every adapter that is held or used."""
        return {digest: (slot, self._uses[slot]) for digest, slot in self._slots.items()}

    def _tidy(self, slot: int) -> None:
        if not self._holds[slot] and not self._uses[slot]:
            del self._slots[self._digests.pop(slot)], self._holds[slot], self._uses[slot]
            self._freed.append(slot)
