"""InferenceService: a model, served by replicas on one of its accelerators. The object a developer applies.

Fields that the operator does not act on yet say so in their description; it names them in the Ready condition.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, StringConstraints

from pagoda_contracts.names import API_VERSION, DEFAULT_PROFILE, MAX_SERVICE_NAME
from pagoda_contracts.resources.engine import EngineSpec
from pagoda_contracts.resources.meta import (
    MAP_BY_NAME,
    ApiVersion,
    Column,
    DnsName,
    Kind,
    Labels,
    Model,
    ObjectMeta,
    PodTemplate,
    Rule,
    ServedName,
    Subdomain,
)
from pagoda_contracts.resources.placement import Accelerator, ResourcesSpec
from pagoda_contracts.resources.scaling import ScalingSpec
from pagoda_contracts.resources.status import InferenceServiceStatus, PlacementStatus, RejectedAccelerator, RevisionStatus
from pagoda_contracts.resources.traffic import DrainSpec, HealthSpec, RolloutSpec, RoutingSpec, SloSpec
from pagoda_contracts.units import parse_quantity

__all__ = [
    "INFERENCE_SERVICE",
    "Accelerator",
    "EngineSpec",
    "InferenceService",
    "InferenceServiceSpec",
    "InferenceServiceStatus",
    "PlacementStatus",
    "RejectedAccelerator",
    "RevisionStatus",
]

_SEGMENTS: Final = r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)"
URI_PATTERN: Final = (
    rf"^(pvc://[a-z0-9]([-a-z0-9]{{0,61}}[a-z0-9])?{_SEGMENTS}*"
    rf"|(hf|s3|gs|az|oci|https)://[A-Za-z0-9][A-Za-z0-9.:-]*{_SEGMENTS}+)$"
)
ModelUri = Annotated[str, StringConstraints(max_length=512, pattern=URI_PATTERN)]
"""Where files are. No query, no user, no `..`: credentials are named, never written into an address."""

SourceRevision = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$")]

Digest = Annotated[str, StringConstraints(max_length=71, pattern=r"^sha256:[0-9a-f]{64}$")]


class CacheSpec(Model):
    """Where fetched files are kept."""

    pvc: DnsName = Field(description="A PersistentVolumeClaim in the service's namespace.")


class ModelSpec(Model):
    """The model to serve, and its names."""

    uri: ModelUri = Field(
        description="Where the model's files are: pvc://<claim>[/<path>], a claim in the service's namespace; hf://<org>/<name>, "
        "s3://<bucket>/<prefix>, gs://<bucket>/<prefix>, az://<account>/<container>/<prefix>, oci://<registry>/<repository> or "
        "https://<host>/<folder>, brought by the fetch sidecar."
    )
    revision: SourceRevision | None = Field(
        default=None,
        description="hf: commit, tag or branch; oci: tag or sha256:<digest>. Other sources have none. What is not pinned is what the "
        "source holds when a pod starts.",
    )
    digest: Digest | None = Field(
        default=None, description="Digest of the files, sha256:<64 hex digits>. Fetched files must have this digest."
    )
    served_names: Annotated[tuple[ServedName, ...], Field(max_length=16)] = Field(
        default=(),
        description="Names that clients put into `model`; the service's own name if empty.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    credential: DnsName | None = Field(default=None, description="The entry of spec.credentials that fetches it.")
    service_account_name: Subdomain | None = Field(
        default=None,
        description="A ServiceAccount in the service's namespace, for its replicas. Without a credential, its cloud identity (IRSA, EKS "
        "Pod Identity, workload identity of GKE and Azure) reads the model from s3, gs or az.",
    )
    cache: CacheSpec | None = Field(
        default=None, description="Where fetched files are kept between pods. If absent, each pod has a volume of its own."
    )


class SecretRef(Model):
    """Names a Secret in the object's namespace."""

    name: Subdomain = Field(description="The Secret's name.")


class Credential(Model):
    """A Secret that the fetch sidecar sees, under a name."""

    name: DnsName = Field(description="The name by which model and adapters refer to it.")
    secret_ref: SecretRef = Field(description="The Secret, mounted by the kubelet; the operator never reads it.")


class LabelSelector(Model):
    """Selects objects whose labels hold all of these."""

    match_labels: Annotated[Labels, Field(min_length=1)] = Field(description="Label keys and their values.")


class AllowFrom(Model):
    """The namespaces from which adapters are accepted."""

    namespaces: Literal["Same", "Selector"] = Field(
        default="Same", description="Same: this namespace. Selector: this one, and those that `selector` matches."
    )
    selector: LabelSelector | None = Field(default=None, description="Namespaces by label; with Selector only.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(self.namespaces == 'Selector') == has(self.selector)",
            "allowFrom: selector is needed with namespaces Selector, and refused otherwise",
            lambda a: (a.namespaces == "Selector") == (a.selector is not None),
            "selector",
        ),
    )


class AdaptersSpec(Model):
    """LoRA adapters beside the model. With this field, each pod has a fetch sidecar."""

    max_loaded: int = Field(default=8, ge=1, le=1024, description="Adapters resident at the same time in one replica.")
    max_rank: Literal[8, 16, 32, 64, 128, 256] = Field(default=64, description="Largest rank of an adapter.")
    claims: Annotated[tuple[DnsName, ...], Field(max_length=8)] = Field(
        default=(),
        description="Claims from which adapters may come (pvc://), mounted read-only. The model's own claim is one without being named.",
    )
    allow_from: AllowFrom = Field(default=AllowFrom(), description="The namespaces from which adapters are accepted.")


class ProfileRef(Model):
    """Names a ServingProfile."""

    name: DnsName = Field(default=DEFAULT_PROFILE, description="A ServingProfile's name.")
    adopt: Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$")] | None = (
        Field(
            default=None,
            description="Any word. A new one rolls the replicas onto the profile, and the operator's rendering, as they are now; "
            "an edited profile or a new operator by itself rolls none.",
        )
    )


# For a person who writes a map. Without it the API server calls `cpu` an unknown field, before a type or a rule is looked at. A list whose
# schema also has the values of a map lets it come so far: it then names the type, and what each of these values must be. 1.35 was asked.
_NOT_A_MAP: Final[dict[str, Any]] = {
    "additionalProperties": {
        "x-kubernetes-preserve-unknown-fields": True,
        "enum": ["a list: begin each entry with '- ', such as '- cpu:'"],
    }
}


def _credential_known(spec: Any) -> bool:
    return spec.model.credential is None or any(known.name == spec.model.credential for known in spec.credentials)


def _threads_have_cores(spec: Any) -> bool:
    """At most the cores, rounded up."""
    threads, cores = spec.engine.threads, [parse_quantity(entry.cpu.cores) for entry in spec.accelerators if entry.cpu]
    return threads is None or all(threads - 1 < count for count in cores)


class InferenceServiceSpec(Model):
    """What the developer wants."""

    replicas: int = Field(default=1, ge=0, le=1024, description="How many replicas serve. In scaling mode Auto, only the starting value.")
    model: ModelSpec = Field(description="The model to serve, and its names.")
    credentials: Annotated[tuple[Credential, ...], Field(max_length=8)] = Field(
        default=(), description="Secrets for fetching, by name.", json_schema_extra=MAP_BY_NAME
    )
    accelerators: Annotated[tuple[Accelerator, ...], Field(min_length=1, max_length=8)] = Field(
        description="Ordered alternatives to run on: a list, whose entries begin with `- cpu:`, `- gpu:`, `- mig:` or `- dra:`.",
        json_schema_extra=_NOT_A_MAP,
    )
    engine: EngineSpec = Field(default=EngineSpec(), description="Limits and numerics of the engine.")
    resources: ResourcesSpec = Field(default=ResourcesSpec(), description="What a replica on devices requests besides them.")
    adapters: AdaptersSpec | None = Field(default=None, description="LoRA adapters beside the model; none if absent.")
    scaling: ScalingSpec | None = Field(
        default=None, description="How the number of replicas is decided. If absent, spec.replicas is the number."
    )
    slo: SloSpec | None = Field(default=None, description="The latency that clients are promised. Goodput counts the answers that met it.")
    rollout: RolloutSpec | None = Field(default=None, description="How a new revision takes over.")
    drain: DrainSpec = Field(default=DrainSpec(), description="How a replica is removed.")
    health: HealthSpec | None = Field(
        default=None, description="When a replica counts as unhealthy. It then gets no new requests and is replaced."
    )
    routing: RoutingSpec | None = Field(default=None, description="How the gateway picks a replica.")
    profile_ref: ProfileRef = Field(default=ProfileRef(), description="The administrator's template for the pods.")
    client_keys: SecretRef | None = Field(
        default=None,
        description="A Secret whose entry `keys` has the SHA-256 digests of clients' keys. Replicas then let these clients in, from the "
        "service's own namespace, without a gateway.",
    )
    pod_template: PodTemplate | None = Field(
        default=None,
        description="Overlay on the pod template; only paths that the profile allows.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.model.credential) || (has(self.credentials) && self.credentials.exists(c, c.name == self.model.credential))",
            "model.credential: must be a name in spec.credentials",
            _credential_known,
            "model.credential",
        ),
        Rule(
            "!has(self.engine) || !has(self.engine.threads) || self.accelerators.all(a, !has(a.cpu) || "
            "quantity(string(a.cpu.cores)).sub(self.engine.threads - 1).isGreaterThan(quantity('0')))",
            "engine.threads must be at most the cores of each cpu entry, rounded up",
            _threads_have_cores,
            "engine.threads",
        ),
    )


_SERVICE_NAME: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"


class InferenceService(Model):
    """A model served by replicas behind the gateway."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["InferenceService"] = "InferenceService"
    metadata: ObjectMeta = ObjectMeta()
    spec: InferenceServiceSpec = Field(description="The desired state.")
    status: InferenceServiceStatus | None = Field(default=None, description="The observed state. Only the operator writes it.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"size(self.metadata.name) <= {MAX_SERVICE_NAME}",
            f"metadata.name: must have at most {MAX_SERVICE_NAME} characters, so that children's names fit",
            lambda s: len(s.metadata.name) <= MAX_SERVICE_NAME,
        ),
        Rule(
            f"self.metadata.name.matches('{_SERVICE_NAME}')",
            "metadata.name: must be small letters, digits and '-', with a letter first, because the Service has this name too",
            lambda s: not s.metadata.name or re.fullmatch(_SERVICE_NAME, s.metadata.name) is not None,
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
        Column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", "Rolled out, with enough replicas"),
        Column("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason", "Why"),
        Column("Replicas", "integer", ".status.readyReplicas", "Ready replicas"),
        Column("Desired", "integer", ".status.scaling.desired", "Replicas wanted"),
        Column("Accelerator", "string", ".status.placement.chosen", "Entry of spec.accelerators in use"),
        Column("Serving", "string", ".status.conditions[?(@.type=='Serving')].status", "Whether any replica takes requests", 1),
        Column("Model", "string", ".spec.model.uri", "Where the model comes from", 1),
        Column("Expected", "string", ".status.readyExpectedAt", "When starting replicas should be ready", 1),
        Column("Outdated", "string", ".status.outdated", "Where replicas are rendered otherwise than they would be now", 1),
        Column("Message", "string", ".status.conditions[?(@.type=='Ready')].message", "In a sentence", 1),
        Column("Age", "date", ".metadata.creationTimestamp", "Age"),
    ),
    scale=True,
    # Not KServe's isvc: with both kinds installed, kubectl takes the group that it finds first.
    short_names=("pisvc",),
)
