"""Which replicas are unhealthy, and who goes first and last where there are to be fewer. Pure; called by `plan`, said by `status`.

An unhealthy replica is only marked here: gateways send it no request. `successor` decides whether another one is started in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pagoda_contracts.names import ANNOTATION_DEVICE_FAULT

from pagoda_operator.api.state import Observed
from pagoda_operator.decide.render.writes import Annotate
from pagoda_operator.decide.replicas.drain import Turn
from pagoda_operator.decide.replicas.sickness import OURS, Sick, doubt, leaving, sick_of, sound


@dataclass(frozen=True, slots=True)
class Health:
    """All unhealthy replicas, the surest first; marks to write on pods; in what order replicas go where there are to be fewer, by name.
    `doing`: what is done about the unhealthy ones; `held`: why nothing is; `again`: in how many seconds that may be otherwise."""

    sick: tuple[Sick, ...] = ()
    marks: tuple[Annotate, ...] = ()
    turns: Mapping[str, Turn] = field(default_factory=dict)
    doing: str = "The operator replaces unhealthy replicas one at a time."
    held: str = ""
    again: float | None = None


def judge(observed: Observed) -> Health:
    """Who is unhealthy, and who is marked for gateways."""
    sick = sick_of(observed)
    turns = {pod.name: Turn.DOUBTED for pod in observed.pods if pod.serves and doubt(observed, pod)}
    turns |= {one.pod.name: Turn.FAULTY if one.answers else Turn.FIRST for one in (*sick, *leaving(observed))}
    if not sound(observed, sick):
        turns |= {one.pod.name: Turn.LAST for one in sick if one.answers}
    return Health(sick, tuple(_marks(observed)), turns)


def _marks(observed: Observed) -> Iterable[Annotate]:
    """A node's fault on its pods, and off them when it is over. What others wrote there is theirs."""
    for pod in observed.pods:
        fault = observed.faults.get(pod.node, "") if pod.devices and pod.counts else ""
        if fault and not pod.device_fault:
            yield Annotate(pod, {ANNOTATION_DEVICE_FAULT: OURS + fault})
        elif not fault and pod.counts and pod.device_fault.startswith(OURS):
            yield Annotate(pod, {ANNOTATION_DEVICE_FAULT: None})
