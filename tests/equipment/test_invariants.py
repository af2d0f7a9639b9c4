"""The judges of the fault tests are judged: each finds the breach that is planted for it, and a whole history has none."""

from __future__ import annotations

import json

import pytest
from pagoda_contracts.names import ANNOTATION_DEVICES, API_VERSION, LABEL_ACCELERATOR, LABEL_REVISION, LABEL_SERVICE_UID
from pagoda_operator.api.state import DEPLOYMENTS, PODS, QUOTAS, SERVICES
from support.judges.invariants import fallen, final, overdrawn, rivals, violations
from support.kube.client import Asked
from support.kube.fault_plan import LINES, AtLine, AtRequests, EveryWrite, Held, Reaction, Seen, Silent, Storm, poisoned
from support.kube.fault_proxy import Entry, lists
from support.kube.recorded import Event

ROOT = f"/apis/{API_VERSION}/namespaces/ns"


def event(kind, name, change="ADDED", version=1, uid="u", **more):
    labels = {LABEL_SERVICE_UID: uid, LABEL_REVISION: "r", LABEL_ACCELERATOR: "a"}
    meta = {"name": name, "uid": uid if kind == "InferenceService" else name, "labels": labels, "resourceVersion": str(version)}
    return Event(0.0, kind, change, {"metadata": meta | more.pop("meta", {}), **more})


def deployment(name, replicas=1, change="ADDED"):
    return event(DEPLOYMENTS.kind, name, change, spec={"replicas": replicas})


def service(version=1, replicas=1, change="ADDED", generation=1, **status):
    return event(SERVICES.kind, "tiny", change, version, meta={"generation": generation}, spec={"replicas": replicas}, status=status)


def condition(kind, state):
    return {"conditions": [{"type": kind, "status": state}]}


def entry(method, path, body=None, code=200):
    return Entry(0.0, Seen(1, method, path), "forward", code, json.dumps(body or {}).encode())


def ready(count=1, **more):
    return {"observedGeneration": 1, "readyReplicas": count, **condition("Ready", "True"), **more}


def ready_pod(name):
    return event(PODS.kind, name, status=condition("Ready", "True"))


WHOLE = [service(), deployment("tiny-1"), ready_pod("p1"), service(2, change="MODIFIED", **ready())]
SAFE = [entry("DELETE", f"{ROOT}/pods/p1", {"preconditions": {"uid": "p1"}}), entry("PATCH", f"{ROOT}/inferenceservices/tiny/status")]

BREACHES = {
    "I1": ([*WHOLE, service(3, change="DELETED")], []),
    "I2: 2 Deployments": ([*WHOLE, deployment("tiny-2")], []),
    "I2: 3 replicas ordered": ([*WHOLE, deployment("tiny-1", 3, "MODIFIED")], []),
    "I2: 3 pods": ([*WHOLE, event(PODS.kind, "p2"), event(PODS.kind, "p3")], []),
    "I3: PATCH": (WHOLE, [entry("PATCH", f"{ROOT}/inferenceservices/tiny")]),
    "I8: observedGeneration": ([*WHOLE, service(3, change="MODIFIED", observedGeneration=0)], []),
    "I8: Ready": ([*WHOLE, service(3, change="MODIFIED", **ready(0))], []),
    "I9: DELETE": (WHOLE, [entry("DELETE", f"{ROOT}/pods/p1")]),
    "I3: InferenceService": (WHOLE, [], [Asked("u", 1, {"replicas": 2})]),
    "I9: Pod": ([*WHOLE, event(PODS.kind, "p1", "MODIFIED", meta={"deletionTimestamp": "now"})], []),
}


def test_a_whole_history_breaks_nothing():
    assert violations(WHOLE, SAFE) == []


@pytest.mark.parametrize("name", BREACHES)
def test_every_judge_finds_its_breach_and_only_that(name):
    found = violations(*BREACHES[name])
    assert found
    assert all(line.startswith(name) for line in found)


def test_what_a_smaller_number_leaves_over_is_right_until_all_is_settled():
    """Two serve, one is wanted, then none."""
    two = [service(replicas=2), deployment("tiny-1", 2), ready_pod("p1"), ready_pod("p2")]
    none = service(2, replicas=0, change="MODIFIED", generation=2, **ready(2))
    assert violations([*two, none], []) == []
    done = {**condition("Ready", "True"), "observedGeneration": 2}
    assert violations([*two, none, service(3, replicas=0, change="MODIFIED", generation=2, **done)], []) == []
    done["conditions"] = [*done["conditions"], {"type": "Reconciling", "status": "False"}]
    settled = violations([*two, none, service(3, replicas=0, change="MODIFIED", generation=2, **done)], [])
    assert [line.partition(" of u")[0] for line in settled] == ["I2: 2 pods", "I2: 2 replicas ordered"]


def test_a_breach_in_the_middle_is_found_though_the_end_is_right():
    pods = [event(PODS.kind, name, change) for change in ("ADDED", "DELETED") for name in ("p2", "p3")]
    assert any(line.startswith("I2: 3 pods") for line in violations([*WHOLE, *pods], []))


WORD = "mig-1g.10gb"
SLICE = {"annotations": {ANNOTATION_DEVICES: f"{WORD}=1"}}


def capped(count):
    return event(QUOTAS.kind, "q", "MODIFIED", spec={"devices": {"migSlices": [{"profile": "1g.10gb", "count": count}]}})


def charged(replicas, change="MODIFIED"):
    return event(DEPLOYMENTS.kind, "d", change, spec={"replicas": replicas, "template": {"metadata": SLICE}})


def pod(name, change="ADDED", **meta):
    return event(PODS.kind, name, change, meta=SLICE | meta)


def going(name):
    return pod(name, "MODIFIED", deletionTimestamp="now")


@pytest.mark.parametrize(
    ("events", "breaches"),
    [
        ([capped(2), charged(2), pod("p1"), pod("p2")], 0),
        ([capped(2), charged(3)], 1),
        ([capped(2), charged(2), pod("p1"), pod("p2"), pod("p3")], 1),
        # What is going holds until it is gone.
        ([capped(2), charged(2), pod("p1"), pod("p2"), charged(1), going("p2"), charged(2)], 1),
        ([capped(2), charged(2), pod("p1"), pod("p2"), charged(1), going("p2"), pod("p2", "DELETED"), charged(2)], 0),
        # Over a lowered cap nothing is taken away at once, and nothing is added.
        ([capped(2), charged(2), pod("p1"), pod("p2"), capped(1), charged(1), going("p2"), pod("p2", "DELETED")], 0),
        ([capped(2), charged(2), pod("p1"), pod("p2"), capped(1), charged(3)], 1),
        ([charged(9)], 0),
    ],
)
def test_a_cap_is_judged_at_every_instant(events, breaches):
    assert len(list(overdrawn(events, "q", WORD))) == breaches
    assert list(overdrawn(events, "another", WORD)) == []


LEASE = "/apis/coordination.k8s.io/v1/namespaces/n/leases/l"


def on_lease(at, holder, listener, life=0, epoch=1, taken="", method="PUT"):
    spec = {"holderIdentity": holder, "leaseTransitions": epoch, "acquireTime": taken or holder}
    body = json.dumps({"spec": spec}).encode()
    return Entry(at, Seen(0, method, LEASE, listener=listener), "forward", 200, body, done=at + 0.1, version=int(10 * at), life=life)


def asked_for(at, life):
    return Entry(at, Seen(0, "GET", LEASE), "forward", 200, done=at + 0.1, life=life)


def written(at, listener, code=200, life=0, number=1):
    seen = Seen(number, "PATCH", "/apis/apps/v1/namespaces/ns/deployments/d", listener=listener)
    return Entry(at, seen, "forward", code, done=at + 0.1, life=life)


@pytest.mark.parametrize(
    ("journal", "breaches"),
    [
        ([on_lease(1, "a", 0), written(2, 0), on_lease(3, "b", 1), written(4, 1)], 0),
        ([written(0.5, 0), on_lease(1, "a", 0)], 1),
        ([on_lease(1, "a", 0), written(2, 1)], 1),
        ([on_lease(1, "a", 0), on_lease(3, "b", 1), written(4, 0)], 1),
        ([on_lease(1, "a", 0), on_lease(3, "b", 1), written(4, 0, code=409)], 0),
        # On its way while the other one took over: it was the leader's when it was sent.
        ([on_lease(1, "a", 0), on_lease(3, "b", 1), written(3.05, 0)], 0),
        ([on_lease(1, "a", 0), on_lease(2, "", 0), written(3, 0)], 1),
        # Its next life under the same name.
        ([on_lease(1, "a", 0), asked_for(2, 1), on_lease(3, "a", 0, 1), written(4, 0, life=1)], 0),
        ([on_lease(1, "a", 0), asked_for(2, 1), written(2.5, 0, life=1), on_lease(3, "a", 0, 1)], 1),
        ([on_lease(1, "a", 0), asked_for(2, 1), on_lease(3, "a", 0, 1), written(4, 0)], 1),
        ([on_lease(1, "a", 0), written(4, 0, life=1)], 1),
        # What a killed one had on the wire is nobody's next write.
        ([on_lease(1, "a", 0), asked_for(2, 1), on_lease(3, "a", 0, 1), written(4, 0, number=-1)], 0),
        ([on_lease(1, "a", 0), written(1.5, 0, life=1), asked_for(2, 1), on_lease(3, "a", 0, 1)], 0),
    ],
)
def test_nobody_writes_beside_the_leader(journal, breaches):
    assert len(list(rivals(journal, {0: "a", 1: "b"}))) == breaches


@pytest.mark.parametrize(
    ("journal", "breaches"),
    [
        ([on_lease(1, "a", 0), on_lease(2, "a", 0), on_lease(3, "b", 1, epoch=2)], 0),
        ([on_lease(1, "a", 0), on_lease(2, "", 0), on_lease(3, "b", 1, epoch=2)], 0),
        ([on_lease(1, "a", 0), on_lease(3, "b", 1)], 1),
        ([on_lease(1, "a", 0), on_lease(3, "a", 0, taken="again")], 1),
        ([on_lease(1, "a", 0), on_lease(3, "a", 0, epoch=2)], 1),
        ([on_lease(1, "a", 0, epoch=3), on_lease(2, "a", 0, epoch=3), on_lease(3, "b", 1, epoch=2)], 1),
        ([on_lease(1, "a", 0, epoch=3), on_lease(3, "b", 1, method="POST")], 0),
        ([on_lease(1, "a", 0), on_lease(0, "a", 0, epoch=2), on_lease(2, "a", 0, epoch=3, taken="again")], 0),
    ],
)
def test_epochs_rise_with_each_leader_and_stay_while_it_leads(journal, breaches):
    assert len(list(fallen(journal))) == breaches


def test_the_end_of_one_object_is_not_that_of_the_next_with_its_name():
    """The recorder may learn late, from a list, that the first one is gone."""
    events = [service(1), event(SERVICES.kind, "tiny", version=2, uid="next"), service(3, change="DELETED")]
    assert [body["metadata"]["uid"] for body in final(events).values()] == ["next"]


@pytest.mark.parametrize("path", ["/api/v1/namespaces/ns/pods/a", "/api/v1/pods", "/apis/apps/v1/namespaces/ns/pods"])
def test_a_path_names_its_kind(path):
    assert Seen(1, "GET", path).plural == "pods"


def test_a_plan_strikes_where_it_says():
    assert [AtRequests({2: Reaction("lose")}).request(Seen(i, "GET", "/api/v1/pods")).act for i in (1, 2, 3)] == [
        "forward",
        "lose",
        "forward",
    ]
    storm = Storm(1, (409,), 1.0, count=2, only_writes=True)
    asked = [Seen(number, method, "/a") for number, method in ((1, "GET"), (0, "PATCH"), (2, "PATCH"), (3, "PATCH"), (4, "PATCH"))]
    assert [storm.request(seen).code for seen in asked] == [0, 0, 409, 409, 0]
    lost = EveryWrite(2, Reaction("lose"))
    assert [lost.request(seen).act for seen in asked] == ["forward", "forward", "lose", "forward", "lose"]
    line = json.dumps({"type": "ADDED", "object": {"metadata": {}}}).encode()
    pods = AtLine(2, "drop", "pods")
    watch = Seen(0, "GET", "/api/v1/pods", watch=True)
    assert [pods.lines(watch, i, line) for i in (1, 2, 3)] == [[line], [], [line]]


def test_silent_connections_are_watches_or_all():
    asked = [Seen(1, "GET", "/api/v1/pods"), Seen(0, "GET", "/api/v1/pods", watch=True)]
    for watches_only, silent, acts in (
        (True, True, ["forward", "silence"]),
        (False, True, ["silence"] * 2),
        (False, False, ["forward"] * 2),
    ):
        assert [Silent(watches_only, silent).request(seen).act for seen in asked] == acts


def test_one_write_of_one_listener_is_held():
    plan, path = Held("pods", listener=1), "/api/v1/namespaces/ns/pods/a"
    asked = [
        Seen(1, "PATCH", path, listener=1),
        Seen(2, "PATCH", path),
        Seen(3, "GET", path, listener=1),
        Seen(4, "PATCH", path, listener=1),
    ]
    assert [plan.request(seen).act for seen in asked] == ["forward"] * 4
    plan.armed = True
    assert [plan.request(seen).act for seen in asked[1:] + asked[:1]] == ["forward", "forward", "hold", "forward"]
    assert plan.holds()


@pytest.mark.parametrize("what", LINES)
def test_every_corruption_changes_the_line(what):
    line = json.dumps({"type": "ADDED", "object": {"metadata": {"resourceVersion": "5"}}}).encode() + b"\n"
    assert list(poisoned(what, line)) != [line]


@pytest.mark.parametrize(
    ("path", "stale"),
    [
        ("/api/v1/namespaces/ns/pods", True),
        ("/api/v1/pods", True),  # of services in several namespaces at once
        ("/apis/apps/v1/deployments", True),
        (ROOT + "/inferenceservices", True),
        ("/apis/apps/v1/namespaces/ns/deployments/pods", False),
        (ROOT + "/inferenceservices/tiny", False),
    ],
)
def test_a_stale_list_is_stale_in_every_shape_that_the_operator_asks_for(path, stale):
    assert lists(Seen(1, "GET", path)) == stale
