"""A LoraAdapter's status. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from pagoda_contracts.conditions import adapter as reasons
from pagoda_contracts.conditions.types import READY, Reason
from pagoda_contracts.resources.adapter import EndpointAdapter, LoraAdapterStatus
from pagoda_contracts.resources.meta import Condition

from pagoda_operator.api.adapters import Adapter, Phase, Progress
from pagoda_operator.api.conditions import Conditions, State
from pagoda_operator.decide.adapters.catalogue import Refusal
from pagoda_operator.decide.replicas.replica import clean

_MAX_REASON: Final = 512
_MAX_ENDPOINTS: Final = 1024
_NAMED: Final = 3

_Kind = Literal["settled", "loading", "stalled"]


class Replicas(NamedTuple):
    """How many replicas the service has that are ready, and how many it should have."""

    ready: int
    wanted: int


class _Verdict(NamedTuple):
    kind: _Kind
    reason: Reason
    message: str


def status(adapter: Adapter, found: Mapping[str, Progress], service: Replicas, now: str) -> dict[str, Any]:
    """The whole status of an accepted adapter on the wire. `found`: how far it is on each replica that should have it; `service`: the
    replicas that the service has and should have."""
    if adapter.on_demand:  # which ones have it in memory changes with each request: no news for a status
        found = {pod: one._replace(phase=Phase.ON_DISK) if one.phase is Phase.LOADED else one for pod, one in found.items()}
    loaded = [one for one in found.values() if one.phase is Phase.LOADED]
    here = [one for one in found.values() if one.phase is Phase.ON_DISK] + loaded
    return LoraAdapterStatus(
        observed_generation=adapter.generation,
        conditions=_conditions(adapter, _verdict(adapter, found, len(here), service), len(here), now),
        digest=adapter.digest or next((one.digest for one in here if one.digest), None),
        loaded=len(loaded),
        endpoints=tuple(
            EndpointAdapter(pod=pod, state=one.phase.value, reason=clean(one.reason)[:_MAX_REASON] or None)
            for pod, one in sorted(found.items())[:_MAX_ENDPOINTS]
        ),
    ).wire()


def refused_status(adapter: Adapter, why: Refusal, now: str) -> dict[str, Any]:
    """The whole status of an adapter that no replica is told of."""
    conditions = _conditions(adapter, _Verdict("stalled", why.reason, why.message), 0, now)
    return LoraAdapterStatus(observed_generation=adapter.generation, conditions=conditions, loaded=0).wire()


def _verdict(adapter: Adapter, found: Mapping[str, Progress], loaded: int, service: Replicas) -> _Verdict:
    if not service.ready:
        if service.wanted:
            return _Verdict("loading", reasons.NO_REPLICA, "no replica is ready yet")
        return _Verdict("settled", reasons.ASLEEP, "the service has no replicas")
    wanted = service.ready if adapter.copies is None else min(service.ready, adapter.copies)
    if not found:
        return _Verdict("stalled", reasons.TOO_MANY, f"older adapters have all places of the {service.ready} ready replicas")
    count = f"{'on the disk of' if adapter.on_demand else 'loaded on'} {loaded} of {wanted} replicas"
    failed = [f"{pod}: {one.reason}" for pod, one in sorted(found.items()) if one.phase is Phase.FAILED]
    why = "".join(f"; {text}" for text in failed[:_NAMED])
    if len(failed) == len(found):
        return _Verdict("stalled", reasons.REJECTED, f"{count}{why}")
    if loaded < len(found):
        return _Verdict("loading", reasons.LOADING, f"{count}{why}")
    full = wanted - loaded
    return (
        _Verdict("loading", reasons.LOADING, f"{count}; {full} have no place left")
        if full
        else _Verdict("settled", reasons.RESIDENT, count)
    )


def _conditions(adapter: Adapter, verdict: _Verdict, loaded: int, now: str) -> tuple[Condition, ...]:
    conditions = Conditions.after(adapter.status.conditions, adapter.generation, now)
    said = verdict.reason.name, clean(verdict.message)
    ready = _ready(verdict.kind, loaded, conditions.known(READY))
    return conditions.three(ready, said, reconciling=verdict.kind == "loading", stalled=verdict.kind == "stalled")


def _ready(kind: _Kind, loaded: int, known: Condition | None) -> State:
    """A replica that is added to others does not make a ready adapter unready; a changed adapter is ready once all have the change."""
    if kind == "settled":
        return "True"
    if kind == "loading" and known is not None and known.status == "True" and loaded:
        return "True"
    return "False" if kind == "stalled" or known is not None else "Unknown"
