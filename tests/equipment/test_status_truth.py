"""The judges of what a status says, of what is deleted and of what a user asked for are judged: each breach is planted and found."""

from __future__ import annotations

import pytest
from pagoda_contracts.names import ANNOTATION_DELETION_COST, ANNOTATION_DRAIN_DEADLINE, LABEL_SERVICE_UID, LOWEST_DELETION_COST
from pagoda_operator.api.state import PODS, QUOTAS, SERVICES
from support.judges.deletes import unplanned
from support.judges.lost_updates import lost
from support.judges.status_truth import LAG_S, dishonest, unfounded
from support.kube.client import Asked
from support.kube.recorded import Event

READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def pod(at, name="p1", change="MODIFIED", ready=True, **meta):
    body = {"metadata": {"name": name, "uid": name, "labels": {LABEL_SERVICE_UID: "u"}, **meta}, "status": READY if ready else {}}
    return Event(at, PODS.kind, change, body)


def going(at, name="p1", **meta):
    return pod(at, name, deletionTimestamp="now", **meta)


def service(at, reported=None, wanted=2, generation=1, change="MODIFIED", version=1, observed=None, **spec):
    """`told`: the ready replicas that it says it has, all that are wanted."""
    status = {} if reported is None else {**READY, "observedGeneration": observed or generation, "readyReplicas": reported}
    meta = {"name": "s", "uid": "u", "generation": generation, "resourceVersion": str(version)}
    return Event(at, SERVICES.kind, change, {"metadata": meta, "spec": {"replicas": wanted, **spec}, "status": status})


BEGUN = [service(0), pod(1), pod(1, "p2")]


@pytest.mark.parametrize(
    ("events", "breaches"),
    [
        ([*BEGUN, service(2, 2)], 0),
        # Nobody is ready; one is; two were, one after the other.
        ([service(0), service(1, 2)], 2),
        ([service(0), pod(1), service(2, 2)], 2),
        ([service(0), pod(1), pod(1, ready=False), pod(1, "p2"), service(2, 2)], 2),
        ([service(0), pod(1), pod(1, "p2", change="DELETED"), service(2, 2)], 2),
        ([service(0), pod(1), going(1, "p2"), service(2, 2)], 2),
        # Ready once, though soon over.
        ([*BEGUN, going(1), service(2, 2)], 0),
        ([*BEGUN, service(2, 2), going(3), pod(4, "p2", ready=False)], 0),
        # What was so before the last edit is no answer to it, unless it lasts.
        ([*BEGUN, service(2, 2), service(3, generation=2, wanted=3), service(4, 3, generation=2, wanted=3)], 2),
        ([*BEGUN, service(2, 2), going(3), service(4, generation=2), service(5, 2, generation=2)], 2),
        ([*BEGUN, service(2, 2), service(4, generation=2), service(5, 2, generation=2)], 0),
        # What it said before the edit is no answer either.
        ([*BEGUN, service(2, 2), service(3, 2, generation=2, observed=1), pod(4, ready=False), pod(99, ready=False)], 0),
        # Nor what was so for the service of that name before.
        ([*BEGUN, service(2, 2), service(3, change="DELETED"), pod(4)], 0),
    ],
)
def test_a_status_that_counts_ready_replicas_had_so_many_ready_pods(events, breaches):
    assert len(set(unfounded(events))) == breaches


def test_an_operator_that_agrees_with_itself_and_not_with_the_pods_is_found():
    """As the first judge was: three told, three wanted, none there."""
    assert list(dishonest([service(0, wanted=3), service(1, 3, wanted=3)])) == [
        "I8: Ready with 0 Ready pods, 3 are wanted",
        "I8: 3 ready replicas told, at most 0 pods were Ready",
    ]


@pytest.mark.parametrize(("later", "breaches"), [(LAG_S - 1, 0), (LAG_S + 1, 2)])
def test_a_status_that_stays_while_the_pods_are_gone_is_a_lie_in_time(later, breaches):
    said = [*BEGUN, service(2, 2), pod(10, ready=False)]
    assert len(set(unfounded([*said, pod(10 + later, "p3", ready=False)]))) == breaches
    assert list(unfounded([*said, service(11, 1, wanted=1), pod(10 + later, "p3", ready=False)])) == []
    assert list(unfounded([*said, service(11, change="DELETED"), pod(10 + later, "p3", ready=False)])) == []


def test_of_a_status_from_before_the_record_nobody_knows_until_it_is_written_again():
    """Its pods may be told later, being newer."""
    assert list(unfounded([service(0, 2), pod(1), pod(1, "p2")])) == []
    assert len(list(unfounded([service(0, 2), pod(1), service(2, 3, wanted=3)]))) == 2


@pytest.mark.parametrize(
    ("events", "breaches"),
    [
        ([service(0), pod(1), going(2)], 1),
        ([service(0), pod(1), pod(2, annotations={ANNOTATION_DRAIN_DEADLINE: "9"}), going(3)], 0),
        ([service(0), pod(1), pod(2, annotations={ANNOTATION_DELETION_COST: str(LOWEST_DELETION_COST)}), going(3)], 0),
        ([service(0), pod(1), pod(2, annotations={ANNOTATION_DELETION_COST: "5"}), going(3)], 1),
        # With the very deletion it is too late.
        ([service(0), pod(1), going(2, annotations={ANNOTATION_DRAIN_DEADLINE: "9"})], 1),
        ([service(0), pod(1, ready=False), going(2)], 0),
        ([service(0), pod(1), pod(2, ready=False), going(3)], 0),
        ([service(0), pod(1), service(2, change="DELETED"), going(3)], 0),
        # Once each, and not where a gap hides what was written on it.
        ([service(0), pod(1), going(2), going(3), going(4, change="DELETED")], 1),
        ([service(0), pod(1), pod(2, change="DELETED")], 0),
    ],
)
def test_no_ready_pod_goes_unless_it_stands_on_it(events, breaches):
    assert len(list(unplanned(events))) == breaches


@pytest.mark.parametrize(
    ("events", "breaches"),
    [
        ([service(0, version=1), service(1, version=2, wanted=1)], []),
        ([service(0, version=1), service(1, version=2)], ["spec.replicas is 2, its user last asked for 1"]),
        # An older word that comes late wins, for an instant.
        (
            [service(0, version=1), service(1, version=2, wanted=1), service(2, version=3), service(3, version=4, wanted=1)],
            ["spec.replicas"],
        ),
        ([service(0, version=1), service(1, version=6, wanted=1)], ["spec.engine is None"]),
        ([service(0, version=1), service(1, version=6, wanted=1, engine={"length": 5, "more": 1})], []),
        ([service(0, version=1), service(1, version=6, wanted=1, engine={"length": 4, "more": 1})], ["spec.engine.length is 4"]),
        ([service(0, version=1), service(1, version=6, wanted=1, engine={"length": 5})], ["spec.engine.more is None"]),
        ([service(0, version=1), service(1, version=7, change="DELETED")], []),
    ],
)
@pytest.mark.parametrize("kind", [SERVICES.kind, QUOTAS.kind])
def test_what_a_user_last_asked_for_is_what_there_is(kind, events, breaches):
    asked = [
        Asked("u", 6, {"engine": {"length": 5}}),
        Asked("u", 5, {"engine": {"more": 1, "length": 4}}),
        Asked("u", 1, {"replicas": 2}),
        Asked("u", 2, {"replicas": 1}),
        Asked("v", 1, {"a": 1}),
    ]
    events = [Event(event.at, kind, event.change, event.body) for event in events]
    found = list(lost(events, asked))
    assert len(found) == len(breaches)
    assert all(line.startswith(f"I3: {kind} {words}") for line, words in zip(found, breaches, strict=True))
    assert list(lost(events, [])) == []
