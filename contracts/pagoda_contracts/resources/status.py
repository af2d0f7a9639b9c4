"""What the operator writes into an InferenceService's status, by kstatus' rules. Volatile numbers live in metrics, not here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from pagoda_contracts.resources.meta import CONDITIONS, Condition, Model, ServedName


class RejectedAccelerator(Model):
    """Why an accelerator was not chosen."""

    accelerator: Annotated[str, StringConstraints(max_length=128)] = Field(description="The entry, such as cpu[0].")
    why: Annotated[str, StringConstraints(max_length=1024)] = Field(description="One reason, as a sentence.")


class WaitingAccelerator(Model):
    """Since when devices are waited for that are all in use."""

    accelerator: Annotated[str, StringConstraints(max_length=128)] = Field(description="The entry, such as gpu[0].")
    entry: Annotated[str, StringConstraints(max_length=64)] = Field(
        description="Hash of the entry. If the entry changes, the wait begins again."
    )
    since: Annotated[str, StringConstraints(max_length=64)] = Field(description="Since when.", json_schema_extra={"format": "date-time"})
    why: Annotated[str, StringConstraints(max_length=1024)] = Field(description="The problem, as a sentence.")


class PlacementStatus(Model):
    """Where replicas run, and why not elsewhere."""

    chosen: Annotated[str, StringConstraints(max_length=128)] | None = Field(
        default=None, description="The accelerator that is in use, or for which the service waits."
    )
    device: Annotated[str, StringConstraints(max_length=256)] | None = Field(
        default=None, description="The resource that was chosen, such as mig-1g.10gb; absent on CPU."
    )
    concurrency: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None,
        description="Requests of full length that a replica's KV cache holds at the same time, computed and at most engine.maxConcurrency; "
        "absent on CPU.",
    )
    rejected: Annotated[tuple[RejectedAccelerator, ...], Field(max_length=32)] = Field(
        default=(), description="Accelerators that were not chosen, with the reasons at the time of the decision."
    )
    waiting: WaitingAccelerator | None = Field(default=None, description="Devices that fit and are all in use.")
    warnings: Annotated[tuple[Annotated[str, StringConstraints(max_length=512)], ...], Field(max_length=9)] = Field(
        default=(),
        description="Devices of the cluster that cannot be used: unhealthy, without partitions under MIG, or partitioned for too long.",
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
    strategy: Literal["Surge", "Replace"] = Field(description="The strategy in use. For Auto, what it chose.")
    phase: Literal["Progressing", "Retiring", "RolledBack"] = Field(
        description="Progressing: the new revision starts. Retiring: it serves and the old one drains. RolledBack: the "
        "old one serves until the spec changes."
    )
    step: Annotated[int, Field(ge=0, le=16)] | None = Field(
        default=None, description="The canary step under way, from 0. After the last step, the number of steps. Absent without a canary."
    )
    since: Annotated[str, StringConstraints(max_length=64)] | None = Field(
        default=None,
        description="When the replicas of the step became ready. Under Replace, since when a trial finds no place.",
        json_schema_extra={"format": "date-time"},
    )
    reason: Annotated[str, StringConstraints(max_length=512)] | None = Field(default=None, description="Why it was rolled back.")


class Replacement(Model):
    """A replica that an older operator removed because it was unhealthy."""

    pod: Annotated[str, StringConstraints(max_length=253)] = Field(description="The replica.")
    uid: Annotated[str, StringConstraints(max_length=64)] = Field(description="Which pod of that name.")
    time: Annotated[str, StringConstraints(max_length=64)] = Field(description="When.", json_schema_extra={"format": "date-time"})
    why: Annotated[str, StringConstraints(max_length=512)] = Field(description="The problem of the replica, as a sentence.")


class HealthStatus(Model):
    """Written by older operators only."""

    last_replacement: Replacement | None = Field(
        default=None, description="Written by older operators only: the last replica that was replaced."
    )
    successor_sick: Literal[True] | None = Field(
        default=None,
        description="Written by older operators only: the replacement of the last serving replicas was unhealthy as well.",
    )


class StartStatus(Model):
    """How long one replica took to start. The phases add up to the time from createdAt to readyAt."""

    pod: Annotated[str, StringConstraints(max_length=253)] = Field(description="The replica.")
    created_at: Annotated[str, StringConstraints(max_length=64)] = Field(
        description="When its pod was created.", json_schema_extra={"format": "date-time"}
    )
    ready_at: Annotated[str, StringConstraints(max_length=64)] = Field(
        description="When it was Ready.", json_schema_extra={"format": "date-time"}
    )
    scheduled_seconds: int = Field(ge=0, description="Until it had a node.")
    image_seconds: int = Field(ge=0, description="Pulling images and mounting volumes.")
    fetch_seconds: int = Field(ge=0, description="Fetching the model.")
    load_seconds: int = Field(ge=0, description="Loading the model.")
    warm_seconds: int = Field(
        ge=0, description="From the end of the load to Ready. 0 if it had not been reported by then; loadSeconds includes it."
    )


class ScalingDecision(Model):
    """One change of the number of replicas, and why."""

    time: Annotated[str, StringConstraints(max_length=64)] = Field(description="When.", json_schema_extra={"format": "date-time"})
    before: Annotated[int, Field(ge=0)] | None = Field(default=None, alias="from", description="Replicas wanted before the change.")
    desired: int = Field(ge=0, description="Replicas wanted after the change.")
    reason: Annotated[str, StringConstraints(max_length=512)] = Field(description="The reason, as a sentence.")


class ScalingStatus(Model):
    """How many replicas are wanted. In modes Auto and External, also why."""

    desired: int | None = Field(default=None, ge=0, description="Replicas wanted.")
    reason: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        default=None, description="The reason, as a sentence. Its numbers are those of the moment of the decision."
    )
    last_decisions: Annotated[tuple[ScalingDecision, ...], Field(max_length=5)] = Field(default=(), description="The last changes.")


class InferenceServiceStatus(Model):
    """What is. Written by the operator alone."""

    observed_generation: int | None = Field(default=None, ge=0, description="The metadata.generation that this status is about.")
    conditions: Annotated[tuple[Condition, ...], Field(max_length=8)] = CONDITIONS
    replicas: int | None = Field(default=None, ge=0, description="Pods that exist.")
    ready_replicas: int | None = Field(default=None, ge=0, description="Pods that are Ready.")
    selector: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        default=None, description="Label selector of the pods, for the scale subresource."
    )
    url: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        default=None, description="The address at which the gateway serves this service inside the cluster."
    )
    served_names: Annotated[tuple[ServedName, ...], Field(max_length=16)] = Field(
        default=(), description="The served names that the service holds. Another service that asks for one of them does not get it."
    )
    adapter_names: Annotated[tuple[ServedName, ...], Field(max_length=1024)] | None = Field(
        default=None, description="The names of LoraAdapters that clients may put into `model`. Gateways send them to this service."
    )
    faulty_replicas: Annotated[tuple[Annotated[str, StringConstraints(max_length=253)], ...], Field(max_length=512)] | None = Field(
        default=None,
        description="Pods whose device is reported as faulty, by an annotation or by their node. Gateways send them requests only if no "
        "other replica answers.",
    )
    ready_expected_at: Annotated[str, StringConstraints(max_length=64)] | None = Field(
        default=None,
        description="When the starting replicas are expected to be ready, by the time that others took. Absent if nothing is known.",
        json_schema_extra={"format": "date-time"},
    )
    last_start: StartStatus | None = Field(
        default=None, description="How long the newest replica that started took, by phase. Starts with a restart are left out."
    )
    model_digest: Annotated[str, StringConstraints(max_length=128)] | None = Field(
        default=None, description="Digest of the model's files. Not written yet."
    )
    scaling: ScalingStatus | None = Field(default=None, description="How many replicas are wanted. In modes Auto and External, also why.")
    placement: PlacementStatus | None = Field(default=None, description="Where replicas run, and why not elsewhere.")
    rollout: RolloutStatus | None = Field(default=None, description="The rollout that is under way or was rolled back.")
    health: HealthStatus | None = Field(default=None, description="What the operator did about unhealthy replicas.")
    revisions: Annotated[tuple[RevisionStatus, ...], Field(max_length=16)] = Field(default=(), description="Revisions with replicas.")
    outdated: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        default=None,
        description="Where replicas are rendered otherwise than they would be now, by the profile and the operator as they are: the first "
        "path of each part. A new word in spec.profileRef.adopt rolls them.",
    )
