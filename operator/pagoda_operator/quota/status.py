"""TenantQuotas' statuses, by kstatus' rules, and what writes them and keeps the native ResourceQuotas. Made by process.py.

Usage is what the ledger charges of the devices that the quota caps, including replicas that start or end, and what the gateways admitted
within the present windows. A changed spec is answered within seconds, a changed usage within a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from pagoda_contracts.conditions.quota import IN_FORCE, NOT_ENFORCED, OVER_CAP, RESOURCE_QUOTA_REFUSED, UNREADABLE
from pagoda_contracts.conditions.types import Reason
from pagoda_contracts.resources.meta import Condition
from pagoda_contracts.resources.tenant import MigSlices, ProductUsage, TenantQuotaSpec, TenantQuotaStatus, Usage, WindowUsage
from pagoda_placement.charges import GPU, Devices, names_product, of_product, slice_word, spoken
from pagoda_placement.values import stamp
from pydantic import ValidationError

from pagoda_operator.api.caps import Quota
from pagoda_operator.api.conditions import Conditions
from pagoda_operator.api.state import QUOTAS
from pagoda_operator.quota.keeper import Quotas
from pagoda_operator.quota.native import Native, ensure_resource_quota
from pagoda_operator.quota.usage import QuotaUsages, summary
from pagoda_operator.run.apply import Cluster, apply_status
from pagoda_operator.run.rounds import TICK_S, Rounds

_KEPT: Final = "Its namespaces keep the devices that they have and get no more until the spec is corrected."
_LIMITS_NONE: Final = "Its namespaces cannot be read either, so it limits none."
# Fields of the spec that the operator acts on. Gateways act on the others, for requests with the keys of a Secret that they read.
_OPERATORS: Final = frozenset(("subjects", "devices"))

_Verdict = tuple[Reason, str]


class Used(NamedTuple):
    """Devices that are charged, what gateways admitted within each window (None while no gateway has reported it), and the caps that are
    exceeded."""

    devices: Devices
    windows: tuple[WindowUsage, ...] | None
    over: Sequence[str] = ()


class StatusWriter:
    """`single`: slices that the inventory offers as GPUs. It is called only when all nodes are known. `keys`: the namespace whose Secrets
    of API keys the gateways read, the release's; "" if it is not known. `usages`: what gateways report."""

    def __init__(
        self,
        cluster: Cluster,
        keeper: Quotas,
        clock: Callable[[], datetime],
        single: Callable[[], frozenset[str]],
        keys: str = "",
        *,
        usages: QuotaUsages,
    ) -> None:
        self._usages = usages
        self._cluster, self._keeper, self._clock, self._single, self._keys = cluster, keeper, clock, single, keys
        self._rounds = Rounds(keeper.steady)

    async def run(self) -> None:
        """Without end."""
        while True:
            await asyncio.sleep(TICK_S)
            await self.write()

    async def write(self) -> None:
        """One round; also requeues services with overdue charges."""
        self._keeper.requeue_overdue()
        await self._rounds.each(self._keeper.quotas(), self._one)

    async def _one(self, quota: Quota) -> None:
        await self._keeper.fill()
        native = await ensure_resource_quota(self._cluster, quota, self._single()) if not quota.invalid else Native()
        now = self._clock()
        windows = self._usages.of(quota.name, quota.spec, now.timestamp()) if quota.spec is not None else ()
        used = Used(self._keeper.ledger.used(quota), windows, self._keeper.ledger.over(quota))
        wanted = status(quota, used, native, self._keys, stamp(now.timestamp()))
        if wanted != quota.status:
            await apply_status(self._cluster, QUOTAS, quota.meta, wanted)


def status(quota: Quota, used: Used, native: Native, keys: str, now: str) -> dict[str, Any]:
    """The whole status on the wire; `native`: the state of the native ResourceQuota; `keys`: the namespace of API keys."""
    return TenantQuotaStatus(
        observed_generation=quota.meta.generation,
        conditions=_conditions(quota, _verdict(quota, used, native, keys), now),
        usage=_usage(quota, used),
    ).wire()


def _usage(quota: Quota, used: Used) -> Usage | None:
    windows = used.windows if used.windows is not None else _last_windows(quota)
    if not quota.caps and not windows:
        return None
    slices = quota.spec.devices.mig_slices if quota.spec is not None and quota.spec.devices is not None else ()
    counts = tuple(MigSlices(profile=entry.profile, count=used.devices.get(slice_word(entry.profile), 0)) for entry in slices)
    limits = quota.spec.limits if quota.spec is not None else ()
    caps = quota.spec.devices.gpus if quota.spec is not None and quota.spec.devices is not None else None
    products = tuple(_product(name, cap, used.devices) for name, cap in caps.items()) if isinstance(caps, dict) else None
    gpus = used.devices.get(GPU)
    return Usage(summary=summary(windows, limits), windows=windows, gpus=gpus, gpu_products=products, mig_slices=counts)


def _product(name: str, cap: int, used: Devices) -> ProductUsage:
    count = used.get(of_product(name), 0)
    return ProductUsage(product=name, used=count, left=max(0, cap - count))


def _verdict(quota: Quota, used: Used, native: Native, keys: str) -> _Verdict:
    if quota.spec is None:
        return UNREADABLE, f"{quota.invalid}. {_KEPT if quota.namespaces else _LIMITS_NONE}"
    if native.fault:
        return RESOURCE_QUOTA_REFUSED, native.fault
    if idle := _not_enforced(quota.spec, keys):
        return NOT_ENFORCED, idle
    notes = "".join(f"; {note}" for note in _notes(quota, quota.spec, native))
    if used.over:
        message = f"more {' and '.join(map(spoken, used.over))} are in use than allowed; the newest services give devices back{notes}"
        return OVER_CAP, message
    return IN_FORCE, f"in force{notes}"


def _not_enforced(spec: TenantQuotaSpec, keys: str) -> str:
    """Why no gateway acts on fields that limit requests; "" if gateways do, or if none is set."""
    fields = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    ref, limits = spec.subjects.api_keys_secret_ref, [name for name in fields if name not in _OPERATORS]
    if not limits or (ref is not None and keys in ("", ref.namespace)):
        return ""
    found = f"it names one in {ref.namespace}" if ref is not None else "it names none"
    where = f"in namespace {keys}" if keys else "in the gateways' namespace"
    return f"not enforced: {', '.join(limits)}. subjects.apiKeysSecretRef must name a Secret of API keys {where}, and {found}"


def _notes(quota: Quota, spec: TenantQuotaSpec, native: Native) -> Iterator[str]:
    """What a tenant might not expect of a quota that is in force."""
    profiles = [entry.profile for entry in spec.devices.mig_slices] if spec.devices is not None else []
    words = [slice_word(profile) for profile in profiles]
    twice = [profile for profile, word in zip(profiles, words, strict=True) if words.count(word) > 1]
    if twice:
        yield f"{' and '.join(twice)} are the same slices, so the smaller cap applies"
    if native.uncounted:
        yield f"the ResourceQuota does not count claims of {', '.join(native.uncounted)}: this API server counts no claims by class"
    if quota.native and (products := sorted(spoken(cap) for cap in quota.caps if names_product(cap))):
        yield f"the ResourceQuota does not limit {' and '.join(products)}: it cannot distinguish products"
    # A ResourceQuota cannot distinguish slices of MIG strategy single from GPUs.
    slices = " and ".join(map(spoken, native.as_gpus))
    if slices and GPU not in quota.caps:
        yield f"the ResourceQuota does not limit {slices} of MIG strategy single: they are requested as GPUs, which this quota does not cap"
    elif slices:
        both = quota.caps[GPU] + sum(quota.caps[word] for word in native.as_gpus)
        yield f"the ResourceQuota allows {both} of GPUs and {slices} together: those of MIG strategy single are requested as GPUs"


def _conditions(quota: Quota, verdict: _Verdict, now: str) -> tuple[Condition, ...]:
    (reason, message), over = verdict, verdict[0] == OVER_CAP
    stalled = reason in (UNREADABLE, NOT_ENFORCED, RESOURCE_QUOTA_REFUSED)
    conditions = Conditions.after(_last_status(quota).conditions, quota.meta.generation, now)
    return conditions.three("False" if stalled else "True", (reason.name, message), reconciling=over, stalled=stalled)


def _last_windows(quota: Quota) -> tuple[WindowUsage, ...]:
    usage = _last_status(quota).usage
    return usage.windows if usage is not None else ()


def _last_status(quota: Quota) -> TenantQuotaStatus:
    """Empty if an older operator's status cannot be read."""
    try:
        return TenantQuotaStatus.model_validate(dict(quota.status), extra="ignore")
    except ValidationError:
        return TenantQuotaStatus()
