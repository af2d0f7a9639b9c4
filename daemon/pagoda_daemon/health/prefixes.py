"""PrefixBook: which beginnings of texts are resident in this replica, and what each watcher has yet to hear of it. Pure; written by the
engine's link, read by the state feed (`api/grpc/watch.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

PER_FRAME: Final = 8192  # names: 128 KiB; the next frame has the rest
MOST_PENDING: Final = 65_536  # twice what an engine holds: a watcher that reads more slowly begins anew


class News(NamedTuple):
    """For one frame. `reset`: the reader forgets all it knew first."""

    reset: bool
    resident: tuple[bytes, ...]
    evicted: tuple[bytes, ...]


class PrefixBook:
    """What the engine reported, folded."""

    def __init__(self) -> None:
        self.resident: dict[bytes, None] = {}
        self._readers: list[Reader] = []

    def note(self, resident: Iterable[bytes], evicted: Iterable[bytes]) -> None:
        """A report of the engine."""
        changes = dict.fromkeys(resident, True) | dict.fromkeys(evicted, False)
        for name, here in changes.items():
            if here:
                self.resident[name] = None
            else:
                self.resident.pop(name, None)
        for reader in self._readers:
            reader.note(changes)

    def open(self) -> Reader:
        """For a new stream, which knows nothing."""
        reader = Reader(self)
        self._readers.append(reader)
        return reader

    def close(self, reader: Reader) -> None:
        self._readers.remove(reader)


class Reader:
    """One stream's place in the book. The last word on a name replaces earlier ones."""

    def __init__(self, book: PrefixBook) -> None:
        self._book = book
        self._pending: dict[bytes, bool] = {}
        self._begin()

    def _begin(self) -> None:
        self._reset, self._pending = True, dict.fromkeys(self._book.resident, True)

    def note(self, changes: dict[bytes, bool]) -> None:
        """What is new."""
        self._pending |= changes
        if len(self._pending) > MOST_PENDING:
            self._begin()

    @property
    def behind(self) -> bool:
        """Whether there is more to say."""
        return bool(self._pending)

    def take(self) -> News:
        """For the next frame."""
        if not self._reset and not self._pending:
            return _NOTHING
        names = list(self._pending)[:PER_FRAME]
        said = [(name, self._pending.pop(name)) for name in names]
        reset, self._reset = self._reset, False
        return News(reset, tuple(name for name, here in said if here), tuple(name for name, here in said if not here))


_NOTHING: Final = News(False, (), ())
