"""Which request is next: classes first, tenants fairly within a class, arrival within a tenant. Called by `scheduler.state`; pure.

Fairness is the Virtual Token Counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): each tenant has a counter of
the service it received, in tokens weighted by what they cost (1 for an input, 2 for an output) and divided by the tenant's weight; the
waiting tenant with the smallest counter is served first. A tenant that comes back to an empty queue is lifted to the least of those that
wait, so idling earns no credit. Work-conserving. Between two tenants that both wait all the time the counters differ by at most
`bound`: the paper's 2 max(w_p L_input, w_q M), M being the tokens that all rows together may hold.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator

import numpy as np

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.scheduler.request import Request

INPUT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0


class VirtualTokens:
    """One counter per tenant ever seen; a tenant is named once and is a number from then on."""

    def __init__(self) -> None:
        self._slot: dict[str, int] = {}
        self.counters = np.zeros(16)
        self._rate = np.ones(16)
        self._floor = 0.0

    def slot(self, tenant: str, weight: float) -> int:
        """The tenant's number; `weight` counts from now on."""
        slot = self._slot.setdefault(tenant, len(self._slot))
        if slot >= self.counters.size:
            self.counters = np.concatenate([self.counters, np.zeros(self.counters.size)])
            self._rate = np.concatenate([self._rate, np.ones(self._rate.size)])
        self._rate[slot] = 1.0 / weight
        return slot

    def lift(self, slot: int, waiting: Collection[int]) -> None:
        """`slot` starts to wait beside the tenants `waiting`."""
        floor = min((float(self.counters[other]) for other in waiting), default=self._floor)
        self.counters[slot] = max(float(self.counters[slot]), floor)

    def leave(self, slot: int) -> None:
        """`slot` waits no more: a tenant that comes to an empty queue starts from here."""
        self._floor = float(self.counters[slot])

    def charge_input(self, slot: int, tokens: int) -> None:
        self.counters[slot] += INPUT_WEIGHT * tokens * self._rate[slot]

    def charge_outputs(self, slots: Ints) -> None:
        """One output token for each entry of `slots`."""
        served = np.bincount(slots, minlength=self.counters.size)
        self.counters += OUTPUT_WEIGHT * served * self._rate


def bound(longest_input: int, held_tokens: int) -> float:
    """How far the counters of two tenants that both wait may drift apart."""
    return 2.0 * max(INPUT_WEIGHT * longest_input, OUTPUT_WEIGHT * held_tokens)


class WaitingQueue:
    """Requests without a row, by class and tenant. Iterates in the order in which they would be served now. `backlog` are tokens and
    requests by (class, tenant), `count_of` requests by tenant."""

    def __init__(self, virtual: VirtualTokens) -> None:
        self._virtual = virtual
        self._all: dict[str, Request] = {}
        self._classes: dict[int, dict[int, OrderedDict[str, Request]]] = {}
        self.tokens = 0
        self.backlog: dict[tuple[int, int], tuple[int, int]] = {}
        self.count_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, key: str) -> bool:
        return key in self._all

    def __iter__(self) -> Iterator[Request]:
        for rank in sorted(self._classes):
            tenants = self._classes[rank]
            counters = self._virtual.counters
            for slot in sorted(tenants, key=lambda slot: float(counters[slot])) if len(tenants) > 1 else tenants:
                yield from tenants[slot].values()

    def get(self, key: str) -> Request | None:
        return self._all.get(key)

    def first(self, passed: Collection[str] = ()) -> Request | None:
        """The next one that is not among those `passed` over."""
        return next((request for request in self if request.key not in passed), None) if self._all else None

    def push(self, request: Request, *, head: bool = False) -> None:
        """Last of its tenant, or first: a preempted one has waited already."""
        slot = request.tenant
        if slot not in self.count_of and not head:
            self._virtual.lift(slot, self.count_of.keys())
        line = self._classes.setdefault(request.rank, {}).setdefault(slot, OrderedDict())
        line[request.key] = self._all[request.key] = request
        if head:
            line.move_to_end(request.key, last=False)
        self._count(request, 1)

    def pop(self, key: str) -> Request:
        request = self._all.pop(key)
        tenants = self._classes[request.rank]
        line = tenants[request.tenant]
        del line[key]
        if not line:
            del tenants[request.tenant]
            if not tenants:
                del self._classes[request.rank]
        self._count(request, -1)
        if request.tenant not in self.count_of:
            self._virtual.leave(request.tenant)
        return request

    def _count(self, request: Request, sign: int) -> None:
        slot, size, line = request.tenant, sign * request.tokens.size, (request.rank, request.tenant)
        self.tokens += size
        tokens, count = self.backlog.get(line, (0, 0))
        self.backlog[line] = (tokens + size, count + sign)
        self.count_of[slot] = self.count_of.get(slot, 0) + sign
        if not count + sign:
            del self.backlog[line]
        if not self.count_of[slot]:
            del self.count_of[slot]
