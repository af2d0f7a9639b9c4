"""What a reconcile sees, as frozen types parsed once from the API server's JSON. Pure.

Written by `observe`, read by `plan` and `status`. Knows no client and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pagoda_contracts.names import (
    API_VERSION,
    CONTAINER_DAEMON,
    LABEL_ACCELERATOR,
    LABEL_REVISION,
    LABEL_SERVICE_UID,
)
from pagoda_contracts.resources.meta import ObjectMeta
from pagoda_contracts.resources.profile import SERVING_PROFILE, ServingProfileSpec
from pagoda_contracts.resources.service import INFERENCE_SERVICE, InferenceServiceSpec, InferenceServiceStatus
from pydantic import ValidationError

Json = Mapping[str, Any]


class Key(NamedTuple):
    """Names one service: what the queue carries."""

    namespace: str
    name: str


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

# In the order in which a revision comes to life: what pins it before what runs it.
CHILD_RESOURCES: Final = (CONTROLLER_REVISIONS, CONFIG_MAPS, DEPLOYMENTS, CORE_SERVICES, DISRUPTION_BUDGETS)


# A container waits for others or for its turn: says less than any other reason.
_MERELY_LATER: Final = ("PodInitializing", "ContainerCreating")


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
        return _condition(self.body, kind)


@dataclass(frozen=True)
class Pod:
    """A replica, as far as status and rollout need it."""

    name: str
    revision: str
    accelerator: str
    ready: bool = False
    deleting: bool = False
    finished: bool = False
    unscheduled: str = ""
    scheduled: bool = False
    waiting: str = ""
    waiting_message: str = ""
    running: bool = False
    restarts: int = 0
    exit_code: int | None = None
    exit_reason: str = ""
    exit_message: str = ""

    @property
    def counts(self) -> bool:
        """Whether it is a replica that stays."""
        return not self.deleting and not self.finished


@dataclass(frozen=True)
class Observed:
    """One service and all that belongs to it, from quorum reads."""

    meta: ObjectMeta
    raw_status: Json
    spec: InferenceServiceSpec | None = None
    invalid: str = ""
    profile: ServingProfileSpec | None = None
    invalid_profile: str = ""
    children: tuple[Child, ...] = ()
    strangers: tuple[Child, ...] = ()
    pods: tuple[Pod, ...] = field(default=())

    @property
    def status(self) -> InferenceServiceStatus:
        """The last written status; empty where there is none or an older operator's cannot be read."""
        try:
            return InferenceServiceStatus.model_validate(dict(self.raw_status), extra="ignore")
        except ValidationError:
            return InferenceServiceStatus()

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


def parse_pod(body: Json) -> Pod:
    """A pod of the service."""
    meta, status = body["metadata"], body.get("status", {})
    labels = meta.get("labels", {})
    scheduled = _condition(body, "PodScheduled")
    return Pod(
        name=meta["name"],
        revision=labels.get(LABEL_REVISION, ""),
        accelerator=labels.get(LABEL_ACCELERATOR, ""),
        ready=_condition(body, "Ready").get("status") == "True" and "deletionTimestamp" not in meta,
        deleting="deletionTimestamp" in meta,
        finished=status.get("phase") in ("Failed", "Succeeded"),
        scheduled=scheduled.get("status") == "True",
        unscheduled=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
        **_container(status),
    )


def _container(status: Json) -> dict[str, Any]:
    """What the daemon's container does; where another one blocks the pod, why that one waits."""
    daemon: Json = next((c for c in status.get("containerStatuses", []) if c["name"] == CONTAINER_DAEMON), {})
    states: list[Json] = [container.get("state", {}) for container in [daemon, *_others(status)] if container]
    waits: list[Json] = [state["waiting"] for state in states if "waiting" in state]
    waiting: Json = next((wait for wait in waits if wait.get("reason") not in _MERELY_LATER), waits[0] if waits else {})
    ended = daemon.get("state", {}).get("terminated") or daemon.get("lastState", {}).get("terminated") or {}
    return {
        "waiting": waiting.get("reason", ""),
        "waiting_message": waiting.get("message", ""),
        "running": "running" in daemon.get("state", {}),
        "restarts": daemon.get("restartCount", 0),
        "exit_code": ended.get("exitCode"),
        "exit_reason": ended.get("reason", ""),
        "exit_message": ended.get("message", ""),
    }


def _others(status: Json) -> list[Json]:
    both = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return [container for container in both if container["name"] != CONTAINER_DAEMON]


def _condition(body: Json, kind: str) -> Json:
    conditions: list[Json] = body.get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition.get("type") == kind), {})
