"""Reasons of a TenantQuota's conditions. Nouns only; listed by `table`."""

from __future__ import annotations

from typing import Final

from pagoda_contracts.conditions.types import READY, RECONCILING, STALLED, TENANT_QUOTA, Reason

IN_FORCE: Final = Reason(
    "InForce", READY, "The quota limits the services of its namespaces and the requests with its API keys.", "Nothing.", kind=TENANT_QUOTA
)
OVER_CAP: Final = Reason(
    "Draining",
    RECONCILING,
    "The tenant holds more devices than the quota allows, often after a cap was lowered. The newest services give devices back.",
    "Wait until the replicas have drained.",
    kind=TENANT_QUOTA,
)
NOT_ENFORCED: Final = Reason(
    "NotEnforced",
    STALLED,
    "The quota sets fields that limit requests, and it names no Secret of API keys that the gateways read. Caps on devices hold.",
    "Set spec.subjects.apiKeysSecretRef to a Secret in the namespace that the message names, or remove the fields.",
    person_only=True,
    kind=TENANT_QUOTA,
)
UNREADABLE: Final = Reason(
    "InvalidSpec",
    STALLED,
    "The operator cannot read the quota's spec. Its namespaces keep the devices that they have and get no more.",
    "Correct the field that the message names.",
    person_only=True,
    kind=TENANT_QUOTA,
)
RESOURCE_QUOTA_REFUSED: Final = Reason(
    "ResourceQuotaRefused",
    STALLED,
    "The native ResourceQuota of this quota cannot be written, for example because another one has its name.",
    "Rename or remove the ResourceQuota that the message names, or set spec.devices.resourceQuota to false.",
    person_only=True,
    kind=TENANT_QUOTA,
)
