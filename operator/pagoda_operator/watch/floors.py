"""Versions below which news is old: what a quorum read or the answer to a write showed is not undone by an event that was on its way.

Kept by both sorts of mirrors (`mirror.py`, `world.py`), for 30 s: the ReplicaSet controller calls it expectations. Not for ever, since a
store that was restored from a backup counts its versions from an earlier one on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from pagoda_operator.api.state import Key, Resource

EXPECTED: Final = 30.0
# From so many on, those that no longer matter are swept out; again when there are twice as many as were left. With a sweep at each, the
# first looks at 2,000 services held the event loop for more than a minute.
_MANY: Final = 1000


class _Floor(NamedTuple):
    """News up to this version is old until then."""

    version: int
    until: float


class Floors:
    """`clock` counts seconds and may start anywhere."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._floors: dict[tuple[Resource, Key], _Floor] = {}
        self._most = _MANY

    def __len__(self) -> int:
        return len(self._floors)

    def expect(self, resource: Resource, key: Key, version: str) -> None:
        """The object was at this version for sure: whatever is told of it next is newer."""
        now = self._clock()
        if len(self._floors) >= self._most:
            self._floors = {name: floor for name, floor in self._floors.items() if floor.until > now}
            self._most = max(_MANY, 2 * len(self._floors))
        if (number := as_number(version)) is not None:
            self._floors[resource, key] = _Floor(number, now + EXPECTED)

    def is_old(self, resource: Resource, key: Key, version: str) -> bool:
        """Whether news of this version was on its way when a later one was known."""
        floor = self._floors.get((resource, key))
        if floor is None:
            return False
        if self._clock() > floor.until:
            del self._floors[resource, key]
            return False
        number = as_number(version)
        return number is not None and number <= floor.version


def as_number(version: str) -> int | None:
    """Kubernetes promises since 1.35 that versions of one kind compare as numbers; where one is none, nothing is called old."""
    return int(version) if version.isdigit() else None
