"""What a TenantQuota's status says, by kstatus' rules. Pure; `status_writer.py` writes it where it differs.

Usage is what the ledger charges, of what the quota caps: replicas that start and that end included. What gateways count (requests,
tokens) is not here yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from pagoda_contracts.conditions.quota import IN_FORCE, OVER_CAP, RESOURCE_QUOTA_REFUSED, UNREADABLE
from pagoda_contracts.conditions.service import NOT_STALLED, SETTLED
from pagoda_contracts.conditions.types import READY, RECONCILING, STALLED, ConditionType, Reason
from pagoda_contracts.resources.meta import Condition
from pagoda_contracts.resources.tenant import MigSlices, TenantQuotaSpec, TenantQuotaStatus, Usage
from pydantic import ValidationError

from pagoda_operator.api.quota import GPU, Devices, slice_word, spoken
from pagoda_operator.decide.quota.caps import Quota
from pagoda_operator.quota.native import Kept

_HELD_BACK: Final = "Its namespaces keep the devices that they have and get no more until the spec is corrected."
_HOLDS_NOTHING: Final = "Its namespaces cannot be read either, so it limits none."
# Of the spec, what the operator acts on; the rest is the gateways', which do not enforce it yet.
_HEEDED: Final = frozenset(("subjects", "devices"))
_SUBJECTS: Final = "subjects.apiKeysSecretRef"


class _Verdict(NamedTuple):
    kind: Literal["settled", "reconciling", "stalled"]
    reason: Reason
    message: str


_State = tuple[ConditionType, str, Reason, str]


def status(quota: Quota, used: Devices, native: Kept, now: str) -> dict[str, Any]:
    """The whole status on the wire; `native`: what became of the native ResourceQuota."""
    return TenantQuotaStatus(
        observed_generation=quota.meta.generation,
        conditions=_conditions(quota, _verdict(quota, used, native), now),
        usage=_usage(quota.spec, used) if quota.spec is not None and quota.caps else None,
    ).wire()


def _usage(spec: TenantQuotaSpec, used: Devices) -> Usage:
    slices = spec.devices.mig_slices if spec.devices is not None else ()
    return Usage(
        gpus=used.get(GPU),
        mig_slices=tuple(MigSlices(profile=entry.profile, count=used.get(slice_word(entry.profile), 0)) for entry in slices),
    )


def _verdict(quota: Quota, used: Devices, native: Kept) -> _Verdict:
    if quota.invalid:
        held = _HELD_BACK if quota.namespaces else _HOLDS_NOTHING
        return _Verdict("stalled", UNREADABLE, f"{quota.invalid}. {held}")
    if native.fault:
        return _Verdict("stalled", RESOURCE_QUOTA_REFUSED, native.fault)
    over = [spoken(word) for word, cap in sorted(quota.caps.items()) if used.get(word, 0) > cap]
    ignored = _ignored(quota.spec) if quota.spec is not None else []
    tail = f"; not acted on yet: {', '.join(ignored)}" if ignored else ""
    if twice := _twice(quota.spec):
        tail += f"; {' and '.join(twice)} are the same slices, so the smaller cap applies"
    if native.uncounted:
        tail += f"; the ResourceQuota does not count claims of {', '.join(native.uncounted)}: this API server counts no claims by class"
    if native.as_gpus:
        tail += _together(quota, native.as_gpus)
    if over:
        return _Verdict(
            "reconciling", OVER_CAP, f"more {' and '.join(over)} are in use than allowed; the newest services give devices back{tail}"
        )
    return _Verdict("settled", IN_FORCE, f"in force{tail}")


def _twice(spec: TenantQuotaSpec | None) -> list[str]:
    """Profiles that are named in several spellings."""
    profiles = [entry.profile for entry in spec.devices.mig_slices] if spec is not None and spec.devices is not None else []
    words = [slice_word(profile) for profile in profiles]
    return [profile for profile, word in zip(profiles, words, strict=True) if words.count(word) > 1]


def _together(quota: Quota, words: Sequence[str]) -> str:
    """What a ResourceQuota cannot tell apart."""
    slices = " and ".join(map(spoken, words))
    if GPU not in quota.caps:
        return (
            f"; the ResourceQuota does not limit {slices} of MIG strategy single: they are requested as GPUs, which this quota does not cap"
        )
    both = quota.caps[GPU] + sum(quota.caps[word] for word in words)
    return f"; the ResourceQuota allows {both} of GPUs and {slices} together: those of MIG strategy single are requested as GPUs"


def _ignored(spec: TenantQuotaSpec) -> list[str]:
    words = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return [*(name for name in words if name not in _HEEDED), *([_SUBJECTS] if spec.subjects.api_keys_secret_ref is not None else [])]


def _conditions(quota: Quota, verdict: _Verdict, now: str) -> tuple[Condition, ...]:
    last = {condition.type: condition for condition in _last(quota)}
    states = (
        (READY, "True" if verdict.kind != "stalled" else "False", verdict.reason, verdict.message),
        _abnormal(RECONCILING, verdict.kind == "reconciling", verdict, SETTLED),
        _abnormal(STALLED, verdict.kind == "stalled", verdict, NOT_STALLED),
    )
    return tuple(_condition(quota, state, last.get(state[0].name), now) for state in states)


def _abnormal(kind: ConditionType, holds: bool, verdict: _Verdict, otherwise: Reason) -> _State:
    return (kind, "True", verdict.reason, verdict.message) if holds else (kind, "False", otherwise, "")


def _condition(quota: Quota, state: _State, last: Condition | None, now: str) -> Condition:
    kind, value, reason, message = state
    since = last.last_transition_time if last is not None and last.status == value else now
    fields = {"type": kind.name, "status": value, "reason": reason.name, "message": message, "lastTransitionTime": since}
    return Condition.model_validate(fields | {"observedGeneration": quota.meta.generation})


def _last(quota: Quota) -> Sequence[Condition]:
    """An older operator's status may not be readable: then there was none."""
    try:
        return TenantQuotaStatus.model_validate(dict(quota.status), extra="ignore").conditions
    except ValidationError:
        return ()
