"""Which LoraAdapters a service's replicas should have, and why the others are refused; each adapter's status. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from pagoda_contracts.conditions import adapter as reasons
from pagoda_contracts.conditions.service import NOT_STALLED, SETTLED
from pagoda_contracts.conditions.types import READY, RECONCILING, STALLED, ConditionType, Reason
from pagoda_contracts.resources.adapter import EndpointAdapter, LoraAdapterSpec, LoraAdapterStatus
from pagoda_contracts.resources.meta import Condition
from pagoda_contracts.resources.service import InferenceServiceSpec

from pagoda_operator.api.adapters import Adapter, Entry, Phase, Progress
from pagoda_operator.api.state import Key
from pagoda_operator.decide.render import fetch

_MAX_MESSAGE: Final = 1024
_MAX_REASON: Final = 512
_MAX_ENDPOINTS: Final = 1024
_NAMED: Final = 3

Owner = Callable[[str], Key | None]


class Refusal(NamedTuple):
    """Why an adapter is in no catalogue."""

    reason: Reason
    message: str


class Catalogue(NamedTuple):
    """Adapters that every replica should have, in the order of their age; the others with the reason."""

    accepted: tuple[Adapter, ...] = ()
    refused: tuple[tuple[Adapter, Refusal], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names that clients may put into `model`."""
        return tuple(adapter.served_name for adapter in self.accepted)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """As it is sent to replicas."""
        return tuple(_entry(adapter, adapter.spec) for adapter in self.accepted if adapter.spec is not None)


class Host(NamedTuple):
    """The service: its key, its spec (None if it cannot be read), the names that it is served by, and who owns a name."""

    key: Key
    spec: InferenceServiceSpec | None
    served_names: tuple[str, ...]
    owner: Owner


def catalogue(host: Host | None, adapters: Iterable[Adapter]) -> Catalogue:
    """`host` is None if there is no such service. The oldest adapters come first: a younger one never takes a name or a place."""
    accepted: list[Adapter] = []
    refused: list[tuple[Adapter, Refusal]] = []
    for adapter in sorted((one for one in adapters if not one.deleting), key=lambda one: one.rank):
        why = _refusal(host, adapter, accepted)
        if why is None:
            accepted.append(adapter)
        else:
            refused.append((adapter, why))
    return Catalogue(tuple(accepted), tuple(refused))


def _refusal(host: Host | None, adapter: Adapter, older: Sequence[Adapter]) -> Refusal | None:
    """The first thing that is wrong with it."""
    if adapter.spec is None:
        return Refusal(reasons.INVALID, adapter.invalid)
    if fields := _not_built(adapter, adapter.spec):
        return Refusal(reasons.NOT_IMPLEMENTED, f"not acted on yet: {', '.join(fields)}")
    if host is None:
        return Refusal(reasons.NO_SERVICE, f"there is no InferenceService {adapter.service.name} in {adapter.service.namespace}")
    if host.spec is None or host.spec.adapters is None:
        return Refusal(reasons.NOT_ENABLED, f"InferenceService {host.key.name} has no spec.adapters")
    wrong, taken, most = _source(adapter.spec, host.spec), _taken(host, adapter, older), host.spec.adapters.max_loaded
    found = (
        Refusal(reasons.INVALID, wrong) if wrong else None,
        Refusal(reasons.NAME_TAKEN, taken) if taken else None,
        Refusal(reasons.TOO_MANY, f"{most} older adapters have all places of spec.adapters.maxLoaded") if len(older) >= most else None,
    )
    return next(filter(None, found), None)


def _not_built(adapter: Adapter, spec: LoraAdapterSpec) -> tuple[str, ...]:
    mode, elsewhere = spec.placement.mode, adapter.service.namespace != adapter.meta.namespace
    found = (
        f"placement.mode {mode} (use Eager)" if mode != "Eager" else "",
        "serviceRef.namespace (the service must be in the adapter's namespace)" if elsewhere else "",
    )
    return tuple(filter(None, found))


def _source(spec: LoraAdapterSpec, service: InferenceServiceSpec) -> str:
    uri, credential = spec.source.uri, spec.source.credential
    if not uri.startswith(fetch.SCHEMES):
        return f"source.uri {uri!r} cannot be fetched; it must start with one of: {', '.join(fetch.SCHEMES)}"
    claims = fetch.adapter_claims(service)
    if uri.startswith(fetch.CLAIM_SCHEME) and fetch.claim(uri) not in claims:
        known = ", ".join(claims) or "none"
        return (
            f"claim {fetch.claim(uri)!r} is not mounted into the replicas; name it in the service's spec.adapters.claims (mounted: {known})"
        )
    if credential is not None and credential not in (one.name for one in service.credentials):
        return f"source.credential {credential!r} is not a name in the service's spec.credentials"
    return ""


def _taken(host: Host, adapter: Adapter, older: Sequence[Adapter]) -> str:
    name = adapter.served_name
    if name in host.served_names:
        return f"{name!r} is the name of the service's model"
    for other in older:
        if other.served_name == name:
            return f"{name!r} is the name of LoraAdapter {other.meta.name}, which is older"
    owner = host.owner(name)
    return f"{name!r} is a name of service {owner.namespace}/{owner.name}" if owner is not None and owner != host.key else ""


def _entry(adapter: Adapter, spec: LoraAdapterSpec) -> Entry:
    return Entry(adapter.served_name, spec.source.uri, adapter.digest, spec.source.credential or "", spec.pinned)


# Status

_Kind = Literal["settled", "loading", "stalled"]


class _Verdict(NamedTuple):
    kind: _Kind
    reason: Reason
    message: str


def status(adapter: Adapter, found: Mapping[str, Progress], wanted: int, now: str) -> dict[str, Any]:
    """The whole status of an accepted adapter on the wire. `found`: how far it is on each ready replica; `wanted`: replicas that the
    service should have."""
    loaded = [one for one in found.values() if one.phase is Phase.LOADED]
    return LoraAdapterStatus(
        observed_generation=adapter.generation,
        conditions=_conditions(adapter, _verdict(found, len(loaded), wanted), len(loaded), now),
        digest=adapter.digest or next((one.digest for one in loaded if one.digest), None),
        loaded=len(loaded),
        endpoints=tuple(
            EndpointAdapter(pod=pod, state=one.phase.value, reason=one.reason[:_MAX_REASON] or None)
            for pod, one in sorted(found.items())[:_MAX_ENDPOINTS]
        ),
    ).wire()


def refused_status(adapter: Adapter, why: Refusal, now: str) -> dict[str, Any]:
    """The whole status of an adapter that no replica is told of."""
    conditions = _conditions(adapter, _Verdict("stalled", why.reason, why.message), 0, now)
    return LoraAdapterStatus(observed_generation=adapter.generation, conditions=conditions, loaded=0).wire()


def _verdict(found: Mapping[str, Progress], loaded: int, wanted: int) -> _Verdict:
    if not found:
        if wanted:
            return _Verdict("loading", reasons.NO_REPLICA, "no replica is ready yet")
        return _Verdict("settled", reasons.ASLEEP, "the service has no replicas")
    count = f"loaded on {loaded} of {len(found)} ready replicas"
    if loaded == len(found):
        return _Verdict("settled", reasons.RESIDENT, count)
    failed = [f"{pod}: {one.reason}" for pod, one in sorted(found.items()) if one.phase is Phase.FAILED]
    why = "".join(f"; {text}" for text in failed[:_NAMED])
    if len(failed) == len(found):
        return _Verdict("stalled", reasons.REJECTED, f"{count}{why}")
    return _Verdict("loading", reasons.LOADING, f"{count}{why}")


def _conditions(adapter: Adapter, verdict: _Verdict, loaded: int, now: str) -> tuple[Condition, ...]:
    last = {condition.type: condition for condition in adapter.status.conditions}
    said, none = (verdict.reason.name, verdict.message), ""
    loading, stalled = verdict.kind == "loading", verdict.kind == "stalled"
    ready = _ready(adapter, verdict.kind, loaded, last.get(READY.name))
    rows: tuple[tuple[ConditionType, Literal["True", "False", "Unknown"], tuple[str, str]], ...] = (
        (READY, ready, said),
        (RECONCILING, "True" if loading else "False", said if loading else (SETTLED.name, none)),
        (STALLED, "True" if stalled else "False", said if stalled else (NOT_STALLED.name, none)),
    )
    return tuple(_condition(adapter, row, last.get(row[0].name), now) for row in rows)


def _ready(adapter: Adapter, kind: _Kind, loaded: int, last: Condition | None) -> Literal["True", "False", "Unknown"]:
    """A replica that is added to others does not make a ready adapter unready; a changed adapter is ready once all have the change."""
    if kind == "settled":
        return "True"
    known = last is not None and last.observed_generation == adapter.generation and last.status != "Unknown"
    if kind == "loading" and known and last is not None and last.status == "True" and loaded:
        return "True"
    return "False" if kind == "stalled" or known else "Unknown"


def _condition(
    adapter: Adapter,
    row: tuple[ConditionType, Literal["True", "False", "Unknown"], tuple[str, str]],
    last: Condition | None,
    now: str,
) -> Condition:
    kind, state, (reason, message) = row
    return Condition(
        type=kind.name,
        status=state,
        reason=reason,
        message=message[:_MAX_MESSAGE],
        observed_generation=adapter.generation,
        last_transition_time=last.last_transition_time if last is not None and last.status == state else now,
    )
