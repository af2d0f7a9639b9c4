"""How old times are that the operator wrote into an object, though somebody sets the clock meanwhile. Made by parts.py, asked by
`reconcile`.

A time in an object is by the clock on the wall, which may jump. So it is read once, when it is first seen: from then on it ages by a clock
that nobody sets. What claims to be of the future is as of now: a wait for it lasts as long as it should, not as long as the jump.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pagoda_operator.api.state import Key
from pagoda_operator.inventory.values import unix

# A service has three such times or four; a view that is late may show the ones before.
_KEPT = 8


class Ages:
    """Of all services."""

    def __init__(self, steady: Callable[[], float]) -> None:
        self._steady = steady
        # Service → stamp → when that was, by the steady clock.
        self._began: dict[Key, dict[str, float]] = {}

    def of(self, key: Key, stamps: Iterable[str], wall: float) -> Mapping[str, float]:
        """In seconds, by each of a service's stamps; `wall`: what the clock on the wall says now."""
        now, known = self._steady(), self._began.get(key, {})
        seen = {stamp: known.get(stamp, now - max(0.0, wall - since)) for stamp in stamps if (since := unix(stamp)) is not None}
        kept = {stamp: began for stamp, began in known.items() if stamp not in seen}
        if seen or kept:
            self._began[key] = dict(list((kept | seen).items())[-_KEPT:])
        return {stamp: now - began for stamp, began in seen.items()}

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._began.pop(key, None)
