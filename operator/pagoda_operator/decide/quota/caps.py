"""A TenantQuota as far as devices go. Pure; the cache's parser of the kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pagoda_contracts.resources.meta import ObjectMeta
from pagoda_contracts.resources.tenant import TenantQuotaSpec
from pydantic import ValidationError

from pagoda_operator.api.quota import GPU, Devices, slice_word
from pagoda_operator.inventory.values import Json


@dataclass(frozen=True)
class Quota:
    """One quota. What is told back is not compared: our own status wakes nobody."""

    name: str
    namespaces: frozenset[str] = frozenset()
    caps: Devices = field(default_factory=dict)
    native: bool = False
    spec: TenantQuotaSpec | None = None
    invalid: str = ""
    meta: ObjectMeta = field(default=ObjectMeta(), compare=False)
    status: Json = field(default_factory=dict, compare=False)

    def counts(self, namespace: str) -> bool:
        """Whether services there are the tenant's."""
        return namespace in self.namespaces


def parse_quota(body: Json) -> Quota:
    """Of one that cannot be read the namespaces count, as far as they can be: nothing grows there, and it says so in its status."""
    meta, status = ObjectMeta.model_validate(body["metadata"]), body.get("status") or {}
    try:
        spec = TenantQuotaSpec.model_validate(body.get("spec"), extra="ignore")
    except ValidationError as error:
        why = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors(include_url=False))
        return Quota(meta.name, named(body.get("spec")), invalid=why[:1000] or "unreadable", meta=meta, status=status)
    native = spec.devices is not None and spec.devices.resource_quota
    return Quota(meta.name, frozenset(spec.subjects.namespaces), _caps(spec), native, spec, "", meta, status)


def named(spec: Any) -> frozenset[str]:
    """Namespaces of a spec of which anything may be wrong."""
    subjects = spec.get("subjects") if isinstance(spec, Mapping) else None
    names = subjects.get("namespaces") if isinstance(subjects, Mapping) else None
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list | tuple) else frozenset()


def _caps(spec: TenantQuotaSpec) -> Devices:
    if spec.devices is None:
        return {}
    slices: dict[str, int] = {}
    for entry in spec.devices.mig_slices:  # of two spellings of the same slices both caps must hold
        word = slice_word(entry.profile)
        slices[word] = min(entry.count, slices.get(word, entry.count))
    return slices if spec.devices.gpus is None else {GPU: spec.devices.gpus} | slices


def of_namespace(quotas: Iterable[Any], namespace: str) -> tuple[Quota, ...]:
    """Those that cap devices there, or that nobody can read. Where several do, all must hold, as with native quotas."""
    return tuple(quota for quota in quotas if (quota.caps or quota.invalid) and quota.counts(namespace))
