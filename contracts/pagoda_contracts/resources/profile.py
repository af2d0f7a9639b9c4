"""ServingProfile: the administrator's template for replicas' pods, and what a service may overlay on it."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, StringConstraints

from pagoda_contracts.names import API_VERSION, DAEMON_CUDA
from pagoda_contracts.resources.meta import (
    CONDITIONS,
    MAP_BY_NAME,
    ApiVersion,
    Column,
    Condition,
    DnsName,
    Kind,
    Labels,
    LabelValue,
    Model,
    ObjectMeta,
    PodTemplate,
    Rule,
    Subdomain,
)
from pagoda_contracts.resources.placement import Product
from pagoda_contracts.units import Duration, Quantity

Image = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[a-zA-Z0-9][a-zA-Z0-9./:@_-]*$")]
# As long as a cloud may take for a rare machine, and longer than any that only starts.
NODE_DEADLINE: Final = "1h"
AllowedPath = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[A-Za-z][A-Za-z0-9.\[\]_/-]*$")]


class Images(Model):
    """Images of a replica's pod."""

    daemon: Image = Field(description="The inference daemon.")
    fetch: Image | None = Field(
        default=None,
        description="The sidecar that fetches models and adapters; needed for models that are not on a claim and for services with "
        "spec.adapters.",
    )


class Toleration(Model):
    """A taint that replicas tolerate, as in a pod."""

    key: Annotated[str, StringConstraints(max_length=317)] | None = Field(default=None, description="The taint's key; any if absent.")
    operator: Literal["Exists", "Equal"] = Field(default="Equal", description="Exists or Equal.")
    value: LabelValue | None = Field(default=None, description="The taint's value; with Equal only.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(default=None, description="The effect; all if absent.")
    toleration_seconds: Annotated[int, Field(ge=0, le=2_147_483_647)] | None = Field(
        default=None, description="Seconds until eviction; with NoExecute only."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.operator == 'Equal' || !has(self.value)",
            "tolerations: value is refused with operator Exists",
            lambda t: t.operator == "Equal" or t.value is None,
            "value",
        ),
        Rule(
            "self.operator == 'Exists' || has(self.key)",
            "tolerations: key is needed with operator Equal",
            lambda t: t.operator == "Exists" or t.key is not None,
            "key",
        ),
        Rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerations: tolerationSeconds needs effect NoExecute",
            lambda t: t.toleration_seconds is None or t.effect == "NoExecute",
            "tolerationSeconds",
        ),
    )


class PullSecret(Model):
    """A Secret for pulling images."""

    name: Subdomain = Field(description="The Secret's name, in the service's namespace.")


CudaVersion = Annotated[str, StringConstraints(max_length=8, pattern=r"^[1-9][0-9]?\.[0-9]{1,2}$")]
Argument = Annotated[str, StringConstraints(min_length=1, max_length=512)]


def is_network(text: str) -> bool:
    """Whether it is an address and a length with nothing but zeros behind it."""
    try:
        return bool(ip_network(text))
    except ValueError:
        return False


Cidr = Annotated[str, StringConstraints(min_length=3, max_length=49, pattern=r"^[0-9a-fA-F:.]+/[0-9]{1,3}$")]
"""A network, IPv4 or IPv6, such as 10.0.0.0/8."""
Port = Annotated[int, Field(ge=1, le=65535)]


class Egress(Model):
    """Addresses to which a replica may connect, by TCP."""

    cidr: Cidr | None = Field(default=None, description="A network, such as 10.20.0.0/16 or ::/0.")
    namespace: DnsName | None = Field(default=None, description="All pods of a namespace, instead of a network.")
    ports: Annotated[tuple[Port, ...], Field(min_length=1, max_length=16)] = Field(default=(443,), description="Its ports.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.cidr) != has(self.namespace)",
            "egress: set exactly one of cidr and namespace",
            lambda e: (e.cidr is None) != (e.namespace is None),
        ),
        Rule(
            "!has(self.cidr) || (isCIDR(self.cidr) && cidr(self.cidr) == cidr(self.cidr).masked())",
            "egress: cidr must be a network with zeros after its length, such as 10.0.0.0/8",
            lambda e: e.cidr is None or is_network(e.cidr),
            "cidr",
        ),
    )


class DeviceHint(Model):
    """What GPUs the nodes with some labels have."""

    node_labels: Labels = Field(description="Labels that these nodes have, such as `example.com/gpu: a16`.", min_length=1)
    product: Product = Field(description="The GPU, as in `gpu.product` of a service.")
    memory: Quantity | None = Field(
        default=None, description="Memory of one GPU, such as 16G. If absent, the catalogue's, which knows common products."
    )


class ServingProfileSpec(Model):
    """The template of the replicas' pods."""

    images: Images = Field(description="Images of a replica's pod.")
    args: Annotated[tuple[Argument, ...], Field(max_length=32)] = Field(
        default=(), description="Further arguments of the daemon, after the operator's own."
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = Field(default=(), description="Taints that replicas tolerate.")
    node_selector: Labels | None = Field(default=None, description="Labels of the nodes that replicas may use.")
    priority_class_name: Subdomain | None = Field(default=None, description="Priority class of replicas.")
    runtime_class_name: Subdomain | None = Field(default=None, description="Runtime class of replicas, such as nvidia.")
    image_pull_secrets: Annotated[tuple[PullSecret, ...], Field(max_length=8)] = Field(
        default=(), description="Secrets for pulling the images.", json_schema_extra=MAP_BY_NAME
    )
    min_cuda: CudaVersion | None = Field(
        default=None, description=f"CUDA version that a node's driver must offer the daemon's image; {DAEMON_CUDA} if absent."
    )
    shared_memory: Quantity | None = Field(default=None, description="Size of /dev/shm, such as 8Gi; the runtime's 64Mi if absent.")
    pod_template: PodTemplate | None = Field(
        default=None,
        description="Pod template (metadata, spec) of every replica, for settings that have no field of their own. It is "
        "laid over the fields above.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    devices: Annotated[tuple[DeviceHint, ...], Field(max_length=32)] = Field(
        default=(),
        description="GPUs of nodes that no label describes: neither GPU Feature Discovery's nor one of a known provider. Nodes that a pool "
        "may add are expected to have them too. The first entry whose labels a node has counts.",
    )
    node_deadline: Duration = Field(
        default=NODE_DEADLINE,
        description="How long a service waits for devices that no node offers yet, before its condition says that a person must look.",
    )
    egress: Annotated[tuple[Egress, ...], Field(max_length=64)] = Field(
        default=(),
        description="Networks from which replicas may fetch models. Empty: only DNS is allowed. Models from a claim (pvc://) "
        "do not need it, unless the service has spec.adapters. A NetworkPolicy knows networks, not host names.",
    )
    allow: Annotated[tuple[AllowedPath, ...], Field(max_length=64)] = Field(
        default=(),
        description="Paths a service's podTemplate may set, such as metadata.labels or spec.nodeSelector; a path allows all below it.",
    )


class ServingProfileStatus(Model):
    """What is. Written by the operator alone."""

    observed_generation: int | None = Field(default=None, ge=0, description="The metadata.generation that this status is about.")
    conditions: Annotated[tuple[Condition, ...], Field(max_length=8)] = CONDITIONS
    services: int | None = Field(
        default=None, ge=0, description="How many InferenceServices use the profile, of those that the operator acts on."
    )


class ServingProfile(Model):
    """The administrator's template for replicas' pods."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["ServingProfile"] = "ServingProfile"
    metadata: ObjectMeta = ObjectMeta()
    spec: ServingProfileSpec = Field(description="The template of the replicas' pods.")
    status: ServingProfileStatus | None = Field(default=None, description="The observed state. Only the operator writes it.")


SERVING_PROFILE = Kind(
    kind="ServingProfile",
    plural="servingprofiles",
    scope="Cluster",
    model=ServingProfile,
    columns=(
        Column("Daemon", "string", ".spec.images.daemon", "Image of the daemon"),
        Column("Services", "integer", ".status.services", "InferenceServices that use it"),
        Column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", "Services can use it"),
        Column("Message", "string", ".status.conditions[?(@.type=='Ready')].message", "What it offers, or what is wrong", 1),
        Column("Age", "date", ".metadata.creationTimestamp", "Age"),
    ),
    scale=False,
)
