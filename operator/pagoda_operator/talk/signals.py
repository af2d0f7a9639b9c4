"""What all gateways say, as one view per service (api/signals.py). Pure: frames and a clock go in, views and wake-ups come out.

Fed by listen.py; asked by `reconcile`. Held requests add up over gateways; what replicas say of themselves every gateway
repeats, so it is taken from the one that hears most of them. A wake-up comes when something changed that a decision may hang on,
never for each frame; what scaling decides by is measured in bins, and told as `measured` at the end of each, or within a second where more
wait than before: a queue that grows must not wait for five.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from pagoda_contracts.names import STATE_DEAD_MS
from pagoda_contracts.pb import demand_pb2 as pb

from pagoda_operator.api.scaling import BIN_S
from pagoda_operator.api.signals import CONFIRM_S, MISSING_S, EndpointSignal, ServiceSignals
from pagoda_operator.api.state import Key
from pagoda_operator.decide.scale.demand import Bins
from pagoda_operator.talk.signals_merge import endpoints, level, matters, revisions

FRESH_S: Final = STATE_DEAD_MS / 1000
# Gateways' names are resolved at once and every 2 s; who found none in so long has none.
_MEET_S: Final = 10.0


@dataclass(slots=True)
class _Gateway:
    """Listened to since `since`; `heard` is its last frame."""

    since: float
    heard: float = float("-inf")
    told: dict[Key, pb.ServiceDemand] = field(default_factory=dict)

    def lives(self, now: float) -> bool:
        """Whether it counts: for a minute it may be silent, then it is what is sick, and no veto on anything."""
        return now - max(self.since, self.heard) <= MISSING_S

    def fresh(self, now: float) -> bool:
        return now - self.heard <= FRESH_S


@dataclass(slots=True)
class _Service:
    """`bad`: since when a replica's verdict is DEAD or UNHEARD; `mattered`: what the last wake-up was for."""

    bins: Bins
    bad: dict[str, float] = field(default_factory=dict)
    confirmed: set[str] = field(default_factory=set)
    mattered: object = None


def _nobody(_key: Key) -> None:
    """Stand-in: nobody listens."""


class Signals:
    """All gateways and services. `wake` puts a key at the door; `measured` says that a service's bin has ended."""

    def __init__(self, clock: Callable[[], float], wake: Callable[[Key], None], measured: Callable[[Key], None] = _nobody) -> None:
        self._clock, self.wake, self.measured = clock, wake, measured
        self._gateways: dict[str, _Gateway] = {}
        self._services: dict[Key, _Service] = {}
        self._fresh: frozenset[str] = frozenset()
        self._worse: set[Key] = set()
        # When a gateway that is gone, or that says nothing of it any more, last told of a service's replicas.
        self._told: dict[Key, float] = {}
        self._began, self._met = clock(), False
        self._bin_ends = self._began + BIN_S

    # Fed by whoever listens

    def follow(self, gateway: str) -> None:
        """A gateway is there; until it speaks nothing is fresh."""
        self._met = True
        self._gateways.setdefault(gateway, _Gateway(self._clock()))

    def forget(self, gateway: str) -> None:
        """It is gone for good."""
        gone = self._gateways.pop(gateway, None)
        if gone is not None:
            for key, one in gone.told.items():
                self._remember(key, one, gone.heard)
            self._review(gone.told)

    def hear(self, gateway: str, frame: pb.Demand) -> None:
        """A frame of it."""
        now = self._clock()
        known, self._met = self._gateways.setdefault(gateway, _Gateway(now)), True
        first, last = known.heard == float("-inf"), known.heard
        known.heard = now
        told = {Key(one.namespace, one.name): one for one in frame.services}
        gone = known.told.keys() - told.keys() if frame.full else set()
        for key in {*told, *gone} & known.told.keys():
            self._remember(key, known.told[key], last)
        for key in gone:
            del known.told[key]
        for key, one in told.items():
            self._count(key, known.told.get(key), one, first=first)
            known.told[key] = one
            if level(self._parts(key, now)).worse(self._services[key].bins.level):
                self._worse.add(key)
        self._review({*told, *gone} if gateway in self._fresh else known.told)

    def tick(self) -> None:
        """Once a second: silence has no event of its own."""
        now = self._clock()
        fresh = frozenset(name for name, gateway in self._gateways.items() if gateway.fresh(now))
        if fresh != self._fresh:
            self._fresh = fresh
            self._review(tuple(self._services))
        for key, service in self._services.items():
            self._confirm(key, service, now)
        if now >= self._bin_ends:
            self._end_bins(now)
        self._look_early(now)

    # Asked by reconcile

    def of(self, key: Key, now: float) -> ServiceSignals | None:
        """One service's view; `now` is the caller's clock, ours may be another."""
        service, ours = self._services.get(key), self._clock()
        if service is None:
            return None
        parts, shift = self._parts(key, ours), now - ours
        living = [one for gateway in self._living(ours) if (one := gateway.told.get(key)) is not None]
        return ServiceSignals(
            measures=service.bins.measures(shift),
            watched_since=service.bins.since + shift,
            fresh=self._whole(ours),
            held=sum(one.held for one in living),
            wake=any(one.wake for one in living),
            endpoints=self._endpoints(service, parts, ours),
            revisions=revisions(parts),
        )

    def unheard(self, key: Key) -> float:
        """For how many seconds no gateway has told of any of its replicas, as far as this process knows; for ever where there never was any
        gateway."""
        if not self._met and self._clock() - self._began >= _MEET_S:
            return math.inf
        told = [one.heard for one in self._gateways.values() if (of := one.told.get(key)) is not None and of.endpoints]
        return self._clock() - max(self._began, self._told.get(key, self._began), *told)

    def idle(self, key: Key) -> bool:
        """Whether nothing was asked of it for as long as demand is remembered."""
        service = self._services.get(key)
        return service is not None and service.bins.idle

    # Inside

    def _remember(self, key: Key, one: pb.ServiceDemand, at: float) -> None:
        """That replicas of it were told of then, by somebody who may tell of none any more."""
        if one.endpoints:
            self._told[key] = max(at, self._told.get(key, at))

    def _living(self, now: float) -> list[_Gateway]:
        return [gateway for gateway in self._gateways.values() if gateway.lives(now)]

    def _whole(self, now: float) -> bool:
        living = self._living(now)
        return bool(living) and all(gateway.fresh(now) for gateway in living)

    def _parts(self, key: Key, now: float) -> list[pb.ServiceDemand]:
        """What gateways that are heard now say of it."""
        return [one for gateway in self._gateways.values() if gateway.fresh(now) and (one := gateway.told.get(key)) is not None]

    def _endpoints(self, service: _Service, parts: list[pb.ServiceDemand], now: float) -> dict[str, EndpointSignal]:
        seen = endpoints(parts)
        for pod in service.bad.keys() - {pod for pod, one in seen.items() if one.bad}:
            del service.bad[pod]
            service.confirmed.discard(pod)
        return {pod: one.since(service.bad.setdefault(pod, now), now) if one.bad else one for pod, one in seen.items()}

    def _count(self, key: Key, last: pb.ServiceDemand | None, one: pb.ServiceDemand, *, first: bool) -> None:
        """Differences of a gateway's counters. What it counted before it was ever heard is not ours to date."""
        if key not in self._services:
            self._services[key] = _Service(Bins(self._clock()))
        if last is None and first:
            return
        arrived, ended = (last.requests_arrived, last.requests_ended) if last else (0, 0)
        if one.requests_arrived < arrived or one.requests_ended < ended:
            arrived = ended = 0  # another process under the same address
        self._services[key].bins.count(one.requests_arrived - arrived, one.requests_ended - ended)

    def _review(self, keys: Iterable[Key]) -> None:
        """Wakes those of which something changed that matters."""
        now = self._clock()
        for key in tuple(keys):
            if (service := self._services.get(key)) is None:
                continue
            parts = self._parts(key, now)
            found = matters(parts, self._endpoints(service, parts, now))
            if found != service.mattered:
                service.mattered = found
                self.wake(key)

    def _confirm(self, key: Key, service: _Service, now: float) -> None:
        """A verdict that has lasted becomes news by lasting."""
        lasting = {pod for pod, since in service.bad.items() if now - since >= CONFIRM_S} - service.confirmed
        if lasting:
            service.confirmed |= lasting
            self.wake(key)

    def _end_bins(self, now: float) -> None:
        """A bin ends for all; with a gateway silent no bin does, and demand.py bridges or begins anew."""
        ended = self._bin_ends
        if now - ended >= BIN_S:  # this process was not looking
            ended = now
        self._bin_ends = ended + BIN_S
        self._told = {key: at for key, at in self._told.items() if now - at <= MISSING_S}  # what is older says no more than nothing does
        if not self._whole(now):
            return
        for key in tuple(self._services):
            if not (parts := self._parts(key, now)):
                del self._services[key]  # no gateway knows the service any more
                continue
            self._services[key].bins.close(ended, level(parts))
            self.measured(key)

    def _look_early(self, now: float) -> None:
        """Those of which a gateway told something worse since the last look. With a gateway silent the sums are not whole: they wait."""
        if not self._whole(now):
            return
        keys, self._worse = self._worse, set()
        for key in keys:
            service, parts = self._services.get(key), self._parts(key, now)
            if service is None or not parts:
                continue
            found = level(parts)
            if found.worse(service.bins.level) and service.bins.amend(found):
                self.measured(key)
