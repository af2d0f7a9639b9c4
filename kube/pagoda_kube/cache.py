"""The cache of one kind of objects, fed by lists, by a watch and by the answers to own writes. Pure: it opens no socket and reads no clock.

Whatever comes late or twice, the newest version of an object counts: an event that was on its way when a list or a write's answer showed
more is old news, and so is any event up to the version of a list that was taken. Kubernetes promises since 1.35 that the versions of one
kind compare as numbers (KEP-5504), and before it they always were. A version that is no number is believed.

A list is taken whole: what it lacks is gone, unless it is newer than the list. A list that is older than what was known when it was asked
for comes from a store that was set back (restored from a backup). All of it is believed, and nothing that was known before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

V = TypeVar("V")


class Key(NamedTuple):
    """Names an object of a kind; the namespace is "" where it has none."""

    namespace: str
    name: str


class Item(NamedTuple, Generic[V]):
    """An object as it was read: its resourceVersion, and what is kept of it; None where nothing is."""

    key: Key
    version: str
    value: V | None


class Known(NamedTuple, Generic[V]):
    """The newest that is known of an object. `number` is None where its version is no number."""

    number: int | None
    version: str
    value: V | None


Changed = Callable[[Key, V | None, V | None], None]


class Cache(Generic[V]):
    """`changed` is called for each object whose value became another one: its key, the value before and after; None where there is none."""

    def __init__(self, changed: Changed[V] = lambda _key, _before, _after: None) -> None:
        self._changed = changed
        self._known: dict[Key, Known[V]] = {}
        # Versions at which objects ended; kept until a list is newer.
        self._ended: dict[Key, int] = {}
        self._newest = self._listed = 0

    @property
    def newest(self) -> int:
        """The newest version that was seen of the kind: what a list that is asked for now cannot be older than."""
        return self._newest

    def get(self, key: Key) -> Known[V] | None:
        """One object."""
        return self._known.get(key)

    def values(self) -> dict[Key, V]:
        """All objects of which something is kept."""
        return {key: known.value for key, known in self._known.items() if known.value is not None}

    def put(self, item: Item[V]) -> bool:
        """An object as an event or the answer to a write shows it; whether that was news."""
        number = as_number(item.version)
        if self._is_old(item.key, number):
            return False
        before = self._known.get(item.key)
        if before is not None and number is not None and before.number == number:
            return False
        self._ended.pop(item.key, None)
        self._newest = max(self._newest, number or 0)
        self._keep(item, number)
        return True

    def drop(self, key: Key, version: str) -> bool:
        """An object ended, at this version or later; whether that was news."""
        number = as_number(version)
        if self._is_old(key, number):
            return False
        if number is not None:
            self._ended[key] = number
            self._newest = max(self._newest, number)
        return self._forget(key)

    def deleted(self, key: Key, version: str) -> None:
        """The server has deleted this very version for us. When it ended is not said; what comes of it later comes by its next event."""
        number, known = as_number(version), self._known.get(key)
        if number is not None and (known is None or known.number is None or known.number <= number):
            self._ended[key] = max(number, self._ended.get(key, -1))
            self._forget(key)

    def take_list(self, items: Iterable[Item[V]], version: str, since: int, among: Iterable[Key] | None = None) -> int:
        """Takes a list by a quorum read, with the list's own version. `since`: `newest` before it was asked for. `among`: what a list of
        some objects would have had; None for a list of all. Returns how many objects it changed."""
        listed = as_number(version)
        if listed is not None and listed < since:
            self._ended.clear()
            self._known = {key: known._replace(number=None) for key, known in self._known.items()}
            self._newest = self._listed = 0
        if listed is not None and listed < self._listed:
            return 0  # a later list was faster
        read = {item.key: item for item in items}
        gone = [key for key in (self._known if among is None else among) if key not in read]
        changed = sum([self._keep(item, as_number(item.version)) for item in read.values() if not self._is_newer(item.key, listed)])
        ended = [key for key in gone if not self._is_newer(key, listed)]
        changed += sum([self._forget(key) for key in ended])
        if listed is not None:
            self._ended |= dict.fromkeys(ended, listed)
        if listed is not None:
            self._newest = max(self._newest, listed)
            if among is None:
                self._listed = listed
                self._ended = {key: end for key, end in self._ended.items() if end > listed}
        return changed

    def _is_newer(self, key: Key, listed: int | None) -> bool:
        """Whether something is known of an object that is newer than a list."""
        known = self._known.get(key)
        newest = max(self._ended.get(key, -1), known.number if known is not None and known.number is not None else -1)
        return listed is not None and newest > listed

    def _is_old(self, key: Key, number: int | None) -> bool:
        if number is None:
            return False
        known = self._known.get(key)
        least = max(self._ended.get(key, -1), self._listed)
        return number <= least or (known is not None and known.number is not None and known.number > number)

    def _keep(self, item: Item[V], number: int | None) -> bool:
        before = self._known.get(item.key)
        self._known[item.key] = Known(number, item.version, item.value)
        was = None if before is None else before.value
        if was == item.value:
            return False
        self._changed(item.key, was, item.value)
        return True

    def _forget(self, key: Key) -> bool:
        known = self._known.pop(key, None)
        if known is None or known.value is None:
            return False
        self._changed(key, known.value, None)
        return True


def as_number(version: str) -> int | None:
    """The version as a number; None where it is none."""
    return int(version) if version.isascii() and version.isdigit() else None
