"""Where handlers bring news: turns it into the keys of those services that it may concern. Called by handlers.py; decides nothing else.

Knows which service uses which profile, whose replicas stand on which node, and (told by `reconcile`) who waits for capacity.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol

from pagoda_operator.api.state import Key


class Queue(Protocol):
    """Takes keys."""

    def add(self, key: Key, *, urgent: bool = False) -> None:
        """Run the key now; an urgent one before those that are not, but for every fourth turn."""


class Stand(NamedTuple):
    """Whose replica a pod is, and on which node ("": on none yet)."""

    service: Key
    node: str


class Door:
    """One method per kind of news."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._profiles: dict[Key, str] = {}
        # Replica → its service and node: what happens to a node concerns those who stand on it.
        self._replicas: dict[Key, Stand] = {}
        self._standing: dict[str, dict[Key, int]] = {}
        self._waiting: set[Key] = set()

    def service(self, key: Key, profile: str, *, gone: bool, news: bool = True, edited: bool = False) -> None:
        """An event of a service; without news (a run has read the same meanwhile) only what it uses is noted. One that was `edited`, and
        whose edit has no answer yet, goes before runs that only report."""
        if gone:
            self._profiles.pop(key, None)
            self._waiting.discard(key)
        else:
            self._profiles[key] = profile
        if news:
            self._queue.add(key, urgent=edited)

    def profile(self, name: str) -> None:
        """An event of a profile; the default one is itself kept by a run of its own."""
        self._queue.add(Key("", name))
        self._wake(key for key, used in self._profiles.items() if used == name)

    def child(self, key: Key) -> None:
        """An event of a child that is no pod, or of an adapter of the service."""
        self._queue.add(key)

    def replica(self, pod: Key, stand: Stand, *, gone: bool, news: bool = True) -> None:
        """An event of a pod of a service; without news only where it stands is noted."""
        if (last := self._replicas.pop(pod, None)) is not None:
            self._stand(*last, -1)
        if not gone:
            self._replicas[pod] = stand
            self._stand(*stand, 1)
        if news:
            self._queue.add(stand.service)

    def keep(self, services: Collection[Key], replicas: Collection[Key]) -> None:
        """Only these are there: of others the end went unseen, or was found by a run."""
        self._profiles = {key: profile for key, profile in self._profiles.items() if key in services}
        self._waiting &= {*services}
        for pod in self._replicas.keys() - {*replicas}:
            self._stand(*self._replicas.pop(pod), -1)

    def node(self, name: str) -> None:
        """Something that is decided by changed on a node: concerns who stands there and who waits for room."""
        self._wake({*self._standing.get(name, ()), *self._waiting})

    def room(self) -> None:
        """Something changed in what others hold, or in what devices there are."""
        self._wake(self._waiting)

    def quota(self, namespaces: Iterable[str]) -> None:
        """A tenant's quota changed: concerns the services it counts and whoever waits."""
        counted = frozenset(namespaces)
        self._wake({*(key for key in self._profiles if key.namespace in counted), *self._waiting})

    def waits(self, key: Key, *, waiting: bool) -> None:
        """Whether a service cannot be placed for want of capacity, as its last run found."""
        if waiting:
            self._waiting.add(key)
        else:
            self._waiting.discard(key)

    def _stand(self, service: Key, node: str, count: int) -> None:
        if not node:
            return
        there = self._standing.setdefault(node, {})
        there[service] = there.get(service, 0) + count
        if there[service] <= 0:
            del there[service]
        if not there:
            del self._standing[node]

    def _wake(self, keys: Iterable[Key]) -> None:
        for key in tuple(keys):
            self._queue.add(key)
