"""A native ResourceQuota behind a TenantQuota, if the tenant has one namespace and asks for it: the API server then refuses a pod too many.

- It counts every pod of the namespace, not only replicas.
- A cap on GPUs limits claims as well, but class by class: NVIDIA's two classes and those that the namespace's services name. So it is
  looser than the TenantQuota, never tighter. The TenantQuota's status says if the API server counts no claims (before 1.32 or without DRA).
- It cannot distinguish products, so a cap on one has no native limit.
- Slices of MIG strategy `single` are requested as GPUs. If the inventory has them, GPUs and such slices have one limit, their sum.

It is owned by the TenantQuota, so that garbage collection removes it. Pure except for `ensure_resource_quota`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple

from pagoda_contracts.names import (
    ANNOTATION_RENDERED,
    DEVICE_CLASS_GPU,
    DEVICE_CLASS_MIG,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    LABEL_TENANT_QUOTA_UID,
    MANAGED_BY,
    QUOTA_BY_CLASS,
    RESOURCE_GPU,
    RESOURCE_MIG_PREFIX,
)
from pagoda_placement.charges import GPU, names_product, slice_word
from pagoda_placement.inventory import Inventory
from pagoda_placement.values import digest

from pagoda_operator.api.caps import Quota
from pagoda_operator.api.state import QUOTAS, RESOURCE_QUOTAS, SERVICES, Child, Json
from pagoda_operator.decide.render.overlay import lost
from pagoda_operator.decide.render.writes import Apply, Create, Delete, Write
from pagoda_operator.run.apply import Cluster, apply

_ALWAYS: Final = frozenset((DEVICE_CLASS_GPU, DEVICE_CLASS_MIG))
# Characters of a resource's name before the slash. A class whose name leaves no room for the suffix cannot be counted by a ResourceQuota.
_MAX_PREFIX: Final = 253


class Native(NamedTuple):
    """The state of a ResourceQuota. `fault`: why it cannot exist; `uncounted`: classes whose claims this API server does not count;
    `as_gpus`: capped slices that are requested as GPUs."""

    fault: str = ""
    uncounted: tuple[str, ...] = ()
    as_gpus: tuple[str, ...] = ()


def manifest(quota: Quota, single: Collection[str], classes: Collection[str]) -> dict[str, Any]:
    """Limits extended resources by their requests, claims by their classes; `single`: slices that are requested as GPUs."""
    slices = {word: count for word, count in sorted(quota.caps.items()) if word != GPU and not names_product(word)}
    hard = {f"requests.{RESOURCE_MIG_PREFIX}{word.removeprefix('mig-')}": str(count) for word, count in slices.items()}
    if GPU in quota.caps:
        hard[f"requests.{RESOURCE_GPU}"] = str(quota.caps[GPU] + sum(count for word, count in slices.items() if word in single))
        hard |= {f"{name}{QUOTA_BY_CLASS}": str(quota.caps[GPU]) for name in sorted(classes)}
    owner = {"apiVersion": QUOTAS.api_version, "kind": QUOTAS.kind, "name": quota.name, "uid": quota.meta.uid, "controller": True}
    labels = {LABEL_NAME: "pagoda", LABEL_MANAGED_BY: MANAGED_BY, LABEL_TENANT_QUOTA_UID: quota.meta.uid}
    meta = {"name": f"pagoda-{quota.name}", "namespace": min(quota.namespaces), "labels": labels, "ownerReferences": [owner]}
    body = {"apiVersion": RESOURCE_QUOTAS.api_version, "kind": RESOURCE_QUOTAS.kind, "metadata": meta, "spec": {"hard": hard}}
    return body | {"metadata": meta | {"annotations": {ANNOTATION_RENDERED: digest(body)}}}


def classes_of(services: Iterable[Json]) -> frozenset[str]:
    """NVIDIA's DeviceClasses, and those that services name and a ResourceQuota can count."""
    entries = (entry for body in services for entry in (body.get("spec") or {}).get("accelerators") or ())
    named = {str(entry["dra"].get("deviceClassName", "")) for entry in entries if entry.get("dra")}
    return _ALWAYS | {name for name in named if name and len(f"{name}{QUOTA_BY_CLASS}".partition("/")[0]) <= _MAX_PREFIX}


def uncounted(body: Json) -> tuple[str, ...]:
    """Classes for which the API server reports a limit but no use, because it does not count claims."""
    status = body.get("status") or {}
    limits, used = status.get("hard") or {}, status.get("used") or {}
    return tuple(sorted(word.removesuffix(QUOTA_BY_CLASS) for word in limits if word.endswith(QUOTA_BY_CLASS) and word not in used))


def singles(inventory: Inventory) -> frozenset[str]:
    """Slices that some node offers as GPUs."""
    offers = (offer for node in inventory.nodes for offer in node.offers if offer.resource == RESOURCE_GPU)
    return frozenset(slice_word(offer.profile.name) for offer in offers if offer.profile is not None)


async def ensure_resource_quota(cluster: Cluster, quota: Quota, single: frozenset[str]) -> Native:
    """Creates, updates or deletes the ResourceQuota."""
    made = [Child(RESOURCE_QUOTAS, body) for body in await cluster.list(RESOURCE_QUOTAS, "", f"{LABEL_TENANT_QUOTA_UID}={quota.meta.uid}")]
    if not (quota.native and not all(map(names_product, quota.caps)) and len(quota.namespaces) == 1):
        await apply(cluster, tuple(Delete(RESOURCE_QUOTAS, child) for child in made))
        return Native()
    namespace = min(quota.namespaces)
    wanted = manifest(quota, single, classes_of(await cluster.list(SERVICES, namespace, "")) if GPU in quota.caps else ())
    name = wanted["metadata"]["name"]
    live = next((child for child in made if (child.meta["namespace"], child.name) == (namespace, name)), None)
    if live is None and await cluster.get(RESOURCE_QUOTAS, namespace, name) is not None:
        return Native(f"ResourceQuota {namespace}/{name} exists and does not belong to this quota; rename one of them")
    writes: list[Write] = [Delete(RESOURCE_QUOTAS, child) for child in made if child is not live]
    if live is None:
        writes.append(Create(RESOURCE_QUOTAS, wanted))
    elif lost(wanted, live.body) is not None:
        writes.append(Apply(RESOURCE_QUOTAS, wanted, live))
    await apply(cluster, tuple(writes))
    return Native("", uncounted(live.body) if live is not None else (), tuple(sorted(single & quota.caps.keys())))
