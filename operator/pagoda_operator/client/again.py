"""Which reads that failed are asked again within their call, and after which pause. Pure; carried out by cluster.py.

A run of a dozen requests that ends with the first one lost comes back after seconds, then after a minute. But whoever asks an overloaded
server again makes it worse. Hence two bounds. Three attempts at a request ("Handling Overload" in Google's SRE book: what failed three
times says that the server is at its end). And of all requests a fifth, beside one a second for who asks little, by a token bucket: that of
Finagle's RetryBudget, whose defaults are 20 % and 10 a second (finagle.github.io/blog/2016/02/08/retry-budgets). So a server that refuses
everything is asked 1.2 times as much, and not three times.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

# Before the second attempt and before the third, drawn from half of it to one and a half: who was refused together comes apart.
_PAUSES: Final = (0.1, 0.4)
# What a server bids to wait for, at most; for longer the queue's back-off is made, which takes no worker.
_BIDDEN: Final = 2.0
# An attempt that has less is given up before it begins.
_WORTH: Final = 1.0
# What an attempt costs; what a request and a second bring in; and what is kept of it, which are the reads under way at once that a moment's
# fault strikes.
_COST: Final = 5.0
_PER_REQUEST: Final = 1.0
_PER_SECOND: Final = 5.0
_MOST: Final = 250.0


class Again:
    """Of one process: all its reads share it."""

    def __init__(self, steady: Callable[[], float], rng: random.Random) -> None:
        self._steady, self._rng = steady, rng
        self._tokens, self._since = _MOST, steady()

    def asked(self) -> None:
        """A request, read or write; no attempt after its first."""
        self._tokens = min(_MOST, self._tokens + _PER_REQUEST)

    def pause(self, soon: float | None, attempts: int, left: float) -> float | None:
        """Seconds before a read that failed after so many `attempts` is asked again; None where it fails. `soon`: after how long that may
        help, if it may; `left`: what is left of the call's patience."""
        if soon is None or soon > _BIDDEN or attempts > len(_PAUSES):
            return None
        pause = soon + _PAUSES[attempts - 1] * self._rng.uniform(0.5, 1.5)
        return pause if left - pause >= _WORTH and self._paid() else None

    def _paid(self) -> bool:
        now = self._steady()
        self._tokens, self._since = min(_MOST, self._tokens + _PER_SECOND * (now - self._since)), now
        if self._tokens < _COST:
            return False
        self._tokens -= _COST
        return True
