"""Events (events.k8s.io/v1): one for each change of a service's Ready reason, so that `kubectl describe` tells its story.

Told by `reconcile` right after the status that they speak of, so nothing is written at rest or after a restart. Best effort: an Event
that is refused or lost changes nothing else, and no run waits for one: at 20 changes a second on two cores a sixth of all that was asked of
the API server were Events, each between two runs of its service. The same word again within six minutes raises the series of the first;
past the limit of a minute words are only counted, and the count is told by the next one that is written.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

import structlog
from pagoda_contracts.conditions.table import warns
from pagoda_contracts.conditions.types import READY, STALLED
from pagoda_contracts.names import FIELD_MANAGER, GROUP
from pagoda_contracts.resources.meta import ObjectMeta

from pagoda_operator.api.errors import ClusterError, OperatorError
from pagoda_operator.api.state import EVENTS, SERVICES, Json, Key, Observed
from pagoda_operator.inventory.values import digest
from pagoda_operator.run.apply import Writer, apply_anew

PER_MINUTE: Final = 6
# As client-go's recorder: what comes again within six minutes is one Event.
SERIES_SECONDS: Final = 360.0
# Of services that change for minutes faster than the API server takes words about it, the oldest words are lost: 4 MB.
MOST_WAITING: Final = 2000
_CONTROLLER: Final = f"{GROUP}/operator"
_ACTION: Final = "Reconcile"
_MAX_NOTE: Final = 1024


class Word(NamedTuple):
    """What an Event says."""

    kind: Literal["Normal", "Warning"]
    reason: str
    note: str


@dataclass(frozen=True)
class Told:
    """An Event that was written: its name, and what its series counts."""

    name: str
    first: float
    last: float
    count: int


@dataclass
class _Book:
    """What was told of one service: the Events under way, the times of the last minute's writes, what the limit kept back."""

    told: dict[Word, Told] = field(default_factory=dict)
    writes: list[float] = field(default_factory=list)
    held_back: dict[Word, int] = field(default_factory=dict)


def news(before: Json, after: Json) -> Word | None:
    """The Event that a change of status is worth; None where the Ready condition's reason stays."""
    ready = _condition(after, READY.name)
    if not ready or _condition(before, READY.name).get("reason") == ready["reason"]:
        return None
    bad = _condition(after, STALLED.name).get("status") == "True" or warns(ready["reason"])
    return Word("Warning" if bad else "Normal", ready["reason"], ready["message"][:_MAX_NOTE])


def admit(book: _Book, word: Word, now: float) -> Told | None:
    """The Event to write, new or counted up; None past the limit of the minute."""
    book.writes = [at for at in book.writes if now - at < 60]
    book.told = {said: told for said, told in book.told.items() if now - told.last < SERIES_SECONDS}
    count = book.held_back.get(word, 0) + 1
    if len(book.writes) >= PER_MINUTE:
        book.held_back[word] = count
        return None
    book.held_back.pop(word, None)
    book.writes.append(now)
    known = book.told.get(word)
    fresh = Told(digest([word, now]), now, now, count)
    book.told[word] = fresh if known is None else replace(known, last=now, count=known.count + count)
    return book.told[word]


class _Line(NamedTuple):
    """An Event to be written: of whom, whether its series begins with it."""

    key: Key
    manifest: dict[str, Any]
    first: bool


class Recorder:
    """Writes Events, each service's within its limit. `beside`: by `run`, one after the other, so that they give way: where the API server
    is short of CPU they become as rare as its answers, and a hundred a second where it is not. Else at once. With four at a time
    runs waited twice as long in the worst of a hundred changes."""

    def __init__(self, writer: Writer, identity: str, *, beside: bool = False) -> None:
        self._writer = writer
        self._identity = identity[:128] or FIELD_MANAGER  # required, and empty in a unit test
        self._beside = beside
        self._books: dict[Key, _Book] = {}
        self._lines: deque[_Line] = deque()
        self._news = asyncio.Event()

    async def record(self, observed: Observed, status: dict[str, Any], now: datetime) -> None:
        """The Event of a status that was just written, where it is worth one."""
        word = news(observed.raw_status, status)
        if word is None:
            return
        key = Key(observed.meta.namespace, observed.meta.name)
        told = admit(self._books.setdefault(key, _Book()), word, now.timestamp())
        if told is None:
            return
        line = _Line(key, render(observed.meta, word, told, self._identity), first=told.count == 1)
        if self._beside:
            self._put(line)
        else:
            await self._write(line)

    def waiting(self) -> int:
        """How many are to be written."""
        return len(self._lines)

    async def run(self) -> None:
        """Writes until cancelled. A part of its own: whatever task begins after Kopf, Kopf cancels first, and a part that ends so ends the
        process badly."""
        while True:
            while self._lines:
                line = self._lines.popleft()
                try:
                    await self._write(line)
                except OperatorError:
                    raise  # somebody else leads
                except Exception as error:  # noqa: BLE001 (a word that cannot be written is no reason to end)
                    _lost(line, repr(error))
            self._news.clear()
            await self._news.wait()

    def _put(self, line: _Line) -> None:
        if len(self._lines) >= MOST_WAITING:
            _lost(self._lines.popleft(), f"{len(self._lines)} later ones wait")
        self._lines.append(line)
        self._news.set()

    async def _write(self, line: _Line) -> None:
        try:
            if line.first:
                await self._writer.create(EVENTS, line.manifest, FIELD_MANAGER)
            else:
                await apply_anew(self._writer, EVENTS, line.manifest)
        except ClusterError as error:
            _lost(line, str(error))

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._books.pop(key, None)


def _lost(line: _Line, why: str) -> None:
    structlog.get_logger().warning("event_lost", namespace=line.key.namespace, name=line.key.name, error=why)


def render(meta: ObjectMeta, word: Word, told: Told, identity: str) -> dict[str, Any]:
    """The Event as an object. Its name holds the service's, as everybody's Events do."""
    body: dict[str, Any] = {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": f"{meta.name}.{told.name}", "namespace": meta.namespace},
        "eventTime": _micro(told.first),
        "type": word.kind,
        "reason": word.reason,
        "note": word.note,
        "action": _ACTION,
        "reportingController": _CONTROLLER,
        "reportingInstance": identity,
        "regarding": {
            "apiVersion": SERVICES.api_version,
            "kind": SERVICES.kind,
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
        },
    }
    return body | ({"series": {"count": told.count, "lastObservedTime": _micro(told.last)}} if told.count > 1 else {})


def _micro(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _condition(status: Json, kind: str) -> Json:
    return next((line for line in status.get("conditions", []) if line.get("type") == kind), {})
