"""The successor of an unhealthy replica: the rule by itself, then with controllers and kubelets, then in a random one."""

import contextlib
import copy
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pagoda_contracts.names import ANNOTATION_DEVICE_FAULT, ANNOTATION_DRAIN_DEADLINE, ANNOTATION_WITH_SUCCESSOR
from pagoda_operator.api.pods import Answer, DaemonState, Pod
from pagoda_operator.api.signals import MISSING_S, EndpointSignal, Seen
from pagoda_operator.api.state import DEPLOYMENTS, PODS
from pagoda_operator.decide.health import Case, step
from pagoda_operator.decide.placement import ask
from pagoda_operator.decide.plan import _rollout_state
from pagoda_operator.decide.replicas.replicas import current_state
from pagoda_placement.charges import Grant
from support.harness.unhealthy import SILENT, STUCK, WELL, WRONG, UnhealthyHarness
from support.kube.fake_api import Crash, is_ready, running
from support.suite.profiles import examples

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
        # A leader of a moment ago has not heard yet who is unhealthy.
        (case(staying="abc", extra=True, unhealthy="", unsure=True), 3, ""),
        (case(unhealthy="", unsure=True), 2, ""),
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


# With controllers and kubelets


def served_throughout(harness, least):
    """At each write so many replicas run, and no write deletes a pod."""

    def judge(verb, kind, _name):
        assert (verb, kind) != ("delete", "Pod")
        assert sum(pod.get("status", {}).get("phase") == "Running" for pod in harness.api.of(PODS)) >= least

    harness.api.before_write = judge


def draining(harness):
    return [pod["metadata"]["name"] for pod in harness.api.of(PODS) if ANNOTATION_DRAIN_DEADLINE in pod["metadata"].get("annotations", {})]


def succeeding(replicas=1, *, assigned=True, how=None):
    """The first replica is unhealthy, and its successor loads beside it."""
    harness = UnhealthyHarness(replicas)
    there = list(harness.pods)
    if how is None:
        harness.break_device(there[0])
    else:
        harness.said[there[0]] = how
    harness.settle()
    (new,) = set(harness.pods) - set(there)
    harness.load(new, assigned=assigned)
    harness.settle()
    assert harness.ordered() == (replicas + 1, str(replicas + 1))
    return harness, there[0], new


@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("replicas", [1, 3])
def test_an_unhealthy_replica_goes_after_its_successor_serves(replicas, restarts, heard):
    harness = UnhealthyHarness(replicas)
    unhealthy = harness.pods[0]
    harness.no_signals = harness.nobody = not heard
    served_throughout(harness, replicas)
    harness.break_device(unhealthy)
    harness.settle()
    assert (harness.ordered(), unhealthy in harness.pods) == ((replicas + 1, str(replicas + 1)), True)
    assert harness.reported()[:2] == ("True", "DeviceFault")
    assert "drains the unhealthy replica when the successor is Ready" in harness.reported()[2]
    assert harness.conditions()["Ready"]["status"] == "True"
    harness.pass_time(3600)
    if restarts:
        harness.restart()
    written = len(harness.api.journal)
    harness.settle()
    assert len(harness.api.journal) == written
    harness.make_ready()
    assert (harness.ordered(), unhealthy in harness.pods, len(harness.pods)) == ((replicas, None), False, replicas)
    assert harness.reported()[:2] == ("False", "Well")


@pytest.mark.parametrize("how", [SILENT, STUCK, WRONG])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_replica_that_does_not_answer_is_replaced(replicas, how):
    harness, unhealthy, _ = succeeding(replicas, how=how)
    assert unhealthy in harness.pods
    harness.make_ready()
    assert (unhealthy in harness.pods, len(harness.pods), harness.ordered()) == (False, replicas, (replicas, None))


def test_two_unhealthy_ones_are_replaced_one_after_the_other():
    harness = UnhealthyHarness(4)
    served_throughout(harness, 4)
    first, second = harness.pods[:2]
    harness.said |= {first: SILENT, second: WRONG}
    harness.settle()
    assert harness.ordered() == (5, "5")
    harness.make_ready()
    assert (len({first, second} & set(harness.pods)), harness.ordered()) == (1, (5, "5"))
    harness.make_ready()
    assert ({first, second} & set(harness.pods), len(harness.pods), harness.ordered()) == (set(), 4, (4, None))


@pytest.mark.parametrize("how", ["fault", STUCK, WRONG])
@pytest.mark.parametrize("replicas", [1, 2])
def test_an_unhealthy_successor_is_marked_and_no_other_one_is_started_until_it_is_gone(replicas, how):
    harness, unhealthy, new = succeeding(replicas)
    harness.ready(new)
    if how == "fault":
        harness.break_device(new)
    else:
        harness.said[new] = how
    harness.settle()
    there = set(harness.pods)
    for _ in range(5):
        harness.pass_time(3600)
        harness.restart()
        written = len(harness.api.journal)
        harness.settle()
        assert (len(harness.api.journal), set(harness.pods)) == (written, there)
    assert harness.reported()[:2] == ("True", "ReplacementDelayed")
    assert f"The successor {new} is unhealthy as well" in harness.reported()[2]
    assert "delete that pod" in harness.reported()[2]
    harness.lose(new)
    harness.settle()
    (again,) = set(harness.pods) - there
    assert "A successor is starting" in harness.reported()[2]
    harness.ready(again)
    harness.settle()
    assert (unhealthy in harness.pods, again in harness.pods, len(harness.pods)) == (False, True, replicas)


def test_an_unhealthy_successor_that_is_well_again_does_its_work():
    harness, unhealthy, new = succeeding()
    harness.ready(new)
    harness.said[new] = STUCK
    harness.settle()
    assert unhealthy in harness.pods
    harness.said.clear()
    harness.settle()
    assert harness.pods == [new]


def test_a_replica_that_is_well_again_is_kept_and_nothing_more():
    harness, unhealthy, _ = succeeding()
    harness.repair_device(unhealthy)
    harness.settle()
    assert (harness.pods, harness.ordered(), harness.reported()[0]) == ([unhealthy], (1, None), "False")


@pytest.mark.parametrize(("replicas", "unhealthy"), [(3, 3), (3, 2), (5, 3), (2, 2)])
@pytest.mark.parametrize("how", [WRONG, SILENT])
def test_where_most_are_unhealthy_at_once_nothing_is_removed_and_nothing_started(replicas, unhealthy, how):
    harness = UnhealthyHarness(replicas)
    before = list(harness.pods)
    harness.said = dict.fromkeys(before[:unhealthy], how)
    for _ in range(5):
        harness.pass_time(3600)
        harness.settle()
    assert (harness.pods, draining(harness), harness.ordered()) == (before, [], (replicas, None))
    assert harness.reported()[:2] == ("True", "ReplacementDelayed")
    count = f"All {unhealthy}" if unhealthy == replicas else f"{unhealthy} of {replicas}"
    assert f"{count} ready replicas of revision" in harness.reported()[2]
    assert harness.conditions()["Ready"]["status"] == "True"


def test_a_drain_that_has_begun_is_cancelled_if_most_replicas_do_not_answer():
    harness, unhealthy, new = succeeding(2)
    harness.ready(new)
    harness.run()
    assert draining(harness) == [unhealthy]
    harness.repair_device(unhealthy)
    harness.said = dict.fromkeys(harness.pods, STUCK)
    harness.settle()
    assert (len(harness.pods), draining(harness)) == (3, [])


def test_replicas_that_also_have_a_faulty_device_are_replaced_however_many():
    """That gateways hear nobody is one thing; that the devices are called faulty is another one."""
    harness = UnhealthyHarness(2)
    old = set(harness.pods)
    harness.break_device(*old)
    harness.said = dict.fromkeys(old, STUCK)
    for _ in range(3):
        harness.settle()
        harness.make_ready()
    assert not old & set(harness.pods)


def test_a_full_quota_delays_the_successor_and_is_named():
    harness = UnhealthyHarness(1)
    (unhealthy,) = harness.pods
    harness.full_quota.why = NO_ROOM
    harness.break_device(unhealthy)
    harness.settle()
    assert (harness.pods, harness.ordered(), harness.run().again) == ([unhealthy], (1, None), 30.0)
    assert harness.reported() == (
        "True",
        "ReplacementDelayed",
        f"{unhealthy}: the device is faulty: Xid 79. A successor has no room: {NO_ROOM}. It starts when there is room.",
    )
    harness.full_quota.why = ""
    harness.settle()
    harness.make_ready()
    assert (unhealthy in harness.pods, len(harness.pods)) == (False, 1)


def test_a_successor_that_loads_goes_where_its_quota_shrank_and_the_unhealthy_one_stays():
    harness, unhealthy, _ = succeeding()
    harness.full_quota.why = NO_ROOM
    harness.settle()
    assert (harness.pods, harness.ordered()) == ([unhealthy], (1, None))
    assert NO_ROOM in harness.reported()[2]


def test_a_successor_without_a_node_waits_and_the_condition_says_for_what():
    harness, unhealthy, new = succeeding(assigned=False)
    why = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
    harness.pod(new)["status"] = {"phase": "Pending", "conditions": [unscheduled]}
    harness.settle()
    assert set(harness.pods) == {unhealthy, new}
    assert harness.reported()[1] == "ReplacementDelayed"
    assert f"The successor {new} has no node: {why}" in harness.reported()[2]
    observed = harness.observed()
    state = current_state(observed, harness.plan().current)
    assert (state.short, state.stuck) == (0, False), "no rollout takes a replica away for it"
    assert [run.refused for run in ask(observed, observed.spec).runs] == [""], "nor does the service move to other devices"


def test_a_successor_counts_after_a_gateway_reports_it():
    harness, unhealthy, new = succeeding()
    harness.said[new] = EndpointSignal(Seen.UNHEARD, "unheard", bad_s=1)
    harness.make_ready()
    assert set(harness.pods) == {unhealthy, new}
    harness.said[new] = WELL
    harness.settle()
    assert harness.pods == [new]


@pytest.mark.parametrize("cold", [True, False], ids=["the operator starts", "gateways pause"])
def test_a_moment_without_gateways_does_not_make_a_successor_count(cold):
    harness, unhealthy, new = succeeding()
    harness.said[new] = EndpointSignal(Seen.UNHEARD, "unheard", bad_s=1)
    harness.ready(new)
    harness.turns(3)
    harness.no_signals, harness.nobody, harness.silent_s = True, cold, 0.0
    if cold:
        harness.restart()
    for harness.silent_s in (1.0, 10.0, MISSING_S - 1):
        harness.turns(4)
        assert set(harness.pods) == {unhealthy, new}
    assert harness.run().again == 1.0
    harness.silent_s = MISSING_S
    harness.turns(4)
    assert harness.pods == [new], "there may be no gateway at all"


def test_the_place_of_a_successor_counts_once_for_the_quota():
    harness, _, _ = succeeding()
    observed = replace(harness.observed(), quota=Grant(2, 2, ""))
    assert _rollout_state(observed, observed.spec, harness.plan().current, None).room == 0


def test_no_successor_is_started_while_others_load():
    """A ReplicaSet that has one too many takes who loads."""
    harness = UnhealthyHarness(3)
    unhealthy, other, _ = harness.pods
    harness.load(other)
    harness.break_device(unhealthy)
    harness.settle()
    assert (harness.ordered(), "Other replicas are starting" in harness.reported()[2]) == ((3, None), True)
    harness.ready(other)
    harness.settle()
    assert harness.ordered() == (4, "4")
    harness.load(other)
    harness.make_ready()
    assert (unhealthy in harness.pods, other in harness.pods, len(harness.pods)) == (False, True, 3)


def test_where_a_new_revision_comes_none_is_made_beside_the_old_ones():
    harness = UnhealthyHarness(1)
    (old,) = harness.names(DEPLOYMENTS)
    first = harness.pods[0]
    harness.edit(model={"uri": "pvc://models/other"})
    harness.settle()
    (new,) = set(harness.pods) - {first}
    harness.load(new)
    harness.break_device(first)
    harness.turns(6)
    assert set(harness.pods) == {first, new}
    harness.ready(new)
    harness.settle()
    assert (harness.pods, old in harness.names(DEPLOYMENTS)) == ([new], False)


def test_a_new_revision_whose_replica_does_not_answer_gets_one_that_does_and_the_rollout_goes_on():
    harness = UnhealthyHarness(1)
    (old,) = harness.names(DEPLOYMENTS)
    harness.edit(model={"uri": "pvc://models/other"})
    harness.settle()
    (stuck,) = (name for name in harness.pods if not name.startswith(old))
    harness.said[stuck] = STUCK
    harness.ready(stuck)
    harness.settle()
    assert [name for name in harness.pods if name.startswith(old)], "the old one serves"
    for name in set(harness.pods):
        harness.ready(name)
    harness.settle()
    harness.make_ready()
    assert (len(harness.pods), stuck in harness.pods, old in harness.names(DEPLOYMENTS)) == (1, False, False)


def test_a_canary_whose_every_replica_is_on_a_faulty_device_grows_by_one_and_no_more():
    steps = [{"weight": 25, "hold": "24h"}]
    harness = UnhealthyHarness(4, rollout={"strategy": "Surge", "canary": {"steps": steps}})
    (old,) = harness.names(DEPLOYMENTS)
    harness.edit(model={"uri": "pvc://models/other"})
    harness.settle()
    harness.make_ready()
    most = {}
    for _ in range(12):
        for name in harness.pods:
            harness.ready(name)
        harness.break_device(*harness.pods)
        harness.pass_time(120)
        harness.turns(3)
        for body in harness.api.of(DEPLOYMENTS):
            name = body["metadata"]["name"]
            most[name] = max(most.get(name, 0), body["spec"]["replicas"])
    assert sum(most.values()) == 4 + 1 + 1
    assert most[old] in (4, 5)


def test_where_fewer_are_wanted_the_unhealthy_one_goes_and_nothing_is_started():
    harness = UnhealthyHarness(3)
    unhealthy = harness.pods[0]
    harness.break_device(unhealthy)
    harness.edit(replicas=2)
    harness.settle()
    assert (unhealthy in harness.pods, len(harness.pods), harness.ordered()) == (False, 2, (2, None))


@pytest.mark.parametrize("fewer", [1, 2])
def test_where_fewer_are_wanted_while_a_successor_loads_as_many_stay_that_serve(fewer):
    harness, unhealthy, _ = succeeding(3)
    harness.edit(replicas=fewer)
    served_throughout(harness, fewer)
    harness.settle()
    harness.make_ready()
    assert (unhealthy in harness.pods, len(harness.pods), harness.ordered()) == (False, fewer, (fewer, None))


def test_where_more_are_wanted_the_successor_is_still_one_more():
    harness, unhealthy, _ = succeeding()
    harness.edit(replicas=2)
    harness.settle()
    assert harness.ordered() == (3, "3")
    harness.make_ready()
    assert (unhealthy in harness.pods, len(harness.pods), harness.ordered()) == (False, 2, (2, None))


def test_where_fewer_are_wanted_while_all_are_on_faulty_devices_the_work_comes_to_an_end():
    harness = UnhealthyHarness(2)
    harness.break_device(*harness.pods)
    harness.edit(replicas=1)
    harness.turns(12)
    written = len(harness.api.journal)
    harness.turns(12)
    assert len(harness.api.journal) == written


@pytest.mark.parametrize("spec", [BROKEN, {"accelerators": []}])
def test_a_broken_spec_does_not_keep_an_unhealthy_replica(spec):
    harness = UnhealthyHarness(1)
    (unhealthy,) = harness.pods
    harness.edit(**spec)
    harness.break_device(unhealthy)
    harness.settle()
    assert (len(harness.pods), harness.ordered()) == (2, (2, "2"))
    harness.make_ready()
    assert (unhealthy in harness.pods, len(harness.pods), harness.ordered()) == (False, 1, (1, None))
    assert harness.conditions()["Stalled"]["reason"] == "InvalidSpec"


def test_an_operator_that_dies_after_it_ordered_a_successor_is_followed_by_one_that_knows():
    harness = UnhealthyHarness(1)
    harness.break_device(*harness.pods)
    harness.api.crash_in = 1
    with contextlib.suppress(Crash):
        harness.run()
    assert harness.ordered() == (2, "2")
    harness.restart()
    harness.settle()
    assert len(harness.pods) == 2
    harness.make_ready()
    assert (len(harness.pods), harness.ordered()) == (1, (1, None))


@pytest.mark.parametrize("text", ["", "2", "7", "seven", "-1", "9" * 100_000])
def test_a_foreign_successor_annotation_is_removed_and_changes_nothing(text):
    harness = UnhealthyHarness(1)
    (name,) = harness.names(DEPLOYMENTS)
    harness.api.edit(DEPLOYMENTS, "ns", name, lambda body: body["metadata"]["annotations"].update({ANNOTATION_WITH_SUCCESSOR: text}))
    harness.settle()
    assert (harness.ordered(), len(harness.pods)) == ((1, None), 1)


def test_no_other_replica_is_removed_before_the_unhealthy_one_is_gone():
    harness, first, new = succeeding()
    harness.ready(new)
    for _ in range(8):
        harness.run()  # the ReplicaSet's controller is late
    assert (harness.ordered(), draining(harness)) == ((1, None), [first])
    harness.break_device(new)
    for _ in range(8):
        harness.run()
    assert harness.ordered()[0] == 1
    harness.api.control()
    assert len(harness.pods) == 1


class Obeying:
    """Daemons that obey at once, with nothing under way."""

    def __init__(self):
        self.reported = []

    async def give(self, reports):
        self.reported += [(report.pod, report.deadline_ms is not None) for report in reports]
        return {report.uid: Answer(DaemonState.SERVING if report.deadline_ms is None else DaemonState.DRAINING) for report in reports}


def addressed(harness):
    for pod in harness.api.of(PODS):
        if pod["status"].get("phase") == "Running":
            pod["status"]["podIP"] = "10.0.0.1"


@pytest.mark.parametrize("spec", [{}, BROKEN])
def test_an_unhealthy_replica_drains_and_serves_again_if_its_successor_fails(spec):
    harness, first, new = succeeding()
    harness.edit(**spec)
    harness.turns(2)
    harness.ready(new)
    addressed(harness)
    harness.daemons = daemons = Obeying()
    harness.restart()
    harness.run()
    harness.said[new] = STUCK
    harness.run()
    harness.turns(4)
    assert daemons.reported[0] == (first, True) or draining(harness) == []
    assert set(harness.pods) == {first, new}
    assert draining(harness) == []
    harness.said.clear()
    harness.turns(12)
    assert (first, True) in daemons.reported
    assert harness.pods == [new]


# Any order of events

WHICH = st.integers(0, 3)
SAID = {"silent": SILENT, "stuck": STUCK, "wrong": WRONG, "well": WELL}


class Successors(RuleBasedStateMachine):
    """Devices are called faulty and whole again, replicas stop answering, crash, load and come up, gateways pause, a quota fills, more or
    fewer are wanted, the spec is broken for a while; the operator looks at any moment, anew, or dies between two writes."""

    @initialize(replicas=st.integers(1, 3))
    def begin(self, replicas):
        self.harness, self.wanted, self.most = UnhealthyHarness(replicas), replicas, replicas
        self.harness.api.before_write = self.before
        self.harness.api.removed = lambda body: self.judge(body["metadata"]["name"], body)

    # What is true, whatever the operator knows of it

    def answers(self, body):
        return is_ready(body) and not self.harness.said.get(body["metadata"]["name"], WELL).bad

    def faulty(self, body):
        return ANNOTATION_DEVICE_FAULT in body["metadata"].get("annotations", {})

    # Before a pod goes

    def before(self, verb, kind, _name):
        assert (verb, kind) != ("delete", "Pod")

    def judge(self, name, body):
        others = [pod for pod in self.harness.api.of(PODS) if pod["metadata"]["name"] != name]
        if self.harness.silent_s < MISSING_S or not self.harness.no_signals:
            assert not self.answers(body) or any(map(self.answers, others)), "the last one that serves and answers goes by nobody's hand"

    @invariant()
    def there_is_at_most_one_too_many(self):
        if hasattr(self, "harness"):
            assert self.harness.ordered()[0] <= self.most + 1

    def pod(self, which):
        if not self.harness.pods:
            self.harness.api.control()
        pods = self.harness.api.of(PODS)
        return pods[which % len(pods)]

    @rule(which=WHICH)
    def a_device_is_called_faulty(self, which):
        self.harness.break_device(self.pod(which)["metadata"]["name"])

    @rule(which=WHICH)
    def a_device_is_whole_again(self, which):
        self.harness.repair_device(self.pod(which)["metadata"]["name"])

    @rule()
    def every_device_is_called_faulty(self):
        self.harness.break_device(*self.harness.pods)

    @rule(fate=st.sampled_from(list(SAID)), which=WHICH)
    def a_gateway_says(self, fate, which):
        self.harness.said[self.pod(which)["metadata"]["name"]] = SAID[fate]

    @precondition(lambda self: not self.harness.no_signals and not draining(self.harness))
    @rule(nobody=st.booleans())
    def gateways_pause(self, nobody):
        self.harness.no_signals, self.harness.nobody, self.harness.silent_s = True, nobody, 0.0

    @precondition(lambda self: self.harness.no_signals)
    @rule()
    def gateways_speak(self):
        self.harness.no_signals = False

    @rule(which=WHICH, status=st.sampled_from([running(ready=True), running(ready=True), running(ready=False), {"phase": "Pending"}]))
    def a_kubelet_says(self, which, status):
        pod = self.pod(which)
        pod["spec"] = {**pod.get("spec", {}), "nodeName": "n"}
        pod["status"] = copy.deepcopy(status)

    @rule()
    def all_that_is_new_loads(self):
        for pod in self.harness.api.of(PODS):
            if not pod["status"]:
                self.harness.load(pod["metadata"]["name"])

    @precondition(lambda self: not self.harness.no_signals)
    @rule(replicas=st.integers(1, 3))
    def another_number_is_wanted(self, replicas):
        self.harness.edit(replicas=replicas)
        self.wanted, self.most = replicas, max(replicas, self.most)

    @rule(full=st.booleans())
    def a_quota_fills(self, full):
        self.harness.full_quota.why = NO_ROOM if full else ""

    @rule(broken=st.booleans())
    def the_spec_is_edited(self, broken):
        self.harness.edit(model={"uri": "ftp://nowhere"} if broken else {"uri": "pvc://models/tiny"})

    @rule(which=WHICH)
    def somebody_deletes_a_pod_that_does_not_answer(self, which):
        pod = self.pod(which)
        if not self.answers(pod):
            self.harness.lose(pod["metadata"]["name"])

    @rule(seconds=st.sampled_from([1, 30, 59, 121]))
    def wait(self, seconds):
        self.harness.pass_time(seconds)
        self.harness.silent_s += seconds

    @rule(times=st.integers(1, 4))
    def look(self, times):
        self.harness.turns(times)

    @rule(writes=st.integers(0, 2))
    def look_and_die(self, writes):
        self.harness.api.crash_in = writes
        with contextlib.suppress(Crash):
            self.harness.run()
        self.harness.api.crash_in = None
        self.harness.restart()

    @rule()
    def restart(self):
        self.harness.restart()

    @rule()
    def at_rest_nothing_is_written(self):
        self.harness.settle()
        for _ in range(3):
            self.harness.pass_time(240)
            written = len(self.harness.api.journal)
            self.harness.run()
            assert len(self.harness.api.journal) == written or self.harness.no_signals
            self.harness.settle()

    @rule()
    def where_all_answer_nobody_nothing_is_removed(self):
        self.harness.no_signals = False
        for pod in self.harness.api.of(PODS):
            self.harness.ready(pod["metadata"]["name"])
        self.harness.settle()
        before = list(self.harness.pods)
        pods = self.harness.api.of(PODS)
        whole = all(is_ready(pod) and not self.faulty(pod) for pod in pods)
        if len(before) == self.wanted > 1 and whole and not draining(self.harness):
            self.harness.said = dict.fromkeys(before, STUCK)
            self.harness.settle()
            assert self.harness.pods == before

    def peace(self):
        """Gateways speak, the spec is right, there is room."""
        self.harness.no_signals, self.harness.full_quota.why = False, ""
        self.the_spec_is_edited(broken=False)
        self.harness.said.clear()

    @rule()
    def all_mend_and_there_are_as_many_as_are_wanted(self):
        self.peace()
        self.harness.repair_device(*self.harness.pods)
        self.harness.make_ready()
        self.harness.make_ready()
        assert (len(self.harness.pods), self.harness.ordered()) == (self.wanted, (self.wanted, None))

    @rule()
    def where_new_devices_are_sound_and_a_person_helps_all_are_in_the_end(self):
        self.peace()
        for _ in range(2 * len(self.harness.pods) + 2):
            before = self.harness.api.versions()
            self.harness.make_ready()
            if "is unhealthy as well" in self.harness.reported()[2]:
                self.harness.lose(max(self.harness.pods, key=lambda name: int(name.rpartition("-")[2])))
            elif self.harness.api.versions() == before:
                break  # no time passes here, so that no further round would differ
        assert not any(map(self.faulty, self.harness.api.of(PODS)))
        assert (len(self.harness.pods), self.harness.reported()[0] in ("", "False")) == (self.wanted, True)
        self.most = self.wanted


class LongSuccessors(Successors):
    """The same, longer."""


LongSuccessors.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=50, deadline=None)
test_successors_over_a_long_time = pytest.mark.deep(LongSuccessors.TestCase)
