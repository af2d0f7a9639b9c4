"""Which service owns which served name, over all services. Updated by triggers.py, asked by `reconcile`; `plan` says what follows for a
service that does not own all of its names.

A service that has a name keeps it, otherwise the oldest claimer gets it (`pagoda_contracts.claims`, as in the gateway). Another claimer
starts nothing for names that it does not own. What each owns is in its status.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pagoda_contracts.claims import Claim, resolve

from pagoda_operator.api.state import Json, Key, Taken


class Claimer(NamedTuple):
    """A service and the names it wants."""

    key: Key
    created: str
    uid: str
    names: tuple[str, ...]
    owned: frozenset[str] = frozenset()


def parse_claimer(body: Json) -> Claimer:
    """A service's claims, readable even where the rest of its spec is not; as the gateway reads them."""
    meta, spec = body["metadata"], body.get("spec") or {}
    model: Any = spec.get("model") or {}
    names = tuple(model.get("servedNames") or (meta["name"],))
    owned = frozenset((body.get("status") or {}).get("servedNames") or ())
    return Claimer(Key(meta.get("namespace", ""), meta["name"]), meta.get("creationTimestamp", ""), meta["uid"], names, owned)


class Claims:
    """Every service's claims, by service and by name: a look costs one name's claimers, not all services. `wake` is called for each service
    that may have got or lost a name by another service's change."""

    def __init__(self, wake: Callable[[Key], None] = lambda _: None) -> None:
        self._wake = wake
        self._claimers: dict[Key, Claimer] = {}
        self._by_name: dict[str, dict[Key, Claimer]] = {}

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
        self._wake_all(touched - {claimer.key})

    def drop(self, key: Key) -> None:
        """A service is gone."""
        self._wake_all(self._forget(key))

    def taken(self, key: Key) -> tuple[Taken, ...]:
        """The names that this service wants and another one owns."""
        mine = self._claimers.get(key)
        claims = [(name, self._holder(name)) for name in mine.names] if mine else []
        return tuple(Taken(name, holder) for name, holder in claims if holder != key)

    def _wake_all(self, touched: set[Key]) -> None:
        for key in touched:
            self._wake(key)

    def _holder(self, name: str) -> Key:
        claims = {claimer.uid: claimer for claimer in self._by_name[name].values()}
        holder = resolve(Claim(name, c.created, c.uid, c.key.name, name in c.owned) for c in claims.values())[name]
        return claims[holder.uid].key

    def _forget(self, key: Key) -> set[Key]:
        touched: set[Key] = set()
        claimer = self._claimers.pop(key, None)
        for name in claimer.names if claimer else ():
            claimers = self._by_name[name]
            del claimers[key]
            touched |= claimers.keys()
            if not claimers:
                del self._by_name[name]
        return touched
