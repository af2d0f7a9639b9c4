"""Events (events.k8s.io/v1): one for each change of a service's Ready reason, so that `kubectl describe` tells its story.

`reconcile` records an Event right after the status that it speaks of, so nothing is written at rest or after a restart. Best effort: an
Event that is refused or lost changes nothing else, and no run waits for one (at 20 changes a second on two cores a sixth of all requests
were Events). The same text again within six minutes raises the count of the first one's series. Past the limit of a minute Events are only
counted, and the next one that is written carries the count.
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
# If services change for minutes faster than the API server takes Events about it, the oldest are lost: 4 MB.
MOST_WAITING: Final = 2000
_CONTROLLER: Final = f"{GROUP}/operator"
_ACTION: Final = "Reconcile"
_MAX_NOTE: Final = 1024


class EventText(NamedTuple):
    """What an Event says."""

    kind: Literal["Normal", "Warning"]
    reason: str
    note: str


@dataclass(frozen=True)
class Series:
    """An Event that was written: its name, and what its series counts."""

    name: str
    first: float
    last: float
    count: int


@dataclass
class _Correlation:
    """Of one service: the series under way, the times of the last minute's writes, and how many Events the limit suppressed."""

    series: dict[EventText, Series] = field(default_factory=dict)
    writes: list[float] = field(default_factory=list)
    suppressed: dict[EventText, int] = field(default_factory=dict)


def event_for(before: Json, after: Json) -> EventText | None:
    """The Event that a change of status is worth; None where the Ready condition's reason stays."""
    ready = _condition(after, READY.name)
    if not ready or _condition(before, READY.name).get("reason") == ready["reason"]:
        return None
    bad = _condition(after, STALLED.name).get("status") == "True" or warns(ready["reason"])
    return EventText("Warning" if bad else "Normal", ready["reason"], ready["message"][:_MAX_NOTE])


def correlate(known_events: _Correlation, text: EventText, now: float) -> Series | None:
    """The Event to write, new or counted up; None past the limit of the minute."""
    known_events.writes = [at for at in known_events.writes if now - at < 60]
    known_events.series = {said: one for said, one in known_events.series.items() if now - one.last < SERIES_SECONDS}
    count = known_events.suppressed.get(text, 0) + 1
    if len(known_events.writes) >= PER_MINUTE:
        known_events.suppressed[text] = count
        return None
    known_events.suppressed.pop(text, None)
    known_events.writes.append(now)
    known = known_events.series.get(text)
    fresh = Series(digest([text, now]), now, now, count)
    known_events.series[text] = fresh if known is None else replace(known, last=now, count=known.count + count)
    return known_events.series[text]


class _Pending(NamedTuple):
    """An Event to be written: of whom, whether its series begins with it."""

    key: Key
    manifest: dict[str, Any]
    first: bool


class Recorder:
    """Writes Events, each service's within its limit.

    `queued`: `run` writes them, one after the other, so that an API server that is short of CPU gets fewer of them. With four at a time
    runs waited twice as long in the worst of a hundred changes. Otherwise `record` writes them at once.
    """

    def __init__(self, writer: Writer, identity: str, *, queued: bool = False) -> None:
        self._writer = writer
        self._identity = identity[:128] or FIELD_MANAGER  # required, and empty in a unit test
        self._queued = queued
        self._correlations: dict[Key, _Correlation] = {}
        self._pending: deque[_Pending] = deque()
        self._added = asyncio.Event()

    async def record(self, observed: Observed, status: dict[str, Any], now: datetime) -> None:
        """The Event of a status that was just written, where it is worth one."""
        text = event_for(observed.raw_status, status)
        if text is None:
            return
        key = Key(observed.meta.namespace, observed.meta.name)
        series = correlate(self._correlations.setdefault(key, _Correlation()), text, now.timestamp())
        if series is None:
            return
        event = _Pending(key, render(observed.meta, text, series, self._identity), first=series.count == 1)
        if self._queued:
            self._enqueue(event)
        else:
            await self._write(event)

    def waiting(self) -> int:
        """How many are to be written."""
        return len(self._pending)

    async def run(self) -> None:
        """Writes until cancelled. A part of its own: whatever task begins after Kopf, Kopf cancels first, and a part that ends so ends the
        process badly."""
        while True:
            while self._pending:
                event = self._pending.popleft()
                try:
                    await self._write(event)
                except OperatorError:
                    raise  # somebody else leads
                except Exception as error:  # noqa: BLE001 (an Event that cannot be written is no reason to end)
                    _lost(event, repr(error))
            self._added.clear()
            await self._added.wait()

    def _enqueue(self, event: _Pending) -> None:
        if len(self._pending) >= MOST_WAITING:
            _lost(self._pending.popleft(), f"{len(self._pending)} later ones wait")
        self._pending.append(event)
        self._added.set()

    async def _write(self, event: _Pending) -> None:
        try:
            if event.first:
                await self._writer.create(EVENTS, event.manifest, FIELD_MANAGER)
            else:
                await apply_anew(self._writer, EVENTS, event.manifest)
        except ClusterError as error:
            _lost(event, str(error))

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._correlations.pop(key, None)


def _lost(event: _Pending, why: str) -> None:
    structlog.get_logger().warning("event_lost", namespace=event.key.namespace, name=event.key.name, error=why)


def render(meta: ObjectMeta, text: EventText, series: Series, identity: str) -> dict[str, Any]:
    """The Event as an object. Its name holds the service's, as everybody's Events do."""
    body: dict[str, Any] = {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": f"{meta.name}.{series.name}", "namespace": meta.namespace},
        "eventTime": _micro(series.first),
        "type": text.kind,
        "reason": text.reason,
        "note": text.note,
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
    return body | ({"series": {"count": series.count, "lastObservedTime": _micro(series.last)}} if series.count > 1 else {})


def _micro(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _condition(status: Json, kind: str) -> Json:
    return next((line for line in status.get("conditions", []) if line.get("type") == kind), {})
