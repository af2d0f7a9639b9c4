"""When the statuses of a kind are looked at that has no runs of its own: of TenantQuotas and ServingProfiles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple, Protocol, TypeVar

import structlog
from pagoda_contracts.resources.meta import ObjectMeta

from pagoda_operator.api.errors import ClusterError

TICK_S: Final = 2.0
_PERIOD_S: Final = 60.0
# After a write that failed: the API server is away, or older than the kind's status.
_AGAIN_S: Final = 10.0


class Kept(Protocol):
    """An object of the cache."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def meta(self) -> ObjectMeta:
        """Its metadata."""


T = TypeVar("T", bound=Kept)


class _Looked(NamedTuple):
    """The last look at an object: when, at which generation and with how many users; and how many it had in the last round."""

    at: float
    generation: int
    users: int
    seen: int

    def due(self, now: float, generation: int, users: int) -> bool:
        """A changed spec at once; a changed number once it stays the same for a round, so that a thousand new services are not as many
        writes; everything after a minute."""
        rests = users == self.seen and users != self.users
        return generation != self.generation or rests or now - self.at >= _PERIOD_S


class Rounds:
    """`steady`: a monotonic clock, in seconds."""

    def __init__(self, steady: Callable[[], float]) -> None:
        self._steady = steady
        self._looked: dict[str, _Looked] = {}

    async def each(self, objects: Iterable[T], look: Callable[[T], Awaitable[None]], users: Callable[[T], int] = lambda _: 0) -> None:
        """Looks at the objects that are due; called every TICK_S. `users`: how many other objects use one, which its status tells."""
        now, here = self._steady(), {one.meta.uid: one for one in objects}
        self._looked = {uid: last for uid, last in self._looked.items() if uid in here}
        for uid, one in here.items():
            generation, number, last = one.meta.generation, users(one), self._looked.get(uid)
            if last is not None and not last.due(now, generation, number):
                self._looked[uid] = last._replace(seen=number)
                continue
            self._looked[uid] = _Looked(now, generation, number, number)
            try:
                await look(one)
            except ClusterError as error:
                self._looked[uid] = _Looked(now - _PERIOD_S + _AGAIN_S, generation, number, number)
                structlog.get_logger().warning("status_not_written", kind=type(one).__name__, name=one.name, error=str(error))
            except Exception:  # noqa: BLE001 (one object's fault must not end the rounds of all)
                structlog.get_logger().exception("status_bug", kind=type(one).__name__, name=one.name)
