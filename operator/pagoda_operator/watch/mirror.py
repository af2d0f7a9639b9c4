"""What the watches have shown of our own objects: services, profiles, children, replicas. A `Reader`, so that a run can be planned from it.

A run at rest then costs no request at all. What it shows may be a moment old and what it does not show may exist: a plan made from it that
would write anything is made again from quorum reads of what that depends on (reading.py). Bodies are kept trimmed and packed: 1 KB where
Kopf's dictionaries take 25. After a write of ours the server's answer is what is known, and older news of that object is not believed for a
while (floors.py).
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
from pagoda_contracts.names import LABEL_SERVICE

from pagoda_operator.api.pods import by_scheduler
from pagoda_operator.api.reader import Reader
from pagoda_operator.api.state import CHILD_RESOURCES, CORE_SERVICES, DISRUPTION_BUDGETS, PODS, PROFILES, SERVICES, Json, Key, Resource
from pagoda_operator.watch.floors import Floors, as_number
from pagoda_operator.watch.world import key_of

MIRRORED: Final = (SERVICES, PROFILES, PODS, *CHILD_RESOURCES)
_POD_SPEC: Final = ("nodeName", "priority", "schedulingGates", "terminationGracePeriodSeconds", "resourceClaims")
# What these say of themselves decides nothing: each change of replicas changes a budget's status, and that was a run for nothing.
_MUTE: Final = frozenset({DISRUPTION_BUDGETS, CORE_SERVICES})
# Of a pod's containers, what devices they ask for.
_POD_CONTAINERS: Final = ("initContainers", "containers")
_NOISE: Final = frozenset({"containerID", "image", "imageID", "volumeMounts", "resources", "allocatedResources", "user", "lastProbeTime"})


class Entry(NamedTuple):
    """One object: its version, and the rest packed, equal where nothing of it changed. As text 500 services took 17 MB."""

    version: str
    packed: bytes
    service: Key | None

    def body(self) -> Json:
        """The object again."""
        body: dict[str, Any] = msgspec.json.decode(zlib.decompress(self.packed))
        body["metadata"]["resourceVersion"] = self.version
        return body


Told = Mapping[Key, str | None]
_UNTOLD: Final[Told] = MappingProxyType({})


class _Read(NamedTuple):
    """A quorum read under way, and what was told meanwhile of objects of its kind: the version of a deletion, None where one is there."""

    resource: Resource
    told: dict[Key, str | None]


class Mirror:
    """Mirrors of MIRRORED. `clock` counts seconds and may start anywhere."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._kept: dict[Resource, dict[Key, Entry]] = {resource: {} for resource in MIRRORED}
        self._of: dict[Resource, dict[Key, dict[Key, None]]] = {resource: {} for resource in MIRRORED}
        # Of every name that a service or a label bears, its namespaces, and how many kinds have it there.
        self._homes: dict[str, Counter[str]] = {}
        self._floors = Floors(clock)
        # Quorum reads under way: what watches tell meanwhile of their kind, a deletion by its version. The answer may be older.
        self._reads: list[_Read] = []

    # As a Reader

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The object; None where none was shown."""
        entry = self._kept[resource].get(Key(namespace, name))
        return None if entry is None else entry.body()

    async def list(self, resource: Resource, namespace: str, selector: str) -> list[Json]:
        """The objects of one service."""
        label, _, name = selector.partition("=")
        if label != LABEL_SERVICE:
            raise ValueError(f"the mirror lists by {LABEL_SERVICE}=<name> only, not by {selector!r}")
        return [self._kept[resource][key].body() for key in self._of[resource].get(Key(namespace, name), ())]

    # News

    def put(self, resource: Resource, body: Json) -> bool:
        """An object appeared or changed; whether anything that is compared did. What bears no service's label is none of ours."""
        key, version, service = key_of(body), body["metadata"].get("resourceVersion", ""), _service(resource, body)
        if self._floors.is_old(resource, key, version):
            return False
        self._tell_reads(resource, key, None)
        if service is None and resource != PROFILES:
            return self._remove(resource, key)
        return self._keep(resource, key, Entry(version, _packed(resource, body), service))

    def drop(self, resource: Resource, body: Json) -> bool:
        """An object is gone; whether it was kept."""
        key, version = key_of(body), str(body["metadata"].get("resourceVersion", ""))
        if self._floors.is_old(resource, key, version):
            return False
        self._tell_reads(resource, key, version)
        return self._remove(resource, key)

    def wrote(self, resource: Resource, verb: str, body: Json) -> None:
        """The server's answer to a write of ours; of a delete, the version that was deleted. A profile's is heard from its watch alone:
        that it is news is what wakes all who use it."""
        if resource not in self._kept or resource == PROFILES:
            return
        key, version = key_of(body), str(body["metadata"].get("resourceVersion", ""))
        kept = self._kept[resource].get(key)
        if kept is not None and (as_number(kept.version) or 0) > (as_number(version) or 0):
            return  # an event overtook the answer: a user's edit behind our status, a pod that ends behind its deletion
        self._floors.expect(resource, key, version)
        if verb == "delete":
            self._remove(resource, key)
        elif _service(resource, body) is not None:
            self._keep(resource, key, Entry(version, _packed(resource, body), _service(resource, body)))

    def learning(self, source: Reader) -> Reader:
        """Quorum reads that leave here what they found: the next run from the mirror must not know less."""
        return _Learning(source, self)

    @contextmanager
    def reading(self, resource: Resource) -> Iterator[Told]:
        """While a quorum read of a kind is under way: what is told of it meanwhile."""
        read = _Read(resource, {})
        self._reads.append(read)
        try:
            yield read.told
        finally:
            self._reads = [other for other in self._reads if other is not read]

    def learn(self, resource: Resource, body: Json, told: Told = _UNTOLD) -> None:
        """A quorum read found it so; not where it was told meanwhile that this very version, or a later one, is gone."""
        key, version = key_of(body), str(body["metadata"]["resourceVersion"])
        if (end := told.get(key)) is not None and (as_number(end) or 0) >= (as_number(version) or 0):
            return
        kept, read = self._kept[resource].get(key), as_number(version)
        if kept is not None and read is not None and (as_number(kept.version) or 0) > read:
            return  # shown meanwhile
        self._floors.expect(resource, key, version)
        if kept is None or kept.version != version:  # packing the same again was a seventh of a run that writes
            self._keep(resource, key, Entry(version, _packed(resource, body), _service(resource, body)))

    def learn_all(self, resource: Resource, service: Key, bodies: Sequence[Json], told: Told = _UNTOLD) -> None:
        """A quorum list found these of a service, and no others but what was told while it was read."""
        for key in self._of[resource].get(service, {}).keys() - {key_of(body) for body in bodies} - told.keys():
            self._remove(resource, key)
        for body in bodies:
            self.learn(resource, body, told)

    # For the check against the API server

    def versions(self, resource: Resource) -> Mapping[Key, str]:
        """What is kept of a kind, by version."""
        return {key: entry.version for key, entry in self._kept[resource].items()}

    def version(self, resource: Resource, key: Key) -> str | None:
        """Of one object; None where none was shown."""
        entry = self._kept[resource].get(key)
        return None if entry is None else entry.version

    def service_of(self, resource: Resource, key: Key) -> Key | None:
        """Whose it is."""
        entry = self._kept[resource].get(key)
        return None if entry is None else entry.service

    def alone(self, service: Key) -> bool:
        """Whether something of this service was shown, and nothing of that name in another namespace."""
        return self._homes.get(service.name, {}).keys() == {service.namespace}

    def forget(self, resource: Resource, key: Key) -> bool:
        """A quorum read did not find it."""
        return self._remove(resource, key)

    def _tell_reads(self, resource: Resource, key: Key, end: str | None) -> None:
        for read in self._reads:
            if read.resource == resource:
                read.told[key] = end

    def _keep(self, resource: Resource, key: Key, entry: Entry) -> bool:
        last = self._kept[resource].get(key)
        if last is not None and last.service != entry.service:
            self._remove(resource, key)
        self._kept[resource][key] = entry
        if entry.service is not None:
            if entry.service not in self._of[resource]:
                self._of[resource][entry.service] = {}
                self._homes.setdefault(entry.service.name, Counter())[entry.service.namespace] += 1
            self._of[resource][entry.service][key] = None
        return last is None or (last.packed, last.service) != (entry.packed, entry.service)

    def _remove(self, resource: Resource, key: Key) -> bool:
        entry = self._kept[resource].pop(key, None)
        if entry is not None and entry.service is not None:
            siblings = self._of[resource][entry.service]
            siblings.pop(key, None)
            if not siblings:
                del self._of[resource][entry.service]
                self._leave(entry.service)
        return entry is not None

    def _leave(self, service: Key) -> None:
        """One kind less has anything of it."""
        homes = self._homes[service.name]
        homes[service.namespace] -= 1
        if not homes[service.namespace]:
            del homes[service.namespace]
        if not homes:
            del self._homes[service.name]


class _Learning(NamedTuple):
    """A Reader beside a mirror. What other services' runs look at too is not learned: its event would be no news, and wake none of them."""

    source: Reader
    mirror: Mirror

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The object; a service is learned, names of children may be a stranger's."""
        with self.mirror.reading(resource) as told:
            body = await self.source.get(resource, namespace, name)
        if resource == SERVICES:
            if body is not None:
                self.mirror.learn(resource, body, told)
            elif Key(namespace, name) not in told:
                self.mirror.forget(resource, Key(namespace, name))
        return body

    async def list(self, resource: Resource, namespace: str, selector: str) -> Sequence[Json]:
        """The objects of one service."""
        with self.mirror.reading(resource) as told:
            bodies = await self.source.list(resource, namespace, selector)
        self.mirror.learn_all(resource, Key(namespace, selector.partition("=")[2]), bodies, told)
        return bodies


def _service(resource: Resource, body: Json) -> Key | None:
    if resource == SERVICES:
        return key_of(body)
    name = body["metadata"].get("labels", {}).get(LABEL_SERVICE)
    return Key(body["metadata"].get("namespace", ""), name) if name else None


def _packed(resource: Resource, body: Json) -> bytes:
    """All that a plan or a status compares, and of a pod not what its node alone cares for."""
    meta = {name: value for name, value in body["metadata"].items() if name not in ("managedFields", "resourceVersion")}
    kept = {**body, "apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta}
    if resource in _MUTE:
        kept.pop("status", None)
    if resource == PODS:
        if told := by_scheduler(body["metadata"]):
            kept["metadata"] = meta | {"managedFields": told}
        spec, status = body.get("spec") or {}, body.get("status") or {}
        asked = {name: [_asked(container) for container in spec[name]] for name in _POD_CONTAINERS if name in spec}
        kept["spec"] = {name: spec[name] for name in _POD_SPEC if name in spec} | asked
        kept["status"] = {name: _quiet(value) for name, value in status.items()}
    # In the server's order: a ConfigMap's text is rendered from a ControllerRevision's data as they stand there.
    return zlib.compress(msgspec.json.encode(kept), 1)


def _asked(container: Json) -> Json:
    return {name: container[name] for name in ("name", "resources") if name in container}


def _quiet(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [{name: part for name, part in found.items() if name not in _NOISE} if isinstance(found, dict) else found for found in value]
