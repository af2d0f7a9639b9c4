"""Budget: how many bytes of request bodies the gateway keeps in memory at once. Used by lifecycle.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pagoda_gateway.requests.errors import QueueFull

Take = Callable[[int], None]


class Budget:
    """Bytes of bodies that are read, held and under way. A body counts until its request ends."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes in memory now."""
        return self._used

    @contextmanager
    def account(self) -> Iterator[Take]:
        """Yields the function that counts one request's bytes as they arrive; an announced length costs nothing. The end gives all back."""
        own = 0

        def take(count: int) -> None:
            nonlocal own
            if self._used + count > self._limit:
                raise QueueFull(f"the bodies of held and running requests already use {self._used} of {self._limit} bytes")
            self._used += count
            own += count

        try:
            yield take
        finally:
            self._used -= own
