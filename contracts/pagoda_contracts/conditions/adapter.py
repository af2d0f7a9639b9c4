"""Reasons of a LoraAdapter's conditions. Nouns only; listed by `table`."""

from __future__ import annotations

from typing import Final

from pagoda_contracts.conditions.types import LORA_ADAPTER, READY, RECONCILING, STALLED, Reason

RESIDENT: Final = Reason(
    "Resident",
    READY,
    "Every replica that should have the adapter has it: in memory, or on disk with placement OnDemand.",
    "Nothing.",
    kind=LORA_ADAPTER,
)
ASLEEP: Final = Reason("ScaledToZero", READY, "The service has no replicas. The next ones load the adapter.", "Nothing.", kind=LORA_ADAPTER)
NO_REPLICA: Final = Reason(
    "WaitingForReplicas",
    RECONCILING,
    "No replica of the service is ready yet.",
    "Wait. The conditions of the service say what its replicas wait for.",
    kind=LORA_ADAPTER,
)
LOADING: Final = Reason(
    "Loading",
    RECONCILING,
    "Some replicas do not have the adapter yet. If a try failed on a replica, status.endpoints says why, and the replica tries again.",
    "Wait. If the message names a reason, fix that.",
    kind=LORA_ADAPTER,
)
REJECTED: Final = Reason(
    "AdapterRejected",
    STALLED,
    "No replica can fetch or load the adapter. Replicas go on trying, at most once a minute.",
    "Correct spec.source or the files, as the message says.",
    person_only=True,
    kind=LORA_ADAPTER,
)
INVALID: Final = Reason(
    "InvalidSpec",
    STALLED,
    "The spec cannot be used with this service: a claim or a credential is not one of the service's, or a field cannot be read.",
    "Correct the field that the message names, or the service's spec.adapters.claims or spec.credentials.",
    person_only=True,
    kind=LORA_ADAPTER,
)
NO_SERVICE: Final = Reason(
    "ServiceNotFound",
    STALLED,
    "The InferenceService that spec.serviceRef names does not exist.",
    "Create the service, or make an adapter that names another one. If the service appears, the operator goes on by itself.",
    person_only=True,
    kind=LORA_ADAPTER,
)
NOT_ENABLED: Final = Reason(
    "AdaptersNotEnabled",
    STALLED,
    "The service has no spec.adapters, so its replicas take no adapters.",
    "Add spec.adapters to the service. `adapters: {}` is enough. This rolls its replicas.",
    person_only=True,
    kind=LORA_ADAPTER,
)
NOT_ALLOWED: Final = Reason(
    "NotAllowed",
    STALLED,
    "The service is in another namespace and does not accept adapters of this one.",
    "Add a selector that matches the adapter's namespace to spec.adapters.allowFrom of the service.",
    person_only=True,
    kind=LORA_ADAPTER,
)
NAME_TAKEN: Final = Reason(
    "NameConflict",
    STALLED,
    "A service or an older adapter has this name already.",
    "Make an adapter with another spec.modelName. If the name becomes free, the operator goes on by itself.",
    person_only=True,
    kind=LORA_ADAPTER,
)
NAME_RESERVED: Final = Reason(
    "NameReserved",
    STALLED,
    "The administrator reserved this name for other namespaces than that of the adapter or of its service. The message names them.",
    "Make an adapter with another spec.modelName, or ask the administrator to add the namespace to reservedNames of the installation.",
    person_only=True,
    kind=LORA_ADAPTER,
)
TOO_MANY: Final = Reason(
    "TooManyAdapters",
    STALLED,
    "Older adapters have all places of the service's replicas: each has spec.adapters.maxLoaded of them.",
    "Raise spec.adapters.maxLoaded of the service, add replicas for adapters with placement Replicas, or delete an adapter.",
    person_only=True,
    kind=LORA_ADAPTER,
)
