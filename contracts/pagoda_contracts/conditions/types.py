"""The shape of a reason, and the condition types. Read by the tables of reasons beside it and by the operator's status modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SERVICE: Final = "InferenceService"
TENANT_QUOTA: Final = "TenantQuota"
LORA_ADAPTER: Final = "LoraAdapter"
SERVING_PROFILE: Final = "ServingProfile"
NO_DEADLINE: Final = "this wait has no deadline"


@dataclass(frozen=True, slots=True)
class ConditionType:
    """One condition type of `status.conditions`."""

    name: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason of a condition.

    `condition` is the condition that a person reads it under: Stalled or Reconciling while that is True, else Ready. `person_only`: the
    operator cannot end this state by itself. `warning`: an Event with this reason is of type Warning although nothing is stalled.
    """

    name: str
    condition: ConditionType
    meaning: str
    action: str
    person_only: bool = False
    warning: bool = False
    kind: str = SERVICE


READY: Final = ConditionType(
    "Ready",
    "True if the current revision of a service is rolled out and enough of its replicas are ready. Enough is all of them in mode Manual, "
    "`scaling.min` but at least one in mode Auto, and one in mode External. A service that is asleep stays Ready if it has ever served. "
    "A quota is Ready if it is in force, and a profile if services can use it. "
    "Unknown until a new object or a new spec is ready for the first time.",
)
RECONCILING: Final = ConditionType(
    "Reconciling", "True while the operator works towards the spec. The reason says which step is not finished; nothing is asked of you."
)
STALLED: Final = ConditionType(
    "Stalled", "True if the operator cannot go on until a person changes something. Replicas that already serve keep serving."
)
SERVING: Final = ConditionType(
    "Serving",
    "True while at least one replica of a service takes requests, of any revision. It says whether clients get answers, and nothing about "
    "the newest spec. Other kinds do not have it.",
)
DEGRADED: Final = ConditionType(
    "Degraded",
    "True while a replica is unhealthy although Kubernetes calls it Ready. The service can still be Ready. A service that never had an "
    "unhealthy replica does not have this condition.",
)
TYPES: Final = (READY, RECONCILING, STALLED, SERVING, DEGRADED)
