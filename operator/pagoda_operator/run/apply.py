"""Carries out a plan: the operator's only writer but for Events (events.py) and the Lease (leader.py). Called by `reconcile`.

What must not exist yet is created by POST (server-side apply would take over a stranger's object); what exists is applied
or deleted at exactly the version that was observed, so that a stale view ends in a Conflict and never in a wrong write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pagoda_contracts.names import FIELD_MANAGER
from pagoda_contracts.resources.meta import ObjectMeta

from pagoda_operator.api.state import Json, Reader, Resource
from pagoda_operator.decide.render.writes import Annotate, Apply, Create, Delete, Write


class Writer(Protocol):
    """The writes that applying needs; each carries the field manager."""

    async def create(self, resource: Resource, manifest: Json, manager: str) -> object:
        """POST; Conflict where the name is taken."""

    async def apply(self, resource: Resource, manifest: Json, manager: str) -> object:
        """Server-side apply; Conflict where uid or resourceVersion are not those of the live object."""

    async def apply_status(self, resource: Resource, manifest: Json, manager: str) -> object:
        """Server-side apply to /status, with the same preconditions."""

    async def annotate(self, resource: Resource, meta: Json, annotations: Mapping[str, str | None], manager: str) -> Json:
        """Merge-patch of annotations, with the same preconditions; None removes."""

    async def delete(self, resource: Resource, meta: Json) -> None:
        """DELETE in the background, with uid and resourceVersion of `meta` as preconditions."""


class Cluster(Reader, Writer, Protocol):
    """The API server."""


async def apply(writer: Writer, writes: tuple[Write, ...]) -> None:
    """All writes, in order; the first failure ends it, the next reconcile goes on from there."""
    for write in writes:
        await _apply(writer, write)


async def _apply(writer: Writer, write: Write) -> None:
    match write:
        case Create(resource, manifest):
            await writer.create(resource, manifest, FIELD_MANAGER)
        case Apply(resource, manifest, live):
            await writer.apply(resource, _at_version(manifest, live.meta), FIELD_MANAGER)
        case Delete(resource, live):
            await writer.delete(resource, live.meta)
        case Annotate(live, annotations):
            await writer.annotate(write.resource, live.meta, annotations, FIELD_MANAGER)


async def apply_anew(writer: Writer, resource: Resource, manifest: Json) -> None:
    """An object whose name is ours by contract, whether it exists or not."""
    await writer.apply(resource, manifest, FIELD_MANAGER)


async def apply_status(writer: Writer, resource: Resource, meta: ObjectMeta, status: dict[str, Any]) -> None:
    """Write an object's status, at the version that was seen."""
    names = {"name": meta.name} | ({"namespace": meta.namespace} if meta.namespace else {})
    manifest = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": names, "status": status}
    version = {"uid": meta.uid, "resourceVersion": meta.resource_version}
    await writer.apply_status(resource, _at_version(manifest, version), FIELD_MANAGER)


def _at_version(manifest: Json, live: Json) -> dict[str, Any]:
    version = {"uid": live["uid"], "resourceVersion": live["resourceVersion"]}
    return {**manifest, "metadata": {**manifest["metadata"], **version}}
