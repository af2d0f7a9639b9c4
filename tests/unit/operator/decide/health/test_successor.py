"""The successor of an unhealthy replica: the rule by itself, then in a world of controllers and kubelets, then in a random one."""

import contextlib
import copy
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pagoda_contracts.names import ANNOTATION_DEVICE_FAULT, ANNOTATION_DRAIN_DEADLINE, ANNOTATION_WITH_SUCCESSOR
from pagoda_operator.api.pods import Answer, DaemonState, Pod
from pagoda_operator.api.quota import Grant
from pagoda_operator.api.signals import MISSING_S, EndpointSignal, Seen
from pagoda_operator.api.state import DEPLOYMENTS, PODS
from pagoda_operator.decide.health import Case, step
from pagoda_operator.decide.placement.question import ask
from pagoda_operator.decide.plan import _rollout_state
from pagoda_operator.decide.replicas.replicas import current_state
from support.kube.fake_api import Crash, is_ready, running
from support.suite.profiles import examples
from support.worlds.unhealthy import SILENT, STUCK, WELL, WRONG, UnhealthyWorld

BROKEN = {"model": {"uri": "ftp://nowhere"}}
NO_ROOM = "TenantQuota team allows 1 GPU, and 1 is in use"


# The rule


def case(target=2, staying="ab", unhealthy="a", **changes):
    pods = tuple(Pod(name, "r", "cpu", ready=True) for name in staying)
    return replace(Case(target, pods, frozenset(unhealthy), serving=frozenset(staying) - frozenset(unhealthy)), **changes)


@pytest.mark.parametrize(
    ("found", "replicas", "says"),
    [
        (case(unhealthy=""), 2, ""),
        (case(target=0), 0, ""),
        (case(), 3, "A successor is starting"),
        (case(starting=frozenset("b")), 2, "Other replicas are starting"),
        (case(full=NO_ROOM), 2, NO_ROOM),
        (case(mass="All 2"), 2, "All 2"),
        (case(target=1), 1, "drains an unhealthy replica"),
        # One more was ordered, and is not made yet; or loads; or is Ready; or is unhealthy.
        (case(extra=True), 3, "A successor is starting"),
        (case(staying="abc", extra=True, starting=frozenset("c"), serving=frozenset("b")), 3, "A successor is starting"),
        (case(staying="abc", extra=True, serving=frozenset("b")), 3, "A successor is starting"),
        (case(staying="abc", extra=True), 2, "drains an unhealthy replica"),
        (case(staying="abc", extra=True, starting=frozenset("b")), 3, "A successor is starting"),
        (case(staying="abc", extra=True, unhealthy="ac"), 3, "The successor c is unhealthy as well"),
        (case(staying="abc", extra=True, unhealthy="ac", mass="2 of 3"), 3, "The successor c is unhealthy as well"),
        (case(staying="abc", extra=True, mass="2 of 3"), 3, "2 of 3"),
        (case(staying="abc", extra=True, unhealthy=""), 2, ""),
        (case(staying="abc", extra=True, full=NO_ROOM), 2, "drains"),
        (case(target=1, staying="abc", extra=True), 1, "drains an unhealthy replica"),
    ],
)
def test_the_rule(found, replicas, says):
    decided = step(found)
    assert decided.replicas == replicas
    assert says in (decided.paused or decided.doing)


def test_a_successor_without_a_node_says_what_is_missing():
    waiting = Pod("c", "r", "cpu", unscheduled="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    found = case(extra=True)
    found = replace(found, staying=(*found.staying, waiting))
    assert step(found).paused == "The successor c has no node: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


# In a world


def served_throughout(world, least):
    """At each write so many replicas run, and no write deletes a pod."""

    def judge(verb, kind, _name):
        assert (verb, kind) != ("delete", "Pod")
        assert sum(pod.get("status", {}).get("phase") == "Running" for pod in world.api.of(PODS)) >= least

    world.api.before_write = judge


def draining(world):
    return [pod["metadata"]["name"] for pod in world.api.of(PODS) if ANNOTATION_DRAIN_DEADLINE in pod["metadata"].get("annotations", {})]


def succeeding(replicas=1, *, assigned=True, how=None):
    """The first replica is unhealthy, and its successor loads beside it."""
    world = UnhealthyWorld(replicas)
    there = list(world.pods)
    if how is None:
        world.break_device(there[0])
    else:
        world.said[there[0]] = how
    world.settle()
    (new,) = set(world.pods) - set(there)
    world.load(new, assigned=assigned)
    world.settle()
    assert world.ordered() == (replicas + 1, str(replicas + 1))
    return world, there[0], new


@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("replicas", [1, 3])
def test_an_unhealthy_replica_goes_after_its_successor_serves(replicas, restarts, heard):
    world = UnhealthyWorld(replicas)
    unhealthy = world.pods[0]
    world.no_signals = world.nobody = not heard
    served_throughout(world, replicas)
    world.break_device(unhealthy)
    world.settle()
    assert (world.ordered(), unhealthy in world.pods) == ((replicas + 1, str(replicas + 1)), True)
    assert world.told()[:2] == ("True", "DeviceFault")
    assert "drains the unhealthy replica when the successor is Ready" in world.told()[2]
    assert world.conditions()["Ready"]["status"] == "True"
    world.pass_time(3600)
    if restarts:
        world.restart()
    written = len(world.api.journal)
    world.settle()
    assert len(world.api.journal) == written
    world.make_ready()
    assert (world.ordered(), unhealthy in world.pods, len(world.pods)) == ((replicas, None), False, replicas)
    assert world.told()[:2] == ("False", "Well")


@pytest.mark.parametrize("how", [SILENT, STUCK, WRONG])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_replica_that_does_not_answer_is_replaced(replicas, how):
    world, unhealthy, _ = succeeding(replicas, how=how)
    assert unhealthy in world.pods
    world.make_ready()
    assert (unhealthy in world.pods, len(world.pods), world.ordered()) == (False, replicas, (replicas, None))


def test_two_unhealthy_ones_are_replaced_one_after_the_other():
    world = UnhealthyWorld(4)
    served_throughout(world, 4)
    first, second = world.pods[:2]
    world.said |= {first: SILENT, second: WRONG}
    world.settle()
    assert world.ordered() == (5, "5")
    world.make_ready()
    assert (len({first, second} & set(world.pods)), world.ordered()) == (1, (5, "5"))
    world.make_ready()
    assert ({first, second} & set(world.pods), len(world.pods), world.ordered()) == (set(), 4, (4, None))


@pytest.mark.parametrize("how", ["fault", STUCK, WRONG])
@pytest.mark.parametrize("replicas", [1, 2])
def test_an_unhealthy_successor_is_marked_and_no_other_one_is_started_until_it_is_gone(replicas, how):
    world, unhealthy, new = succeeding(replicas)
    world.ready(new)
    if how == "fault":
        world.break_device(new)
    else:
        world.said[new] = how
    world.settle()
    there = set(world.pods)
    for _ in range(5):
        world.pass_time(3600)
        world.restart()
        written = len(world.api.journal)
        world.settle()
        assert (len(world.api.journal), set(world.pods)) == (written, there)
    assert world.told()[:2] == ("True", "ReplacementDelayed")
    assert f"The successor {new} is unhealthy as well" in world.told()[2]
    assert "delete that pod" in world.told()[2]
    world.lose(new)
    world.settle()
    (again,) = set(world.pods) - there
    assert "A successor is starting" in world.told()[2]
    world.ready(again)
    world.settle()
    assert (unhealthy in world.pods, again in world.pods, len(world.pods)) == (False, True, replicas)


def test_an_unhealthy_successor_that_is_well_again_does_its_work():
    world, unhealthy, new = succeeding()
    world.ready(new)
    world.said[new] = STUCK
    world.settle()
    assert unhealthy in world.pods
    world.said.clear()
    world.settle()
    assert world.pods == [new]


def test_a_replica_that_is_well_again_is_kept_and_nothing_more():
    world, unhealthy, _ = succeeding()
    world.repair_device(unhealthy)
    world.settle()
    assert (world.pods, world.ordered(), world.told()[0]) == ([unhealthy], (1, None), "False")


@pytest.mark.parametrize(("replicas", "unhealthy"), [(3, 3), (3, 2), (5, 3), (2, 2)])
@pytest.mark.parametrize("how", [WRONG, SILENT])
def test_where_most_are_unhealthy_at_once_nothing_is_removed_and_nothing_started(replicas, unhealthy, how):
    world = UnhealthyWorld(replicas)
    before = list(world.pods)
    world.said = dict.fromkeys(before[:unhealthy], how)
    for _ in range(5):
        world.pass_time(3600)
        world.settle()
    assert (world.pods, draining(world), world.ordered()) == (before, [], (replicas, None))
    assert world.told()[:2] == ("True", "ReplacementDelayed")
    count = f"All {unhealthy}" if unhealthy == replicas else f"{unhealthy} of {replicas}"
    assert f"{count} ready replicas of revision" in world.told()[2]
    assert world.conditions()["Ready"]["status"] == "True"


def test_a_drain_that_has_begun_is_cancelled_if_most_replicas_do_not_answer():
    world, unhealthy, new = succeeding(2)
    world.ready(new)
    world.run()
    assert draining(world) == [unhealthy]
    world.repair_device(unhealthy)
    world.said = dict.fromkeys(world.pods, STUCK)
    world.settle()
    assert (len(world.pods), draining(world)) == (3, [])


def test_replicas_that_also_have_a_faulty_device_are_replaced_however_many():
    """That gateways hear nobody is one thing; that the devices are called faulty is another one."""
    world = UnhealthyWorld(2)
    old = set(world.pods)
    world.break_device(*old)
    world.said = dict.fromkeys(old, STUCK)
    for _ in range(3):
        world.settle()
        world.make_ready()
    assert not old & set(world.pods)


def test_a_full_quota_delays_the_successor_and_is_named():
    world = UnhealthyWorld(1)
    (unhealthy,) = world.pods
    world.full_quota.why = NO_ROOM
    world.break_device(unhealthy)
    world.settle()
    assert (world.pods, world.ordered(), world.run().again) == ([unhealthy], (1, None), 30.0)
    assert world.told() == (
        "True",
        "ReplacementDelayed",
        f"{unhealthy}: the device is faulty: Xid 79. A successor has no room: {NO_ROOM}. It starts when there is room.",
    )
    world.full_quota.why = ""
    world.settle()
    world.make_ready()
    assert (unhealthy in world.pods, len(world.pods)) == (False, 1)


def test_a_successor_that_loads_goes_where_its_quota_shrank_and_the_unhealthy_one_stays():
    world, unhealthy, _ = succeeding()
    world.full_quota.why = NO_ROOM
    world.settle()
    assert (world.pods, world.ordered()) == ([unhealthy], (1, None))
    assert NO_ROOM in world.told()[2]


def test_a_successor_without_a_node_waits_and_the_condition_says_for_what():
    world, unhealthy, new = succeeding(assigned=False)
    why = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
    world.pod(new)["status"] = {"phase": "Pending", "conditions": [unscheduled]}
    world.settle()
    assert set(world.pods) == {unhealthy, new}
    assert world.told()[1] == "ReplacementDelayed"
    assert f"The successor {new} has no node: {why}" in world.told()[2]
    observed = world.observed()
    state = current_state(observed, world.plan().current)
    assert (state.short, state.stuck) == (0, False), "no rollout takes a replica away for it"
    assert [run.refused for run in ask(observed, observed.spec).runs] == [""], "nor does the service move to other devices"


def test_a_successor_counts_after_a_gateway_reports_it():
    world, unhealthy, new = succeeding()
    world.said[new] = EndpointSignal(Seen.UNHEARD, "unheard", bad_s=1)
    world.make_ready()
    assert set(world.pods) == {unhealthy, new}
    world.said[new] = WELL
    world.settle()
    assert world.pods == [new]


@pytest.mark.parametrize("cold", [True, False], ids=["the operator starts", "gateways pause"])
def test_a_moment_without_gateways_does_not_make_a_successor_count(cold):
    world, unhealthy, new = succeeding()
    world.said[new] = EndpointSignal(Seen.UNHEARD, "unheard", bad_s=1)
    world.ready(new)
    world.turns(3)
    world.no_signals, world.nobody, world.silent_s = True, cold, 0.0
    if cold:
        world.restart()
    for world.silent_s in (1.0, 10.0, MISSING_S - 1):
        world.turns(4)
        assert set(world.pods) == {unhealthy, new}
    assert world.run().again == 1.0
    world.silent_s = MISSING_S
    world.turns(4)
    assert world.pods == [new], "there may be no gateway at all"


def test_the_place_of_a_successor_counts_once_for_the_quota():
    world, _, _ = succeeding()
    observed = replace(world.observed(), quota=Grant(2, 2, ""))
    assert _rollout_state(observed, observed.spec, world.plan().current, None).room == 0


def test_no_successor_is_started_while_others_load():
    """A ReplicaSet that has one too many takes who loads."""
    world = UnhealthyWorld(3)
    unhealthy, other, _ = world.pods
    world.load(other)
    world.break_device(unhealthy)
    world.settle()
    assert (world.ordered(), "Other replicas are starting" in world.told()[2]) == ((3, None), True)
    world.ready(other)
    world.settle()
    assert world.ordered() == (4, "4")
    world.load(other)
    world.make_ready()
    assert (unhealthy in world.pods, other in world.pods, len(world.pods)) == (False, True, 3)


def test_where_a_new_revision_comes_none_is_made_beside_the_old_ones():
    world = UnhealthyWorld(1)
    (old,) = world.names(DEPLOYMENTS)
    first = world.pods[0]
    world.edit(model={"uri": "pvc://models/other"})
    world.settle()
    (new,) = set(world.pods) - {first}
    world.load(new)
    world.break_device(first)
    world.turns(6)
    assert set(world.pods) == {first, new}
    world.ready(new)
    world.settle()
    assert (world.pods, old in world.names(DEPLOYMENTS)) == ([new], False)


def test_a_new_revision_whose_replica_does_not_answer_gets_one_that_does_and_the_rollout_goes_on():
    world = UnhealthyWorld(1)
    (old,) = world.names(DEPLOYMENTS)
    world.edit(model={"uri": "pvc://models/other"})
    world.settle()
    (stuck,) = (name for name in world.pods if not name.startswith(old))
    world.said[stuck] = STUCK
    world.ready(stuck)
    world.settle()
    assert [name for name in world.pods if name.startswith(old)], "the old one serves"
    for name in set(world.pods):
        world.ready(name)
    world.settle()
    world.make_ready()
    assert (len(world.pods), stuck in world.pods, old in world.names(DEPLOYMENTS)) == (1, False, False)


def test_a_canary_whose_every_replica_is_on_a_faulty_device_grows_by_one_and_no_more():
    steps = [{"weight": 25, "hold": "24h"}]
    world = UnhealthyWorld(4, rollout={"strategy": "Surge", "canary": {"steps": steps}})
    (old,) = world.names(DEPLOYMENTS)
    world.edit(model={"uri": "pvc://models/other"})
    world.settle()
    world.make_ready()
    most = {}
    for _ in range(12):
        for name in world.pods:
            world.ready(name)
        world.break_device(*world.pods)
        world.pass_time(120)
        world.turns(3)
        for body in world.api.of(DEPLOYMENTS):
            name = body["metadata"]["name"]
            most[name] = max(most.get(name, 0), body["spec"]["replicas"])
    assert sum(most.values()) == 4 + 1 + 1
    assert most[old] in (4, 5)


def test_where_fewer_are_wanted_the_unhealthy_one_goes_and_nothing_is_started():
    world = UnhealthyWorld(3)
    unhealthy = world.pods[0]
    world.break_device(unhealthy)
    world.edit(replicas=2)
    world.settle()
    assert (unhealthy in world.pods, len(world.pods), world.ordered()) == (False, 2, (2, None))


@pytest.mark.parametrize("fewer", [1, 2])
def test_where_fewer_are_wanted_while_a_successor_loads_as_many_stay_that_serve(fewer):
    world, unhealthy, _ = succeeding(3)
    world.edit(replicas=fewer)
    served_throughout(world, fewer)
    world.settle()
    world.make_ready()
    assert (unhealthy in world.pods, len(world.pods), world.ordered()) == (False, fewer, (fewer, None))


def test_where_more_are_wanted_the_successor_is_still_one_more():
    world, unhealthy, _ = succeeding()
    world.edit(replicas=2)
    world.settle()
    assert world.ordered() == (3, "3")
    world.make_ready()
    assert (unhealthy in world.pods, len(world.pods), world.ordered()) == (False, 2, (2, None))


def test_where_fewer_are_wanted_while_all_are_on_faulty_devices_the_work_comes_to_an_end():
    world = UnhealthyWorld(2)
    world.break_device(*world.pods)
    world.edit(replicas=1)
    world.turns(12)
    written = len(world.api.journal)
    world.turns(12)
    assert len(world.api.journal) == written


@pytest.mark.parametrize("spec", [BROKEN, {"accelerators": []}])
def test_a_broken_spec_does_not_keep_an_unhealthy_replica(spec):
    world = UnhealthyWorld(1)
    (unhealthy,) = world.pods
    world.edit(**spec)
    world.break_device(unhealthy)
    world.settle()
    assert (len(world.pods), world.ordered()) == (2, (2, "2"))
    world.make_ready()
    assert (unhealthy in world.pods, len(world.pods), world.ordered()) == (False, 1, (1, None))
    assert world.conditions()["Stalled"]["reason"] == "InvalidSpec"


def test_an_operator_that_dies_after_it_ordered_a_successor_is_followed_by_one_that_knows():
    world = UnhealthyWorld(1)
    world.break_device(*world.pods)
    world.api.crash_in = 1
    with contextlib.suppress(Crash):
        world.run()
    assert world.ordered() == (2, "2")
    world.restart()
    world.settle()
    assert len(world.pods) == 2
    world.make_ready()
    assert (len(world.pods), world.ordered()) == (1, (1, None))


@pytest.mark.parametrize("text", ["", "2", "7", "seven", "-1", "9" * 100_000])
def test_a_foreign_successor_annotation_is_removed_and_changes_nothing(text):
    world = UnhealthyWorld(1)
    (name,) = world.names(DEPLOYMENTS)
    world.api.edit(DEPLOYMENTS, "ns", name, lambda body: body["metadata"]["annotations"].update({ANNOTATION_WITH_SUCCESSOR: text}))
    world.settle()
    assert (world.ordered(), len(world.pods)) == ((1, None), 1)


def test_no_other_replica_is_removed_before_the_unhealthy_one_is_gone():
    world, first, new = succeeding()
    world.ready(new)
    for _ in range(8):
        world.run()  # the ReplicaSet's controller is late
    assert (world.ordered(), draining(world)) == ((1, None), [first])
    world.break_device(new)
    for _ in range(8):
        world.run()
    assert world.ordered()[0] == 1
    world.api.control()
    assert len(world.pods) == 1


class Obeying:
    """Daemons that obey at once, with nothing under way."""

    def __init__(self):
        self.told = []

    async def give(self, tells):
        self.told += [(tell.pod, tell.deadline_ms is not None) for tell in tells]
        return {tell.uid: Answer(DaemonState.SERVING if tell.deadline_ms is None else DaemonState.DRAINING) for tell in tells}


def addressed(world):
    for pod in world.api.of(PODS):
        if pod["status"].get("phase") == "Running":
            pod["status"]["podIP"] = "10.0.0.1"


@pytest.mark.parametrize("spec", [{}, BROKEN])
def test_an_unhealthy_replica_drains_and_serves_again_if_its_successor_fails(spec):
    world, first, new = succeeding()
    world.edit(**spec)
    world.turns(2)
    world.ready(new)
    addressed(world)
    world.daemons = daemons = Obeying()
    world.restart()
    world.run()
    world.said[new] = STUCK
    world.run()
    world.turns(4)
    assert daemons.told[0] == (first, True) or draining(world) == []
    assert set(world.pods) == {first, new}
    assert draining(world) == []
    world.said.clear()
    world.turns(12)
    assert (first, True) in daemons.told
    assert world.pods == [new]


# Any order of events

WHICH = st.integers(0, 3)
SAID = {"silent": SILENT, "stuck": STUCK, "wrong": WRONG, "well": WELL}


class Successors(RuleBasedStateMachine):
    """Devices are called faulty and whole again, replicas stop answering, crash, load and come up, gateways pause, a quota fills, more or
    fewer are wanted, the spec is broken for a while; the operator looks at any moment, anew, or dies between two writes."""

    @initialize(replicas=st.integers(1, 3))
    def begin(self, replicas):
        self.world, self.wanted, self.most = UnhealthyWorld(replicas), replicas, replicas
        self.world.api.before_write = self.before
        self.world.api.removed = lambda body: self.judge(body["metadata"]["name"], body)

    # What is true, whatever the operator knows of it

    def answers(self, body):
        return is_ready(body) and not self.world.said.get(body["metadata"]["name"], WELL).bad

    def faulty(self, body):
        return ANNOTATION_DEVICE_FAULT in body["metadata"].get("annotations", {})

    # Before a pod goes

    def before(self, verb, kind, _name):
        assert (verb, kind) != ("delete", "Pod")

    def judge(self, name, body):
        others = [pod for pod in self.world.api.of(PODS) if pod["metadata"]["name"] != name]
        if self.world.silent_s < MISSING_S or not self.world.no_signals:
            assert not self.answers(body) or any(map(self.answers, others)), "the last one that serves and answers goes by nobody's hand"

    @invariant()
    def there_is_at_most_one_too_many(self):
        if hasattr(self, "world"):
            assert self.world.ordered()[0] <= self.most + 1

    def pod(self, which):
        if not self.world.pods:
            self.world.api.control()
        pods = self.world.api.of(PODS)
        return pods[which % len(pods)]

    @rule(which=WHICH)
    def a_device_is_called_faulty(self, which):
        self.world.break_device(self.pod(which)["metadata"]["name"])

    @rule(which=WHICH)
    def a_device_is_whole_again(self, which):
        self.world.repair_device(self.pod(which)["metadata"]["name"])

    @rule()
    def every_device_is_called_faulty(self):
        self.world.break_device(*self.world.pods)

    @rule(fate=st.sampled_from(list(SAID)), which=WHICH)
    def a_gateway_says(self, fate, which):
        self.world.said[self.pod(which)["metadata"]["name"]] = SAID[fate]

    @precondition(lambda self: not self.world.no_signals and not draining(self.world))
    @rule(nobody=st.booleans())
    def gateways_pause(self, nobody):
        self.world.no_signals, self.world.nobody, self.world.silent_s = True, nobody, 0.0

    @precondition(lambda self: self.world.no_signals)
    @rule()
    def gateways_speak(self):
        self.world.no_signals = False

    @rule(which=WHICH, status=st.sampled_from([running(ready=True), running(ready=True), running(ready=False), {"phase": "Pending"}]))
    def a_kubelet_says(self, which, status):
        pod = self.pod(which)
        pod["spec"] = {**pod.get("spec", {}), "nodeName": "n"}
        pod["status"] = copy.deepcopy(status)

    @rule()
    def all_that_is_new_loads(self):
        for pod in self.world.api.of(PODS):
            if not pod["status"]:
                self.world.load(pod["metadata"]["name"])

    @precondition(lambda self: not self.world.no_signals)
    @rule(replicas=st.integers(1, 3))
    def another_number_is_wanted(self, replicas):
        self.world.edit(replicas=replicas)
        self.wanted, self.most = replicas, max(replicas, self.most)

    @rule(full=st.booleans())
    def a_quota_fills(self, full):
        self.world.full_quota.why = NO_ROOM if full else ""

    @rule(broken=st.booleans())
    def the_spec_is_edited(self, broken):
        self.world.edit(model={"uri": "ftp://nowhere"} if broken else {"uri": "pvc://models/tiny"})

    @rule(which=WHICH)
    def somebody_deletes_a_pod_that_does_not_answer(self, which):
        pod = self.pod(which)
        if not self.answers(pod):
            self.world.lose(pod["metadata"]["name"])

    @rule(seconds=st.sampled_from([1, 30, 59, 121]))
    def wait(self, seconds):
        self.world.pass_time(seconds)
        self.world.silent_s += seconds

    @rule(times=st.integers(1, 4))
    def look(self, times):
        self.world.turns(times)

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
            self.world.pass_time(240)
            written = len(self.world.api.journal)
            self.world.run()
            assert len(self.world.api.journal) == written or self.world.no_signals
            self.world.settle()

    @rule()
    def where_all_answer_nobody_nothing_is_removed(self):
        self.world.no_signals = False
        for pod in self.world.api.of(PODS):
            self.world.ready(pod["metadata"]["name"])
        self.world.settle()
        before = list(self.world.pods)
        pods = self.world.api.of(PODS)
        whole = all(is_ready(pod) and not self.faulty(pod) for pod in pods)
        if len(before) == self.wanted > 1 and whole and not draining(self.world):
            self.world.said = dict.fromkeys(before, STUCK)
            self.world.settle()
            assert self.world.pods == before

    def peace(self):
        """Gateways speak, the spec is right, there is room."""
        self.world.no_signals, self.world.full_quota.why = False, ""
        self.the_spec_is_edited(broken=False)
        self.world.said.clear()

    @rule()
    def all_mend_and_there_are_as_many_as_are_wanted(self):
        self.peace()
        self.world.repair_device(*self.world.pods)
        self.world.make_ready()
        self.world.make_ready()
        assert (len(self.world.pods), self.world.ordered()) == (self.wanted, (self.wanted, None))

    @rule()
    def where_new_devices_are_sound_and_a_person_helps_all_are_in_the_end(self):
        self.peace()
        for _ in range(2 * len(self.world.pods) + 2):
            self.world.make_ready()
            if "is unhealthy as well" in self.world.told()[2]:
                self.world.lose(max(self.world.pods, key=lambda name: int(name.rpartition("-")[2])))
        assert not any(map(self.faulty, self.world.api.of(PODS)))
        assert (len(self.world.pods), self.world.told()[0] in ("", "False")) == (self.wanted, True)
        self.most = self.wanted


class LongSuccessors(Successors):
    """The same, longer."""


LongSuccessors.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=50, deadline=None)
test_successors_over_a_long_time = pytest.mark.deep(LongSuccessors.TestCase)
