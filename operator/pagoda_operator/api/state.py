"""What a reconcile sees, as frozen types parsed once from the API server's JSON. Pure.

Written by `observe`, read by `plan` and `status`. Knows no client and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pagoda_contracts.names import (
    API_VERSION,
    LABEL_SERVICE_UID,
)
from pagoda_contracts.resources.adapter import LORA_ADAPTER
from pagoda_contracts.resources.meta import ObjectMeta
from pagoda_contracts.resources.profile import SERVING_PROFILE, ServingProfileSpec
from pagoda_contracts.resources.service import INFERENCE_SERVICE, InferenceServiceSpec, InferenceServiceStatus
from pagoda_contracts.resources.tenant import TENANT_QUOTA
from pagoda_kube.cache import Key as Key  # noqa: PLC0414 (re-exported)
from pydantic import ValidationError

from pagoda_operator.api.callers import Callers
from pagoda_operator.api.grant import Grant
from pagoda_operator.api.holdings import Holding, with_successor
from pagoda_operator.api.orders import Answer
from pagoda_operator.api.pods import Pod, condition_of
from pagoda_operator.api.scaling import Decision
from pagoda_operator.api.signals import ServiceSignals
from pagoda_operator.inventory.fit import Size
from pagoda_operator.inventory.fleet import Fleet
from pagoda_operator.inventory.values import Json as Json  # noqa: PLC0414 (re-exported)


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
RESOURCE_CLAIMS: Final = Resource("resource.k8s.io/v1", "ResourceClaim", "resourceclaims")
RESOURCE_CLAIM_TEMPLATES: Final = Resource("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates")
RESOURCE_SLICES: Final = Resource("resource.k8s.io/v1", "ResourceSlice", "resourceslices")
LEASES: Final = Resource("coordination.k8s.io/v1", "Lease", "leases")

EVENTS: Final = Resource("events.k8s.io/v1", "Event", "events")

# In the order in which a revision comes to life: what fences it in and what pins it before what runs it.
CHILD_RESOURCES: Final = (
    *(NETWORK_POLICIES, CONTROLLER_REVISIONS, CONFIG_MAPS, RESOURCE_CLAIM_TEMPLATES),
    *(DEPLOYMENTS, CORE_SERVICES, DISRUPTION_BUDGETS),
)


class Taken(NamedTuple):
    """A served name that this service wants and an older one holds."""

    name: str
    holder: Key


@dataclass(frozen=True)
class Child:
    """A live object that is, or stands where, a child of the service."""

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
        """Whether the object is on its way out."""
        return "deletionTimestamp" in self.meta

    @property
    def controller(self) -> Json | None:
        """The owner reference that controls the object."""
        owners: list[Json] = self.meta.get("ownerReferences", [])
        return next((owner for owner in owners if owner.get("controller")), None)

    def belongs_to(self, uid: str) -> bool:
        """Whether it is the service's own: by controller, or by label where somebody stripped the reference."""
        if self.controller is not None:
            return bool(self.controller.get("uid") == uid)
        return bool(self.meta.get("labels", {}).get(LABEL_SERVICE_UID) == uid)

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
        """1 where one of a Deployment's replicas is an unhealthy one's successor, else 0."""
        return int(with_successor(self.meta, self.replicas))

    @property
    def ordered(self) -> int:
        """Replicas that a Deployment is to have, without a successor of an unhealthy one."""
        return self.replicas - self.extra

    def count(self, name: str) -> int:
        """A number of a Deployment's status, 0 where the controller has not seen the newest spec."""
        status: Json = self.body.get("status", {})
        fresh = status.get("observedGeneration", 0) >= self.meta.get("generation", 0)
        return int(status.get(name, 0)) if fresh else 0

    @property
    def seen(self) -> bool:
        """Whether the Deployment controller has acted on the newest spec."""
        return bool(self.body.get("status", {}).get("observedGeneration", 0) >= self.meta.get("generation", 0))

    def condition(self, kind: str) -> Json:
        """A condition of the object's status; empty where absent."""
        return condition_of(self.body, kind)


@dataclass(frozen=True)
class Observed:
    """One service and all that belongs to it, as a reader shows it (observe.py)."""

    meta: ObjectMeta
    raw_status: Json
    spec: InferenceServiceSpec | None = None
    invalid: str = ""
    profile: ServingProfileSpec | None = None
    invalid_profile: str = ""
    children: tuple[Child, ...] = ()
    strangers: tuple[Child, ...] = ()
    pods: tuple[Pod, ...] = field(default=())
    # When this was read, in seconds of Unix time; how many replicas scaling wants, None where a person says (spec.replicas).
    now: float = 0.0
    scaling: Decision | None = None
    # Seconds that starts took before, by accelerator, where scaling remembers them.
    starts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    # How long ago the times were that the operator wrote into the status, whoever set the clock since (ages.py).
    ages: Mapping[str, float] = field(default_factory=dict)
    # The cluster's devices and who holds them, as the watches have shown them.
    fleet: Fleet = field(default=Fleet())
    # Of the largest nodes, for who asks for cores.
    sizes: tuple[Size, ...] = ()
    # Who may call replicas, as the installation says.
    callers: Callers | None = None
    # What all that bears the service's name holds, and what TenantQuotas let it have; None where none caps what it needs.
    holdings: tuple[Holding, ...] = ()
    quota: Grant | None = None
    # Deployments for which quotas have no room for a successor of an unhealthy replica, and by which quota.
    full: Mapping[str, str] = field(default_factory=dict)
    # Served names that older services hold (claims.py).
    taken: tuple[Taken, ...] = ()
    # What daemons answered to their last order, by the pod's uid; empty after a restart.
    answers: Mapping[str, Answer] = field(default_factory=dict)
    # Since when pods have no node for another reason than a lack of free devices, by uid (watch/ages.py).
    unschedulable: Mapping[str, float] = field(default_factory=dict)
    # What gateways say of it; None where nothing was heard since this process began.
    signals: ServiceSignals | None = None
    # For how many seconds no gateway has reported any of its replicas.
    unheard_s: float = math.inf
    # Replicas that have a place or would find one now; None where nobody can tell (place.py).
    placeable: int | None = None
    # Nodes whose devices are not to be trusted, with the reason.
    faults: Mapping[str, str] = field(default_factory=dict)

    @property
    def asks_for_devices(self) -> bool:
        """Whether any entry is not on CPU."""
        return self.spec is not None and any(entry.cpu is None for entry in self.spec.accelerators)

    @property
    def asked(self) -> int:
        """Replicas that are asked for: what scaling decided, else spec.replicas."""
        if self.scaling is not None:
            return self.scaling.replicas
        return self.spec.replicas if self.spec else 0

    @property
    def granted(self) -> int | None:
        """Most replicas that quota lets the service have now, those of old revisions counted; None without a limit."""
        return self.quota.replicas if self.quota is not None else None

    @property
    def wanted(self) -> int:
        """Replicas that the service should have: what is asked for, as far as quota grants it."""
        return self.asked if self.granted is None else min(self.asked, self.granted)

    @property
    def room(self) -> int:
        """Replicas that the current revision may have now, beside what older ones still hold."""
        return self.wanted if self.quota is None else min(self.wanted, self.quota.room)

    @property
    def limited(self) -> bool:
        """Whether quota gives less than is asked for, or than scaling would have asked for."""
        if self.quota is None:
            return False
        return self.room < self.asked or (self.scaling is not None and "quota" in self.scaling.cause)

    @property
    def status(self) -> InferenceServiceStatus:
        """The last written status; empty where there is none or an older operator's cannot be read."""
        try:
            return InferenceServiceStatus.model_validate(dict(self.raw_status), extra="ignore")
        except ValidationError:
            return InferenceServiceStatus()

    @property
    def stamps(self) -> tuple[str, ...]:
        """The times in it that something waits by."""
        rollout = self.status.rollout
        return (rollout.since,) if rollout is not None and rollout.since else ()

    def of(self, resource: Resource) -> tuple[Child, ...]:
        """The service's own children of a kind."""
        return tuple(child for child in self.children if child.resource == resource)

    def find(self, resource: Resource, name: str) -> Child | None:
        """The service's own child of that kind and name."""
        return next((child for child in self.of(resource) if child.name == name), None)


def explain(error: ValidationError) -> str:
    """Every refused field with its value, in one line."""
    parts = [f"{'.'.join(map(str, fault['loc'])) or 'object'}: {fault['msg']}" for fault in error.errors(include_url=False)]
    return "; ".join(parts)[:1000]
