"""The judges of how often something may happen are judged, and what becomes of drawn kill points: each breach is planted and found."""

from __future__ import annotations

import json

import pytest
from pagoda_contracts.names import API_VERSION
from pagoda_operator.api.state import PODS, SERVICES
from support.judges.pacing import changes, flips, hot, recoveries, slow, stirred
from support.kube.fault_plan import KILLS, Seen
from support.kube.fault_proxy import Entry
from support.kube.kill_points import IN_A_LIFE, Point, drawn, every, line_of, nth, points_of, shares, sliced, unplayed
from support.kube.recorded import Event

PLACE = "/apis/apps/v1/namespaces/ns/deployments"
SERVICE = f"/apis/{API_VERSION}/namespaces/ns/inferenceservices/tiny"


def service(version, generation=1, change="MODIFIED", **reported):
    meta = {"uid": "u", "name": "tiny", "resourceVersion": str(version), "generation": generation}
    conditions = [{"type": kind, "status": status} for kind, status in reported.items()]
    return Event(0.0, SERVICES.kind, change, {"metadata": meta, "status": {"conditions": conditions}})


def pod(version, ready, change="MODIFIED", **meta):
    reported = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    return Event(
        0.0, PODS.kind, change, {"metadata": {"uid": "p", "name": "p", "resourceVersion": str(version), **meta}, "status": reported}
    )


def write(version, path=f"{PLACE}/d", method="PATCH", **more):
    name = more.pop("name", "")
    body = json.dumps({"metadata": {"name": name}}).encode()
    act, code, number = more.pop("act", "forward"), more.pop("code", 200), more.pop("number", 1)
    return Entry(more.pop("at", 0.0), Seen(number, method, path), act, code, body, version=version, **more)


def test_a_change_is_a_spec_of_somebodys_or_a_ready_pod_that_is_not_any_more():
    edits = [service(1), service(2, Ready="True"), service(5, generation=2), service(9, generation=2, change="DELETED")]
    assert changes(edits) == [1, 5, 9]
    assert changes([pod(1, ready=False), pod(2, ready=True), pod(3, ready=True), pod(4, ready=False)]) == [4]
    assert changes([pod(1, ready=True), pod(2, ready=False, deletionTimestamp="now"), pod(3, ready=False, change="DELETED")]) == []


def reported(*states, generation=1, first=1):
    return [service(first + number, generation, Ready=state) for number, state in enumerate(states)]


@pytest.mark.parametrize(
    ("events", "found"),
    [
        (reported("Unknown", "True", "True", "Unknown"), 0),
        (reported("Unknown", "True", "Unknown", "True"), 1),
        # Two changes with two flips each.
        (reported("True", "False", "True") + reported("False", "True", generation=2, first=10), 0),
        (reported("True", "False", "True") + reported("False", "True", "False", generation=2, first=10), 1),
    ],
)
def test_a_condition_flips_twice_in_a_change(events, found):
    assert len(list(flips(events))) == found


THREE = [write(2), write(3), write(4)]


@pytest.mark.parametrize(
    ("journal", "found"),
    [
        (THREE, 0),
        ([*THREE, write(5)], 1),
        ([*THREE, write(0)], 1),
        ([*THREE, write(5, code=409)], 0),
        # After the next change of the spec, as the server ordered it.
        ([*THREE, write(12)], 0),
        # An object more that is written, new or with a status: three more.
        ([*THREE, write(5, PLACE, "POST", name="e")], 0),
        ([*THREE, write(5, PLACE, "POST", name="e"), *[write(6, f"{PLACE}/e/status")] * 3], 1),
        # One that was struck may come again.
        ([*THREE, write(5, act="commit_then_500")], 0),
        ([*THREE, write(5, act="commit_then_500"), write(6)], 1),
        # Not so often the same, however many others there are.
        ([*[write(5, PLACE, "POST", name=f"e{number}") for number in range(9)], *[write(6)] * 20], 0),
        ([*[write(5, PLACE, "POST", name=f"e{number}") for number in range(9)], *[write(6)] * 21], 1),
        # What a killed process had on the wire is written too.
        ([*THREE, write(5, number=-1)], 1),
    ],
)
def test_a_change_is_three_writes_for_each_object_that_is_written(journal, found):
    assert len(list(hot([service(1), service(10, generation=2)], journal))) == found


def test_a_pod_that_starts_in_a_change_is_three_writes_more():
    begun = [service(1), pod(2, ready=False), pod(3, ready=True), service(10, generation=2)]
    assert list(hot(begun, [*THREE, *THREE])) == []
    assert len(list(hot(begun, [*THREE, *THREE, write(5)]))) == 1
    assert len(list(hot(begun, [*[write(12)] * 4]))) == 1  # it started in the change before
    assert len(list(hot(begun[:1] + begun[3:], [*THREE, *THREE]))) == 1


def test_at_rest_whatever_is_asked_to_be_written_is_found_and_the_lease_is_not():
    lease = write(0, "/apis/coordination.k8s.io/v1/namespaces/n/leases/l", number=0)
    assert list(stirred([Entry(0.0, Seen(1, "GET", PLACE), "forward", 200), lease])) == []
    events = "/apis/events.k8s.io/v1/namespaces/n/events"
    told = [json.dumps({"metadata": {"name": "x"}, "regarding": {"kind": kind}}).encode() for kind in ("Lease", "InferenceService")]
    of_holder, of_service = (Entry(0.0, Seen(1, "POST", events), "forward", 201, body) for body in told)
    assert list(stirred([of_holder])) == []
    assert len(list(stirred([of_service]))) == 1
    assert len(list(stirred([write(1), write(0, code=409), write(0, code=0, method="DELETE")]))) == 3


def read(life, number):
    return Entry(0.0, Seen(number, "GET", PLACE), "forward", 200, life=life)


def died(act="kill_before", **more):
    return write(0, act=act, code=0, life=0, killed=10.0, **more)


def test_a_recovery_is_the_next_lifes_requests_until_its_first_write_that_counts():
    event = write(1, "/apis/events.k8s.io/v1/namespaces/ns/events", "POST", name="e", life=1)
    after = [read(1, 5), read(1, 6), event, write(0, life=1, code=409), write(9, life=1, at=12.5), read(1, 9)]
    (found,) = recoveries([read(0, 1), died(), *after])
    assert (found.requests, found.seconds, found.owed) == (4, 2.5, True)
    assert [one.owed for one in recoveries([died("kill_after"), *after])] == [False]
    assert recoveries([died(), read(1, 5)]) == []
    assert recoveries([died(path="/apis/events.k8s.io/v1/namespaces/ns/events"), *after])[0].owed is False
    assert list(slow([died(), *after], 4)) == []
    assert len(list(slow([died(), *after], 3))) == 1
    assert list(slow([died("kill_after"), *after], 3)) == []


@pytest.mark.parametrize("requests", [9, 40, 300])
def test_points_are_drawn_once_each_and_at_a_request_of_a_life_once(requests):
    lives = list(drawn(requests, 27, "seed"))
    every_one = [point for life in lives for point in life]
    assert len(every_one) == len(set(every_one)) == 27
    assert all(len({point.number for point in life}) == len(life) <= IN_A_LIFE for life in lives)
    assert [life for life in lives if life != sorted(life)] == []
    assert {point.act for point in every_one} == {*KILLS}
    assert lives == list(drawn(requests, 27, "seed"))
    others = {point for life in drawn(requests, 27, "seed", set(every_one)) for point in life}
    assert len(others) == min(27, 3 * requests - 27)
    assert others.isdisjoint(every_one)


def test_a_sweep_is_whole_and_its_parts_and_shares_are_too():
    assert sorted(point for life in every(120) for point in life) == sorted(Point(n, act) for n in range(1, 121) for act in KILLS)
    assert sum(shares("abc", 100).values()) == 100
    whole = [("x", life) for life in every(120)]
    assert sorted(life for part in ("1/3", "2/3", "3/3") for life in sliced(whole, part)) == sorted(whole)
    assert points_of(line_of("x", whole[0][1])) == whole[0]


def test_a_point_has_struck_or_says_why_not():
    points = [Point(2, "kill_before"), Point(4, "kill_after"), Point(5, "kill_between"), Point(90, "kill_after")]
    journal = [read(0, 1), died(number=2), write(0, number=4, act="kill_after", code=0), read(1, 7)]
    journal.append(write(1, number=5, act="kill_between"))
    assert list(unplayed(points, journal)) == [
        "4=kill_after: it was not answered",
        "5=kill_between: nobody was alive any more",
        "90=kill_after: the life had 7 requests",
    ]


def test_a_share_of_values_is_counted_from_below():
    assert [nth([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 1.0)] == [1.0, 2.0, 3.0]
    assert nth(range(1, 101), 0.95) == 95
    assert nth([], 0.95) == 0.0
