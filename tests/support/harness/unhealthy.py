"""A harness whose replicas become unhealthy, as gateways and those who watch devices say."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pagoda_contracts.names import ANNOTATION_DEVICE_FAULT, ANNOTATION_WITH_SUCCESSOR
from pagoda_operator.api.signals import CONFIRM_S, EndpointSignal, Seen, ServiceSignals
from pagoda_operator.api.state import DEPLOYMENTS, PODS, Key, Observed
from pagoda_operator.watch.observe import Ages
from support.harness.harness import KEY, Harness, now
from support.harness.stubs import NoQuotas, dependencies_with
from support.kube.fake_api import Body, running

WELL = EndpointSignal(Seen.FRESH, "ready", phase="ready")
SILENT = EndpointSignal(Seen.DEAD, "silent", bad_s=CONFIRM_S)
STUCK = EndpointSignal(Seen.DEAD, "stuck", bad_s=CONFIRM_S)
WRONG = EndpointSignal(Seen.DEAD, "deep-check", deep_failed=True, bad_s=CONFIRM_S)


class FullQuota(NoQuotas):
    """A quota that has no room for a successor while `why` says so."""

    why = ""

    def full(self, key: Key, observed: Observed) -> dict[str, str]:
        del key
        return {child.name: self.why for child in observed.of(DEPLOYMENTS)} if self.why else {}


class UnhealthyHarness(Harness):
    """A harness whose replicas are as `said` says; those that are not in it are well."""

    def __init__(self, replicas: int = 3, **spec: Any) -> None:
        self.said: dict[str, EndpointSignal] = {}
        self.no_signals = self.nobody = False
        # For how long nobody has been heard, where `no_signals`.
        self.silent_s = math.inf
        self.full_quota = FullQuota()
        # By how much somebody has set the clock on the wall.
        self.jump = timedelta()
        super().__init__(replicas=replicas, **spec)
        self.begin(f"{replicas} ready {spec}", self._ready)

    def _ready(self) -> None:
        self.settle()
        self.make_ready()

    def restart(self) -> None:
        super().restart()
        self.operator._dependencies = dependencies_with(
            self.api, daemons=self.daemons, signals=self, ages=Ages(self.steady), quota=self.full_quota
        )
        self.operator._clock = lambda: now() + self.later + self.jump

    def steady(self) -> float:
        return self.later.total_seconds()

    def of(self, key: Key, _now: float) -> ServiceSignals | None:
        assert key == KEY
        if self.no_signals:
            return None if self.nobody else ServiceSignals()
        return ServiceSignals(fresh=True, endpoints={name: self.said.get(name, WELL) for name in self.pods})

    def note_ready(self, key: Key, pods: Iterable[str]) -> None:
        """Gateways here admit at once."""

    def unheard(self, _key: Key) -> float:
        return self.silent_s if self.no_signals else 0.0

    @property
    def pods(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.api.of(PODS)]

    def pod(self, name: str) -> Body:
        return self.api.objects["Pod", "ns", name]

    def deleted(self) -> list[str]:
        return [name for verb, kind, name in self.api.journal if (verb, kind) == ("delete", "Pod")]

    def pass_time(self, seconds: float) -> None:
        self.later += timedelta(seconds=seconds)

    def degraded(self) -> Body | None:
        return self.conditions().get("Degraded")

    def reported(self) -> tuple[str, str, str]:
        """Status, reason and message of the condition Degraded."""
        line = self.degraded() or {}
        return line.get("status", ""), line.get("reason", ""), line.get("message", "")

    def observation(self, **changes: Any) -> Observed:
        """What a run observes, for the pure half."""
        return replace(self.observed(), now=1_767_225_600.0, signals=self.of(KEY, 0), **changes)

    def break_device(self, *names: str) -> None:
        for name in names:
            self.pod(name)["metadata"].setdefault("annotations", {})[ANNOTATION_DEVICE_FAULT] = "Xid 79"

    def repair_device(self, *names: str) -> None:
        for name in names:
            self.pod(name)["metadata"].get("annotations", {}).pop(ANNOTATION_DEVICE_FAULT, None)

    def load(self, name: str, *, assigned: bool = True) -> None:
        """It is on a node and loads, or waits for one."""
        self.pod(name).update(spec={"nodeName": "n"} if assigned else {}, status={"phase": "Pending"})

    def ready(self, name: str) -> None:
        self.api.report(self.pod(name), running(ready=True))

    def lose(self, name: str) -> None:
        """Somebody deletes the pod."""
        del self.api.objects["Pod", "ns", name]

    def turns(self, count: int = 8) -> None:
        for _ in range(count):
            self.run()
            self.api.control()

    def ordered(self) -> tuple[int, str | None]:
        """Replicas of the only Deployment, and what it says of a successor."""
        (found,) = self.api.of(DEPLOYMENTS)
        return found["spec"]["replicas"], found["metadata"]["annotations"].get(ANNOTATION_WITH_SUCCESSOR)
