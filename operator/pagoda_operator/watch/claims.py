"""Who answers to which served name, over all services. Written by `handlers` and once by `reconcile`, asked by `reconcile`;
what a service's plan and status make of the answer is `held.py`.

Who has a name keeps it, else the oldest claimer does (`pagoda_contracts.claims`, as in the gateway); another one is told so and starts
nothing for names that it does not hold. What each holds is in its status. A view, never the truth: a holder is read again before anybody is
told of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pagoda_contracts.claims import Claim, resolve

from pagoda_operator.api.reader import Reader
from pagoda_operator.api.state import SERVICES, Json, Key, Taken
from pagoda_operator.watch.world import key_of

# Of those that want a name which nobody seems to hold, so many are read at once: the next ones only if none of these has it.
_TOGETHER: Final = 8


class Claimer(NamedTuple):
    """A service and the names it wants."""

    key: Key
    created: str
    uid: str
    names: tuple[str, ...]
    held: frozenset[str] = frozenset()


def parse_claimer(body: Json) -> Claimer:
    """A service's claims, readable even where the rest of its spec is not; as the gateway reads them."""
    meta, spec = body["metadata"], body.get("spec") or {}
    model: Any = spec.get("model") or {}
    names = tuple(model.get("servedNames") or (meta["name"],))
    held = frozenset((body.get("status") or {}).get("servedNames") or ())
    return Claimer(Key(meta.get("namespace", ""), meta["name"]), meta.get("creationTimestamp", ""), meta["uid"], names, held)


class Claims:
    """Every service's claims, by service and by name: a look costs one name's claimers, not all services. `wake` hears of each service
    whose names somebody else's change may have given or taken."""

    def __init__(self, wake: Callable[[Key], None] = lambda _: None) -> None:
        self._wake = wake
        self._claimers: dict[Key, Claimer] = {}
        self._by_name: dict[str, dict[Key, Claimer]] = {}
        self._complete = False
        self._reading = asyncio.Lock()

    def put(self, body: Json) -> None:
        """A service appeared or changed."""
        claimer = parse_claimer(body)
        if self._claimers.get(claimer.key) == claimer:
            return
        touched = self._forget(claimer.key)
        self._claimers[claimer.key] = claimer
        for name in claimer.names:
            touched |= self._by_name.setdefault(name, {}).keys()
            self._by_name[name][claimer.key] = claimer
        self._tell(touched - {claimer.key})

    def drop(self, key: Key) -> None:
        """A service is gone."""
        self._tell(self._forget(key))

    async def follow(self, view: Reader, key: Key, *, sure: bool) -> None:
        """A run looks at the service: what the view learned of it though no event told, by the check or a quorum read, is known here too.
        `sure`: a quorum read came just before; else that it is not shown says nothing."""
        body = await view.get(SERVICES, key.namespace, key.name)
        if body is not None:
            self.put(body)
        elif sure:
            self.drop(key)

    def taken(self, key: Key) -> tuple[Taken, ...]:
        """The names that this service wants and another one holds."""
        mine = self._claimers.get(key)
        held = [(name, self._holder(name)) for name in mine.names] if mine else []
        return tuple(Taken(name, holder) for name, holder in held if holder != key)

    async def complete(self, reader: Reader) -> None:
        """All services, read once, by the first of many runs: a first look that knew half of them would tell half of them wrongly. What
        is known of one already may be newer than the list."""
        async with self._reading:
            if self._complete:
                return
            for body in await reader.list(SERVICES, "", ""):
                if key_of(body) not in self._claimers:
                    self.put(body)
            self._complete = True

    async def confirmed(self, reader: Reader, key: Key) -> tuple[Taken, ...]:
        """`taken`, every holder read again: one that went unseen holds nothing. Of a name that this one would hold from now on, whoever
        else wants it is read, up to the first that got it meanwhile. Who merely waits reads one holder: of 500 with one name each would
        read all others."""
        await self.complete(reader)
        read: set[Key] = set()
        while unread := self._holders(key) - read or self._rivals(key) - read:
            some = sorted(unread)[:_TOGETHER]
            await asyncio.gather(*(self._read(reader, other) for other in some))
            read.update(some)
        return self.taken(key)

    async def _read(self, reader: Reader, key: Key) -> None:
        live = await reader.get(SERVICES, key.namespace, key.name)
        if live is None:
            self.drop(key)
        else:
            self.put(live)

    def _holders(self, key: Key) -> set[Key]:
        return {taken.holder for taken in self.taken(key)}

    def _rivals(self, key: Key) -> set[Key]:
        """Who else wants what this one would gain."""
        mine = self._claimers.get(key)
        gained = [name for name in mine.names if name not in mine.held and self._holder(name) == key] if mine else []
        return {rival for name in gained for rival in self._by_name[name]} - {key}

    def _tell(self, touched: set[Key]) -> None:
        for key in touched:
            self._wake(key)

    def _holder(self, name: str) -> Key:
        claims = {claimer.uid: claimer for claimer in self._by_name[name].values()}
        holder = resolve(Claim(name, c.created, c.uid, c.key.name, name in c.held) for c in claims.values())[name]
        return claims[holder.uid].key

    def _forget(self, key: Key) -> set[Key]:
        touched: set[Key] = set()
        claimer = self._claimers.pop(key, None)
        for name in claimer.names if claimer else ():
            line = self._by_name[name]
            del line[key]
            touched |= line.keys()
            if not line:
                del self._by_name[name]
        return touched
