"""Who is sick, and who serves and answers all the same. Pure; asked by `health`.

Sick is what no kubelet sees: a replica that is Ready to Kubernetes and silent to every gateway, one whose device hangs, one that fails its
canary, one on a faulty device. Gateways have stopped sending it requests by then (of a faulty node they learn by an annotation of its
pods). One word against a replica has the same patience wherever it is heard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pagoda_contracts.conditions import health
from pagoda_contracts.units import parse_duration

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.signals import CONFIRM_S, MISSING_S, EndpointSignal, Seen
from pagoda_operator.api.state import Observed

# How a mark begins that was set here, for the node's sake: only those are taken away again.
OURS: Final = "node: "
# Gateways call a step overdue 30 s after its beginning; what the service grants beyond that is waited for here.
_OVERDUE_S: Final = 30.0
_DEFAULT_PROGRESS: Final = "120s"


class Sickness(Enum):
    """What is wrong, as the condition Degraded says it; the surest first."""

    DEVICE_FAULT = health.DEVICE_FAULT
    DEEP_CHECK = health.DEEP_CHECK_FAILED
    SILENT = health.SILENT
    STUCK = health.STUCK


_RANK: Final = {sickness: rank for rank, sickness in enumerate(Sickness)}


@dataclass(frozen=True, slots=True)
class Sick:
    """One sick replica. `answers`: it does all the same, only its device is called faulty."""

    pod: Pod
    sickness: Sickness
    why: str
    answers: bool = False


def sick_of(observed: Observed) -> tuple[Sick, ...]:
    """All of them that stay, the surest first."""
    found = (one for pod in observed.pods if pod.counts and pod.drain_deadline_ms is None for one in _sick(observed, pod))
    return tuple(sorted(found, key=lambda one: (_RANK[one.sickness], one.pod.name)))


def leaving(observed: Observed) -> tuple[Sick, ...]:
    """Those that are on their way out by a drain, which may yet be turned back."""
    return tuple(one for pod in observed.pods if pod.counts and pod.drain_deadline_ms is not None for one in _sick(observed, pod))


def sound(observed: Observed, sick: Iterable[Sick]) -> bool:
    """Whether anybody serves and answers at this moment of whom nothing bad is said. Kubelet's word counts without a gateway, and only once
    none was heard for a minute: a pause of theirs, or a start of the operator's, vouches for nobody."""
    ill = {one.pod.name for one in sick}
    return any(pod.serves and pod.name not in ill and not doubt(observed, pod) for pod in observed.pods)


def doubt(observed: Observed, pod: Pod) -> str:
    """Why nobody should lean on a replica that kubelet calls Ready, at this moment and however short that lasts; empty where he may."""
    if fault := fault_of(observed, pod):
        return f"its device is faulty: {fault}"[:400]
    signal = _signal(observed, pod)
    if signal is None:
        return "no gateway has reported it yet" if observed.unheard_s < MISSING_S else ""
    if signal.deep_failed:
        return "the answer to its canary prompt is wrong or late"
    return f"no gateway can use it: {signal.reason or signal.verdict}" if signal.bad else ""


def _sick(observed: Observed, pod: Pod) -> Iterable[Sick]:
    heard = tuple(_by_signal(observed, pod)) if pod.ready else ()
    if fault := fault_of(observed, pod):
        yield Sick(pod, Sickness.DEVICE_FAULT, f"the device is faulty: {fault}"[:400], answers=pod.ready and not heard)
    else:
        yield from heard


def fault_of(observed: Observed, pod: Pod) -> str:
    """What others marked the pod with, else what its node says, where the pod holds devices of it."""
    if pod.device_fault and not pod.device_fault.startswith(OURS):
        return pod.device_fault
    return observed.faults.get(pod.node, "") if pod.devices else ""


def _signal(observed: Observed, pod: Pod) -> EndpointSignal | None:
    return observed.signals.endpoints.get(pod.name) if observed.signals else None


def _by_signal(observed: Observed, pod: Pod) -> Iterable[Sick]:
    """A pod that is not Ready is kubelet's to restart: gateways hear nothing of it either, for a good reason."""
    signal = _signal(observed, pod)
    if signal is None:
        return
    if signal.deep_failed and signal.verdict is Seen.DEAD:
        if signal.bad_s >= CONFIRM_S:
            yield Sick(pod, Sickness.DEEP_CHECK, "the answer to its canary prompt is wrong or late")
    elif signal.verdict is Seen.UNHEARD:
        if signal.bad_s >= MISSING_S:
            yield Sick(pod, Sickness.SILENT, f"it is Ready, but no gateway has heard from it for {MISSING_S:.0f} s")
    elif signal.verdict is Seen.DEAD and signal.bad_s >= _patience(observed, signal):
        stuck = signal.reason != "silent"
        why = f"no gateway hears from it: {signal.reason}" if not stuck else f"it answers but makes no progress: {signal.reason}"
        yield Sick(pod, Sickness.STUCK if stuck else Sickness.SILENT, why)


def _patience(observed: Observed, signal: EndpointSignal) -> float:
    """An overdue step has the time that the service grants a step; everything else must only last."""
    if signal.reason != "overdue":
        return CONFIRM_S
    health = observed.spec.health if observed.spec else None
    return max(CONFIRM_S, parse_duration(health.progress_timeout if health else _DEFAULT_PROGRESS) - _OVERDUE_S)
