"""What the operator writes into an InferenceService's status, by kstatus' rules. Volatile numbers live in metrics, not here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from pagoda_contracts.resources.meta import CONDITIONS, Condition, Model, ServedName


class RejectedAccelerator(Model):
    """Why an accelerator was not taken."""

    accelerator: Annotated[str, StringConstraints(max_length=128)] = Field(description="The entry, such as cpu[0].")
    why: Annotated[str, StringConstraints(max_length=1024)] = Field(description="One readable reason.")


class WaitingAccelerator(Model):
    """Since when devices are waited for that are all in use."""

    accelerator: Annotated[str, StringConstraints(max_length=128)] = Field(description="The entry, such as gpu[0].")
    entry: Annotated[str, StringConstraints(max_length=64)] = Field(description="Hash of the entry: another one is waited for anew.")
    since: Annotated[str, StringConstraints(max_length=64)] = Field(description="Since when.", json_schema_extra={"format": "date-time"})
    why: Annotated[str, StringConstraints(max_length=1024)] = Field(description="What is in the way, in a sentence.")


class PlacementStatus(Model):
    """Where replicas run, and why not elsewhere."""

    chosen: Annotated[str, StringConstraints(max_length=128)] | None = Field(
        default=None, description="The accelerator in use, or waited for."
    )
    device: Annotated[str, StringConstraints(max_length=256)] | None = Field(
        default=None, description="What it came down to, such as mig-1g.10gb; absent on CPU."
    )
    rejected: Annotated[tuple[RejectedAccelerator, ...], Field(max_length=32)] = Field(
        default=(), description="Accelerators not taken, with reasons, as they were when the chosen one was taken."
    )
    waiting: WaitingAccelerator | None = Field(default=None, description="Devices that would do and are all in use.")
    warnings: Annotated[tuple[Annotated[str, StringConstraints(max_length=512)], ...], Field(max_length=9)] = Field(
        default=(), description="Devices of the cluster that cannot be used: stranded by MIG, unhealthy, being partitioned for long."
    )


class RevisionStatus(Model):
    """One revision that has replicas."""

    hash: Annotated[str, StringConstraints(max_length=64)] = Field(description="The revision.")
    replicas: int = Field(ge=0, description="Its pods.")
    ready_replicas: int = Field(ge=0, description="Its ready pods.")
    weight: Annotated[int, Field(ge=0, le=100)] | None = Field(
        default=None, description="Percent of requests that it gets while a canary runs."
    )


class RolloutStatus(Model):
    """A change of revision under way, or one that was turned back. A restarted operator goes on from here."""

    revision: Annotated[str, StringConstraints(max_length=64)] = Field(description="The new revision.")
    replaces: Annotated[str, StringConstraints(max_length=64)] = Field(description="The revision that served before.")
    strategy: Literal["Surge", "Replace"] = Field(description="How it goes; what Auto came to.")
    phase: Literal["Progressing", "Retiring", "RolledBack"] = Field(
        description="Retiring: the new revision serves and the old one drains. RolledBack: the old one serves until the spec changes."
    )
    step: Annotated[int, Field(ge=0, le=16)] | None = Field(
        default=None, description="Which canary step, from 0; their number once all are passed; absent without a canary."
    )
    since: Annotated[str, StringConstraints(max_length=64)] | None = Field(
        default=None,
        description="When that step's replicas were ready; under Replace, since when a trial finds no place.",
        json_schema_extra={"format": "date-time"},
    )
    reason: Annotated[str, StringConstraints(max_length=512)] | None = Field(default=None, description="Why it was turned back.")


class Replacement(Model):
    """A replica that an older operator removed because it was unhealthy."""

    pod: Annotated[str, StringConstraints(max_length=253)] = Field(description="The replica.")
    uid: Annotated[str, StringConstraints(max_length=64)] = Field(description="Which pod of that name.")
    time: Annotated[str, StringConstraints(max_length=64)] = Field(description="When.", json_schema_extra={"format": "date-time"})
    why: Annotated[str, StringConstraints(max_length=512)] = Field(description="What was wrong with it, in a sentence.")


class HealthStatus(Model):
    """Written by older operators only."""

    last_replacement: Replacement | None = Field(
        default=None, description="Written by older operators only: the last replica that was replaced."
    )
    successor_sick: Literal[True] | None = Field(
        default=None,
        description="Written by older operators only: the replacement of the last serving replicas was unhealthy as well.",
    )


class ScalingDecision(Model):
    """One change of the number of replicas, and why."""

    time: Annotated[str, StringConstraints(max_length=64)] = Field(description="When.", json_schema_extra={"format": "date-time"})
    before: Annotated[int, Field(ge=0)] | None = Field(default=None, alias="from", description="Replicas wanted until then.")
    desired: int = Field(ge=0, description="Replicas wanted from then on.")
    reason: Annotated[str, StringConstraints(max_length=512)] = Field(description="Why, in a sentence.")


class ScalingStatus(Model):
    """How many replicas are wanted, and, where scaling decides, why."""

    desired: int | None = Field(default=None, ge=0, description="Replicas wanted.")
    reason: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        default=None, description="Why, in a sentence; its numbers are those of the moment it was decided."
    )
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
    served_names: Annotated[tuple[ServedName, ...], Field(max_length=16)] = Field(
        default=(), description="The served names that the service holds. Another service that asks for one of them does not get it."
    )
    ready_expected_at: Annotated[str, StringConstraints(max_length=64)] | None = Field(
        default=None,
        description="When the replicas under way are expected to be ready, from how long others took; absent where nothing is known.",
        json_schema_extra={"format": "date-time"},
    )
    model_digest: Annotated[str, StringConstraints(max_length=128)] | None = Field(
        default=None, description="Digest of the model's files. Not written yet."
    )
    scaling: ScalingStatus | None = Field(default=None, description="How many replicas are wanted, and, where scaling decides, why.")
    placement: PlacementStatus | None = Field(default=None, description="Where replicas run, and why not elsewhere.")
    rollout: RolloutStatus | None = Field(default=None, description="A change of revision under way, or turned back.")
    health: HealthStatus | None = Field(default=None, description="What was done about sick replicas.")
    revisions: Annotated[tuple[RevisionStatus, ...], Field(max_length=16)] = Field(default=(), description="Revisions with replicas.")
    outdated: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        default=None,
        description="Where replicas are rendered otherwise than they would be now, by the profile and the operator as they are: the first "
        "path of each part. A new word in spec.profileRef.adopt rolls them.",
    )
