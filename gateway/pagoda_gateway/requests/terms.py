"""Terms: how long requests may wait, and where one may go. Called by router.py."""

from __future__ import annotations

import math
from typing import NamedTuple


class Terms(NamedTuple):
    """How long a request may wait for an endpoint, and among which addresses ("ip:port", or "ip" with any port) it must be; None: all."""

    hold_s: float = math.inf
    within: frozenset[str] | None = None

    def allow(self, address: str) -> bool:
        """Returns whether a replica may be chosen."""
        return self.within is None or address in self.within or address.rpartition(":")[0] in self.within


class HoldRules(NamedTuple):
    """How requests are held: for how long, and after how long a stream's client gets comments that keep its connection alive. `gateways`:
    how many share the replicas."""

    timeout_s: float
    ping_after_s: float = 15.0
    gateways: int = 1
