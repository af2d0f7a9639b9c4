"""The reports of all gateways, as one view per service (api/signals.py). Pure: frames and a clock go in, views and wake-ups come out.

Fed by listen.py, asked by `reconcile`. Held requests are summed over gateways. Every gateway repeats what replicas report of themselves, so
that is taken from the gateway that hears most replicas. A service is woken when something changed that a decision may depend on, never for
each frame. Demand is measured in bins. `measured` is called at the end of each bin, or within a second if more requests wait than before,
since a growing queue must not wait for 5 s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pagoda_contracts.names import STATE_DEAD_MS
from pagoda_contracts.pb import demand_pb2 as pb

from pagoda_operator.api.signals import BIN_S, CONFIRM_S, MISSING_S, EndpointSignal, RevisionSignal, ServiceSignals
from pagoda_operator.api.state import Key
from pagoda_operator.client.reports import HEARD, admitted_by_all, endpoints
from pagoda_operator.decide.scale.demand import Bins, Level

FRESH_S: Final = STATE_DEAD_MS / 1000
# Gateways' names are resolved at once and every 2 s: if none was found in so long, there is none.
_RESOLVED_S: Final = 10.0


@dataclass(slots=True)
class _Gateway:
    """`since`: when the stream was begun. `heard`: when its last frame came."""

    since: float
    heard: float = float("-inf")
    services: dict[Key, pb.ServiceDemand] = field(default_factory=dict)

    def counts(self, now: float) -> bool:
        """Whether its reports count. After a minute of silence it is unhealthy itself and blocks nothing."""
        return now - max(self.since, self.heard) <= MISSING_S

    def fresh(self, now: float) -> bool:
        return now - self.heard <= FRESH_S


@dataclass(slots=True)
class _Service:
    """`ready`: its Ready pods; `bad`: since when a replica's verdict is DEAD or UNHEARD; `lacking`: since when a replica is Ready and a
    gateway has not admitted it, or until now if it is not Ready; `last_state`: what the last wake-up was for."""

    bins: Bins
    ready: frozenset[str] = frozenset()
    bad: dict[str, float] = field(default_factory=dict)
    lacking: dict[str, float] = field(default_factory=dict)
    confirmed: set[str] = field(default_factory=set)
    last_state: object = None


class Signals:
    """All gateways and services. `wake` queues a service; `measured` is called when a service's bin has ended. `wakes`: whether a
    request starts a service at zero; not if the reports are replicas' own (replicas.py)."""

    def __init__(
        self,
        clock: Callable[[], float],
        wake: Callable[[Key], None],
        measured: Callable[[Key], None] = lambda _: None,
        *,
        wakes: bool = True,
    ) -> None:
        self._clock, self._wake, self.measured, self._wakes = clock, wake, measured, wakes
        self._gateways: dict[str, _Gateway] = {}
        self._services: dict[Key, _Service] = {}
        self._fresh: frozenset[str] = frozenset()
        self._worsened: set[Key] = set()
        # When a gateway that is gone, or that no longer reports the service, last reported its replicas.
        self._last_reported: dict[Key, float] = {}
        self._began, self._any_gateway = clock(), False
        self._bin_ends = self._began + BIN_S

    # Called by the listener

    def follow(self, gateway: str) -> None:
        """A gateway exists; until its first frame nothing is fresh."""
        self._any_gateway = True
        self._gateways.setdefault(gateway, _Gateway(self._clock()))

    def begin(self) -> None:
        """Silence counts from now on: who begins to lead has heard no replica yet."""
        self._began, self._any_gateway = self._clock(), True

    def forget(self, gateway: str) -> None:
        """It is gone for good."""
        if (gone := self._gateways.pop(gateway, None)) is not None:
            for key, one in gone.services.items():
                self._note_reported(key, one, gone.heard)
            self._review(gone.services)

    def hear(self, gateway: str, frame: pb.Demand) -> None:
        """A frame of a gateway."""
        self.follow(gateway)
        now, known = self._clock(), self._gateways[gateway]
        first, last = known.heard == float("-inf"), known.heard
        known.heard = now
        reported = {Key(one.namespace, one.name): one for one in frame.services}
        gone = known.services.keys() - reported.keys() if frame.full else set()
        for key in {*reported, *gone} & known.services.keys():
            self._note_reported(key, known.services[key], last)
        for key in gone:
            del known.services[key]
        for key, one in reported.items():
            self._count(key, known.services.get(key), one, first=first)
            known.services[key] = one
            if level(self._parts(key, now)).worse(self._services[key].bins.level):
                self._worsened.add(key)
        self._review({*reported, *gone} if gateway in self._fresh else known.services)

    def tick(self) -> None:
        """Once a second: silence has no event of its own."""
        now = self._clock()
        fresh = frozenset(name for name, gateway in self._gateways.items() if gateway.fresh(now))
        if fresh != self._fresh:
            self._fresh = fresh
            self._review(tuple(self._services))
        for key, service in self._services.items():
            self._confirm(key, service, now)
        self._review([key for key, service in self._services.items() if service.lacking])
        if now >= self._bin_ends:
            self._end_bins(now)
        self._amend_bins(now)

    # Called by reconcile

    def note_ready(self, key: Key, pods: Iterable[str]) -> None:
        """Notes which pods of the service are Ready. Gateways have a minute to admit one from then on, not while it loads."""
        if (service := self._services.get(key)) is not None:
            service.ready = frozenset(pods)

    def of(self, key: Key, now: float) -> ServiceSignals | None:
        """One service's view; `now` is by the caller's clock, which may differ from ours."""
        service, ours = self._services.get(key), self._clock()
        if service is None:
            return None
        parts, shift = self._parts(key, ours), now - ours
        counted = self._counted_parts(key, ours)
        return ServiceSignals(
            measures=service.bins.measures(shift),
            watched_since=service.bins.since + shift,
            fresh=self._complete(ours),
            held=sum(one.held for one in counted),
            wake=any(one.wake for one in counted),
            wakes=self._wakes,
            endpoints=self._endpoints(key, parts, ours),
            revisions=revisions(parts),
        )

    def unheard(self, key: Key) -> float:
        """Returns for how many seconds no gateway has reported any replica of the service; infinite if there never was a gateway."""
        if not self._any_gateway and self._clock() - self._began >= _RESOLVED_S:
            return math.inf
        frames = [one.heard for one in self._gateways.values() if (of := one.services.get(key)) is not None and of.endpoints]
        return self._clock() - max(self._began, self._last_reported.get(key, self._began), *frames)

    def idle(self, key: Key) -> bool:
        """Whether the service got no request for as long as demand is remembered."""
        service = self._services.get(key)
        return service is not None and service.bins.idle

    def _note_reported(self, key: Key, one: pb.ServiceDemand, at: float) -> None:
        """Notes when a gateway reported replicas of the service, since it may report none from now on."""
        if one.endpoints:
            self._last_reported[key] = max(at, self._last_reported.get(key, at))

    def _counted(self, now: float) -> list[_Gateway]:
        return [gateway for gateway in self._gateways.values() if gateway.counts(now)]

    def _complete(self, now: float) -> bool:
        counted = self._counted(now)
        return bool(counted) and all(gateway.fresh(now) for gateway in counted)

    def _parts(self, key: Key, now: float) -> list[pb.ServiceDemand]:
        """The last reports on it of the gateways with a fresh frame."""
        return [one for gateway in self._gateways.values() if gateway.fresh(now) and (one := gateway.services.get(key)) is not None]

    def _counted_parts(self, key: Key, now: float) -> list[pb.ServiceDemand]:
        """The last reports on it of all gateways that count."""
        return [one for gateway in self._counted(now) if (one := gateway.services.get(key)) is not None]

    def _endpoints(self, key: Key, parts: list[pb.ServiceDemand], now: float) -> dict[str, EndpointSignal]:
        service, seen = self._services[key], endpoints(parts)
        admitted = admitted_by_all(self._counted_parts(key, now))
        service.lacking = {pod: service.lacking.get(pod, now) if pod in service.ready else now for pod in seen.keys() - admitted}
        for pod, since in service.lacking.items():
            seen[pod] = replace(seen[pod], lacking=now - since < MISSING_S)
        for pod in service.bad.keys() - {pod for pod, one in seen.items() if one.bad}:
            del service.bad[pod]
            service.confirmed.discard(pod)
        return {pod: one.since(service.bad.setdefault(pod, now), now) if one.bad else one for pod, one in seen.items()}

    def _count(self, key: Key, last: pb.ServiceDemand | None, one: pb.ServiceDemand, *, first: bool) -> None:
        """Counts the differences of a gateway's counters. What it counted before its first frame has no known time."""
        if key not in self._services:
            self._services[key] = _Service(Bins(self._clock()))
        if last is None and first:
            return
        arrived, ended = (last.requests_arrived, last.requests_ended) if last else (0, 0)
        if one.requests_arrived < arrived or one.requests_ended < ended:
            arrived = ended = 0  # another process under the same address
        self._services[key].bins.count(one.requests_arrived - arrived, one.requests_ended - ended)

    def _review(self, keys: Iterable[Key]) -> None:
        """Wakes those services of which something changed that a decision may depend on."""
        now = self._clock()
        for key in tuple(keys):
            if (service := self._services.get(key)) is None:
                continue
            parts = self._parts(key, now)
            found = decisive_state(parts, self._endpoints(key, parts, now))
            if found != service.last_state:
                service.last_state = found
                self._wake(key)

    def _confirm(self, key: Key, service: _Service, now: float) -> None:
        """Wakes a service whose replica has been bad for long enough to act on it."""
        lasting = {pod for pod, since in service.bad.items() if now - since >= CONFIRM_S} - service.confirmed
        if lasting:
            service.confirmed |= lasting
            self._wake(key)

    def _end_bins(self, now: float) -> None:
        """Ends a bin for all services. While a gateway is silent no bin ends; demand.py bridges the gap or begins again."""
        ended = now if now - self._bin_ends >= BIN_S else self._bin_ends  # the process may have been stopped
        self._bin_ends = ended + BIN_S
        # Older entries change no answer.
        self._last_reported = {key: at for key, at in self._last_reported.items() if now - at <= MISSING_S}
        if not self._complete(now):
            return
        for key in tuple(self._services):
            if not (parts := self._parts(key, now)):
                del self._services[key]  # no gateway knows the service any more
                continue
            self._services[key].bins.close(ended, level(parts))
            self.measured(key)

    def _amend_bins(self, now: float) -> None:
        """Amends the bins of services that a gateway reported as worse since the last tick, unless a gateway is silent."""
        if not self._complete(now):
            return
        keys, self._worsened = self._worsened, set()
        for key in keys & self._services.keys():
            bins, parts = self._services[key].bins, self._parts(key, now)
            if parts and (found := level(parts)).worse(bins.level) and bins.amend(found):
                self.measured(key)


def revisions(parts: Iterable[pb.ServiceDemand]) -> dict[str, RevisionSignal]:
    """By hash: the sums of requests and errors, and the worst time to first token."""
    merged: dict[str, RevisionSignal] = {}
    for row in (row for part in parts for row in part.revisions):
        last = merged.get(row.revision, RevisionSignal())
        ttft_s = max(last.ttft_p95_s, row.ttft_p95_ms / 1000)
        merged[row.revision] = RevisionSignal(last.requests + row.requests, last.errors + row.errors, ttft_s)
    return merged


def level(parts: Sequence[pb.ServiceDemand]) -> Level:
    """The load now: held requests of all gateways, and the replicas' own figures from the gateway that hears most of them."""
    best = max(parts, key=lambda part: sum(row.verdict in HEARD for row in part.endpoints))
    return Level(
        running=best.running,
        waiting=best.waiting,
        held=sum(part.held for part in parts),
        kv_utilization=best.blocks_used / best.blocks_total if best.blocks_total else 0.0,
        ttft_p95_s=max(part.ttft_p95_ms for part in parts) / 1000,
    )


def decisive_state(parts: Iterable[pb.ServiceDemand], seen: Mapping[str, EndpointSignal]) -> object:
    """Equal if every decision is the same. Load is not part of it, since it changes with each frame and is measured in bins."""
    asked = any(part.held for part in parts), any(part.wake for part in parts)
    states = {
        pod: (
            one.bad,
            one.lacking,
            one.reason if one.bad else "",
            one.deep_failed,
            one.device_fault,
            one.phase,
            one.draining,
            one.draining and not one.in_flight,
        )
        for pod, one in seen.items()
    }
    return asked, states
