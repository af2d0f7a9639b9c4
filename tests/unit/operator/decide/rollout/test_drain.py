"""Each step of a replica's way out and back, by itself: who goes, what is written and told, and what is waited for."""

from dataclasses import replace

import pytest
from pagoda_contracts.names import ANNOTATION_DELETION_COST, ANNOTATION_DRAIN_DEADLINE, LOWEST_DELETION_COST
from pagoda_operator.api.pods import Answer, DaemonState, Order, Pod
from pagoda_operator.decide.replicas.drain import DrainState, Removal, answered, drain

NOW = 1000.0
DEADLINE = int((NOW + 20) * 1000)


def pod(name, **words):
    meta = {"uid": f"uid-{name}", "resourceVersion": "1", "creationTimestamp": f"2026-01-01T00:00:0{name[-1]}Z"}
    made = Pod(name, "rev", "acc", ready=True, running=True, phase="Running", assigned=True, address="10.0.0.1", meta=meta)
    return replace(made, **words)


def leaving(name, *, cost=0, **words):
    return pod(name, drain_deadline_ms=DEADLINE, deletion_cost=cost, **words)


def look(*pods, target, replicas=None, **words):
    answers = {f"uid-{name}": answer for name, answer in words.pop("answers", {}).items()}
    return drain(DrainState(pods, len(pods) if replicas is None else replicas, target, timeout_s=30, now=NOW, answers=answers, **words))


def notes(step):
    return {write.name: dict(write.annotations) for write in step.annotate}


def test_with_as_many_as_wanted_nothing_is_done():
    step = look(pod("a1"), pod("a2"), target=2)
    assert (step.replicas, step.annotate, step.orders, step.leaving) == (2, (), (), ())


def test_the_pod_is_annotated_before_its_daemon_gets_an_order():
    step = look(pod("a1"), pod("a2"), target=1)
    assert notes(step) == {"a2": {ANNOTATION_DRAIN_DEADLINE: str(int((NOW + 30) * 1000))}}
    assert (step.replicas, step.orders, step.leaving) == (2, (), ("a2",))


def test_an_unverified_replica_goes_before_one_that_answers_and_cancels_no_drain():
    uncertain = {"order": {"a1": Removal.UNVERIFIED}}
    assert look(pod("a1"), pod("a2"), target=1, in_flight={"a2": 0}, **uncertain).leaving == ("a1",)
    assert look(pod("a1"), leaving("a2"), target=1, in_flight={"a2": 9}, **uncertain).leaving == ("a2",)


def test_a_replica_whose_adapters_are_elsewhere_goes_before_one_that_has_them_alone():
    load = {"a1": 0, "a2": 9}
    assert look(pod("a1"), pod("a2"), target=1, in_flight=load).leaving == ("a1",)
    assert look(pod("a1"), pod("a2"), target=1, in_flight=load, sole={"uid-a1": 1}).leaving == ("a2",)
    assert look(leaving("a1"), pod("a2"), target=1, sole={"uid-a1": 1}).leaving == ("a1",), "its drain goes on"


def test_the_daemon_is_ordered_to_drain_until_the_annotated_deadline():
    step = look(pod("a1"), leaving("a2"), target=1)
    assert step.orders == (Order("a2", "uid-a2", "10.0.0.1", DEADLINE, 20_000),)
    assert (step.replicas, step.annotate, step.leaving) == (2, (), ("a2",))


def test_an_order_is_never_longer_than_a_drain_may_take():
    for written_ms, reported_ms in ((300_000, 30_000), (1, 1)):
        going = replace(leaving("a2"), drain_deadline_ms=int(NOW * 1000) + written_ms)
        assert [report.left_ms for report in look(pod("a1"), going, target=1).orders] == [reported_ms]


def test_while_requests_run_it_is_asked_again_and_stays():
    step = look(pod("a1"), leaving("a2", ready=False), target=1, answers={"a2": Answer(DaemonState.DRAINING, 3)})
    assert ([report.pod for report in step.orders], step.replicas, step.annotate) == (["a2"], 2, ())


def test_an_answer_decides_the_next_step_of_a_drain_without_another_plan():
    """Where a Deployment changes too, nothing: that needs all that a plan observes."""
    drained = {"uid-a2": Answer(DaemonState.DRAINING, 0)}
    state = DrainState((pod("a1"), leaving("a2", ready=False)), 2, 1, timeout_s=30, now=NOW)
    cheap = replace(state, pods=(pod("a1"), leaving("a2", ready=False, cost=LOWEST_DELETION_COST)))
    (write,) = answered([state], drained)
    assert dict(write.annotations) == {ANNOTATION_DELETION_COST: str(LOWEST_DELETION_COST)}
    assert answered([state, cheap], drained) == ()
    assert answered([state], {"uid-a2": Answer(DaemonState.DRAINING, 1)}) == ()


def test_a_drained_pod_gets_the_lowest_cost_before_replicas_falls():
    drained = {"a2": Answer(DaemonState.DRAINING, 0)}
    step = look(pod("a1"), leaving("a2", ready=False), target=1, answers=drained)
    assert notes(step) == {"a2": {ANNOTATION_DELETION_COST: str(LOWEST_DELETION_COST)}}
    assert (step.replicas, step.orders) == (2, ())
    step = look(pod("a1"), leaving("a2", ready=False, cost=LOWEST_DELETION_COST), target=1, answers=drained)
    assert (step.replicas, step.annotate, step.orders) == (1, (), ())


def test_the_last_one_needs_no_cost():
    step = look(leaving("a1", ready=False), target=0, answers={"a1": Answer(DaemonState.DRAINING, 0)})
    assert (step.replicas, step.annotate) == (0, ())


def test_at_the_deadline_it_goes_whatever_runs():
    late = replace(leaving("a2", cost=LOWEST_DELETION_COST), drain_deadline_ms=int(NOW * 1000))
    step = look(pod("a1"), late, target=1, answers={"a2": Answer(DaemonState.DRAINING, 9)})
    assert (step.replicas, step.orders) == (1, ())


@pytest.mark.parametrize(
    ("words", "answer", "goes"),
    [
        ({}, Answer(DaemonState.REFUSED), True),  # takes no orders from us: SIGTERM drains it
        ({}, Answer(DaemonState.SILENT), False),  # ready and not reached: until the deadline
        ({"ready": False}, Answer(DaemonState.SILENT), True),
        ({"address": ""}, None, True),
        ({}, Answer(DaemonState.SERVING), False),
        ({}, Answer(DaemonState.ENDING, 1), False),
    ],
)
def test_a_replica_that_takes_no_orders_is_drained_by_its_deletion(words, answer, goes):
    victim = leaving("a2", cost=LOWEST_DELETION_COST, **words)
    step = look(pod("a1"), victim, target=1, answers={"a2": answer} if answer else {})
    assert step.replicas == (1 if goes else 2)


def test_a_silent_replica_that_is_idle_by_the_gateways_may_be_removed():
    victim = leaving("a2", cost=LOWEST_DELETION_COST)
    step = look(pod("a1"), victim, target=1, answers={"a2": Answer(DaemonState.SILENT)}, in_flight={"a2": 0})
    assert step.replicas == 1


@pytest.mark.parametrize(
    ("other", "first"),
    [
        (pod("a3", ready=False, assigned=False, phase="Pending"), "a3"),
        (pod("a3", ready=False, phase="Pending"), "a3"),
        (pod("a3", ready=False), "a3"),
        (pod("a3"), "a2"),  # the idlest of the ready ones
    ],
)
def test_the_replica_sets_own_order_comes_before_load(other, first):
    step = look(pod("a1"), pod("a2"), other, target=2, in_flight={"a1": 4, "a2": 1, "a3": 2})
    # One that serves nobody needs no drain.
    note = ANNOTATION_DELETION_COST if first == "a3" else ANNOTATION_DRAIN_DEADLINE
    assert {name: list(said) for name, said in notes(step).items()} == {first: [note]}


def test_without_reports_the_newest_goes_and_an_unreported_one_is_not_the_idlest():
    assert list(notes(look(pod("a1"), pod("a3"), pod("a2"), target=2))) == ["a3"]
    assert list(notes(look(pod("a1"), pod("a2"), target=1, in_flight={"a1": 5}))) == ["a1"]


def test_a_draining_replica_stays_chosen_when_loads_change():
    step = look(pod("a1"), leaving("a2"), target=1, in_flight={"a1": 0, "a2": 9})
    assert ([report.pod for report in step.orders], step.annotate) == (["a2"], ())


def test_one_that_broke_goes_instead_of_one_that_can_be_turned_back():
    step = look(pod("a1", ready=False), leaving("a2"), target=1)
    assert [(report.pod, report.deadline_ms) for report in step.orders] == [("a2", None)]
    assert step.replicas == 2
    assert notes(step) == {"a1": {ANNOTATION_DELETION_COST: str(LOWEST_DELETION_COST)}}


def test_one_that_broke_goes_once_it_is_cheaper_than_one_that_is_turned_back():
    """The one that drains is unready soon: then cost alone says which of the two the ReplicaSet takes."""
    broken = pod("a1", ready=False, deletion_cost=LOWEST_DELETION_COST)
    assert look(broken, leaving("a2", cost=LOWEST_DELETION_COST), target=1).replicas == 2
    assert look(broken, leaving("a2"), target=1).replicas == 1


@pytest.mark.parametrize("cost", [0, LOWEST_DELETION_COST])
def test_replicas_falls_by_one_while_two_leave_and_one_of_them_is_surely_first(cost):
    """The other has drained too: it may go, but until it is the cheapest the ReplicaSet might take one that serves in its place."""
    drained = {name: Answer(DaemonState.DRAINING, 0) for name in ("a2", "a3")}
    pods = pod("a1"), leaving("a2", ready=False, cost=cost), leaving("a3", ready=False, cost=LOWEST_DELETION_COST)
    assert look(*pods, target=1, answers=drained).replicas == (2 if cost == 0 else 1)


def test_replicas_falls_once_for_a_pod_that_leaves_in_many_runs():
    """The ReplicaSet has not taken it yet; another one still drains."""
    answers = {"a3": Answer(DaemonState.DRAINING, 0), "a2": Answer(DaemonState.DRAINING, 2)}
    pods = pod("a1"), leaving("a2", ready=False), leaving("a3", ready=False, cost=LOWEST_DELETION_COST)
    assert [look(*pods, target=1, replicas=count, answers=answers).replicas for count in (3, 2)] == [2, 2]


def test_a_scale_up_cancels_a_drain_before_it_makes_replicas():
    reported = look(pod("a1"), leaving("a2", ready=False, cost=LOWEST_DELETION_COST), target=3)
    assert ([(report.pod, report.deadline_ms) for report in reported.orders], reported.replicas, reported.annotate) == (
        [("a2", None)],
        2,
        (),
    )
    serving = {"a2": Answer(DaemonState.SERVING)}
    back = look(pod("a1"), leaving("a2", cost=LOWEST_DELETION_COST), target=3, answers=serving)
    assert notes(back) == {"a2": {ANNOTATION_DRAIN_DEADLINE: None, ANNOTATION_DELETION_COST: None}}
    assert (back.orders, back.replicas) == ((), 2)
    assert look(pod("a1"), pod("a2"), target=3).replicas == 3


def test_an_unreachable_replica_does_not_delay_a_scale_up():
    step = look(pod("a1"), leaving("a2"), target=3, answers={"a2": Answer(DaemonState.SILENT)})
    assert (step.replicas, [report.pod for report in step.orders], step.annotate) == (3, ["a2"], ())


def test_a_scale_up_first_restores_the_number_of_replicas():
    step = look(pod("a1"), leaving("a2", cost=LOWEST_DELETION_COST), target=2, replicas=1)
    assert step.replicas == 2


def test_a_deletion_cost_is_removed_from_pods_that_stay():
    step = look(pod("a1", deletion_cost=LOWEST_DELETION_COST), pod("a2", deletion_cost=7), target=2)
    assert notes(step) == {"a1": {ANNOTATION_DELETION_COST: None}}


def test_one_that_refuses_orders_is_turned_back_only_when_it_is_ready():
    refused = {"a2": Answer(DaemonState.REFUSED)}
    assert notes(look(pod("a1"), leaving("a2"), target=2, answers=refused)) == {"a2": {ANNOTATION_DRAIN_DEADLINE: None}}
    assert notes(look(pod("a1"), leaving("a2", ready=False), target=2, answers=refused)) == {}


def test_replicas_that_were_never_made_go_first():
    assert look(pod("a1"), target=1, replicas=4).replicas == 1
    assert look(pod("a1"), pod("a2"), target=3, replicas=4).replicas == 3


def test_of_several_only_as_many_go_as_surely_are_the_drained_ones():
    drained = leaving("a3", ready=False, cost=LOWEST_DELETION_COST)
    busy = leaving("a2", ready=False)
    answers = {"a3": Answer(DaemonState.DRAINING, 0), "a2": Answer(DaemonState.DRAINING, 2)}
    assert look(pod("a1"), busy, drained, target=1, answers=answers).replicas == 2
