"""Reads one service and all that belongs to it, and counts how long ago things happened to it. Called by `reconcile`; decides nothing.

It reads the caches, which may be late by a moment: a run verifies the service before it makes or removes an object. Only a volume that the
kubelet cannot mount shows nowhere but in Events: they are read, for one pod of a service, while it has waited for its volumes for 2 s.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from pagoda_contracts.names import DEFAULT_PROFILE, LABEL_CLASS, LABEL_SERVICE, LABEL_SERVICE_UID
from pagoda_contracts.resources.meta import ObjectMeta
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_placement.charges import holdings
from pagoda_placement.values import unix
from pydantic import ValidationError

from pagoda_operator.api.errors import ClusterError
from pagoda_operator.api.pods import Pod, parse_pod
from pagoda_operator.api.state import (
    CHILD_RESOURCES,
    DEPLOYMENTS,
    PODS,
    PROFILES,
    SERVICES,
    Child,
    Json,
    Key,
    Lister,
    Observed,
    Reader,
    Resource,
    explain,
)
from pagoda_operator.decide.render.children import inspector_uid
from pagoda_operator.decide.render.overlay import misshapen

Name = tuple[Resource, str]
# A service has three or four stamps at a time; a cache that is late may show the ones before.
_STAMPS: Final = 8
# A mount takes less, and a volume that comes over the network a minute. The kubelet writes its first Event at once.
_MOUNT_S: Final = 2.0
_LONGEST_LOOK_S: Final = 30.0
_VOLUME: Final = re.compile(r'for volume "([^"]+)"[\s:]*(.+)', re.DOTALL)
_NUMBERS: Final = re.compile(r'("[^"]*")|\S*\d\S*')  # a name in quotes is no number
_MAX_FAULTS: Final = 3


async def observe(reader: Reader, key: Key) -> Observed | None:
    """Returns the service as it is now, None if it is gone or being deleted (garbage collection does the rest)."""
    body = await reader.get(SERVICES, key.namespace, key.name)
    if body is None or "deletionTimestamp" in body["metadata"]:
        return None
    profile = await reader.get(PROFILES, "", profile_name(body))
    selector = f"{LABEL_SERVICE}={key.name}"
    pods, *lists = [await reader.list(resource, key.namespace, selector) for resource in (PODS, *CHILD_RESOURCES)]
    uid = body["metadata"]["uid"]
    inspectors = [Child(PODS, pod) for pod in pods if _uid_label(pod) == inspector_uid(uid)]
    labelled = [Child(resource, item) for resource, items in zip(CHILD_RESOURCES, lists, strict=True) for item in items]
    return Observed(
        meta=ObjectMeta.model_validate(body["metadata"]),
        raw_status=body.get("status") or {},
        service_class=(body["metadata"].get("labels") or {}).get(LABEL_CLASS, ""),
        **_parsed(body, InferenceServiceSpec, "spec", "invalid"),
        **_parsed(profile, ServingProfileSpec, "profile", "invalid_profile"),
        children=tuple(child for child in (*labelled, *inspectors) if child.belongs_to(uid)),
        strangers=tuple(child for child in labelled if not child.belongs_to(uid)),
        holdings=holdings(lists[CHILD_RESOURCES.index(DEPLOYMENTS)], pods),
        pods=tuple(sorted((parse_pod(pod) for pod in pods if _uid_label(pod) == uid), key=lambda pod: pod.name)),
    )


async def named(reader: Reader, key: Key, names: Iterable[Name]) -> tuple[Child, ...]:
    """Returns the objects that have these names in the service's namespace."""
    wanted = tuple(names)
    found = await asyncio.gather(*(reader.get(resource, key.namespace, name) for resource, name in wanted))
    return tuple(Child(resource, body) for (resource, _), body in zip(wanted, found, strict=True) if body is not None)


async def with_mount_faults(lister: Lister, observed: Observed) -> Observed:
    """Returns the service with the kubelet's words about the volumes of the pod that waits longest for them."""
    pod = _unmounted(observed)
    if pod is None or _waited(observed, pod) < _MOUNT_S:
        return observed
    try:
        events = await lister.pod_events(observed.meta.namespace, pod.name)
    except ClusterError:  # a role of before may not read them, and the pod waits all the same
        return observed
    return replace(observed, mount_faults={pod.uid: faults(events, pod.uid)})


def look_again(observed: Observed) -> float | None:
    """In how many seconds Events may say more of a pod that waits for its volumes: half of the time that it has waited, 2 s to 30 s."""
    pod = _unmounted(observed)
    return min(_LONGEST_LOOK_S, max(_MOUNT_S, _waited(observed, pod) / 2)) if pod is not None else None


def _unmounted(observed: Observed) -> Pod | None:
    pods = (*observed.pods, *(parse_pod(child.body) for child in observed.of(PODS)))
    waits = [pod for pod in pods if pod.unmounted_since is not None and pod.assigned and pod.counts]
    return min(waits, key=lambda pod: (pod.unmounted_since or 0.0, pod.name), default=None)


def _waited(observed: Observed, pod: Pod) -> float:
    return observed.now - (pod.unmounted_since or observed.now)


def faults(events: Iterable[Json], uid: str) -> str:
    """The kubelet's latest words about each volume, the newest first; none about one of which nothing was said since another's words came.
    Each difference is a write: of words that differ by the number of the try alone, the first count."""
    said: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for event in events:
        words = _VOLUME.search(str(event.get("note", "")))
        if words is not None and event.get("regarding", {}).get("uid") == uid and event.get("type") == "Warning":
            said.setdefault((words[1], _NUMBERS.sub(r"\1", words[2])), []).append((*_told(event), words[2].strip()))
    spans = sorted((max(last for _, last, _ in found), *min(found)[::2], volume) for (volume, _), found in said.items())
    latest = {volume: (-first, f"volume {volume!r}: {text}", last) for last, first, text, volume in spans}
    newest = -min((one[0] for one in latest.values()), default=0.0)
    return "; ".join([text for _, text, last in sorted(latest.values()) if last >= newest][:_MAX_FAULTS])


def _told(event: Json) -> tuple[float, float]:
    """When the Event came first and last, by the clock of its writer."""
    first = event.get("deprecatedFirstTimestamp") or event.get("eventTime")
    return unix(first) or 0.0, unix(event.get("deprecatedLastTimestamp") or first) or 0.0


def profile_name(body: Json) -> str:
    """The profile that a service names, readable even if the rest of its spec is not."""
    reference: Any = (body.get("spec") or {}).get("profileRef") or {}
    return str(reference.get("name") or DEFAULT_PROFILE)


def _uid_label(pod: Json) -> str:
    return str(pod["metadata"]["labels"].get(LABEL_SERVICE_UID, ""))


def _parsed(body: Json | None, model: type[InferenceServiceSpec | ServingProfileSpec], good: str, bad: str) -> dict[str, Any]:
    """The object's spec under the name `good`, or what is wrong with it under `bad`."""
    if body is None:
        return {}
    try:
        spec = model.model_validate(body.get("spec"), extra="ignore")
    except ValidationError as error:
        return {bad: explain(error)}
    fault = misshapen(spec.pod_template)
    return {bad: f"podTemplate: {fault}"} if fault else {good: spec}


class Ages:
    """How long ago something happened to each service, by `steady`, a clock that is never set.

    A time in an object is by the wall clock of its writer, which may jump. It is compared with ours once, when it is first seen, and ages
    by the steady clock from then on. A time in the future counts as now, so that a wait lasts no longer than it should.
    """

    def __init__(self, steady: Callable[[], float]) -> None:
        self._steady = steady
        # Service → stamp → when that was, by the steady clock.
        self._began: dict[Key, dict[str, float]] = {}
        # Service → pod's uid → since when it is unschedulable, by the steady clock; None while it only lacks devices.
        self._unschedulable: dict[Key, dict[str, float | None]] = {}

    def of(self, key: Key, stamps: Iterable[str], wall: float) -> Mapping[str, float]:
        """Returns the age in seconds of each stamp that the operator wrote into the service's status. `wall` is the wall clock now."""
        now, known = self._steady(), self._began.get(key, {})
        seen = {stamp: known.get(stamp, now - max(0.0, wall - since)) for stamp in stamps if (since := unix(stamp)) is not None}
        if kept := {stamp: began for stamp, began in known.items() if stamp not in seen} | seen:
            self._began[key] = dict(list(kept.items())[-_STAMPS:])
        return {stamp: now - began for stamp, began in seen.items()}

    def unschedulable(self, key: Key, pods: Iterable[Pod], wall: float) -> Mapping[str, float]:
        """Returns since when, in Unix seconds by `wall`, each pod finds no node for another reason than a lack of free devices; by uid.

        The scheduler's condition keeps the time at which no node was found first, whatever the reason becomes: a pod may wait for devices
        for hours before the claim that it mounts is deleted. The change of the reason is therefore remembered as it is seen. A process that
        did not see it uses the time at which the scheduler last wrote of the pod, which the API server keeps.
        """
        known, now = self._unschedulable.pop(key, {}), self._steady()
        if seen := {pod.uid: _since(pod, known, wall, now) for pod in pods if pod.unschedulable and not pod.assigned}:
            self._unschedulable[key] = seen
        return {uid: wall - (now - since) for uid, since in seen.items() if since is not None}

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._began.pop(key, None)
        self._unschedulable.pop(key, None)


def _since(pod: Pod, known: Mapping[str, float | None], wall: float, now: float) -> float | None:
    if pod.short:
        return None
    if pod.uid in known:
        since = known[pod.uid]
        return now if since is None else since
    return now - max(0.0, wall - max(pod.unscheduled_since or pod.created, min(wall, pod.unscheduled_reported or 0.0)))
