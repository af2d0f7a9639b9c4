"""Several gateways' words on one service, made one. Pure; called by `signals`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pagoda_contracts.pb import demand_pb2 as pb
from pagoda_contracts.pb.daemon_pb2 import Phase

from pagoda_operator.api.signals import EndpointSignal, RevisionSignal, Seen
from pagoda_operator.decide.scale.demand import Level

_SEEN: Final = {
    pb.VERDICT_FRESH: Seen.FRESH,
    pb.VERDICT_SUSPECT: Seen.SUSPECT,
    pb.VERDICT_DEAD: Seen.DEAD,
    pb.VERDICT_UNSPECIFIED: Seen.UNHEARD,
}
_WORTH: Final = (Seen.FRESH, Seen.SUSPECT, Seen.DEAD, Seen.UNHEARD)
_PHASES: Final = {number: name.removeprefix("PHASE_").lower() for name, number in Phase.items() if number != Phase.PHASE_UNSPECIFIED}


def endpoints(parts: Iterable[pb.ServiceDemand]) -> dict[str, EndpointSignal]:
    """By pod, as the most favourable gateway sees it: what one of them cannot reach may well live."""
    merged: dict[str, EndpointSignal] = {}
    for part in parts:
        for told in part.endpoints:
            seen = _endpoint(told)
            merged[told.pod] = _better(merged[told.pod], seen) if told.pod in merged else seen
    return merged


def _endpoint(told: pb.EndpointDemand) -> EndpointSignal:
    return EndpointSignal(
        verdict=_SEEN.get(told.verdict, Seen.UNHEARD),
        reason=told.reason,
        in_flight=told.in_flight,
        draining=told.draining,
        phase=_PHASES.get(told.phase, ""),
        age_s=told.state_age_ms / 1000,
        deep_failed=told.deep_check_failed,
    )


def _better(one: EndpointSignal, other: EndpointSignal) -> EndpointSignal:
    return min(one, other, key=lambda seen: (_WORTH.index(seen.verdict), seen.age_s))


def revisions(parts: Iterable[pb.ServiceDemand]) -> dict[str, RevisionSignal]:
    """By hash: requests and errors add up, of the times the worst counts."""
    merged: dict[str, RevisionSignal] = {}
    for part in parts:
        for told in part.revisions:
            last = merged.get(told.revision, RevisionSignal())
            merged[told.revision] = RevisionSignal(
                last.requests + told.requests, last.errors + told.errors, max(last.ttft_p95_s, told.ttft_p95_ms / 1000)
            )
    return merged


def level(parts: Sequence[pb.ServiceDemand]) -> Level:
    """Sums now: held over all gateways, replicas' own by the gateway that hears most of them."""
    best = max(parts, key=lambda part: sum(told.verdict in (pb.VERDICT_FRESH, pb.VERDICT_SUSPECT) for told in part.endpoints))
    return Level(
        running=best.running,
        waiting=best.waiting,
        held=sum(part.held for part in parts),
        kv_utilization=best.blocks_used / best.blocks_total if best.blocks_total else 0.0,
        ttft_p95_s=max(part.ttft_p95_ms for part in parts) / 1000,
    )


def matters(parts: Iterable[pb.ServiceDemand], seen: Mapping[str, EndpointSignal]) -> object:
    """Equal where no decision can be another: load changes with each frame and is measured in bins, suspicion comes and goes."""
    asked = any(part.held for part in parts), any(part.wake for part in parts)
    return asked, tuple((pod, _state(seen[pod])) for pod in sorted(seen))


def _state(seen: EndpointSignal) -> tuple[object, ...]:
    emptied = seen.draining and not seen.in_flight
    return seen.bad, seen.reason if seen.bad else "", seen.deep_failed, seen.phase, seen.draining, emptied
