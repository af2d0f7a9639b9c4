"""What a reconcile sees, as frozen types parsed once from the API server's JSON, and the reads that it asks for. Pure.

`observe` makes it; `plan` and `status` read it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple, Protocol

from pagoda_contracts.names import ANNOTATION_REJECTED, API_VERSION, LABEL_SERVICE_UID
from pagoda_contracts.resources.adapter import LORA_ADAPTER
from pagoda_contracts.resources.meta import ObjectMeta
from pagoda_contracts.resources.profile import NODE_DEADLINE, SERVING_PROFILE, ServingProfileSpec
from pagoda_contracts.resources.service import INFERENCE_SERVICE, InferenceServiceSpec, InferenceServiceStatus
from pagoda_contracts.resources.tenant import TENANT_QUOTA
from pagoda_contracts.units import parse_duration
from pagoda_kube.cache import Key as Key  # noqa: PLC0414 (re-exported)
from pagoda_placement.charges import Grant, Holding, with_successor
from pagoda_placement.fit import Size
from pagoda_placement.inventory import Inventory
from pagoda_placement.values import Json as Json  # noqa: PLC0414 (re-exported)
from pydantic import ValidationError

from pagoda_operator.api.callers import Callers
from pagoda_operator.api.pods import Answer, Pod
from pagoda_operator.api.signals import Decision, ServiceSignals
from pagoda_operator.api.starts import Phases, condition_of


class Resource(NamedTuple):
    """A kind of object, as the API server's paths name it."""

    api_version: str
    kind: str
    plural: str


SERVICES: Final = Resource(API_VERSION, INFERENCE_SERVICE.kind, INFERENCE_SERVICE.plural)
PROFILES: Final = Resource(API_VERSION, SERVING_PROFILE.kind, SERVING_PROFILE.plural)
PODS: Final = Resource("v1", "Pod", "pods")
CONTROLLER_REVISIONS: Final = Resource("apps/v1", "ControllerRevision", "controllerrevisions")
CONFIG_MAPS: Final = Resource("v1", "ConfigMap", "configmaps")
DEPLOYMENTS: Final = Resource("apps/v1", "Deployment", "deployments")
CORE_SERVICES: Final = Resource("v1", "Service", "services")
DISRUPTION_BUDGETS: Final = Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICIES: Final = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
QUOTAS: Final = Resource(API_VERSION, TENANT_QUOTA.kind, TENANT_QUOTA.plural)
ADAPTERS: Final = Resource(API_VERSION, LORA_ADAPTER.kind, LORA_ADAPTER.plural)
RESOURCE_QUOTAS: Final = Resource("v1", "ResourceQuota", "resourcequotas")
NODES: Final = Resource("v1", "Node", "nodes")
NAMESPACES: Final = Resource("v1", "Namespace", "namespaces")
RESOURCE_CLAIMS: Final = Resource("resource.k8s.io/v1", "ResourceClaim", "resourceclaims")
RESOURCE_CLAIM_TEMPLATES: Final = Resource("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates")
RESOURCE_SLICES: Final = Resource("resource.k8s.io/v1", "ResourceSlice", "resourceslices")
LEASES: Final = Resource("coordination.k8s.io/v1", "Lease", "leases")
EVENTS: Final = Resource("events.k8s.io/v1", "Event", "events")

# In the order in which a revision comes to life: what fences it in, what gateways find it by, what pins it, what runs it.
CHILD_RESOURCES: Final = (
    *(NETWORK_POLICIES, CORE_SERVICES, CONTROLLER_REVISIONS, CONFIG_MAPS, RESOURCE_CLAIM_TEMPLATES),
    *(DEPLOYMENTS, DISRUPTION_BUDGETS),
)


class Reader(Protocol):
    """The reads that observing needs. The client has them, and so do the caches."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """Returns the object, None if there is none."""

    async def list(self, resource: Resource, namespace: str, selector: str) -> Sequence[Json]:
        """Returns the objects with these labels."""


class Listed(NamedTuple):
    """A list by a quorum read, and its version."""

    items: Sequence[Json]
    version: str


class Lister(Protocol):
    """The quorum reads that verify what the caches show."""

    async def listed(self, resource: Resource, namespace: str, *, label: str = "", name: str = "") -> Listed:
        """Returns the objects with this label, or the one of this name."""

    async def pod_events(self, namespace: str, pod: str) -> Sequence[Json]:
        """Returns the Events about a pod."""


class Taken(NamedTuple):
    """A served name that this service wants and does not get, and why. `reserved`: the administrator keeps it from this namespace."""

    name: str
    why: str
    reserved: bool = False


@dataclass(frozen=True)
class Child:
    """A live object that is a child of the service, or has the name of one."""

    resource: Resource
    body: Json

    @property
    def meta(self) -> Json:
        """The object's metadata."""
        meta: Json = self.body["metadata"]
        return meta

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.meta["name"])

    @property
    def deleting(self) -> bool:
        """Whether the object is being deleted."""
        return "deletionTimestamp" in self.meta

    @property
    def controller(self) -> Json | None:
        """The owner reference that controls the object."""
        owners: list[Json] = self.meta.get("ownerReferences", [])
        return next((owner for owner in owners if owner.get("controller")), None)

    def belongs_to(self, uid: str) -> bool:
        """Whether it is the service's own: by controller, or by label if the owner reference was removed."""
        owner = self.controller
        found = self.meta.get("labels", {}).get(LABEL_SERVICE_UID) if owner is None else owner.get("uid")
        return bool(found == uid)

    @property
    def of_a_predecessor(self) -> bool:
        """Whether another InferenceService (or a deleted one of the same name) controls it."""
        return self.controller is not None and self.controller.get("kind") == SERVICES.kind

    @property
    def replicas(self) -> int:
        """A Deployment's wanted replicas."""
        return int(self.body.get("spec", {}).get("replicas", 1))

    @property
    def extra(self) -> int:
        """1 if one of a Deployment's replicas is an unhealthy one's successor, else 0."""
        return int(with_successor(self.meta, self.replicas))

    @property
    def ordered(self) -> int:
        """Replicas that a Deployment should have, without the successor of an unhealthy one."""
        return self.replicas - self.extra

    @property
    def rejected(self) -> str:
        """Why a Deployment has given its devices back; empty if it has not."""
        return str(self.meta.get("annotations", {}).get(ANNOTATION_REJECTED, ""))

    def count(self, name: str) -> int:
        """A number of a Deployment's status, 0 if the controller has not seen the newest spec."""
        return int(self.body.get("status", {}).get(name, 0)) if self.seen else 0

    @property
    def seen(self) -> bool:
        """Whether the Deployment controller has acted on the newest spec."""
        return bool(self.body.get("status", {}).get("observedGeneration", 0) >= self.meta.get("generation", 0))

    def condition(self, kind: str) -> Json:
        """A condition of the object's status; empty if absent."""
        return condition_of(self.body, kind)


@dataclass(frozen=True)
class Observed:
    """One service and all that belongs to it."""

    meta: ObjectMeta
    raw_status: Json
    service_class: str = ""
    spec: InferenceServiceSpec | None = None
    invalid: str = ""
    profile: ServingProfileSpec | None = None
    invalid_profile: str = ""
    children: tuple[Child, ...] = ()
    strangers: tuple[Child, ...] = ()
    pods: tuple[Pod, ...] = field(default=())
    # When this was read, in seconds of Unix time; how many replicas scaling wants, None if spec.replicas counts.
    now: float = 0.0
    scaling: Decision | None = None
    # Seconds that recent starts took, by accelerator, if the service is scaled.
    starts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # How long ago the times were that the operator wrote into the status, whatever the clock was set to since (observe.py).
    ages: Mapping[str, float] = field(default_factory=dict)
    # The cluster's devices and the pods that use them, as the caches show them; the sizes of the largest nodes, for services on CPU.
    inventory: Inventory = field(default=Inventory())
    sizes: tuple[Size, ...] = ()
    # The accounts that may call replicas.
    callers: Callers | None = None
    # The devices of all Deployments and pods of the service's name, and what TenantQuotas allow; None if none caps what it needs.
    holdings: tuple[Holding, ...] = ()
    quota: Grant | None = None
    # Deployments for which quotas have no room for a successor of an unhealthy replica, and by which quota.
    full: Mapping[str, str] = field(default_factory=dict)
    # Served names that older services have (triggers.py).
    taken: tuple[Taken, ...] = ()
    # The names of the LoraAdapters that its replicas should have.
    adapter_names: tuple[str, ...] = ()
    # How many adapters no other replica has in memory, by the pod's uid, as replicas said last.
    sole_adapters: Mapping[str, int] = field(default_factory=dict)
    # The daemons' answers to their last order, by the pod's uid; empty after a restart.
    answers: Mapping[str, Answer] = field(default_factory=dict)
    # Since when pods have no node for another reason than a lack of free devices, by uid (observe.py).
    unschedulable: Mapping[str, float] = field(default_factory=dict)
    # Why the kubelet cannot mount a volume, by the pod's uid (observe.py); whether the API server refused the pod that inspects the model.
    mount_faults: Mapping[str, str] = field(default_factory=dict)
    uninspected: bool = False
    # What gateways report of it; None if none has since this process began.
    signals: ServiceSignals | None = None
    # For how many seconds no gateway has reported any of its replicas.
    unheard_s: float = math.inf
    # Replicas that have a place or would find one now; None if that is unknown (place.py).
    placeable: int | None = None
    # Nodes with faulty devices, with the reason.
    faults: Mapping[str, str] = field(default_factory=dict)
    # Pods that this process saw starting, by uid, until a run that saw them Ready was carried out.
    seen_starting: frozenset[str] = frozenset()

    @property
    def asks_for_devices(self) -> bool:
        """Whether any entry is not on CPU."""
        return self.spec is not None and any(entry.cpu is None for entry in self.spec.accelerators)

    @property
    def node_deadline(self) -> float:
        """How long a start is awaited, in seconds."""
        return parse_duration(self.profile.node_deadline if self.profile is not None else NODE_DEADLINE)

    @property
    def asked(self) -> int:
        """The replicas that scaling decided, else spec.replicas."""
        wished = self.scaling or self.spec
        return wished.replicas if wished else 0

    @property
    def granted(self) -> int | None:
        """At most so many replicas does the quota allow now, those of old revisions included; None without a limit."""
        return self.quota.replicas if self.quota is not None else None

    @property
    def wanted(self) -> int:
        """The replicas that the service should have: those asked for, as far as the quota allows them."""
        return self.asked if self.granted is None else min(self.asked, self.granted)

    @property
    def room(self) -> int:
        """The replicas that the current revision may have now, besides those of older revisions."""
        return self.wanted if self.quota is None else min(self.wanted, self.quota.room)

    @property
    def limited(self) -> bool:
        """Whether the quota allows less than is asked for, or than scaling would have asked for."""
        return self.quota is not None and (self.room < self.asked or (self.scaling is not None and "quota" in self.scaling.cause))

    @cached_property
    def status(self) -> InferenceServiceStatus:
        """The last written status; empty if there is none or it cannot be read."""
        try:
            return InferenceServiceStatus.model_validate(dict(self.raw_status), extra="ignore")
        except ValidationError:
            return InferenceServiceStatus()

    @property
    def stamps(self) -> tuple[str, ...]:
        """The times in the status that decisions depend on."""
        rollout = self.status.rollout
        return (rollout.since,) if rollout is not None and rollout.since else ()

    def start_of(self, pod: Pod) -> Phases | None:
        """How long a replica's start took."""
        return pod.start(self.signals.warm_s(pod.name) if self.signals is not None else 0.0)

    def of(self, resource: Resource) -> tuple[Child, ...]:
        """The service's own children of a kind."""
        return tuple(child for child in self.children if child.resource == resource)

    def find(self, resource: Resource, name: str) -> Child | None:
        """The service's own child of that kind and name."""
        return next((child for child in self.of(resource) if child.name == name), None)


def explain(error: ValidationError) -> str:
    """Returns every refused field with its value, in one line."""
    parts = [f"{'.'.join(map(str, fault['loc'])) or 'object'}: {fault['msg']}" for fault in error.errors(include_url=False)]
    return "; ".join(parts)[:1000]
