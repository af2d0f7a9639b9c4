"""InferenceService: a model, served by replicas on one of its accelerators. The object a developer applies."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints

from pagoda_contracts.names import API_VERSION, DEFAULT_PROFILE, MAX_SERVICE_NAME
from pagoda_contracts.resources.meta import ApiVersion, Column, Condition, DnsName, Kind, Model, ObjectMeta, Rule
from pagoda_contracts.units import Duration, Quantity, parse_duration

ServedName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$")]
ModelUri = Annotated[
    str,
    StringConstraints(max_length=512, pattern=r"^pvc://[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$"),
]


class ModelSpec(Model):
    """What is served, and under which names."""

    uri: ModelUri = Field(description="Where the model's files are: pvc://<claim>[/<path>], a claim in the service's namespace.")
    served_names: Annotated[tuple[ServedName, ...], Field(max_length=16)] = Field(
        default=(),
        description="Names that clients put into `model`; the service's own name where empty.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )


class CpuAccelerator(Model):
    """Serving on CPU cores."""

    cores: Quantity = Field(description="CPU request of a replica, a quantity such as 250m or 8.")
    memory: Quantity = Field(description="Memory request and limit of a replica, a quantity such as 2Gi.")


class Accelerator(Model):
    """One alternative; exactly one kind is set."""

    cpu: CpuAccelerator | None = Field(default=None, description="CPU cores instead of a device.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("has(self.cpu)", "accelerators: each entry sets exactly one kind; accepted: cpu", lambda a: a.cpu is not None),
    )


class KvCacheSpec(Model):
    """The paged KV cache of a replica."""

    size: Quantity | None = Field(default=None, description="Bytes for KV blocks, such as 512Mi; sized from memory where absent.")
    block_size: Literal[16, 32, 64] = Field(default=16, description="Tokens per KV block.")


class EngineSpec(Model):
    """Limits and numerics of a replica's engine."""

    max_model_len: Annotated[int, Field(ge=16, le=1_048_576)] | None = Field(
        default=None, description="Longest prompt plus answer, in tokens; the model's own limit where absent."
    )
    max_concurrency: int = Field(default=64, ge=1, le=1024, description="Requests that decode at the same time in one replica.")
    dtype: Literal["auto", "bfloat16", "float32"] = Field(default="auto", description="Weights and activations; auto is bfloat16.")
    kv_cache: KvCacheSpec = Field(default=KvCacheSpec(), description="The paged KV cache.")


class DrainSpec(Model):
    """How a replica goes."""

    timeout: Duration = Field(default="30s", description="How long running requests may finish after a replica is told to go.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "duration(self.timeout) <= duration('1h')",
            "drain.timeout: at most 1h",
            lambda d: parse_duration(d.timeout) <= 3600,
        ),
    )


class ProfileRef(Model):
    """Names a ServingProfile."""

    name: DnsName = Field(default=DEFAULT_PROFILE, description="A ServingProfile's name.")


class InferenceServiceSpec(Model):
    """What the developer wants."""

    replicas: int = Field(default=1, ge=0, le=1024, description="How many replicas serve.")
    model: ModelSpec = Field(description="What is served, and under which names.")
    accelerators: Annotated[tuple[Accelerator, ...], Field(min_length=1, max_length=8)] = Field(
        description="Ordered alternatives to run on."
    )
    engine: EngineSpec = Field(default=EngineSpec(), description="Limits and numerics of the engine.")
    drain: DrainSpec = Field(default=DrainSpec(), description="How a replica goes.")
    profile_ref: ProfileRef = Field(default=ProfileRef(), description="The administrator's template for the pods.")
    pod_template: dict[str, Any] | None = Field(
        default=None,
        description="Overlay on the pod template; only paths that the profile allows.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )


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


class InferenceServiceStatus(Model):
    """What is. Written by the operator alone."""

    observed_generation: int | None = Field(default=None, ge=0, description="metadata.generation this status speaks of.")
    conditions: Annotated[tuple[Condition, ...], Field(max_length=8)] = Field(
        default=(),
        description="Ready, Reconciling, Stalled (kstatus).",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    replicas: int | None = Field(default=None, ge=0, description="Pods that exist.")
    ready_replicas: int | None = Field(default=None, ge=0, description="Pods that serve.")
    selector: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        default=None, description="Label selector of the pods, for the scale subresource."
    )
    url: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        default=None, description="Where the gateway serves this service inside the cluster."
    )
    placement: PlacementStatus | None = Field(default=None, description="Where replicas run, and why not elsewhere.")
    revisions: Annotated[tuple[RevisionStatus, ...], Field(max_length=16)] = Field(default=(), description="Revisions with replicas.")


class InferenceService(Model):
    """A model served by replicas behind the gateway."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["InferenceService"] = "InferenceService"
    metadata: ObjectMeta = ObjectMeta()
    spec: InferenceServiceSpec = Field(description="What is wanted.")
    status: InferenceServiceStatus | None = Field(default=None, description="What is; written by the operator alone.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"size(self.metadata.name) <= {MAX_SERVICE_NAME}",
            f"metadata.name: at most {MAX_SERVICE_NAME} characters, so that children's names fit",
            lambda s: len(s.metadata.name) <= MAX_SERVICE_NAME,
        ),
    )

    @property
    def served_names(self) -> tuple[str, ...]:
        """Names that clients may put into `model`."""
        return self.spec.model.served_names or (self.metadata.name,)


INFERENCE_SERVICE = Kind(
    kind="InferenceService",
    plural="inferenceservices",
    scope="Namespaced",
    model=InferenceService,
    columns=(
        Column("Model", "string", ".spec.model.uri", "Where the model comes from", 1),
        Column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", "Serving"),
        Column("Replicas", "integer", ".status.readyReplicas", "Ready replicas"),
        Column("Desired", "integer", ".spec.replicas", "Replicas wanted"),
        Column("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason", "Why"),
        Column("Message", "string", ".status.conditions[?(@.type=='Ready')].message", "In a sentence", 1),
        Column("Age", "date", ".metadata.creationTimestamp", "Age"),
    ),
    scale=True,
)
