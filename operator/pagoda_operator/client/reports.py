"""Replicas as gateways report them: many reports of one service become one signal for each pod. Pure; called by signals.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from pagoda_contracts.pb import demand_pb2 as pb
from pagoda_contracts.pb.daemon_pb2 import Phase

from pagoda_operator.api.signals import EndpointSignal, Seen

_SEEN: Final = {
    pb.VERDICT_FRESH: Seen.FRESH,
    pb.VERDICT_SUSPECT: Seen.SUSPECT,
    pb.VERDICT_DEAD: Seen.DEAD,
    pb.VERDICT_UNSPECIFIED: Seen.UNHEARD,
}
HEARD: Final = (pb.VERDICT_FRESH, pb.VERDICT_SUSPECT)
_BEST_FIRST: Final = (Seen.FRESH, Seen.SUSPECT, Seen.DEAD, Seen.UNHEARD)
_PHASES: Final = {number: name.removeprefix("PHASE_").lower() for name, number in Phase.items() if number != Phase.PHASE_UNSPECIFIED}


def endpoints(parts: Iterable[pb.ServiceDemand]) -> dict[str, EndpointSignal]:
    """By pod, as the most favourable gateway reports it: a replica that one gateway cannot reach may be healthy."""
    merged: dict[str, EndpointSignal] = {}
    faults: dict[str, str] = {}
    for row in (row for part in parts for row in part.endpoints):
        seen = _endpoint(row)
        merged[row.pod] = min(merged.get(row.pod, seen), seen, key=lambda one: (_BEST_FIRST.index(one.verdict), one.age_s))
        if row.verdict in HEARD and row.device_fault:
            # The replica's own word, whoever repeats it: a gateway of the version before knows no faults of devices.
            faults[row.pod] = row.device_fault
    return {pod: replace(signal, device_fault=faults.get(pod, signal.device_fault)) for pod, signal in merged.items()}


def admitted_by_all(parts: Iterable[pb.ServiceDemand]) -> set[str]:
    """The pods to which each of these gateways sends requests."""
    admitted = [{row.pod for row in part.endpoints if row.verdict in HEARD and row.phase == Phase.PHASE_READY} for part in parts]
    return set.intersection(*admitted) if admitted else set()


def _endpoint(row: pb.EndpointDemand) -> EndpointSignal:
    return EndpointSignal(
        verdict=_SEEN.get(row.verdict, Seen.UNHEARD),
        reason=row.reason,
        in_flight=row.in_flight,
        draining=row.draining,
        phase=_PHASES.get(row.phase, ""),
        age_s=row.state_age_ms / 1000,
        deep_failed=row.deep_check_failed,
        device_fault=row.device_fault,
        warm_s=row.warm_ms / 1000,
    )
