"""Every version of a service that the API server showed, and what must hold over them (invariant I8: an honest status).

`Recorder` watches a real API server; `violations` is pure and takes versions from anywhere. A test says `change(...)` whenever it changes
something (an edit, a pod's fate): conditions may flip at most twice between two changes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from pagoda_operator.api.state import Resource
from support.judges.status_truth import needed
from support.kube.client import Kube, eventually

CONDITIONS = {"Ready", "Reconciling", "Stalled", "Serving"}
MAX_FLIPS = 2
Body = dict[str, Any]


class Version(NamedTuple):
    """One version of a service, and how many changes the test had made before it was seen."""

    body: Body
    change: int = 0

    @property
    def status(self) -> Body:
        status: Body = self.body.get("status") or {}
        return status

    @property
    def conditions(self) -> dict[str, Body]:
        return {line["type"]: line for line in self.status.get("conditions", [])}

    @property
    def name(self) -> str:
        return f"version {self.body['metadata']['resourceVersion']}"


def violations(versions: Sequence[Version]) -> list[str]:
    """What is wrong with a history, in order; nothing where the status was honest at every version."""
    reported = [version for version in versions if version.status]
    single = [f"{version.name}: {fault}" for version in reported for fault in _faults(version)]
    steps = [f"{after.name}: {fault}" for before, after in pairwise(reported) for fault in _broken(before, after)]
    return single + steps + _flips(reported)


def _faults(version: Version) -> Iterator[str]:
    lines, status = version.conditions, version.status
    if lines.keys() != CONDITIONS:
        yield f"conditions {sorted(lines)}"
        return
    if not 0 < status.get("observedGeneration", 0) <= version.body["metadata"]["generation"]:
        yield f"observedGeneration {status.get('observedGeneration')}"
    elif any(line["observedGeneration"] != status["observedGeneration"] for line in lines.values()):
        yield "a condition speaks of another generation than the status"
    true = {kind for kind, line in lines.items() if line["status"] == "True"}
    reason, serves = lines["Ready"]["reason"], "Serving" in true
    if {"Reconciling", "Stalled"} <= true or {"Ready", "Stalled"} <= true:
        yield f"{sorted(true)} all True"
    if not true - {"Serving"} and reason != "ScaledToZero":
        yield "neither ready nor under way nor stalled"
    ready, desired = status.get("readyReplicas", 0), status.get("scaling", {}).get("desired", 0)
    if "Ready" in true and ready < needed(version.body["spec"], desired):
        yield f"Ready with {ready} of {desired} replicas"
    if serves != (ready > 0):
        yield f"Serving is {serves} with {ready} ready replicas"
    if "Ready" in true and lines["Serving"]["reason"] == "NotServedYet":
        yield "Ready, and no replica has ever served"


def _broken(before: Version, after: Version) -> Iterator[str]:
    if after.status["observedGeneration"] < before.status["observedGeneration"]:
        yield "observedGeneration went back"
    for kind in CONDITIONS & before.conditions.keys() & after.conditions.keys():
        old, new = before.conditions[kind], after.conditions[kind]
        if old["status"] == new["status"] and old["lastTransitionTime"] != new["lastTransitionTime"]:
            yield f"{kind} did not flip and its lastTransitionTime moved"


def _flips(reported: Sequence[Version]) -> list[str]:
    counts: dict[tuple[int, str], list[str]] = {}
    for before, after in pairwise(reported):
        for kind in sorted(CONDITIONS):
            old, new = (version.conditions.get(kind, {}).get("status", "") for version in (before, after))
            if old != new:
                counts.setdefault((after.change, kind), [old]).append(new)
    return [f"change {number}: {kind} flipped {' → '.join(seen)}" for (number, kind), seen in counts.items() if len(seen) - 1 > MAX_FLIPS]


@dataclass
class Recorder:
    """Watches one service from before it exists until `stop`."""

    kube: Kube
    resource: Resource
    namespace: str
    name: str
    versions: list[Version] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._opened = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        assert self._opened.wait(300), "the watch did not open"

    def change(self, what: str) -> None:
        """The test is about to change something; what there is so far comes of what was changed before."""
        self._catch_up()
        self.changes.append(what)

    def stop(self) -> list[Version]:
        """All versions, the newest one included. Once it has been asked for them nothing more is watched."""
        if not self._ended.is_set():
            self._catch_up()
            self._ended.set()
        return self.versions

    def _catch_up(self) -> None:
        live = self.kube.get(self.resource, self.namespace, self.name)
        if live is not None:
            newest = live["metadata"]["resourceVersion"]
            eventually(lambda: any(v.body["metadata"]["resourceVersion"] == newest for v in self.versions), "the watch caught up")

    def _read(self) -> None:
        # The server ends the watch itself, so that the thread never outlives the test by long.
        query = {"watch": "true", "fieldSelector": f"metadata.name={self.name}", "timeoutSeconds": "1800"}
        with self.kube.stream(self.resource, self.namespace, query) as lines:
            self._opened.set()
            for line in lines:
                event = json.loads(line)
                if event["type"] in ("ADDED", "MODIFIED"):
                    self.versions.append(Version(event["object"], len(self.changes)))
                if self._ended.is_set():
                    return
