"""TenantQuotas as far as devices go: what each caps, and in which namespaces. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pagoda_contracts.resources.meta import ObjectMeta
from pagoda_contracts.resources.tenant import TenantQuotaSpec
from pagoda_placement.charges import GPU, Devices, of_product, slice_word
from pagoda_sizing.platforms import unknown_product
from pydantic import ValidationError

from pagoda_operator.api.state import Json, explain


@dataclass(frozen=True)
class Quota:
    """One TenantQuota. Metadata and status are not compared, so that our own status write is no change."""

    name: str
    namespaces: frozenset[str] = frozenset()
    caps: Devices = field(default_factory=dict)
    native: bool = False
    spec: TenantQuotaSpec | None = None
    invalid: str = ""
    meta: ObjectMeta = field(default=ObjectMeta(), compare=False)
    status: Json = field(default_factory=dict, compare=False)

    def counts(self, namespace: str) -> bool:
        """Whether services in the namespace are the tenant's."""
        return namespace in self.namespaces

    def within(self, served: Collection[str]) -> Quota:
        """As an operator that serves in these namespaces only (empty: in all) keeps it: it makes no native quota elsewhere."""
        return replace(self, native=self.native and (not served or self.namespaces <= set(served)))


def parse_quota(body: Json) -> Quota:
    """The cache's parser. An invalid quota keeps the namespaces that can be read: nothing grows there, and its status says so."""
    meta, status = ObjectMeta.model_validate(body["metadata"]), body.get("status") or {}
    try:
        spec = TenantQuotaSpec.model_validate(body.get("spec"), extra="ignore")
    except ValidationError as error:
        return Quota(meta.name, _namespaces(body.get("spec")), invalid=explain(error), meta=meta, status=status)
    if wrong := _unknown(spec):
        return Quota(meta.name, frozenset(spec.subjects.namespaces), invalid=wrong, meta=meta, status=status)
    native = spec.devices is not None and spec.devices.resource_quota
    return Quota(meta.name, frozenset(spec.subjects.namespaces), _caps(spec), native, spec, "", meta, status)


def _namespaces(spec: Any) -> frozenset[str]:
    subjects = spec.get("subjects") if isinstance(spec, Mapping) else None
    names = subjects.get("namespaces") if isinstance(subjects, Mapping) else None
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list | tuple) else frozenset()


def _unknown(spec: TenantQuotaSpec) -> str:
    """A product that nothing has would cap nothing, and nobody would notice."""
    gpus = spec.devices.gpus if spec.devices is not None else None
    wrong = ((name, unknown_product(name)) for name in gpus) if isinstance(gpus, dict) else ()
    return "; ".join(f"spec.devices.gpus.{name}: {why}" for name, why in wrong if why)


def _caps(spec: TenantQuotaSpec) -> Devices:
    if spec.devices is None:
        return {}
    slices: dict[str, int] = {}
    for entry in spec.devices.mig_slices:  # two spellings of the same slices: the smaller cap applies
        word = slice_word(entry.profile)
        slices[word] = min(entry.count, slices.get(word, entry.count))
    gpus = spec.devices.gpus if spec.devices.gpus is not None else {}
    return {GPU: gpus} | slices if isinstance(gpus, int) else {of_product(name): count for name, count in gpus.items()} | slices


def of_namespace(quotas: Iterable[Quota], namespace: str) -> tuple[Quota, ...]:
    """The quotas that limit devices in the namespace, invalid ones included. All of them apply, as with native quotas."""
    return tuple(quota for quota in quotas if (quota.caps or quota.invalid) and quota.counts(namespace))
