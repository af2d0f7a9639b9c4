"""LoraAdapters as the operator sees them, the catalogue that a replica is sent, and what it answers. Pure; parsed once, at the border."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from pagoda_contracts.resources.adapter import LoraAdapterSpec, LoraAdapterStatus
from pagoda_contracts.resources.meta import ObjectMeta
from pydantic import ValidationError

from pagoda_operator.api.state import Json, Key, explain


@dataclass(frozen=True)
class Adapter:
    """One LoraAdapter. Metadata and status are not compared, so that our own status write is no change."""

    service: Key
    uid: str
    generation: int
    created: str
    spec: LoraAdapterSpec | None = None
    invalid: str = ""
    deleting: bool = False
    meta: ObjectMeta = field(default=ObjectMeta(), compare=False)
    raw_status: Json = field(default_factory=dict, compare=False)

    @property
    def key(self) -> Key:
        """Its namespace and name."""
        return Key(self.meta.namespace, self.meta.name)

    @property
    def served_name(self) -> str:
        """The name that clients put into `model`."""
        return (self.spec.model_name if self.spec else None) or self.meta.name

    @property
    def copies(self) -> int | None:
        """On how many replicas it should be; None for all."""
        return self.spec.placement.replicas if self.spec is not None else None

    @property
    def on_demand(self) -> bool:
        """Whether a request loads it."""
        return self.spec is not None and self.spec.placement.mode == "OnDemand"

    @property
    def shares_place(self) -> bool:
        """Whether another one may have its place while it has no requests."""
        return self.on_demand and self.spec is not None and not self.spec.pinned

    @property
    def rank(self) -> tuple[str, str]:
        """The smallest is the oldest."""
        return self.created, self.uid

    @property
    def status(self) -> LoraAdapterStatus:
        """The last written status; empty if there is none or it cannot be read."""
        try:
            return LoraAdapterStatus.model_validate(dict(self.raw_status), extra="ignore")
        except ValidationError:
            return LoraAdapterStatus()

    @property
    def digest(self) -> str:
        """The digest that its files must have: what the spec says, or what the first replica found; empty before that."""
        if self.spec is not None and self.spec.source.digest is not None:
            return self.spec.source.digest
        last = self.status
        return (last.digest or "") if last.observed_generation == self.generation else ""


def parse_adapter(body: Json) -> Adapter | None:
    """The cache's parser; None if it names no service."""
    meta = ObjectMeta.model_validate(body["metadata"])
    reference: Any = (body.get("spec") or {}).get("serviceRef") or {}
    if not reference.get("name"):
        return None
    service = Key(str(reference.get("namespace") or meta.namespace), str(reference["name"]))
    known = (service, meta.uid, meta.generation or 0, str(body["metadata"].get("creationTimestamp", "")))
    rest: dict[str, Any] = {
        "deleting": "deletionTimestamp" in body["metadata"],
        "meta": meta,
        "raw_status": body.get("status") or {},
    }
    try:
        return Adapter(*known, spec=LoraAdapterSpec.model_validate(body.get("spec"), extra="ignore"), **rest)
    except ValidationError as error:
        return Adapter(*known, invalid=explain(error), **rest)


class Namespace(NamedTuple):
    """A namespace, as far as services say from which ones they accept adapters."""

    name: str
    labels: frozenset[tuple[str, str]]


def parse_namespace(body: Json) -> Namespace:
    """The cache's parser."""
    meta = body["metadata"]
    return Namespace(meta["name"], frozenset((meta.get("labels") or {}).items()))


class Entry(NamedTuple):
    """One adapter of a catalogue, as it is sent."""

    name: str
    uri: str
    digest: str
    credential: str
    pinned: bool
    on_demand: bool = False


class CatalogueOrder(NamedTuple):
    """The whole catalogue for one replica."""

    pod: str
    uid: str
    address: str
    generation: int
    entries: tuple[Entry, ...]


class Phase(StrEnum):
    """How far an adapter is on a replica, in the status' words."""

    PENDING = "Pending"
    FETCHING = "Fetching"
    ON_DISK = "OnDisk"
    LOADED = "Loaded"
    FAILED = "Failed"


class Progress(NamedTuple):
    """An adapter on one replica; `digest` is that of its files, once it is known."""

    phase: Phase
    digest: str = ""
    reason: str = ""


Answers = Mapping[str, Mapping[str, Progress]]
"""By pod, and by the adapter's served name."""
