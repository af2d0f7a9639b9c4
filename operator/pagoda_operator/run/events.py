"""Events (events.k8s.io/v1), for `kubectl describe`: changes of a service's Ready reason and of Degraded, evictions, and what the operator
undid or could not keep. Each is also a line in the log.

`reconcile` records an Event right after it wrote the status, so nothing is written at rest or after a restart. Events are best effort: one
that is refused or lost changes nothing else, and no run waits for one. (At 20 changes per second on two cores a sixth of all requests were
Events.) The same text again within six minutes raises the count of the first one's series. Past the limit per minute Events are only
counted, and the next one that is written has the count.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

import structlog
from pagoda_contracts.conditions.table import warns
from pagoda_contracts.conditions.types import DEGRADED, READY, STALLED
from pagoda_contracts.names import ANNOTATION_RENDERED, FIELD_MANAGER, GROUP, LEASE_OPERATOR
from pagoda_contracts.resources.meta import ObjectMeta
from pagoda_placement.values import digest

from pagoda_operator.api.errors import ClusterError, OperatorError
from pagoda_operator.api.state import EVENTS, LEASES, SERVICES, Json, Key, Observed, Resource
from pagoda_operator.decide.render.overlay import written
from pagoda_operator.decide.render.writes import Apply, Write
from pagoda_operator.run.apply import Cluster, apply_anew

PER_MINUTE: Final = 6
# As in client-go's recorder.
SERIES_SECONDS: Final = 360.0
# If services change for minutes faster than the API server takes Events, the oldest are lost: 4 MB.
MOST_WAITING: Final = 2000
_CONTROLLER: Final = f"{GROUP}/operator"
_ACTION: Final = "Reconcile"
_MAX_NOTE: Final = 1024
_MOST_PATHS: Final = 5
# Reasons of Events that are no condition's: another client's change of a child was undone; the same write was undone again and again; a
# replica is evicted or preempted; this process leads.
EDIT_UNDONE: Final = "EditUndone"
WRITE_CONTESTED: Final = "WriteContested"
REPLICA_EVICTED: Final = "ReplicaEvicted"
LEADER_ELECTED: Final = "LeaderElected"
# A write that was undone so often is reported.
_CONTESTED: Final = 2
_RARER: Final = "The operator repeats it after growing delays of up to 60 s. Stop the other client."


class EventText(NamedTuple):
    """What an Event says."""

    kind: Literal["Normal", "Warning"]
    reason: str
    note: str


class Series(NamedTuple):
    """An Event that was written: its name, and the first time, the last time and the number of its series."""

    name: str
    first: float
    last: float
    number: int


@dataclass
class _Correlation:
    """Of one service: its current series, the times of the last minute's writes, and how many Events the limit suppressed."""

    series: dict[EventText, Series] = field(default_factory=dict)
    writes: list[float] = field(default_factory=list)
    suppressed: dict[EventText, int] = field(default_factory=dict)


def events_for(before: Json, after: Json) -> Iterator[EventText]:
    """The Events for a change of status: the reason of Ready is another, or replicas became unhealthy, are replaced or are well again."""
    ready, degraded = _condition(after, READY.name), _condition(after, DEGRADED.name)
    if ready and _condition(before, READY.name).get("reason") != ready["reason"]:
        bad = _condition(after, STALLED.name).get("status") == "True" or warns(ready["reason"])
        yield EventText("Warning" if bad else "Normal", ready["reason"], ready["message"][:_MAX_NOTE])
    known = _condition(before, DEGRADED.name)
    if degraded and any(known.get(part) != degraded[part] for part in ("status", "reason", "message")):
        yield EventText("Warning" if degraded["status"] == "True" else "Normal", degraded["reason"], degraded["message"][:_MAX_NOTE])


def correlate(past: _Correlation, text: EventText, now: float) -> Series | None:
    """The Event to write, new or counted up; None past the limit of the minute."""
    past.writes = [at for at in past.writes if now - at < 60]
    past.series = {known: one for known, one in past.series.items() if now - one.last < SERIES_SECONDS}
    count = past.suppressed.get(text, 0) + 1
    if len(past.writes) >= PER_MINUTE:
        past.suppressed[text] = count
        return None
    past.suppressed.pop(text, None)
    past.writes.append(now)
    first = past.series.get(text, Series(digest([text, now]), now, now, 0))
    past.series[text] = first._replace(last=now, number=first.number + count)
    return past.series[text]


def about_write(write: Write, times: int) -> Iterator[EventText]:
    """The Events for a write: what another client had changed, and that it does so again and again. `times`: how many times in a row the
    same was written."""
    if not isinstance(write, Apply):
        return
    what, who = f"{write.resource.kind} {write.name}", _writers(write)
    paths = [written(edit.path) for edit in write.edits]
    more = f" and {len(paths) - _MOST_PATHS} more" if len(paths) > _MOST_PATHS else ""
    changed = f"{', '.join(paths[:_MOST_PATHS])}{more}" or "it"
    if times > _CONTESTED:
        note = f"{what}: {who} changes {changed} each time after the operator has written it. {_RARER}"
        yield EventText("Warning", WRITE_CONTESTED, note[:_MAX_NOTE])
    elif paths:
        note = f"{what}: {who} had changed {changed}. The operator restored it."
        yield EventText("Warning", EDIT_UNDONE, note[:_MAX_NOTE])


def _writers(write: Apply) -> str:
    managers = sorted({edit.manager for edit in write.edits if edit.manager})
    if managers:
        return f"field manager {' and '.join(map(repr, managers))}"
    ours, live = (body["metadata"].get("annotations", {}).get(ANNOTATION_RENDERED) for body in (write.manifest, write.live.body))
    return "another client" if live in (None, ours) else "another Pagoda operator"


class _Pending(NamedTuple):
    """An Event to be written: its service, the object, and whether its series begins with it."""

    key: Key
    manifest: dict[str, Any]
    first: bool


class Recorder:
    """Writes Events, each service's within its limit.

    `run` writes them one after the other, so that an API server that is short of CPU gets fewer of them. With four at a time the slowest of
    a hundred runs waited twice as long.
    """

    def __init__(self, cluster: Cluster, identity: str) -> None:
        self._cluster = cluster
        self._identity = identity[:128]
        self._correlations: dict[Key, _Correlation] = {}
        # Replicas whose eviction was reported, by uid.
        self._evicted: dict[Key, frozenset[str]] = {}
        self._pending: deque[_Pending] = deque()
        self._added = asyncio.Event()

    def record(self, observed: Observed, status: dict[str, Any], now: datetime) -> None:
        """Queues the Events for a status that was just written."""
        for text in events_for(observed.raw_status, status):
            self.note(observed.meta, text, now)

    def record_writes(self, observed: Observed, made: Iterable[tuple[Write, int]], now: datetime) -> None:
        """Queues the Events for writes that undid what another client did. With each write: how many times in a row it was the same."""
        for text in (text for write, times in made for text in about_write(write, times)):
            self.note(observed.meta, text, now)

    def record_evictions(self, observed: Observed, now: datetime) -> None:
        """Queues an Event for each replica that is evicted. What a process before this one reported is not known."""
        key = Key(observed.meta.namespace, observed.meta.name)
        recent = now.timestamp() - SERIES_SECONDS
        found = {pod.uid: pod for pod in observed.pods if pod.evicted and pod.evicted_at is not None and pod.evicted_at > recent}
        for uid in found.keys() - self._evicted.get(key, frozenset()):
            note = f"Replica {found[uid].name} leaves node {found[uid].node or 'none'}: {found[uid].evicted}"
            self.note(observed.meta, EventText("Warning", REPLICA_EVICTED, note[:_MAX_NOTE]), now)
        self._evicted[key] = frozenset(found)

    def record_leader(self, namespace: str, epoch: int, cause: str, now: datetime) -> None:
        """Queues the Event that this process leads, about the Lease."""
        text = EventText("Normal", LEADER_ELECTED, f"{self._identity} leads with epoch {epoch}: {cause}")
        self.note(ObjectMeta(name=LEASE_OPERATOR, namespace=namespace), text, now, LEASES)

    def note(self, meta: ObjectMeta, text: EventText, now: datetime, regarding: Resource = SERVICES) -> None:
        """Logs an Event about a service or the Lease, and queues it."""
        key = Key(meta.namespace, meta.name)
        structlog.get_logger().info("reported", namespace=key.namespace, name=key.name, reason=text.reason, note=text.note)
        series = correlate(self._correlations.setdefault(key, _Correlation()), text, now.timestamp())
        if series is None:
            return
        if len(self._pending) >= MOST_WAITING:
            _lost(self._pending.popleft(), f"{len(self._pending)} later ones wait")
        self._pending.append(_Pending(key, render(meta, text, series, self._identity, regarding), first=series.number == 1))
        self._added.set()

    def waiting(self) -> int:
        """How many are to be written."""
        return len(self._pending)

    async def run(self) -> None:
        """Writes until cancelled. Kopf cancels every task that begins after it, so this is a part of the process and no task of a run."""
        while True:
            await self.write_pending()
            self._added.clear()
            await self._added.wait()

    async def write_pending(self) -> None:
        """Writes what is queued. An Event that cannot be written is logged; any other error of ours says that another process leads."""
        while self._pending:
            event = self._pending.popleft()
            try:
                if event.first:
                    await self._cluster.create(EVENTS, event.manifest, FIELD_MANAGER)
                else:
                    await apply_anew(self._cluster, EVENTS, event.manifest)
            except ClusterError as error:
                _lost(event, str(error))
            except OperatorError:
                raise
            except Exception as error:  # noqa: BLE001 (an Event that cannot be written is no reason to end)
                _lost(event, repr(error))

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._correlations.pop(key, None)
        self._evicted.pop(key, None)


def _lost(event: _Pending, why: str) -> None:
    structlog.get_logger().warning("event_lost", namespace=event.key.namespace, name=event.key.name, error=why)


def render(meta: ObjectMeta, text: EventText, series: Series, identity: str, regarding: Resource) -> dict[str, Any]:
    """The Event as an object, named after what it is about."""
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
            "apiVersion": regarding.api_version,
            "kind": regarding.kind,
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
        },
    }
    return body | ({"series": {"count": series.number, "lastObservedTime": _micro(series.last)}} if series.number > 1 else {})


def _micro(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _condition(status: Json, kind: str) -> Json:
    return next((line for line in status.get("conditions", []) if line.get("type") == kind), {})
