"""Carries out a plan: the operator's only writer but for Events (events.py) and the Lease (leader.py). Called by `reconcile`.

What must not exist yet is created by POST: server-side apply would take over another owner's object. What exists is applied or deleted at
the version that was observed, so an outdated view ends in a Conflict and never in a wrong write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from pagoda_contracts.names import ANNOTATION_RENDERED, DEFAULT_PROFILE, FIELD_MANAGER, LABEL_CLASS, LABEL_MANAGED_BY, MANAGED_BY
from pagoda_contracts.resources.meta import ObjectMeta
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_placement.values import digest

from pagoda_operator.api.state import PROFILES, Json, Key, Lister, Reader, Resource
from pagoda_operator.decide.render.overlay import lost
from pagoda_operator.decide.render.writes import Annotate, Apply, Create, Delete, Write

# After how many seconds a write is made again that another client undid: the second time, the third, and so on.
UNDONE_DELAYS: Final = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
# A write that was not undone for so long counts as a new one.
_FORGOTTEN_S: Final = 600.0
# Objects of a service that are remembered; pods come and go.
_MOST_OBJECTS: Final = 256


class Cluster(Reader, Lister, Protocol):
    """The API server. Each write but a deletion names its field manager."""

    async def create(self, resource: Resource, manifest: Json, manager: str) -> object:
        """POST; Conflict if the name is taken."""

    async def apply(self, resource: Resource, manifest: Json, manager: str) -> object:
        """Server-side apply; Conflict if uid or resourceVersion are not those of the live object."""

    async def apply_status(self, resource: Resource, manifest: Json, manager: str) -> object:
        """Server-side apply to /status, with the same preconditions."""

    async def annotate(self, resource: Resource, meta: Json, annotations: Mapping[str, str | None], manager: str) -> object:
        """Merge-patch of annotations, with the same preconditions; None removes."""

    async def patch(self, resource: Resource, meta: Json, patch: Sequence[Json], manager: str) -> object:
        """JSON patch. It has the version that was observed."""

    async def delete(self, resource: Resource, meta: Json) -> None:
        """DELETE in the background, with uid and resourceVersion of `meta` as preconditions."""

    async def token_keys(self) -> Json:
        """The keys that ServiceAccount tokens are verified with (JWKS)."""


async def apply(cluster: Cluster, writes: tuple[Write, ...]) -> None:
    """Makes all writes in order. The first failure ends it; the next run continues from there."""
    for write in writes:
        match write:
            case Create(resource, manifest):
                await cluster.create(resource, manifest, FIELD_MANAGER)
            case Apply(resource, manifest, live) if patch := write.replacement:
                await cluster.patch(resource, live.meta, patch, FIELD_MANAGER)
            case Apply(resource, manifest, live):
                await cluster.apply(resource, _at_version(manifest, live.meta), FIELD_MANAGER)
            case Delete(resource, live):
                await cluster.delete(resource, live.meta)
            case Annotate(live, annotations):
                await cluster.annotate(write.resource, live.meta, annotations, FIELD_MANAGER)


async def apply_anew(cluster: Cluster, resource: Resource, manifest: Json) -> None:
    """Applies an object whose name is ours by contract, whether it exists or not."""
    await cluster.apply(resource, manifest, FIELD_MANAGER)


async def apply_status(cluster: Cluster, resource: Resource, meta: ObjectMeta, status: dict[str, Any]) -> None:
    """Writes an object's status, at the version that was observed."""
    names = {"name": meta.name} | ({"namespace": meta.namespace} if meta.namespace else {})
    manifest = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": names, "status": status}
    version = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    await cluster.apply_status(resource, _at_version(manifest, version), FIELD_MANAGER)


async def apply_default_profile(cluster: Cluster, name: str, spec: ServingProfileSpec | None) -> None:
    """Keeps the install's ServingProfile as the chart wrote it; without a spec the name is free for an admin's profile. The name of one
    that is not the default is the install's class.

    A chart cannot contain the object: Helm looks every kind up before it installs the CRDs among its templates.
    """
    if spec is None:
        return
    body = {"apiVersion": PROFILES.api_version, "kind": PROFILES.kind, "spec": spec.wire()}
    # The digest finds a field that was removed, which `lost` does not.
    labels = {LABEL_MANAGED_BY: MANAGED_BY} | ({LABEL_CLASS: name} if name != DEFAULT_PROFILE else {})
    meta = {"name": name, "labels": labels, "annotations": {ANNOTATION_RENDERED: digest(body)}}
    wanted = body | {"metadata": meta}
    live = await cluster.get(PROFILES, "", name)
    if live is None or lost(wanted, live) is not None:
        await apply_anew(cluster, PROFILES, wanted)


class _Last(NamedTuple):
    """What was written last to an object, when, and how many times in a row."""

    content: str
    at: float
    times: int


class Repeats:
    """What each service's runs wrote last to each object. The same once more says that another client undid it: a person, an admission rule
    or a second operator. Such writes get rarer, because neither side would end the fight."""

    def __init__(self) -> None:
        self._last: dict[Key, dict[str, _Last]] = {}
        self._until: dict[Key, float] = {}

    def allowed(self, key: Key, writes: Iterable[Write], now: float) -> tuple[Write, ...]:
        """The writes that may be made now."""
        return tuple(write for write in writes if self.may(key, *content_of(write), now))

    def counted(self, key: Key, writes: Iterable[Write], now: float) -> Iterator[tuple[Write, int]]:
        """Notes writes that were made; returns each with how many times in a row it was the same."""
        for write in writes:
            yield write, self.wrote(key, *content_of(write), now)

    def may(self, key: Key, name: str, content: str, now: float) -> bool:
        """Whether this may be written now."""
        last = self._last.get(key, {}).get(name)
        if last is None or last.content != content:
            return True
        delay = UNDONE_DELAYS[min(last.times, len(UNDONE_DELAYS)) - 1]
        left = min(delay, last.at + delay - now)  # the clock may have been set
        if left > 0:
            self._until[key] = min(now + left, self._until.get(key, now + left))
        return left <= 0

    def wrote(self, key: Key, name: str, content: str, now: float) -> int:
        """Notes a write; returns how many times in a row it was the same."""
        known = self._last.setdefault(key, {})
        last = known.pop(name, None)
        again = last is not None and last.content == content and now - last.at < _FORGOTTEN_S
        known[name] = _Last(content, now, last.times + 1 if last is not None and again else 1)
        if len(known) > _MOST_OBJECTS:
            del known[next(iter(known))]
        return known[name].times

    def again(self, key: Key, now: float) -> float | None:
        """In how many seconds a write is due that may not be made yet; None if there is none."""
        until = self._until.pop(key, None)
        return None if until is None else max(0.0, until - now)

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._last.pop(key, None)
        self._until.pop(key, None)


def content_of(write: Write) -> tuple[str, str]:
    """The object that is written, and a digest of what is written. A write that also restores the owner is another one than those before
    it: it must not wait for them, or the child stays behind if its service is deleted meanwhile."""
    body: Any = None
    match write:
        case Create(_, manifest):
            body = manifest
        case Apply(_, manifest):
            body = [manifest, write.adopts]
        case Annotate(_, annotations):
            body = dict(annotations)
    return f"{write.resource.kind} {write.name}", digest([type(write).__name__, body])


def _at_version(manifest: Json, live: Json) -> dict[str, Any]:
    version = {"uid": live["uid"], "resourceVersion": live["resourceVersion"]}
    return {**manifest, "metadata": {**manifest["metadata"], **version}}
