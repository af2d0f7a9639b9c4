"""room: how many replicas of a service can be placed, for scaling to be clamped by. Pure; called by `scaler`.

A pool that grows has no such number: its nodes come because pods wait, and as many at a time as pods wait.
"""

from __future__ import annotations

from typing import Final

from pagoda_operator.api.state import Observed
from pagoda_operator.decide.placement.place import room
from pagoda_operator.decide.placement.question import ask

# Nodes that joined within a day: somebody adds them, by hand or a node autoscaler, whose pools mostly shrink at night.
GROWS_S: Final = 86_400.0


def placeable(observed: Observed) -> int | None:
    """Replicas that have a place and those that would find one now; None where nobody can tell."""
    found = room(ask(observed, observed.spec)) if observed.spec is not None else None
    if found is None or observed.now - found.joined < GROWS_S:
        return None
    return sum(pod.assigned for pod in observed.pods if pod.counts) + found.free
