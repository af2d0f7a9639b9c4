"""Which asks for objects of one kind are answered by one request. Pure; used by batched.py.

An ask made while a request is under way waits for the next one and never joins it: what began before it was asked for may be older than
what made somebody ask. Within a group the second request from its ask on answers it, unless more than `most` asks wait; groups that find
`at_once` requests under way wait for one of them to end, in the order of their oldest asks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pagoda_operator.api.state import Key


class Batch(NamedTuple):
    """One request: the group that it is about, and whose asks it answers, by ticket."""

    group: str
    asks: Mapping[int, Key]

    @property
    def keys(self) -> frozenset[Key]:
        """What is to be read."""
        return frozenset(self.asks.values())


class Line:
    """Asks that wait, in their order. Of each `group` one request is under way, of all together `at_once`; `most` asks are in one."""

    def __init__(self, group: Callable[[Key], str], most: int, at_once: int) -> None:
        self._group = group
        self._most = most
        self._at_once = at_once
        self._waiting: dict[int, Key] = {}
        self._under_way: set[str] = set()
        self._tickets = itertools.count()

    def ask(self, key: Key) -> int:
        """A ticket, which the batch that answers it bears."""
        ticket = next(self._tickets)
        self._waiting[ticket] = key
        return ticket

    def withdraw(self, ticket: int) -> None:
        """Nobody waits for it any more; one that is in a batch already is answered to nobody."""
        self._waiting.pop(ticket, None)

    def begin(self) -> Batch | None:
        """The request to begin now: for who has waited longest of those whose group has none under way, and all of that group."""
        if len(self._under_way) >= self._at_once:
            return None
        group = next((group for key in self._waiting.values() if (group := self._group(key)) not in self._under_way), None)
        if group is None:
            return None
        mine = (ticket for ticket, key in self._waiting.items() if self._group(key) == group)
        asks = {ticket: self._waiting[ticket] for ticket in itertools.islice(mine, self._most)}
        for ticket in asks:
            del self._waiting[ticket]
        self._under_way.add(group)
        return Batch(group, asks)

    def end(self, batch: Batch) -> None:
        """Its request was answered, or failed."""
        self._under_way.discard(batch.group)
