"""Budget: how many bytes of request bodies the gateway keeps in memory at once, and how many of them one tenant. Used by in_flight.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pagoda_gateway.requests.errors import QueueFull

Take = Callable[[int], None]

# A tenant may have so many times what is free. So one alone can use four fifths, two that flood four ninths each, and there is always room
# for one that comes. A tenant's only request is bounded by what is free and nothing else.
_OF_FREE: Final = 4


class Budget:
    """Bytes of bodies that are read, held and under way. A body counts until its request ends."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._tenants = Counter[str]()

    @property
    def used(self) -> int:
        """Bytes in memory now."""
        return self._used

    @contextmanager
    def account(self, tenant: str = "") -> Iterator[Take]:
        """Yields the function that counts one request's bytes as they arrive; an announced length costs nothing. The end gives all back."""
        own = 0

        def take(count: int) -> None:
            nonlocal own
            self._check(count, tenant, own)
            self._used += count
            self._tenants[tenant] += count
            own += count

        try:
            yield take
        finally:
            self._used -= own
            self._tenants[tenant] -= own
            if not self._tenants[tenant]:
                del self._tenants[tenant]

    def _check(self, count: int, tenant: str, own: int) -> None:
        free, of_tenant = self._limit - self._used, self._tenants[tenant]
        if count > free:
            raise QueueFull(f"the bodies of held and running requests already use {self._used} of {self._limit} bytes")
        if of_tenant > own and of_tenant + count > _OF_FREE * (free - count):
            raise QueueFull(
                f"the bodies of this tenant's requests use {of_tenant} bytes, and {free} of {self._limit} are left for all tenants"
            )
