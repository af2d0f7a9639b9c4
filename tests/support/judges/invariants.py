"""What must hold over everything that happened, whatever went wrong: pure functions from a recorded history to violations in words.

Numbers as in the fault matrix: I1 no orphan, I2 no double replica, I3 no lost update (lost_updates.py), I4 quota never exceeded, I8 honest
status (status_truth.py), I9 safe deletes (deletes.py), I10 one writer. How often something may happen (I6, I7, I12, and I8's flips) is in
pacing.py; that what is right stays so (I5) is seen by the scenarios' rests.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from pagoda_contracts.names import ANNOTATION_DEVICES, COMPONENT_INSPECT, LABEL_ACCELERATOR, LABEL_REVISION, LABEL_SERVICE_UID
from pagoda_operator.api.state import DEPLOYMENTS, LEASES, PODS, QUOTAS, SERVICES, Resource
from support.judges.deletes import unplanned, unsafe_deletes
from support.judges.lost_updates import foreign_writes, lost
from support.judges.status_truth import dishonest
from support.kube.client import Asked, Body
from support.kube.fault_proxy import Entry
from support.kube.recorded import Event

SURGE = 1
State = dict[tuple[str, str], Body]


def violations(events: Sequence[Event], journal: Sequence[Entry], asked: Iterable[Asked] = ()) -> list[str]:
    """All that was broken; empty where nothing was. `asked`: what users asked for and were told is done."""
    over_objects = [
        *orphans(events),
        *doubles(events),
        *surplus_replicas(events),
        *dishonest(events),
        *unplanned(events),
        *lost(events, asked),
    ]
    return sorted({*over_objects, *foreign_writes(journal), *unsafe_deletes(journal)})


def orphans(events: Sequence[Event]) -> Iterator[str]:
    """I1, at the end: nothing is labelled with the uid of a service that is gone, unless it is going too."""
    alive = {body["metadata"]["uid"] for (kind, _), body in final(events).items() if kind == SERVICES.kind}
    for (kind, name), body in final(events).items():
        owner = body["metadata"].get("labels", {}).get(LABEL_SERVICE_UID, "").removeprefix(f"{COMPONENT_INSPECT}-")
        if kind != SERVICES.kind and owner and owner not in alive and "deletionTimestamp" not in body["metadata"]:
            yield f"I1: {kind} {name} belongs to a service that is gone"


def doubles(events: Sequence[Event]) -> Iterator[str]:
    """I2, at every instant: one Deployment per service, revision and accelerator."""
    for state in states(events):
        names = Counter(_identity(body) for body in _of(state, DEPLOYMENTS) if _stays(body))
        yield from (f"I2: {count} Deployments for {name}" for name, count in names.items() if count > 1)


def surplus_replicas(events: Sequence[Event]) -> Iterator[str]:
    """I2, at every instant: pods that stay, and replicas that Deployments are to have, are no more than the most that was wanted since the
    service was last what it should be, and the surge. (Not than is wanted now: what a smaller number ends was right before it.)"""
    most: dict[str, int] = defaultdict(int)
    for event, state in zip(events, states(events), strict=True):
        if event.kind == SERVICES.kind and event.change != "DELETED":
            uid, wanted = event.body["metadata"]["uid"], event.body["spec"].get("replicas", 1)
            most[uid] = wanted if _settled(event.body) else max(most[uid], wanted)
        pods = Counter(body["metadata"]["labels"].get(LABEL_SERVICE_UID) for body in _of(state, PODS) if _stays(body))
        orders: Counter[str] = Counter()
        for body in _of(state, DEPLOYMENTS):
            orders[_identity(body)[0]] += body["spec"]["replicas"] if _stays(body) else 0
        for what, found in (("pods", pods), ("replicas ordered", orders)):
            many = [(uid, count) for uid, count in found.items() if uid in most and count > most[uid] + SURGE]
            yield from (f"I2: {count} {what} of {uid}, at most {most[uid]} + {SURGE}" for uid, count in many)


def _settled(body: Body) -> bool:
    """Whether its status says that all is as this very spec wants it."""
    status = body.get("status", {})
    reported = {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
    fresh = status.get("observedGeneration") == body["metadata"]["generation"]
    return bool(fresh and reported.get("Ready") == "True" and reported.get("Reconciling") == "False")


def overdrawn(events: Sequence[Event], quota: str, word: str) -> Iterator[str]:
    """I4, at every instant: what is held and promised grows only within the cap; above a lowered one it may stay, but not grow."""
    before = 0
    for state in states(events):
        caps = [_caps(body).get(word, 0) for body in _of(state, QUOTAS) if body["metadata"]["name"] == quota]
        total = _promised(state, word)
        if caps and total > max(caps[0], before):
            yield f"I4: {total} {word} are held or promised, the cap is {caps[0]}"
        before = total


def _promised(state: State, word: str) -> int:
    """Of each Deployment its target or its pods, whichever are more, and all pods that are going: each holds until it is gone."""
    pods, going = Counter[tuple[str, ...]](), 0
    targets = {_identity(body): _charged(body["spec"]["template"], word) * body["spec"]["replicas"] for body in _of(state, DEPLOYMENTS)}
    for pod in _of(state, PODS):
        if pod.get("status", {}).get("phase") in ("Failed", "Succeeded"):
            continue
        if "deletionTimestamp" in pod["metadata"] or _identity(pod) not in targets:
            going += _charged(pod, word)
        else:
            pods[_identity(pod)] += _charged(pod, word)
    return going + sum(max(target, pods[name]) for name, target in targets.items())


def _charged(body: Body, word: str) -> int:
    said = dict(part.split("=") for part in body["metadata"].get("annotations", {}).get(ANNOTATION_DEVICES, "").split(",") if part)
    return int(said.get(word, 0))


def _caps(quota: Body) -> dict[str, int]:
    return {f"mig-{entry['profile']}": entry["count"] for entry in quota["spec"]["devices"].get("migSlices", [])}


def rivals(journal: Sequence[Entry], identities: Mapping[int, str]) -> Iterator[str]:
    """I10: nobody writes before he has put his own name on the Lease, or once another one has, be it his own next life under the same
    name. `identities`: who speaks through which listener."""
    taken = [(entry.done, _holder(entry), entry.life) for entry in journal if _on_lease(entry)]
    began = _began(journal)
    for entry in journal:
        if not (entry.seen.write and entry.seen.number and 200 <= entry.code < 300):
            continue
        identity = identities[entry.seen.listener]
        holder, life = ([(name, life) for done, name, life in taken if done < entry.at] or [("", entry.life)])[-1]
        if holder != identity:
            yield f"I10: {entry.seen.method} {entry.seen.path} by {identity} while {holder or 'nobody'} leads"
        elif life != entry.life and entry.seen.number > 0 and entry.at >= began.get(entry.life, 0.0):
            yield f"I10: {entry.seen.method} {entry.seen.path} by life {entry.life} of {identity}, life {life} leads"


def _began(journal: Sequence[Entry]) -> dict[int, float]:
    """When each life first asked for the Lease, the first thing that it does. What seems to be its own before was the killed one's: on the
    wire, on a connection that the proxy had not looked at yet."""
    asked = [entry for entry in reversed(journal) if entry.seen.plural == LEASES.plural]
    return {entry.life: entry.at for entry in asked}


def fallen(journal: Sequence[Entry]) -> Iterator[str]:
    """I10: whoever comes to lead has a higher epoch than all before, and keeps it. Where somebody has deleted the Lease it begins anew."""
    # Of one that was killed over its answer nobody knows which version it made.
    known = [entry for entry in journal if _on_lease(entry) and entry.version]
    for before, after in pairwise(sorted(known, key=lambda entry: entry.version)):
        old, new = _lease(before), _lease(after)
        if after.seen.method == "POST" or not _holder(after):
            continue
        renewed = (_holder(before), old["acquireTime"]) == (_holder(after), new["acquireTime"])
        more = new["leaseTransitions"] - old["leaseTransitions"]
        if more if renewed else more < 1:
            yield f"I10: {_holder(after)} leads with epoch {new['leaseTransitions']} after {old['leaseTransitions']} of {_holder(before)}"


def _on_lease(entry: Entry) -> bool:
    return entry.seen.write and 200 <= entry.code < 300 and entry.seen.plural == LEASES.plural


def _lease(entry: Entry) -> Body:
    spec: Body = json.loads(entry.body)["spec"]
    return spec


def _holder(entry: Entry) -> str:
    return str(_lease(entry).get("holderIdentity") or "")


def states(events: Sequence[Event]) -> Iterator[State]:
    """What there was after each event."""
    state: State = {}
    for event in events:
        key = (event.kind, event.body["metadata"]["name"])
        if event.change != "DELETED":
            state[key] = event.body
        elif key in state and state[key]["metadata"]["uid"] == event.body["metadata"]["uid"]:  # else another one has the name by now
            del state[key]
        yield state


def final(events: Sequence[Event]) -> State:
    """What there is at the end."""
    state: State = {}
    for state in states(events):  # noqa: B007 - the last one counts
        pass
    return state


def _of(state: State, resource: Resource) -> list[Body]:
    return [body for (kind, _), body in state.items() if kind == resource.kind]


def _stays(body: Body) -> bool:
    over = body.get("status", {}).get("phase") in ("Failed", "Succeeded")
    return "deletionTimestamp" not in body["metadata"] and not over


def _identity(body: Body) -> tuple[str, ...]:
    labels = body["metadata"].get("labels", {})
    return tuple(labels.get(name, "") for name in (LABEL_SERVICE_UID, LABEL_REVISION, LABEL_ACCELERATOR))
