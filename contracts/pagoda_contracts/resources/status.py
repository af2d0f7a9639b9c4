"""What the operator writes into an InferenceService's status, by kstatus' rules. Volatile numbers live in metrics, not here."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from pagoda_contracts.resources.meta import CONDITIONS, Condition, Model


class RejectedAccelerator(Model):
    """Why an accelerator was not taken."""

    accelerator: Annotated[str, StringConstraints(max_length=128)] = Field(description="The entry, such as cpu[0].")
    why: Annotated[str, StringConstraints(max_length=1024)] = Field(description="One readable reason.")


class PlacementStatus(Model):
    """Where replicas run, and why not elsewhere."""

    chosen: Annotated[str, StringConstraints(max_length=128)] | None = Field(default=None, description="The accelerator in use.")
    rejected: Annotated[tuple[RejectedAccelerator, ...], Field(max_length=32)] = Field(
        default=(), description="Accelerators not taken, with reasons."
    )


class RevisionStatus(Model):
    """One revision that has replicas."""

    hash: Annotated[str, StringConstraints(max_length=64)] = Field(description="The revision.")
    replicas: int = Field(ge=0, description="Its pods.")
    ready_replicas: int = Field(ge=0, description="Its ready pods.")
    weight: Annotated[int, Field(ge=0, le=100)] | None = Field(default=None, description="Percent of requests that it gets.")


class ScalingDecision(Model):
    """One change of the number of replicas, and why."""

    time: Annotated[str, StringConstraints(max_length=64)] = Field(description="When.", json_schema_extra={"format": "date-time"})
    desired: int = Field(ge=0, description="Replicas wanted from then on.")
    reason: Annotated[str, StringConstraints(max_length=512)] = Field(description="Why, in a sentence.")


class ScalingStatus(Model):
    """What scaling wants. Not written yet."""

    desired: int | None = Field(default=None, ge=0, description="Replicas wanted.")
    reason: Annotated[str, StringConstraints(max_length=512)] | None = Field(default=None, description="Why, in a sentence.")
    last_decisions: Annotated[tuple[ScalingDecision, ...], Field(max_length=5)] = Field(default=(), description="The last changes.")


class InferenceServiceStatus(Model):
    """What is. Written by the operator alone."""

    observed_generation: int | None = Field(default=None, ge=0, description="metadata.generation this status speaks of.")
    conditions: Annotated[tuple[Condition, ...], Field(max_length=8)] = CONDITIONS
    replicas: int | None = Field(default=None, ge=0, description="Pods that exist.")
    ready_replicas: int | None = Field(default=None, ge=0, description="Pods that serve.")
    selector: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        default=None, description="Label selector of the pods, for the scale subresource."
    )
    url: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        default=None, description="Where the gateway serves this service inside the cluster."
    )
    model_digest: Annotated[str, StringConstraints(max_length=128)] | None = Field(
        default=None, description="Digest of the model's files. Not written yet."
    )
    scaling: ScalingStatus | None = Field(default=None, description="What scaling wants. Not written yet.")
    placement: PlacementStatus | None = Field(default=None, description="Where replicas run, and why not elsewhere.")
    revisions: Annotated[tuple[RevisionStatus, ...], Field(max_length=16)] = Field(default=(), description="Revisions with replicas.")
