"""I9, safe deletes: each names the very object that was meant, and no Ready pod goes without a plan. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from pagoda_contracts.names import ANNOTATION_DELETION_COST, ANNOTATION_DRAIN_DEADLINE, LABEL_SERVICE_UID, LOWEST_DELETION_COST
from pagoda_operator.api.state import PODS, SERVICES
from support.judges.status_truth import is_ready
from support.kube.client import Body
from support.kube.fault_proxy import Entry
from support.kube.recorded import Event


def unsafe_deletes(journal: Iterable[Entry]) -> Iterator[str]:
    """I9: every delete names the very object that was meant."""
    for entry in journal:
        if entry.seen.method == "DELETE":
            conditions = json.loads(entry.body or b"{}").get("preconditions") or {}
            if not conditions.get("uid"):
                yield f"I9: DELETE {entry.seen.path} without preconditions.uid"


def unplanned(events: Sequence[Event]) -> Iterator[str]:
    """I9: whoever deletes a Ready pod, by himself or by a Deployment's number, has first written on that very pod that it goes: the end of
    its drain, or the lowest deletion cost. With its service, which a user deletes, it goes without."""
    pods: dict[str, Body] = {}
    alive: set[str] = set()
    for event in events:
        meta = event.body["metadata"]
        gone = event.change == "DELETED" or "deletionTimestamp" in meta
        if event.kind == SERVICES.kind:
            (alive.discard if gone else alive.add)(meta["uid"])
        elif event.kind == PODS.kind:
            before = pods.pop(meta["uid"], None)
            # A recorder with a gap learns from a list that one is gone, and not what was written on it last: that has no such time.
            if before is not None and "deletionTimestamp" in meta and _owner(before) in alive and is_ready(before) and not _planned(before):
                yield f"I9: Pod {meta['name']} was Ready and deleted, nothing on it says why"
            if not gone:
                pods[meta["uid"]] = event.body


def _planned(pod: Body) -> bool:
    notes = pod["metadata"].get("annotations") or {}
    return ANNOTATION_DRAIN_DEADLINE in notes or notes.get(ANNOTATION_DELETION_COST) == str(LOWEST_DELETION_COST)


def _owner(pod: Body) -> str:
    return str(pod["metadata"].get("labels", {}).get(LABEL_SERVICE_UID, ""))
