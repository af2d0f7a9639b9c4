"""The scheduler's part in the operator's fake cluster: its word on pods for which it finds no node."""

from __future__ import annotations

from pagoda_operator.api.state import PODS
from support.harness.harness import Harness

NO_ROOM = "0/2 nodes are available: 2 node(s) had volume node affinity conflict."


def refuse(made: Harness, reason: str = "Unschedulable", words: str = NO_ROOM) -> None:
    """The verdict on each pod that has no node, and what comes of it."""
    refuse_once(made, words, reason)
    made.settle()


def refuse_once(made: Harness, words: str = NO_ROOM, reason: str = "Unschedulable") -> None:
    """The verdict alone."""
    for body in made.api.of(PODS):
        if not body["status"].get("phase"):
            verdict = {"type": "PodScheduled", "status": "False", "reason": reason, "message": words}
            body["status"] = {"phase": "Pending", "conditions": [verdict]}
