"""Sick replicas: who is, who is replaced and when, by rules first and then by a machine that breaks, mends and restarts at random."""

import contextlib
import copy
import json
import math
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pagoda_contracts.names import (
    ANNOTATION_DEVICE_FAULT,
    ANNOTATION_DRAIN_DEADLINE,
    ANNOTATION_RELIEVED,
    ANNOTATION_RESERVED,
    LABEL_REVISION,
)
from pagoda_operator.api.grant import Grant
from pagoda_operator.api.orders import Answer, Stand, unix
from pagoda_operator.api.signals_view import CONFIRM_S, MISSING_S, EndpointSignal, Seen, ServiceSignals
from pagoda_operator.api.state import DEPLOYMENTS, PODS, SERVICES, Observed
from pagoda_operator.decide.health.health import REPLACE_EVERY_S, judge
from pagoda_operator.decide.health.relief import relief
from pagoda_operator.decide.plan import plan
from pagoda_operator.decide.render.writes import Annotate, Apply, Delete
from pagoda_operator.decide.replicas.sickness import Sickness
from pagoda_operator.watch.ages import Ages
from support.kube.fake_api import Crash, is_ready, running
from support.suite.profiles import examples
from support.worlds.stand_ins import NoQuotas, dependencies_with
from support.worlds.world import KEY, World, now

WELL = EndpointSignal(Seen.FRESH, "ready", phase="ready")
SILENT = EndpointSignal(Seen.DEAD, "silent", bad_s=CONFIRM_S)
STUCK = EndpointSignal(Seen.DEAD, "stuck", bad_s=CONFIRM_S)
WRONG = EndpointSignal(Seen.DEAD, "deep-check", deep_failed=True, bad_s=CONFIRM_S)


class Sickbay(World):
    """A world whose replicas are as `said` says; those that are not in it are well."""

    def __init__(self, replicas=3, **spec):
        self.said: dict[str, EndpointSignal] = {}
        self.deaf = self.nobody = False
        # For how long nobody has been heard, where `deaf`.
        self.silent_s = math.inf
        self.crowd = NoQuotas()
        # By how much somebody has set the clock on the wall.
        self.jump = timedelta()
        super().__init__(replicas=replicas, **spec)
        self.settle()
        self.make_ready()

    def restart(self):
        super().restart()
        self.operator._dependencies = dependencies_with(self.api, signals=self, ages=Ages(self.steady), quota=self.crowd)
        self.operator._clock = lambda: now() + self.later + self.jump

    def steady(self):
        return self.later.total_seconds()

    def of(self, key, _now):
        assert key == KEY
        if self.deaf:
            return None if self.nobody else ServiceSignals()
        seen = {pod["metadata"]["name"]: self.said.get(pod["metadata"]["name"], WELL) for pod in self.api.of(PODS)}
        return ServiceSignals(fresh=True, endpoints=seen)

    def unheard(self, _key):
        return self.silent_s if self.deaf else 0.0

    @property
    def pods(self):
        return [pod["metadata"]["name"] for pod in self.api.of(PODS)]

    def deleted(self):
        return [name for verb, kind, name in self.api.journal if (verb, kind) == ("delete", "Pod")]

    def pass_time(self, seconds):
        self.later += type(self.later)(seconds=seconds)

    def degraded(self):
        return self.conditions().get("Degraded")

    def patient(self, **changes) -> Observed:
        """What a run observes, for the pure half."""
        return replace(self.observed(), now=1_767_225_600.0, signals=self.of(KEY, 0), **changes)


@pytest.mark.parametrize(
    ("signal", "sickness"),
    [
        (WELL, None),
        (SILENT, Sickness.SILENT),
        (replace(SILENT, bad_s=CONFIRM_S - 1), None),
        (STUCK, Sickness.STUCK),
        (WRONG, Sickness.DEEP_CHECK),
        (replace(WRONG, bad_s=CONFIRM_S - 1), None),
        (EndpointSignal(Seen.SUSPECT, "suspect", bad_s=0), None),
        (EndpointSignal(Seen.UNHEARD, "unheard", bad_s=MISSING_S - 1), None),
        (EndpointSignal(Seen.UNHEARD, "unheard", bad_s=MISSING_S), Sickness.SILENT),
        (replace(STUCK, reason="overdue", bad_s=89), None),
        (replace(STUCK, reason="overdue", bad_s=90), Sickness.STUCK),
    ],
)
def test_who_is_sick(signal, sickness):
    world = Sickbay()
    world.said[world.pods[0]] = signal
    assert [one.sickness for one in judge(world.patient()).sick] == ([sickness] if sickness else [])


def test_a_service_grants_a_step_its_own_time():
    world = Sickbay(health={"progressTimeout": "10m"})
    world.said[world.pods[0]] = replace(STUCK, reason="overdue", bad_s=569)
    assert judge(world.patient()).sick == ()
    world.said[world.pods[0]] = replace(STUCK, reason="overdue", bad_s=570)
    assert len(judge(world.patient()).sick) == 1


@pytest.mark.parametrize("fate", [running(), {"phase": "Failed"}])
def test_a_pod_that_is_not_ready_is_the_kubelets(fate):
    world = Sickbay()
    world.api.of(PODS)[0]["status"] = fate
    world.said[world.pods[0]] = SILENT
    assert judge(world.patient()).sick == ()


def test_a_faulty_device_is_a_sickness_of_those_who_hold_devices_there():
    world = Sickbay()
    for pod in world.api.of(PODS):
        pod["spec"] = {"nodeName": "gpu-1"}
    assert judge(world.patient(faults={"gpu-1": "Xid 79"})).sick == ()
    world.api.of(PODS)[0]["spec"]["containers"] = [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]
    (one,) = judge(world.patient(faults={"gpu-1": "Xid 79"})).sick
    assert (one.sickness, one.pod.name, "Xid 79" in one.why) == (Sickness.DEVICE_FAULT, world.pods[0], True)


def test_a_nodes_fault_is_marked_on_its_pods_for_gateways_and_taken_off_when_it_is_over():
    world = Sickbay()
    for pod in world.api.of(PODS):
        pod["spec"] = {"nodeName": "gpu-1", "containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}
    world.api.of(PODS)[2]["metadata"]["annotations"] = {ANNOTATION_DEVICE_FAULT: "Xid 48, says the vendor"}
    marks = [write for write in judge(world.patient(faults={"gpu-1": "Xid 79"})).writes if isinstance(write, Annotate)]
    ours = {ANNOTATION_DEVICE_FAULT: "node: Xid 79"}
    assert [(mark.name, mark.annotations) for mark in marks] == [(name, ours) for name in world.pods[:2]]
    for pod in world.api.of(PODS)[:2]:
        pod["metadata"]["annotations"] = dict(ours)
    found = judge(world.patient(faults={"gpu-1": "Xid 79"}))
    assert ([one.pod.name for one in found.sick], found.writes) == (world.pods, ())
    health = judge(world.patient())
    off = [write for write in health.writes if isinstance(write, Annotate)]
    assert [(mark.name, mark.annotations) for mark in off] == [(name, {ANNOTATION_DEVICE_FAULT: None}) for name in world.pods[:2]]
    assert [one.pod.name for one in health.sick] == [world.pods[2]]


def test_a_replica_that_drains_is_on_its_way_out_already():
    world = Sickbay()
    world.api.of(PODS)[0]["metadata"]["annotations"] = {ANNOTATION_DRAIN_DEADLINE: "1767225660000"}
    world.said[world.pods[0]] = SILENT
    assert judge(world.patient()).sick == ()


def test_a_mark_on_the_pod_itself_is_enough():
    world = Sickbay()
    world.api.of(PODS)[1]["metadata"]["annotations"] = {ANNOTATION_DEVICE_FAULT: "Xid 48 on GPU 2"}
    (one,) = judge(world.patient()).sick
    assert (one.sickness, one.pod.name) == (Sickness.DEVICE_FAULT, world.pods[1])


def test_a_sick_replica_is_recorded_then_deleted_then_made_anew():
    world = Sickbay()
    sick = world.pods[0]
    world.said[sick] = SILENT
    world.run()
    assert world.deleted() == []
    last = world.observed().status.health.last_replacement
    assert (last.pod, last.why) == (sick, "Silent: no gateway hears from it: silent")
    world.run()
    assert world.deleted() == [sick]
    world.api.control()
    assert len(world.pods) == 3
    assert sick not in world.pods


def test_a_second_sick_one_waits_two_minutes_across_a_restart():
    world = Sickbay(4)
    first, second = world.pods[:2]
    world.said |= {first: SILENT, second: WRONG}
    world.settle()
    world.make_ready()
    assert world.deleted() == [second]  # the canary's word is the surer one
    assert (world.degraded()["status"], world.degraded()["reason"]) == ("True", "ReplacementHeld")
    world.restart()
    world.pass_time(REPLACE_EVERY_S - 1)
    outcome = world.run()
    assert (world.deleted(), outcome.again) == ([second], 1.0)
    world.pass_time(1)
    world.settle()
    assert world.deleted() == [second, first]
    assert (world.degraded()["status"], world.degraded()["reason"]) == ("False", "Well")


@pytest.mark.parametrize("jump", [-300, 300])
def test_a_second_sick_one_waits_two_minutes_whoever_sets_the_clock(jump):
    world = Sickbay(4)
    first, second = world.pods[:2]
    world.said |= {first: SILENT, second: WRONG}
    world.settle()
    world.make_ready()
    world.jump = timedelta(seconds=jump)
    world.pass_time(REPLACE_EVERY_S - 1)
    outcome = world.run()
    assert (world.deleted(), outcome.again) == ([second], 1.0)
    world.pass_time(1)
    world.settle()
    assert world.deleted() == [second, first]


def test_a_replacement_of_the_future_is_waited_for_two_minutes_not_until_it_is_past():
    world = Sickbay(4)
    first, second = world.pods[:2]
    world.said |= {first: SILENT, second: WRONG}
    world.settle()
    world.make_ready()
    world.jump = timedelta(seconds=-300)
    world.restart()
    assert world.run().again == REPLACE_EVERY_S
    world.pass_time(REPLACE_EVERY_S)
    world.settle()
    assert world.deleted() == [second, first]


def test_one_that_is_well_again_before_its_deletion_is_spared():
    world = Sickbay()
    world.said[world.pods[0]] = SILENT
    world.run()
    world.said.clear()
    world.settle()
    assert world.deleted() == []


def test_a_wrong_answer_sheet_takes_nobody_away_and_is_said():
    world = Sickbay()
    world.said = dict.fromkeys(world.pods, WRONG)
    for _ in range(5):
        world.pass_time(REPLACE_EVERY_S)
        world.settle()
    assert world.deleted() == []
    line = world.degraded()
    assert (line["status"], line["reason"]) == ("True", "ReplacementHeld")
    assert "All 3 ready replicas" in line["message"]
    assert world.conditions()["Ready"]["status"] == "True"


def test_a_sole_replica_that_fails_is_replaced():
    world = Sickbay(1)
    (sick,) = world.pods
    world.said[sick] = WRONG
    world.settle()
    assert world.deleted() == [sick]


def break_device(world, *names):
    for name in names:
        world.api.edit(PODS, "ns", name, lambda body: body["metadata"].update(annotations={ANNOTATION_DEVICE_FAULT: "Xid 79"}))


def served_throughout(world, least=1):
    """Before each write that takes a replica away so many others serve."""

    def judge(verb, kind, _name):
        if (verb, kind) in {("delete", "Pod"), ("apply", "Deployment")}:
            serving = [pod for pod in world.api.of(PODS) if pod.get("status", {}).get("phase") == "Running"]
            replicas = world.api.of(DEPLOYMENTS)[0]["spec"]["replicas"]
            assert verb != "delete" or len(serving) > least
            assert len(serving) >= min(least, replicas)

    world.api.before_write = judge


@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("restarts", [True, False])
def test_a_sole_replica_on_a_faulty_device_that_answers_goes_after_another_one_serves(heard, restarts):
    world = Sickbay(1)
    (sick,) = world.pods
    world.deaf = world.nobody = not heard
    served_throughout(world)
    break_device(world, sick)
    world.settle()
    assert (len(world.pods), world.pods[0], world.deleted()) == (2, sick, [])
    line = world.degraded()
    assert (line["status"], line["reason"]) == ("True", "DeviceFault")
    assert "it is the only replica that answers" in line["message"]
    assert world.conditions()["Ready"]["status"] == "True"
    world.pass_time(REPLACE_EVERY_S * 3)  # a large model
    if restarts:
        world.restart()
    world.settle()
    assert len(world.pods) == 2
    world.make_ready()
    assert len(world.pods) == 1
    assert sick not in world.pods
    assert world.api.of(DEPLOYMENTS)[0]["spec"]["replicas"] == 1
    assert (world.degraded()["status"], world.degraded()["reason"]) == ("False", "Well")
    assert world.observed().status.health.last_replacement.pod == sick


def test_its_successor_is_waited_for_until_a_gateway_hears_it():
    world = Sickbay(1)
    (sick,) = world.pods
    break_device(world, sick)
    world.settle()
    (new,) = set(world.pods) - {sick}
    world.said[new] = EndpointSignal(Seen.UNHEARD, "unheard", bad_s=1)
    world.make_ready()
    assert set(world.pods) == {sick, new}
    world.said[new] = WELL
    world.settle()
    assert world.pods == [new]


@pytest.mark.parametrize("cold", [True, False], ids=["the operator starts", "gateways pause"])
def test_a_moment_without_gateways_vouches_for_no_successor(cold):
    world, sick, new = relieved()
    world.said[new] = EndpointSignal(Seen.UNHEARD, "unheard", bad_s=1)
    ready(world, new)
    turns(world, 3)
    world.deaf, world.nobody, world.silent_s = True, cold, 0.0
    if cold:
        world.restart()
    for world.silent_s in (1.0, 10.0, MISSING_S - 1):
        turns(world, 4)
        assert set(world.pods) == {sick, new}
    assert world.run().again == 1.0
    world.silent_s = MISSING_S
    turns(world, 4)
    assert world.pods == [new], "there may be no gateway at all"


def test_one_on_a_faulty_device_that_answers_no_more_is_not_waited_for():
    world = Sickbay(1)
    (sick,) = world.pods
    break_device(world, sick)
    world.said[sick] = replace(STUCK, bad_s=CONFIRM_S - 1)
    world.settle()
    assert world.deleted() == []
    world.said[sick] = STUCK
    world.settle()
    assert sick not in world.pods


def test_a_device_that_is_whole_again_keeps_its_replica_and_nothing_more():
    world = Sickbay(1)
    (sick,) = world.pods
    break_device(world, sick)
    world.settle()
    assert len(world.pods) == 2
    world.api.edit(PODS, "ns", sick, lambda body: body["metadata"]["annotations"].clear())
    world.settle()
    assert world.pods == [sick]


def test_several_on_faulty_devices_get_one_more_and_go_one_in_two_minutes():
    world = Sickbay(2)
    sick = list(world.pods)
    served_throughout(world, least=2)
    break_device(world, *sick)
    world.settle()
    assert len(world.pods) == 3
    world.pass_time(REPLACE_EVERY_S * 3)
    world.make_ready()
    assert len(set(world.pods) & set(sick)) == 1
    assert len(world.pods) == 2
    assert "one replica in 120 s" in world.degraded()["message"]
    world.pass_time(REPLACE_EVERY_S)
    world.api.before_write = lambda *_: None
    world.settle()
    world.make_ready()
    assert len(world.pods) == 2
    assert not set(world.pods) & set(sick)


def start(world, name, *, assigned=True):
    """It is on a node and loads, or waits for one."""
    where = {"nodeName": "n"} if assigned else {}
    world.api.edit(PODS, "ns", name, lambda body: (body.setdefault("spec", {}).update(where), body.update(status={"phase": "Pending"})))


def relieved(replicas=1, *, assigned=True, waited=300):
    """All on faulty devices, the first of them, and one more that loads beside them."""
    world = Sickbay(replicas)
    sick = list(world.pods)
    break_device(world, *sick)
    world.settle()
    (new,) = set(world.pods) - set(sick)
    start(world, new, assigned=assigned)
    world.pass_time(waited)
    world.settle()
    assert world.observed().status.health is None, "nobody is replaced yet"
    assert world.api.of(DEPLOYMENTS)[0]["spec"]["replicas"] == replicas + 1
    return world, sick[0], new


def ready(world, name, *, ready=True):
    world.api.edit(PODS, "ns", name, lambda body: body.update(status=running(ready=ready)))


def turns(world, count=8):
    for _ in range(count):
        world.run()
        world.api.control()


CRASHED = None


def die(world, name, how):
    if how is CRASHED:
        ready(world, name, ready=False)
    else:
        world.said[name] = how


@pytest.mark.parametrize("waited", [10, 300])
@pytest.mark.parametrize("how", [STUCK, WRONG, replace(SILENT, bad_s=MISSING_S)])
def test_the_only_one_that_answers_is_neither_drained_nor_deleted_when_the_one_it_relieves_answers_no_more(how, waited):
    world, first, new = relieved(waited=waited)
    break_device(world, new)
    ready(world, new)
    world.said |= {first: how, new: replace(WELL, in_flight=3)}
    for _ in range(8):
        turns(world, 1)
        assert new in world.pods
        (body,) = (pod for pod in world.api.of(PODS) if pod["metadata"]["name"] == new)
        assert ANNOTATION_DRAIN_DEADLINE not in body["metadata"]["annotations"]
    assert world.pods == [new]


@pytest.mark.deep
@pytest.mark.parametrize("waited", [10, 300])
@pytest.mark.parametrize("how", [STUCK, WRONG, CRASHED])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_successor_that_loads_is_kept_when_the_one_it_relieves_dies(replicas, how, waited):
    world, recorded, new = relieved(replicas, waited=waited)
    die(world, recorded, how)
    turns(world)
    world.pass_time(REPLACE_EVERY_S * 3)
    turns(world)
    assert new in world.pods
    assert len(world.pods) == replicas + 1
    ready(world, new)
    turns(world)
    assert new in world.pods
    assert (recorded in world.pods, len(world.pods)) == (False, replicas)


def test_a_successor_without_a_node_does_not_keep_one_that_died():
    world, recorded, _ = relieved(assigned=False)
    world.said[recorded] = STUCK
    turns(world)
    assert recorded not in world.pods
    assert len(world.pods) == 1


@pytest.mark.parametrize(
    "signal", [EndpointSignal(Seen.UNHEARD, "unheard", bad_s=MISSING_S - 1), replace(STUCK, reason="overdue", bad_s=89)]
)
def test_the_last_one_that_serves_has_the_same_patience_as_any_other(signal):
    world, recorded, new = relieved()
    world.said[recorded] = signal
    turns(world)
    assert set(world.pods) == {recorded, new}
    assert "it is the only replica that answers" in world.degraded()["message"]


def fail(world, replicas):
    """The successor is on a faulty device as well, and there is one less again."""
    for name in world.pods:
        ready(world, name)
    break_device(world, *world.pods)
    world.settle()
    assert len(world.pods) == replicas


@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("replicas", [1, 2])
def test_where_the_successor_is_on_a_faulty_device_too_the_next_is_tried_after_a_pause_that_grows(replicas, restarts):
    world, _, _ = relieved(replicas)
    served_throughout(world, least=replicas)
    for pause in (120, 240, 480, 960, 1920, 3600, 3600):
        fail(world, replicas)
        there = set(world.pods)
        line = world.degraded()
        assert (line["status"], line["reason"]) == ("True", "ReplacementHeld")
        assert "The replacement was unhealthy as well" in line["message"]
        world.pass_time(pause - 1)
        if restarts:
            world.restart()
        written = len(world.api.journal)
        assert world.run().again == 1.0
        assert len(world.api.journal) == written
        world.pass_time(1)
        world.settle()
        assert len(world.pods) == replicas + 1
    world.make_ready()
    world.api.before_write = lambda *_: None
    for _ in range(replicas):
        world.pass_time(REPLACE_EVERY_S)
        world.settle()
        world.make_ready()
    assert (len(world.pods), there & set(world.pods)) == (replicas, set())
    assert word(world) is None, "another time it begins anew"


def test_a_successor_that_was_a_moment_late_is_followed_by_another():
    world, first, new = relieved()
    world.said[new] = replace(SILENT, bad_s=MISSING_S)
    ready(world, new)
    world.settle()
    assert world.pods == [first]
    world.pass_time(120)
    world.settle()
    world.make_ready()
    assert (len(world.pods), first in world.pods) == (1, False)


def test_what_an_older_operator_gave_up_for_ever_is_tried_again():
    world = Sickbay(1)
    break_device(world, *world.pods)
    status = world.api.of(SERVICES)[0]["status"]
    status["health"] = {"successorSick": True}
    world.settle()
    assert len(world.pods) == 2
    assert "successorSick" not in (world.api.of(SERVICES)[0]["status"].get("health") or {})


@pytest.mark.parametrize(
    "told", ["", "{", "7", "[]", '{"replicas": "2"}', '{"tries": 3, "at": "yesterday"}', '{"replicas": -1, "tries": 1}']
)
def test_a_word_about_relief_that_cannot_be_read_says_nothing(told):
    world = Sickbay(1)
    (name,) = world.names(DEPLOYMENTS)
    world.api.edit(DEPLOYMENTS, "ns", name, lambda body: body["metadata"]["annotations"].update({ANNOTATION_RELIEVED: told}))
    break_device(world, *world.pods)
    world.settle()
    assert (len(world.pods), word(world)) == (2, {"replicas": 2})


def test_two_words_on_a_deployment_that_nobody_needs_go_in_one_write():
    """The second of two would be of a version that is past."""
    world = Sickbay(1)
    (name,) = world.names(DEPLOYMENTS)
    words = {ANNOTATION_RELIEVED: "{}", ANNOTATION_RESERVED: "7"}
    world.api.edit(DEPLOYMENTS, "ns", name, lambda body: body["metadata"]["annotations"].update(words))
    world.run()
    assert not words.keys() & world.api.of(DEPLOYMENTS)[0]["metadata"]["annotations"].keys()


@pytest.mark.parametrize("fewer", [1, 2])
def test_where_fewer_are_wanted_while_the_successor_loads_it_is_kept_and_they_go(fewer):
    world, _, new = relieved(3)
    world.edit(replicas=fewer)
    turns(world, 6)
    assert new in world.pods
    ready(world, new)
    world.settle()
    assert (new in world.pods, len(world.pods)) == (True, fewer)
    assert word(world) is None


def test_a_successor_without_a_node_that_goes_because_fewer_are_wanted_is_not_taken_for_sick():
    world, _, new = relieved(3, assigned=False)
    world.edit(replicas=2)
    turns(world, 10)
    assert (new in world.pods, len(world.pods), word(world)) == (False, 3, {"replicas": 3})


def test_where_more_are_wanted_the_successor_is_one_of_them():
    """Also where that was not seen while the spec was broken."""
    world, first, new = relieved()
    world.edit(replicas=2)
    break_device(world, new)
    ready(world, new)
    world.settle()
    assert (len(world.pods), word(world)) == (3, {"replicas": 3})
    for _ in range(2):
        world.make_ready()
        world.pass_time(REPLACE_EVERY_S)
    world.settle()
    assert (len(world.pods), {first, new} & set(world.pods), word(world)) == (2, set(), None)


def test_who_answers_nobody_goes_before_who_answers_on_a_faulty_device():
    world = Sickbay(3)
    stuck, faulty, _ = world.pods
    break_device(world, faulty)
    world.said |= {faulty: WELL, stuck: STUCK}
    world.edit(replicas=2)
    world.run()
    drained = [pod["metadata"]["name"] for pod in world.api.of(PODS) if ANNOTATION_DRAIN_DEADLINE in pod["metadata"].get("annotations", {})]
    assert drained == [stuck]


def test_where_a_new_revision_comes_none_is_made_beside_the_old_ones():
    world = Sickbay(1)
    (old,) = world.names(DEPLOYMENTS)
    first = world.pods[0]
    world.edit(model={"uri": "pvc://models/other"})
    world.settle()
    (new,) = set(world.pods) - {first}
    start(world, new)
    break_device(world, first)
    turns(world, 6)
    assert set(world.pods) == {first, new}
    ready(world, new)
    world.settle()
    assert (world.pods, old in world.names(DEPLOYMENTS)) == ([new], False)


@pytest.mark.parametrize("jump", [-300, 300])
def test_a_pause_is_as_long_whoever_sets_the_clock(jump):
    world, _, _ = relieved()
    fail(world, 1)
    world.jump = timedelta(seconds=jump)
    world.pass_time(119)
    assert world.run().again == 1.0
    world.pass_time(1)
    world.settle()
    assert len(world.pods) == 2


def test_who_loads_anyway_is_the_successor_where_fewer_are_wanted():
    world = Sickbay(2)
    first, second = world.pods
    start(world, second)
    break_device(world, first)
    world.edit(replicas=1)
    turns(world, 6)
    assert (world.pods, word(world)) == ([first, second], {"replicas": 2})
    ready(world, second)
    world.settle()
    assert world.pods == [second]


def test_a_third_one_that_answers_nobody_is_replaced_beside_the_one_that_is_kept_and_its_successor():
    world = Sickbay(2)
    first, third = world.pods
    break_device(world, first, third)
    world.settle()
    (new,) = set(world.pods) - {first, third}
    start(world, new)
    world.said[third] = STUCK
    turns(world, 4)
    assert (world.deleted(), len(world.pods), new in world.pods) == ([third], 3, True)
    for name in world.pods:
        ready(world, name)
    world.pass_time(REPLACE_EVERY_S)
    world.settle()
    assert (first in world.pods, new in world.pods, len(world.pods)) == (False, True, 2)


def test_one_that_answers_nobody_is_replaced_though_the_only_other_one_is_on_a_faulty_device():
    """That one shows that gateways hear and the answer sheet is right; its successor comes with the replacement."""
    world = Sickbay(2)
    kept, stuck = world.pods
    break_device(world, kept)
    world.said[stuck] = STUCK
    world.settle()
    assert (world.deleted(), len(world.pods), kept in world.pods) == ([stuck], 2, True)
    assert world.api.of(DEPLOYMENTS)[0]["spec"]["replicas"] == 2


BROKEN = {"model": {"uri": "ftp://nowhere"}}


def test_the_one_too_many_goes_while_the_spec_is_invalid():
    world, first, new = relieved()
    world.edit(**BROKEN)
    turns(world, 3)
    assert len(world.pods) == 2
    ready(world, new)
    world.settle()
    assert (world.pods, world.api.of(DEPLOYMENTS)[0]["spec"]["replicas"], word(world)) == ([new], 1, None)
    assert world.deleted() == [], "without a second successor"
    assert world.conditions()["Stalled"]["reason"] == "InvalidSpec"
    break_device(world, new)
    world.settle()
    assert len(world.pods) == 2, "nor does a broken spec keep a sick replica"
    assert first not in world.pods


def test_where_fewer_are_wanted_while_all_are_on_faulty_devices_no_drain_is_begun_and_turned_back_for_ever():
    """One of them that drains is none that comes to relieve the others."""
    world = Sickbay(2)
    break_device(world, *world.pods)
    world.edit(replicas=1)
    turns(world, 12)
    written = len(world.api.journal)
    turns(world, 12)
    assert len(world.api.journal) == written


def test_what_relief_did_stands_on_the_deployment_in_the_same_write():
    """Else an operator that dies in between leaves one beside it of which nobody knows why."""
    world = Sickbay(1)
    break_device(world, *world.pods)
    (deployment,) = world.api.of(DEPLOYMENTS)
    world.api.crash_in = 1
    with contextlib.suppress(Crash):
        world.run()
    assert (deployment["spec"]["replicas"], word(world)) == (2, {"replicas": 2})
    world.restart()
    world.settle()
    assert len(world.pods) == 2
    world.make_ready()
    assert (len(world.pods), deployment["spec"]["replicas"], word(world)) == (1, 1, None)


def word(world):
    (deployment,) = world.api.of(DEPLOYMENTS)
    told = deployment["metadata"]["annotations"].get(ANNOTATION_RELIEVED)
    return json.loads(told) if told is not None else None


def test_a_successor_that_no_gateway_has_named_yet_is_waited_for_too():
    """While they speak of others, they send it nobody."""
    world, recorded, new = relieved(1, waited=10)
    ready(world, new)
    named = world.of
    world.of = lambda key, at: replace(named(key, at), endpoints={recorded: WELL})
    turns(world, 4)
    assert recorded in world.pods


def test_a_drain_under_way_is_turned_back_where_the_one_that_was_to_stay_answers_no_more():
    """Also where the next replacement would have to wait for two minutes."""
    world = Sickbay(2)
    world.said[world.pods[0]] = STUCK
    world.settle()
    world.make_ready()
    world.said.clear()
    world.edit(replicas=1)
    world.run()
    draining = [
        pod["metadata"]["name"] for pod in world.api.of(PODS) if ANNOTATION_DRAIN_DEADLINE in pod["metadata"].get("annotations", {})
    ]
    (stays,) = set(world.pods) - set(draining)
    world.said[stays] = STUCK
    world.pass_time(100)
    turns(world, 6)
    assert draining == [name for name in world.pods if name in draining]


def test_a_canary_whose_every_replica_is_on_a_faulty_device_grows_by_one_and_no_more():
    """Each successor is on one as well."""
    steps = [{"weight": 25, "hold": "24h"}]
    world = Sickbay(4, rollout={"strategy": "Surge", "canary": {"steps": steps}})
    (old,) = world.names(DEPLOYMENTS)
    world.edit(model={"uri": "pvc://models/other"})
    world.settle()
    world.make_ready()
    (new,) = set(world.names(DEPLOYMENTS)) - {old}
    numbers = {}
    for _ in range(12):
        for name in world.pods:
            ready(world, name)
        break_device(world, *world.pods)
        world.pass_time(REPLACE_EVERY_S)
        turns(world, 3)
        for body in world.api.of(DEPLOYMENTS):
            numbers.setdefault(body["metadata"]["name"], set()).add(body["spec"]["replicas"])
    assert max(numbers[new]) + max(numbers[old]) == 6
    assert (min(numbers[new]), min(numbers[old])) == (1, 4)
    assert max(numbers[new]) <= 2


def test_until_the_one_too_many_is_gone_nobody_goes_in_its_place():
    world, first, new = relieved()
    break_device(world, new)
    ready(world, new)
    world.said |= {first: replace(WELL, in_flight=9), new: WELL}
    for _ in range(8):
        world.run()  # the ReplicaSet's controller is late
    assert world.api.of(DEPLOYMENTS)[0]["spec"]["replicas"] == 1
    draining = [pod["metadata"]["name"] for pod in world.api.of(PODS) if ANNOTATION_DRAIN_DEADLINE in pod["metadata"]["annotations"]]
    assert draining == [new]
    world.api.control()
    assert world.pods == [first]


def test_nothing_is_written_on_a_pod_that_is_deleted():
    world = Sickbay()
    sick = world.pods[0]
    world.said[sick] = STUCK
    world.run()
    world.api.of(PODS)[0]["spec"] = {"nodeName": "gpu-1", "containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}
    writes = plan(world.patient(faults={"gpu-1": "Xid 79"})).writes
    assert [(type(write), write.name) for write in writes] == [(Delete, sick)]


def test_who_answers_nobody_goes_before_the_last_one_that_serves_where_fewer_are_wanted():
    world = Sickbay(2)
    well, stuck = world.pods
    break_device(world, well)
    world.said |= {well: replace(WELL, in_flight=7), stuck: STUCK}
    world.pass_time(300)
    world.edit(replicas=1)
    world.run()
    drained = [pod["metadata"]["name"] for pod in world.api.of(PODS) if ANNOTATION_DRAIN_DEADLINE in pod["metadata"].get("annotations", {})]
    assert drained == [stuck]


def test_relief_asks_the_room_of_its_own_kind_alone():
    world = Sickbay(1)
    (deployment,) = world.names(DEPLOYMENTS)
    break_device(world, *world.pods)
    world.run()  # the record comes first
    of_another_kind = world.patient(quota=Grant(replicas=1, room=1, why=""))
    health = judge(of_another_kind)
    assert health.relieved == deployment
    assert relief(of_another_kind, health, {deployment: 1, "new": 1}, "new") == {deployment: 2, "new": 1}
    assert relief(of_another_kind, health, {deployment: 1}, deployment) == {deployment: 1}, "a cap that shrank"
    roomy = replace(of_another_kind, quota=Grant(replicas=2, room=2, why=""))
    assert relief(roomy, health, {deployment: 1}, deployment) == {deployment: 2}


def test_the_sick_of_one_revision_are_spared_and_those_of_another_are_not():
    world = Sickbay(4)
    pods = world.api.of(PODS)
    for pod in pods[2:]:
        pod["metadata"]["labels"][LABEL_REVISION] = "new"
    names = world.pods
    world.said = dict.fromkeys([names[0], *names[2:]], WRONG)
    health = judge(world.patient())
    assert health.record.last_replacement.pod == names[0]


def test_a_healthy_service_has_no_line_of_it_and_writes_nothing():
    world = Sickbay()
    written = len(world.api.journal)
    world.settle()
    assert world.degraded() is None
    assert len(world.api.journal) == written


@pytest.mark.parametrize("deaf", [{}, {"endpoints": None}], ids=["heard of nobody", "heard of no gateway"])
def test_what_was_sick_stays_said_after_a_restart_until_it_is_heard_to_be_well(deaf):
    world = Sickbay(replicas=2)
    world.said = dict.fromkeys(world.pods, STUCK)
    world.settle()
    before = world.degraded()
    assert (before["status"], before["reason"]) == ("True", "ReplacementHeld")
    world.restart()
    world.deaf = True
    world.nobody = "endpoints" in deaf
    world.settle()
    assert world.degraded() == before
    world.deaf = False
    world.said = dict.fromkeys(world.pods, replace(STUCK, bad_s=1.0))  # a verdict that began with this process
    world.settle()
    assert world.degraded() == before
    world.said = {world.pods[0]: WELL, world.pods[1]: replace(STUCK, bad_s=1.0)}
    world.settle()
    assert world.degraded() == before
    world.said = {}
    world.settle()
    assert (world.degraded()["status"], world.degraded()["reason"]) == ("False", "Well")


def test_nothing_stays_said_of_who_is_gone_or_of_a_device_that_is_whole_again():
    world = Sickbay(replicas=2)
    name = world.pods[0]
    world.api.edit(PODS, "ns", name, lambda body: body["metadata"]["annotations"].update({ANNOTATION_DEVICE_FAULT: "Xid 79"}))
    world.operator._dependencies = dependencies_with(world.api, signals=world)
    world.run()
    assert world.degraded()["reason"] == "DeviceFault"
    world.deaf = True
    world.api.edit(PODS, "ns", name, lambda body: body["metadata"]["annotations"].clear())
    world.run()
    assert world.degraded()["status"] == "False"
    world.deaf, world.said = False, dict.fromkeys(world.pods, STUCK)
    world.settle()
    assert world.degraded()["reason"] == "ReplacementHeld"
    world.deaf = True
    for pod in list(world.pods):
        del world.api.objects["Pod", "ns", pod]
    world.settle()
    assert world.degraded()["status"] == "False"


def test_the_promised_pace():
    assert REPLACE_EVERY_S == 120


FATES = st.sampled_from([SILENT, STUCK, WRONG, WELL])


class Epidemic(RuleBasedStateMachine):
    """Replicas fall sick and mend, time passes, the operator is restarted or dies between two writes; kubelets start what is made."""

    @initialize(replicas=st.integers(1, 4))
    def begin(self, replicas):
        self.world = Sickbay(replicas)
        self.at: list[float] = []
        self.jumped = timedelta()
        self.world.api.before_write = self.judge

    def judge(self, verb, kind, name):
        """Before each deletion: the pod is sick, it is not one of several that are all sick, and two minutes have passed."""
        if (verb, kind) != ("delete", "Pod"):
            return
        now = self.world.later.total_seconds()
        assert self.world.said.get(name, WELL) is not WELL
        ready = [pod["metadata"]["name"] for pod in self.world.api.of(PODS) if pod.get("status", {}).get("phase") == "Running"]
        assert len(ready) == 1 or any(self.world.said.get(other, WELL) is WELL for other in ready)
        assert all(now - other >= REPLACE_EVERY_S for other in self.at)
        self.at.append(now)
        self.jumped = self.world.jump

    def begin_anew(self):
        """A new process reads the time of the last replacement by its own clock: who set that in between has moved it."""
        if self.jumped != self.world.jump:
            self.at.clear()
        self.world.restart()

    @rule(jump=st.sampled_from([-300, 0, 300]))
    def set_the_clock(self, jump):
        self.world.jump = timedelta(seconds=jump)

    @rule(fate=FATES, data=st.data())
    def meet(self, fate, data):
        if self.world.pods:
            self.world.said[data.draw(st.sampled_from(self.world.pods))] = fate

    @rule(seconds=st.sampled_from([1, 30, 119, 121]))
    def wait(self, seconds):
        self.world.pass_time(seconds)

    @rule()
    def restart(self):
        self.begin_anew()

    @rule(writes=st.integers(0, 2))
    def run(self, writes):
        self.world.api.crash_in = writes
        try:
            self.world.run()
        except BaseException as error:
            if type(error).__name__ != "Crash":
                raise
            self.begin_anew()
        self.world.api.crash_in = None

    @rule()
    def kubelets(self):
        self.world.api.control()
        for pod in self.world.api.of(PODS):
            pod["status"] = running(ready=True)
        self.world.api.control()

    @rule()
    def everybody_mends_and_in_the_end_nobody_is_missing(self):
        self.world.said.clear()
        self.world.make_ready()
        wanted = self.world.api.of(DEPLOYMENTS)[0]["spec"]["replicas"]
        assert len(self.world.pods) == wanted
        assert (self.world.degraded() or {"status": "False"})["status"] == "False"

    @rule(data=st.data())
    def one_sick_among_well_ones_is_gone_after_two_minutes(self, data):
        self.world.said.clear()
        self.kubelets()
        if len(self.world.pods) < 2:
            return
        sick = data.draw(st.sampled_from(self.world.pods))
        self.world.said[sick] = WRONG
        self.world.run()
        self.world.pass_time(REPLACE_EVERY_S)
        for _ in range(3):
            self.world.run()
        assert sick not in self.world.pods


TestEpidemic = Epidemic.TestCase
TestEpidemic.settings = settings(max_examples=examples(12), stateful_step_count=20, deadline=None)


class Crowd(NoQuotas):
    """Quotas that have no room for one replica more while `full`, of any Deployment."""

    def __init__(self):
        self.full = False

    def cramped(self, key, observed):
        del key
        return frozenset(child.name for child in observed.of(DEPLOYMENTS)) if self.full else frozenset()

    def admit(self, key, observed, draft):
        del key
        if not self.full:
            return draft
        return replace(draft, writes=tuple(write for write in draft.writes if not self.grows(observed, write)))

    def grows(self, observed, write):
        """Also where a pod is deleted: its Deployment makes another beside it."""
        if isinstance(write, Delete):
            return write.resource == PODS
        if not isinstance(write, Apply) or write.resource != DEPLOYMENTS:
            return False
        live = observed.find(DEPLOYMENTS, write.name)
        return write.manifest["spec"]["replicas"] > max(live.replicas, live.reserved)


WHICH = st.integers(0, 3)
SAID = {"silent": SILENT, "stuck": STUCK, "wrong": WRONG, "well": WELL}


class Ward(RuleBasedStateMachine):
    """Devices are called faulty and whole again, replicas stop answering, crash, load and come up, gateways pause, a quota fills, more or
    fewer are wanted, the spec is broken for a while; the operator looks at any moment, anew, or dies between two writes."""

    @initialize(replicas=st.integers(1, 3))
    def begin(self, replicas):
        self.world, self.wanted = Sickbay(replicas), replicas
        self.crowd = self.world.crowd = Crowd()
        self.world.restart()
        self.most = replicas
        # Who was deleted last, and when; the last record of it.
        self.last, self.at = "", -math.inf
        self.record = None
        self.world.api.before_write = self.before
        self.world.api.removed = lambda body: self.judge(body["metadata"]["name"], body)

    # What is true, whatever the operator knows of it

    def answers(self, body):
        return is_ready(body) and not self.world.said.get(body["metadata"]["name"], WELL).bad

    def faulty(self, body):
        return ANNOTATION_DEVICE_FAULT in body["metadata"].get("annotations", {})

    def loads(self, body):
        return "nodeName" in body.get("spec", {}) and body["status"] == {"phase": "Pending"} and not self.faulty(body)

    # Before a pod goes, by whosever hand

    def before(self, verb, kind, name):
        if (verb, kind) == ("delete", "Pod"):
            self.judge(name, self.world.api.objects["Pod", "ns", name])
            died_before = self.last in self.world.pods
            assert died_before or self.world.steady() - self.at >= REPLACE_EVERY_S, "one in two minutes"
            self.last, self.at = name, self.world.steady()

    def judge(self, name, body):
        others = [pod for pod in self.world.api.of(PODS) if pod["metadata"]["name"] != name]
        if self.world.silent_s < MISSING_S or not self.world.deaf:
            assert not self.answers(body) or any(map(self.answers, others)), "the last one that serves and answers goes by nobody's hand"
        kept = [pod for pod in others if self.answers(pod) and self.faulty(pod)]
        sound = [pod for pod in others if self.answers(pod) and not self.faulty(pod)]
        if kept and not sound and self.loads(body):
            assert any(map(self.loads, others)), "nobody who loads is thrown away while those that serve wait for him"

    @invariant()
    def there_is_at_most_one_too_many(self):
        if hasattr(self, "world"):
            (deployment,) = self.world.api.of(DEPLOYMENTS)
            assert deployment["spec"]["replicas"] <= self.most + 1

    @invariant()
    def one_replacement_in_two_minutes(self):
        if not hasattr(self, "world"):
            return
        health = self.world.observed().status.health
        record = health.last_replacement if health else None
        if record is not None and (self.record is None or record.time != self.record.time):
            assert self.record is None or unix(record.time) - unix(self.record.time) >= REPLACE_EVERY_S
            self.record = record

    def pod(self, which):
        if not self.world.pods:
            self.world.api.control()
        pods = self.world.api.of(PODS)
        return pods[which % len(pods)]

    @rule(which=WHICH)
    def a_device_is_called_faulty(self, which):
        self.pod(which)["metadata"].setdefault("annotations", {})[ANNOTATION_DEVICE_FAULT] = "Xid 79"

    @rule(which=WHICH)
    def a_device_is_whole_again(self, which):
        self.pod(which)["metadata"].setdefault("annotations", {}).pop(ANNOTATION_DEVICE_FAULT, None)

    @rule()
    def every_device_is_called_faulty(self):
        break_device(self.world, *self.world.pods)

    @rule(fate=st.sampled_from(list(SAID)), which=WHICH)
    def a_gateway_says(self, fate, which):
        self.world.said[self.pod(which)["metadata"]["name"]] = SAID[fate]

    @precondition(lambda self: not self.world.deaf and not self.draining())
    @rule(nobody=st.booleans())
    def gateways_pause(self, nobody):
        self.world.deaf, self.world.nobody, self.world.silent_s = True, nobody, 0.0

    @precondition(lambda self: self.world.deaf)
    @rule()
    def gateways_speak(self):
        self.world.deaf = False

    @rule(which=WHICH, status=st.sampled_from([running(ready=True), running(ready=True), running(ready=False), {"phase": "Pending"}]))
    def a_kubelet_says(self, which, status):
        pod = self.pod(which)
        pod["spec"] = {**pod.get("spec", {}), "nodeName": "n"}
        pod["status"] = copy.deepcopy(status)

    @rule()
    def all_that_is_new_loads(self):
        for pod in self.world.api.of(PODS):
            if not pod["status"]:
                start(self.world, pod["metadata"]["name"])

    @precondition(lambda self: not self.world.deaf)
    @rule(replicas=st.integers(1, 3))
    def another_number_is_wanted(self, replicas):
        self.world.edit(replicas=replicas)
        self.wanted, self.most = replicas, max(replicas, self.most)

    @rule(full=st.booleans())
    def a_quota_fills(self, full):
        self.crowd.full = full

    @rule(broken=st.booleans())
    def the_spec_is_edited(self, broken):
        self.world.edit(model={"uri": "ftp://nowhere"} if broken else {"uri": "pvc://models/tiny"})

    @rule(seconds=st.sampled_from([1, 30, 59, 121]))
    def wait(self, seconds):
        self.world.pass_time(seconds)
        self.world.silent_s += seconds

    @rule(times=st.integers(1, 4))
    def look(self, times):
        turns(self.world, times)

    @rule(writes=st.integers(0, 2))
    def look_and_die(self, writes):
        self.world.api.crash_in = writes
        with contextlib.suppress(Crash):
            self.world.run()
        self.world.api.crash_in = None
        self.world.restart()

    @rule()
    def restart(self):
        self.world.restart()

    @rule()
    def at_rest_nothing_is_written(self):
        self.world.settle()
        for _ in range(3):
            self.world.pass_time(REPLACE_EVERY_S * 2)
            self.world.settle()

    def draining(self):
        return any(ANNOTATION_DRAIN_DEADLINE in pod["metadata"].get("annotations", {}) for pod in self.world.api.of(PODS))

    def peace(self):
        """Gateways speak, the spec is right, there is room."""
        self.world.deaf, self.crowd.full = False, False
        self.the_spec_is_edited(broken=False)
        self.world.said.clear()

    @rule()
    def all_mend_and_there_are_as_many_as_are_wanted(self):
        self.peace()
        for pod in self.world.api.of(PODS):
            pod["metadata"].get("annotations", {}).pop(ANNOTATION_DEVICE_FAULT, None)
        self.world.make_ready()
        self.world.make_ready()
        assert len(self.world.pods) == self.wanted

    @rule()
    def where_new_devices_are_sound_all_are_in_the_end(self):
        self.peace()
        for _ in range(2 * len(self.world.pods) + 2):
            self.world.make_ready()
            self.world.pass_time(3600)
            self.world.settle()
        self.world.make_ready()
        assert not any(map(self.faulty, self.world.api.of(PODS)))
        assert (len(self.world.pods), self.world.degraded() is None or self.world.degraded()["status"]) in (
            (self.wanted, True),
            (self.wanted, "False"),
        )
        self.most = self.wanted


TestWard = Ward.TestCase
TestWard.settings = settings(max_examples=examples(15), stateful_step_count=30, deadline=None)


class Obeying:
    """Daemons that obey at once, with nothing under way."""

    def __init__(self):
        self.told = []

    async def give(self, tells):
        self.told += [(tell.pod, tell.deadline_ms is not None) for tell in tells]
        return {tell.uid: Answer(Stand.SERVING if tell.deadline_ms is None else Stand.DRAINING) for tell in tells}


def addressed(world):
    for pod in world.api.of(PODS):
        if pod["status"].get("phase") == "Running":
            pod["status"]["podIP"] = "10.0.0.1"


def test_a_drain_that_began_while_the_spec_is_broken_is_told_to_its_daemon_and_can_be_turned_back():
    """Nobody was told: the sound one stayed unrouted for ever, the stuck one in its place."""
    world, first, new = relieved()
    world.edit(**BROKEN)
    turns(world, 2)
    ready(world, new)
    addressed(world)
    world.api.edit(PODS, "ns", first, lambda body: body["metadata"]["annotations"].pop(ANNOTATION_DEVICE_FAULT))
    daemons = Obeying()
    world.operator._dependencies = replace(world.operator._dependencies, daemons=daemons)
    for _ in range(2):
        world.run()
    assert daemons.told
    assert daemons.told[0][1]
    (stays,) = {first, new} - {daemons.told[0][0]}
    world.said[stays] = STUCK
    for _ in range(12):
        world.pass_time(60)
        turns(world, 3)
        addressed(world)
    assert stays not in world.pods
    assert all(ANNOTATION_DRAIN_DEADLINE not in pod["metadata"].get("annotations", {}) for pod in world.api.of(PODS))


@pytest.mark.parametrize("ways", [(STUCK, STUCK), (WRONG, STUCK), (STUCK, WRONG)])
def test_the_last_one_and_the_one_beside_it_are_replaced_where_both_answer_nobody_and_a_device_is_faulty(ways):
    world, first, new = relieved()
    ready(world, new)
    world.said |= dict(zip((first, new), ways, strict=True))
    for _ in range(4):
        turns(world, 3)
        world.pass_time(130)
    assert first not in world.pods


def test_all_on_dead_devices_are_replaced_one_after_the_other():
    world = Sickbay(2)
    old = set(world.pods)
    break_device(world, *old)
    world.said = dict.fromkeys(old, STUCK)
    left = []
    for _ in range(4):
        turns(world, 3)
        left.append(len(old & set(world.pods)))
        world.pass_time(130)
    assert left[0] == 1
    assert left[-1] == 0


@pytest.mark.parametrize("text", ['{"replicas": 1}', '{"replicas": true}', "[" * 100_000])
def test_a_word_that_is_none_of_ours_takes_no_replica_while_the_spec_is_broken(text):
    world = Sickbay(1)
    (name,) = world.names(DEPLOYMENTS)
    world.edit(**BROKEN)
    world.settle()
    world.api.edit(DEPLOYMENTS, "ns", name, lambda body: body["metadata"]["annotations"].update({ANNOTATION_RELIEVED: text}))
    world.settle()
    assert world.api.of(DEPLOYMENTS)[0]["spec"]["replicas"] == 1
