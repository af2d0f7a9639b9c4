"""What the watches have shown of the whole cluster, each object as its parser made it: nodes, other tenants' pods, quotas, slices.

Written by handlers.py and check.py, read by whatever decides over more than one service. A view, never the truth: absence here proves
nothing (a decision that deletes or scales down reads the API server first), presence may be a second old. What the check read is not
undone by an older event (floors.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pagoda_operator.api.state import Json, Key, Resource
from pagoda_operator.watch.floors import Floors

Parser = Callable[[Json], Any]


class _Heard(NamedTuple):
    """When, in news so far (a list that began earlier proves nothing of it), and which version."""

    news: int
    version: str


class World:
    """One mirror per kind. A parser keeps only what is decided by, as a value that compares equal where nothing of that changed; what it
    returns None for is not kept."""

    def __init__(self, parsers: Mapping[Resource, Parser], clock: Callable[[], float]) -> None:
        self._parsers = parsers
        self._floors = Floors(clock)
        self._kept: dict[Resource, dict[Key, Any]] = {resource: {} for resource in parsers}
        # Of every object, kept or not, what was last heard.
        self._heard: dict[Resource, dict[Key, _Heard]] = {resource: {} for resource in parsers}
        self._news = 0
        # Of each kind how often something changed, and all of it in order as of then: sorting 5,000 pods for each of 20 runs a second was
        # a twentieth of a core.
        self._changes = dict.fromkeys(parsers, 0)
        self._ordered: dict[Resource, tuple[int, tuple[Any, ...]]] = {}

    @property
    def kinds(self) -> tuple[Resource, ...]:
        """Every kind that is mirrored."""
        return tuple(self._parsers)

    @property
    def changes(self) -> int:
        """How often anything changed."""
        return sum(self._changes.values())

    def changes_of(self, resource: Resource) -> int:
        """How often something of that kind did."""
        return self._changes.get(resource, 0)

    def versions(self, resource: Resource) -> dict[Key, str]:
        """Every object of a kind that was heard of and is not gone, kept or not, by version."""
        return {key: heard.version for key, heard in self._heard[resource].items()}

    def version(self, resource: Resource, key: Key) -> str | None:
        """Of one object; None where none was heard of."""
        heard = self._heard[resource].get(key)
        return None if heard is None else heard.version

    def put(self, resource: Resource, body: Json) -> bool:
        """An object appeared or changed; whether anything that is decided by did."""
        key, version = key_of(body), _version(body)
        return False if self._floors.is_old(resource, key, version) else self._take(resource, key, version, body)

    def learn(self, resource: Resource, body: Json) -> bool:
        """A quorum read found it so, and nothing was told meanwhile; whether anything that is decided by changed."""
        key, version = key_of(body), _version(body)
        self._floors.expect(resource, key, version)
        return self._take(resource, key, version, body)

    def _take(self, resource: Resource, key: Key, version: str, body: Json) -> bool:
        parsed = self._parsers[resource](body)
        self._news += 1
        self._heard[resource][key] = _Heard(self._news, version)
        changed = bool(self._kept[resource].get(key) != parsed)
        if parsed is None:
            self._kept[resource].pop(key, None)
        else:
            self._kept[resource][key] = parsed
        self._changes[resource] += changed
        return changed

    def drop(self, resource: Resource, body: Json) -> bool:
        """An object is gone; whether it was kept."""
        if self._floors.is_old(resource, key_of(body), _version(body)):
            return False
        self._news += 1
        return self.forget(resource, key_of(body))

    def mark(self) -> int:
        """The moment before a list begins, for `sweep`."""
        return self._news

    def meet(self, resource: Resource, body: Json) -> Key:
        """An object of a list: taken where nothing is known of it, since what a watch said may be newer. No floor: watches list later."""
        key = key_of(body)
        if key not in self._heard[resource]:
            self.put(resource, body)
        return key

    def sweep(self, resource: Resource, mark: int, seen: set[Key]) -> None:
        """Forget what a whole list that began at `mark` did not hold, unless it was heard of since."""
        heard = self._heard[resource]
        for key in [key for key, last in heard.items() if key not in seen and last.news <= mark]:
            self.forget(resource, key)

    def all(self, resource: Resource) -> tuple[Any, ...]:
        """Everything of a kind, by namespace and name; nothing of a kind that is not mirrored."""
        kept, changes = self._kept.get(resource, {}), self.changes_of(resource)
        if (last := self._ordered.get(resource)) is None or last[0] != changes:
            last = self._ordered[resource] = changes, tuple(kept[key] for key in sorted(kept))
        return last[1]

    def get(self, resource: Resource, key: Key) -> Any | None:
        """One object; None where none was shown."""
        return self._kept[resource].get(key)

    def forget(self, resource: Resource, key: Key) -> bool:
        """It is not there; whether it was kept."""
        self._heard[resource].pop(key, None)
        gone = self._kept[resource].pop(key, None) is not None
        self._changes[resource] += gone
        return gone


def _version(body: Json) -> str:
    return str(body["metadata"].get("resourceVersion", ""))


def key_of(body: Json) -> Key:
    """Its namespace and name."""
    meta = body["metadata"]
    return Key(meta.get("namespace", ""), meta["name"])
