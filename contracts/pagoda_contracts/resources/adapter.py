"""LoraAdapter: a LoRA beside the model of one InferenceService.

Fields that the operator does not act on yet say so in their description; it names them in the Ready condition.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, StringConstraints

from pagoda_contracts.names import API_VERSION
from pagoda_contracts.resources.meta import (
    CONDITIONS,
    ApiVersion,
    Column,
    Condition,
    DnsName,
    Kind,
    Model,
    ObjectMeta,
    Rule,
    ServedName,
    Subdomain,
    Transition,
)
from pagoda_contracts.resources.service import Digest, ModelUri

_LINE: Final = StringConstraints(max_length=512)


class ServiceRef(Model):
    """Names an InferenceService."""

    name: Subdomain = Field(description="The InferenceService's name.")
    namespace: DnsName | None = Field(
        default=None,
        description="The service's namespace; the adapter's own if absent. A service of another namespace must allow it "
        "(spec.adapters.allowFrom).",
    )


class AdapterSource(Model):
    """Where the adapter's files come from."""

    uri: ModelUri = Field(
        description="Where the files are: pvc://<claim>/<path>, hf, s3, gs, az, oci or https. A claim must be one of the service's "
        "(spec.adapters.claims)."
    )
    digest: Digest | None = Field(
        default=None, description="Digest of the files, sha256:<64 hex digits>. Fetched files must have this digest."
    )
    credential: DnsName | None = Field(default=None, description="One of the service's spec.credentials.")


class Placement(Model):
    """On which replicas the adapter is resident."""

    mode: Literal["OnDemand", "Eager", "Replicas"] = Field(
        default="OnDemand",
        description="OnDemand: on the disk of all replicas, and in the memory of those that get requests for it. Eager: on all replicas. "
        "Replicas: on `replicas` of them.",
    )
    replicas: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="The number of replicas that load it; with mode Replicas only."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(self.mode == 'Replicas') == has(self.replicas)",
            "placement: replicas is needed with mode Replicas, and refused otherwise",
            lambda p: (p.mode == "Replicas") == (p.replicas is not None),
            "replicas",
        ),
    )


class LoraAdapterSpec(Model):
    """What is wanted of the adapter."""

    service_ref: ServiceRef = Field(description="The service whose model it adapts. Immutable: make another adapter.")
    source: AdapterSource = Field(description="Where its files come from.")
    model_name: ServedName | None = Field(
        default=None, description="The name that clients put into `model`; the adapter's own name if absent. Immutable."
    )
    placement: Placement = Field(default=Placement(), description="On which replicas it is resident.")
    pinned: bool = Field(
        default=False, description="With placement OnDemand: once loaded, it stays in memory. Other adapters do not take its place."
    )

    transitions: ClassVar[tuple[Transition, ...]] = (
        Transition(
            "self.serviceRef == oldSelf.serviceRef",
            "serviceRef is immutable: make another LoraAdapter",
            lambda new, old: new.service_ref == old.service_ref,
            "serviceRef",
        ),
        Transition(
            "has(self.modelName) == has(oldSelf.modelName) && (!has(self.modelName) || self.modelName == oldSelf.modelName)",
            "modelName is immutable: clients know it by this name",
            lambda new, old: new.model_name == old.model_name,
            "modelName",
        ),
    )


class EndpointAdapter(Model):
    """The adapter on one replica."""

    pod: Annotated[str, StringConstraints(max_length=253)] = Field(description="The replica.")
    state: Literal["Pending", "Fetching", "OnDisk", "Loaded", "Evicted", "Failed"] = Field(
        description="How far it is there. Evicted is not written yet."
    )
    reason: Annotated[str, _LINE] | None = Field(default=None, description="Why it failed.")


class LoraAdapterStatus(Model):
    """What is. Written by the operator alone."""

    observed_generation: int | None = Field(default=None, ge=0, description="The metadata.generation that this status is about.")
    conditions: Annotated[tuple[Condition, ...], Field(max_length=8)] = CONDITIONS
    digest: Digest | None = Field(default=None, description="Digest of the files that are served.")
    loaded: int | None = Field(default=None, ge=0, description="Replicas on which it is resident.")
    endpoints: Annotated[tuple[EndpointAdapter, ...], Field(max_length=1024)] = Field(
        default=(), description="The adapter on each replica, with reasons."
    )


class LoraAdapter(Model):
    """A LoRA adapter beside the model of one InferenceService."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["LoraAdapter"] = "LoraAdapter"
    metadata: ObjectMeta = ObjectMeta()
    spec: LoraAdapterSpec = Field(description="The desired state.")
    status: LoraAdapterStatus | None = Field(default=None, description="The observed state. Only the operator writes it.")

    @property
    def served_name(self) -> str:
        """The name that clients put into `model`."""
        return self.spec.model_name or self.metadata.name


LORA_ADAPTER = Kind(
    kind="LoraAdapter",
    plural="loraadapters",
    scope="Namespaced",
    model=LoraAdapter,
    columns=(
        Column("Service", "string", ".spec.serviceRef.name", "The service whose model it adapts"),
        Column("Placement", "string", ".spec.placement.mode", "On which replicas"),
        Column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", "Serving"),
        Column("Loaded", "integer", ".status.loaded", "Replicas on which it is resident"),
        Column("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason", "Why"),
        Column("Source", "string", ".spec.source.uri", "Where its files come from", 1),
        Column("Age", "date", ".metadata.creationTimestamp", "Age"),
    ),
    scale=False,
)
