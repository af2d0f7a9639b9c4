"""The state of one replica, by its pod and by what gateways report: how far its start is, why it cannot start, and whether it is unhealthy.
Pure; called by `plan`, and by the folders beside and above this one.

A replica is unhealthy if kubelet calls it Ready and it still does not work: no gateway hears from it, its device hangs or is faulty, or it
fails its deep check. Gateways have stopped sending it requests by then, unless no other one answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from pagoda_contracts.conditions import service as reasons
from pagoda_contracts.conditions.health import DEEP_CHECK_FAILED, DEVICE_FAULT, SILENT, STUCK
from pagoda_contracts.conditions.types import Reason
from pagoda_contracts.names import EXIT_PERMANENT
from pagoda_contracts.units import parse_duration

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.signals import CONFIRM_S, MISSING_S, EndpointSignal, Seen
from pagoda_operator.api.state import Observed

_MAX_MESSAGE: Final = 1000
_MAX_FAULT: Final = 400

# How far the start is

_BACK_OFF: Final = re.compile(r'^(Back-off pulling image "[^"]*": )?(\w*ImagePull\w*: )?')
_IMAGE_REASONS: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
_SAID_OTHERWISE: Final = ("", "ContainerCreating", "PodInitializing", "CrashLoopBackOff")


class Stage(NamedTuple):
    """How far a start is, in a reason and a sentence. `rank` orders stages: failures first, then the least advanced. `since`: when it came
    there, in Unix seconds. `until`: when the replica counts as broken; None if it does not by time alone."""

    rank: int
    reason: Reason
    message: str
    since: float = 0.0
    until: float | None = None


def clean(text: str) -> str:
    """A foreign text as one printable line."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:_MAX_MESSAGE]


def stage(observed: Observed, pod: Pod) -> Stage:
    """How far a replica that is not Ready is, and since when."""
    found = trouble(observed, pod) or _advanced(pod)
    return found._replace(since=pod.waits_since, until=min((lack.until for lack in missing(observed, pod)), default=None))


def _advanced(pod: Pod) -> Stage:
    if pod.fetching.busy:
        return Stage(5, reasons.FETCHING_MODEL, fetch_message(pod))
    if pod.running and pod.lapsed:
        return Stage(3, reasons.NOT_READY, f"{pod.name} is not ready any more")
    if pod.running:
        return Stage(6, reasons.LOADING_MODEL, f"{pod.name} loads the model")
    if not pod.scheduled:
        return Stage(4, reasons.SCHEDULING, f"{pod.name} has no node yet")
    return Stage(4, reasons.PULLING_IMAGE, f"{pod.name} pulls its image and mounts its volumes")


def fetch_message(pod: Pod) -> str:
    """Returns one sentence. It names how the last attempt ended, also while the next one runs."""
    fetching = pod.fetching
    if fetching.exit_code in (None, 0):
        return f"{pod.name} fetches the model"
    why = " ".join(fetching.exit_message.split()) or fetching.exit_reason or "no reason given"
    return f"{pod.name} fetches the model; its last attempt ended with exit code {fetching.exit_code}: {why}"


def trouble(observed: Observed, pod: Pod) -> Stage | None:
    """What went wrong with a start, which may pass; None if nothing did."""
    if pod.exit_code is not None and not (pod.running and pod.restarts == 0):
        why = clean(pod.exit_message) or pod.exit_reason or "no reason given"
        # A restart begins at once, and the kubelet's delays after the second end.
        reason = reasons.CRASH_LOOPING if pod.restarts + (not pod.running) > 1 else reasons.RESTARTING
        return Stage(0, reason, f"{pod.name} ended with exit code {pod.exit_code}: {why}")
    if pod.unscheduled:
        return Stage(1, reasons.SCHEDULING, f"{pod.name}: {pod.unscheduled}")
    if pod.waiting in _IMAGE_REASONS:
        # ErrImagePull and ImagePullBackOff alternate with each try: the common part of their messages stays the same.
        return Stage(2, reasons.IMAGE_PULL, f"{pod.name}: {_BACK_OFF.sub('', pod.waiting_message) or pod.waiting}")
    if pod.waiting not in _SAID_OTHERWISE:
        return Stage(3, reasons.CONTAINER, f"{pod.name}: {pod.waiting}: {pod.waiting_message}")
    if fault := observed.mount_faults.get(pod.uid, ""):
        return Stage(3, reasons.FAILED_MOUNT, f"{pod.name}: {fault}")
    return None


# Why it cannot start

# What kubelet calls a pull that failed and was put off; ErrImagePull alone may be a registry's hiccup.
_NO_IMAGE: Final = frozenset({"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
# A daemon that ended twice ends a third time.
_CRASHES: Final = 2
# A Secret, a claim, a label of a node or room in a quota may appear later. The Deployment controller's day is for pods that make progress.
_NOT_MADE: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
NOT_MADE_S: Final = 600.0


class Missing(NamedTuple):
    """Something that a replica needs and that may still appear, in a sentence; from `until` on, in Unix seconds, the replica is broken."""

    until: float
    why: str


def broken(observed: Observed, pod: Pod) -> str:
    """Why a replica cannot start; empty while it still may, however long that takes."""
    if pod.ready:
        return ""
    if pod.exit_code == EXIT_PERMANENT or (pod.exit_code is not None and pod.restarts >= _CRASHES):
        return f"{pod.name} ended with exit code {pod.exit_code}: {pod.exit_message or pod.exit_reason or 'no reason given'}"
    if pod.fetching.permanent:
        return f"{pod.name} cannot fetch the model: {pod.fetching.exit_message or 'no reason given'}"
    if pod.waiting in _NO_IMAGE:
        return f"{pod.name}: {pod.waiting_message or pod.waiting}"
    return next((lack.why for lack in missing(observed, pod) if lack.until <= observed.now), "")


def missing(observed: Observed, pod: Pod) -> Iterator[Missing]:
    """What a replica lacks. An image that is being pulled is not missing, nor is a node that an autoscaler may add."""
    if pod.waiting in _NOT_MADE:
        yield Missing(pod.created + NOT_MADE_S, f"{pod.name}: {pod.waiting_message or pod.waiting}")
    if pod.unschedulable and not pod.assigned and not pod.short:
        since = observed.unschedulable.get(pod.uid, pod.unscheduled_since or pod.created)
        yield Missing(since + NOT_MADE_S, f"{pod.name} has no node: {pod.unscheduled}")
    if pod.unmounted_since is not None and pod.assigned:
        why = observed.mount_faults.get(pod.uid) or "its volumes are not mounted or it has no network; its Events say what is missing"
        yield Missing(pod.unmounted_since + NOT_MADE_S, f"{pod.name}: {why}")


# Whether it is unhealthy

# The prefix of a mark that the operator of 0.2.0 and before copied from the pod's node, and that nobody removes any more.
_COPIED: Final = "node: "
# Gateways call a step overdue after 30 s. The rest of what the service grants a step is waited for here.
_OVERDUE_S: Final = 30.0
_DEFAULT_PROGRESS: Final = "120s"
_WRONG_ANSWER: Final = "the answer to its deep check is wrong or late"
_SUREST: Final = (DEVICE_FAULT, DEEP_CHECK_FAILED, SILENT, STUCK)


@dataclass(frozen=True, slots=True)
class Unhealthy:
    """One unhealthy replica. `answers`: it answers requests all the same, only its device is reported as faulty. `wrong`: its deep check
    fails, so gateways send it requests only if no other replica answers."""

    pod: Pod
    reason: Reason
    why: str
    answers: bool = False
    wrong: bool = False


def unhealthy(observed: Observed, *, draining: bool = False) -> tuple[Unhealthy, ...]:
    """The unhealthy replicas that stay, the surest first; or those that drain, a drain which may yet be cancelled."""
    pods = (pod for pod in observed.pods if pod.counts and (pod.drain_deadline_ms is not None) is draining)
    found = (one for pod in pods if (one := _unhealthy(observed, pod)) is not None)
    return tuple(sorted(found, key=lambda one: (_SUREST.index(one.reason), one.pod.name)))


def unverified(observed: Observed, pod: Pod) -> str:
    """Why it is uncertain whether a Ready replica answers at this moment; empty if nothing speaks against it. Without gateways kubelet's
    word counts, but only after a minute: gateways may be restarting, or the operator."""
    if fault := _fault_of(observed, pod):
        return f"its device is faulty: {fault}"[:_MAX_FAULT]
    signal = _signal(observed, pod)
    if signal is None:
        return "its state is not known yet" if observed.unheard_s < MISSING_S else ""
    if signal.deep_failed:
        return _WRONG_ANSWER
    if signal.bad:
        return f"it does not answer as it should: {signal.reason or signal.verdict}"
    return "not every gateway has admitted it yet" if signal.lacking else ""


def _unhealthy(observed: Observed, pod: Pod) -> Unhealthy | None:
    """A pod that is not Ready is kubelet's to restart, and gateways hear nothing from it for a good reason."""
    reported = _by_signal(observed, pod) if pod.ready else None
    if fault := _fault_of(observed, pod):
        answers, wrong = pod.ready and reported is None, reported is not None and reported.wrong
        return Unhealthy(pod, DEVICE_FAULT, f"the device is faulty: {fault}"[:_MAX_FAULT], answers=answers, wrong=wrong)
    return reported


def reported_fault(observed: Observed, pod: Pod) -> str:
    """What others marked the pod with; else what its node says, if the pod has devices there."""
    if pod.device_fault and not pod.device_fault.startswith(_COPIED):
        return pod.device_fault
    return observed.faults.get(pod.node, "") if pod.devices else ""


def _fault_of(observed: Observed, pod: Pod) -> str:
    """What others report; else what the replica says itself, which gateways hear without us."""
    signal = _signal(observed, pod)
    return reported_fault(observed, pod) or ("" if signal is None else clean(signal.device_fault))


def _signal(observed: Observed, pod: Pod) -> EndpointSignal | None:
    return observed.signals.endpoints.get(pod.name) if observed.signals else None


def _by_signal(observed: Observed, pod: Pod) -> Unhealthy | None:
    signal = _signal(observed, pod)
    if signal is None or not signal.bad or signal.bad_s < _patience(observed, signal):
        return None
    if signal.verdict is Seen.UNHEARD:
        return Unhealthy(pod, SILENT, f"it is Ready, but its state was never received in {MISSING_S:.0f} s")
    if signal.deep_failed:
        return Unhealthy(pod, DEEP_CHECK_FAILED, _WRONG_ANSWER, wrong=True)
    if signal.reason == "silent":
        return Unhealthy(pod, SILENT, f"its state is no longer received: {signal.reason}")
    return Unhealthy(pod, STUCK, f"it answers but makes no progress: {signal.reason}")


def _patience(observed: Observed, signal: EndpointSignal) -> float:
    """Seconds that a bad report must last. An overdue step has the time that the service grants a step."""
    if signal.verdict is Seen.UNHEARD:
        return MISSING_S
    if signal.deep_failed or signal.reason != "overdue":
        return CONFIRM_S
    health = observed.spec.health if observed.spec else None
    return max(CONFIRM_S, parse_duration(health.progress_timeout if health else _DEFAULT_PROGRESS) - _OVERDUE_S)
