"""I8, an honest status, judged by what the pods themselves were: pure functions from a recorded history to violations in words.

How often a condition may flip is in pacing.py. That a status agrees with itself proves nothing: who writes Ready with three ready replicas
while there is none agrees with himself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pagoda_contracts.names import LABEL_SERVICE_UID
from pagoda_operator.api.state import PODS, SERVICES
from support.kube.client import Body
from support.kube.recorded import Event

# How old what a status says may be. Who reads before he writes is late by a fraction of a second, one whose write stays on the wire by that
# long; a busy machine is given the rest. It makes no test slower, and of a service that grows it excuses nothing (see `unfounded`).
LAG_S = 60.0


def dishonest(events: Sequence[Event]) -> Iterator[str]:
    """I8: generations only grow, and Ready is True only with as many ready replicas as it needs, by its own words and by the pods'."""
    last: dict[str, int] = defaultdict(int)
    for event in events:
        if event.kind != SERVICES.kind or event.change == "DELETED":
            continue
        status, uid = event.body.get("status", {}), event.body["metadata"]["uid"]
        seen = status.get("observedGeneration", 0)
        if seen < last[uid]:
            yield f"I8: observedGeneration fell from {last[uid]} to {seen}"
        last[uid] = seen
        yield from _lies(event.body)
    yield from unfounded(events)


def _lies(body: Body) -> Iterator[str]:
    reported, desired = body.get("status", {}).get("readyReplicas", 0), _desired(body)
    if reported < desired:
        yield f"I8: Ready with {reported} of {desired} ready replicas"


def unfounded(events: Sequence[Event], lag: float = LAG_S) -> Iterator[str]:
    """I8, at every instant: if a status says that so many replicas are ready, so many pods were Ready at once: since the generation that
    it speaks of, and at most `lag` seconds ago."""
    services: dict[str, _Reported] = defaultdict(_Reported)
    ready: dict[str, str] = {}
    now = 0.0
    for event in events:
        now = max(now, event.at)
        yield from (line for reported in services.values() for line in reported.unfounded(now - lag))
        if event.kind == SERVICES.kind:
            services[event.body["metadata"]["uid"]].report(event)
        elif event.kind == PODS.kind:
            uid, owner = event.body["metadata"]["uid"], event.body["metadata"].get("labels", {}).get(LABEL_SERVICE_UID, "")
            ready.pop(uid, None)
            if event.change != "DELETED" and is_ready(event.body):
                ready[uid] = owner
            services[owner].count(now, sum(mine == owner for mine in ready.values()))
    yield from (line for reported in services.values() for line in reported.unfounded(now - lag))


def is_ready(pod: Body) -> bool:
    """Whether it is Ready, and nobody has deleted it."""
    lines = pod.get("status", {}).get("conditions", [])
    return "deletionTimestamp" not in pod["metadata"] and any(line["type"] == "Ready" and line["status"] == "True" for line in lines)


class _Level(NamedTuple):
    """So many pods were Ready from then on."""

    at: float
    ready: int


@dataclass
class _Reported:
    """What one service's status says, and how many of its pods were Ready since the generation that it speaks of came."""

    levels: list[_Level] = field(default_factory=lambda: [_Level(0.0, 0)])
    body: Body | None = None
    # A status that was there before anybody watched is of pods that nobody saw.
    witnessed: bool = False
    generation: int = 0

    def report(self, event: Event) -> None:
        if event.change == "DELETED":
            self.body, self.witnessed = None, False
            return
        status, before = event.body.get("status", {}), (self.body or {}).get("status", {})
        self.witnessed = self.witnessed or not status or (self.body is not None and status != before)
        self.body = event.body
        if event.body["metadata"]["generation"] != self.generation:
            self.generation, self.levels = event.body["metadata"]["generation"], self.levels[-1:]

    def count(self, at: float, count: int) -> None:
        if count != self.levels[-1].ready:
            self.levels.append(_Level(at, count))

    def unfounded(self, oldest: float) -> Iterator[str]:
        if self.body is None or not self.witnessed or not _fresh(self.body):
            return
        ends = [level.at for level in self.levels[1:]]
        most = max(level.ready for level, end in zip(self.levels, [*ends, oldest], strict=True) if end >= oldest)
        reported, desired = self.body["status"].get("readyReplicas", 0), _desired(self.body)
        if most < desired:
            yield f"I8: Ready with {most} Ready pods, {desired} are wanted"
        if most < reported:
            yield f"I8: {reported} ready replicas told, at most {most} pods were Ready"


def _fresh(body: Body) -> bool:
    """Whether its status speaks of this very spec."""
    return bool(body.get("status", {}).get("observedGeneration") == body["metadata"]["generation"])


def _desired(body: Body) -> int:
    """How many replicas its status answers for: as many as Ready needs where it says so of this very spec."""
    ready = any(line["type"] == "Ready" and line["status"] == "True" for line in body.get("status", {}).get("conditions", []))
    return needed(body["spec"], int(body["spec"].get("replicas", 1))) if ready and _fresh(body) else 0


def needed(spec: Body, wanted: int) -> int:
    """How many of the wanted replicas Ready needs: all that a person asked for, else what scaling may not go below; none of a service that
    sleeps."""
    scaling = spec.get("scaling") or {}
    least = {"Manual": wanted, "Auto": scaling.get("min", 1)}.get(scaling.get("mode", "Manual"), 1)
    return min(wanted, max(1, least))
