"""How Flux, helm and others who wait read a status: the generic rules of sigs.k8s.io/cli-utils kstatus (generic.go), in their order."""

from __future__ import annotations

from typing import Any, Literal

Verdict = Literal["Terminating", "InProgress", "Failed", "Current"]


def kstatus(body: dict[str, Any]) -> Verdict:
    """What the rules say of an object of a kind that they do not know."""
    meta, status = body["metadata"], body.get("status") or {}
    if meta.get("deletionTimestamp"):
        return "Terminating"
    if "observedGeneration" in status and "generation" in meta and status["observedGeneration"] != meta["generation"]:
        return "InProgress"
    for line in status.get("conditions", []):
        if line["type"] == "Reconciling" and line["status"] == "True":
            return "InProgress"
        if line["type"] == "Stalled" and line["status"] == "True":
            return "Failed"
    return _by_ready(status)


def _by_ready(status: dict[str, Any]) -> Verdict:
    """The last resort; an object that says nothing counts as done."""
    ready = next((line["status"] for line in status.get("conditions", []) if line["type"] == "Ready"), "True")
    return "Current" if ready == "True" else "InProgress"
