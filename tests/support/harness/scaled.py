"""The operator's runs on a fake API server with scaling, and gateways that say what the test tells them to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from pagoda_contracts.names import HISTORY_SUFFIX
from pagoda_operator.api.signals import BIN_S, EndpointSignal, Measure, Seen, ServiceSignals
from pagoda_operator.api.state import CONFIG_MAPS, DEPLOYMENTS, PODS, SERVICES, Key
from pagoda_operator.run.dependencies import Dependencies
from pagoda_operator.run.scaler import Scaler
from support.harness.harness import KEY, Harness, now
from support.harness.stubs import dependencies_with
from support.kube.fake_api import FakeApi, is_ready, running

HOLD_S = 8.0
PAGE = f"tiny{HISTORY_SUFFIX}"


class Gateways:
    """What they say of the one service."""

    def __init__(self, api: FakeApi, since: float) -> None:
        self.api = api
        self.measures: list[Measure] = []
        self.since = since
        self.rate = 0.0
        self.waiting = self.held = 0
        self.fresh = True
        self.known = True

    def of(self, key: Key, _now: float) -> ServiceSignals | None:
        if key != KEY or not self.known:
            return None
        endpoints = {pod["metadata"]["name"]: EndpointSignal(Seen.FRESH) for pod in self.api.of(PODS)}
        return ServiceSignals(tuple(self.measures[-120:]), self.since, self.fresh, self.held, endpoints=endpoints)

    def note_ready(self, key: Key, pods: Iterable[str]) -> None:
        """Gateways here admit at once."""

    def unheard(self, _key: Key) -> float:
        return 0.0 if self.known else math.inf

    def idle(self) -> bool:
        """As demand.py finds it."""
        recent = self.measures[-120:]
        return len(recent) == 120 and not any(m.arrived or m.ended or m.running or m.waiting or m.held for m in recent)

    def measure(self, at: float) -> None:
        count = round(self.rate * BIN_S)
        self.measures.append(Measure(at, count, count, round(self.rate * HOLD_S), self.waiting, self.held))


class ScaledHarness(Harness):
    """Harness, with time in bins. `short`: idle services take the short path."""

    short = True

    def restart(self) -> None:
        self.gateways = Gateways(self.api, self.steady())
        self.scaler = Scaler(self.api, self.gateways, self.steady, self.wall)
        super().restart()

    def dependencies(self) -> Dependencies:
        return dependencies_with(self.api, signals=self.gateways, scaling=self.scaler, inventory=lambda: self.inventory)

    def wall(self) -> float:
        return (now() + self.later).timestamp()

    def steady(self) -> float:
        return 5_000.0 + self.later.total_seconds()

    def settle(self) -> None:
        """New pods are as old as they are."""
        known = {pod["metadata"]["uid"] for pod in self.api.of(PODS)}
        super().settle()
        if new := [pod for pod in self.api.of(PODS) if pod["metadata"]["uid"] not in known]:
            for pod in new:
                pod["metadata"]["creationTimestamp"] = self.stamp()
            super().settle()

    def stamp(self) -> str:
        return (now() + self.later).strftime("%Y-%m-%dT%H:%M:%SZ")

    def serve(self) -> None:
        """All pods become ready now."""
        for pod in self.api.of(PODS):
            if not is_ready(pod):
                status = running(ready=True)
                status["conditions"][1]["lastTransitionTime"] = self.stamp()
                self.api.report(pod, status)
        self.settle()

    def flow(self, seconds: float, *, serve: bool = True) -> None:
        """Time passes, bin by bin; the operator runs where a measure is worth it; pods become ready."""
        for _ in range(int(seconds / BIN_S)):
            self.later += timedelta(seconds=BIN_S)
            self.gateways.measure(self.steady())
            if self.scaler.demand_changed(KEY, idle=self.short and self.gateways.idle()):
                self.settle()
            if serve and not all(map(is_ready, self.api.of(PODS))):
                self.serve()

    def hold(self, count: int) -> None:
        """Requests are held: a wake-up of its own, no bin has to end."""
        self.gateways.held = count
        self.settle()

    def wanted(self) -> int:
        return int(self.api.of(DEPLOYMENTS)[0]["spec"]["replicas"])

    def reported(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.of(SERVICES)[0]["status"].get("scaling", {})
        return found

    def page(self) -> dict[str, Any] | None:
        return self.api.objects.get((CONFIG_MAPS.kind, "ns", PAGE))

    def writes(self, verb: str | None = None, kind: str | None = None) -> list[tuple[str, str, str]]:
        return [line for line in self.api.journal if verb in (None, line[0]) and kind in (None, line[1])]

    def pods(self) -> list[dict[str, Any]]:
        return list(self.api.of(PODS))
