"""Which replicas are unhealthy, in what order replicas go, and what the condition Degraded keeps on saying."""

from dataclasses import replace

import pytest
from pagoda_contracts.conditions import health as conditions
from pagoda_contracts.names import ANNOTATION_DEVICE_FAULT, ANNOTATION_DRAIN_DEADLINE
from pagoda_operator.api.signals import CONFIRM_S, MISSING_S, EndpointSignal, Seen, ServiceSignals
from pagoda_operator.api.state import PODS
from pagoda_operator.decide.health import judge
from pagoda_operator.decide.replicas.drain import Removal
from support.kube.fake_api import running
from support.worlds.stubs import dependencies_with
from support.worlds.unhealthy import SILENT, STUCK, WELL, WRONG, UnhealthyWorld
from support.worlds.world import World


@pytest.mark.parametrize(
    ("signal", "reason"),
    [
        (WELL, None),
        (SILENT, conditions.SILENT),
        (replace(SILENT, bad_s=CONFIRM_S - 1), None),
        (STUCK, conditions.STUCK),
        (WRONG, conditions.DEEP_CHECK_FAILED),
        (replace(WRONG, bad_s=CONFIRM_S - 1), None),
        (EndpointSignal(Seen.SUSPECT, "suspect", bad_s=0), None),
        (EndpointSignal(Seen.UNHEARD, "unheard", bad_s=MISSING_S - 1), None),
        (EndpointSignal(Seen.UNHEARD, "unheard", bad_s=MISSING_S), conditions.SILENT),
        (replace(STUCK, reason="overdue", bad_s=89), None),
        (replace(STUCK, reason="overdue", bad_s=90), conditions.STUCK),
    ],
)
def test_which_replicas_are_unhealthy(signal, reason):
    world = UnhealthyWorld()
    world.said[world.pods[0]] = signal
    assert [one.reason for one in judge(world.observation()).unhealthy] == ([reason] if reason else [])


def test_a_service_grants_a_step_its_own_time():
    world = UnhealthyWorld(health={"progressTimeout": "10m"})
    world.said[world.pods[0]] = replace(STUCK, reason="overdue", bad_s=569)
    assert judge(world.observation()).unhealthy == ()
    world.said[world.pods[0]] = replace(STUCK, reason="overdue", bad_s=570)
    assert len(judge(world.observation()).unhealthy) == 1


@pytest.mark.parametrize("fate", [running(), {"phase": "Failed"}])
def test_a_pod_that_is_not_ready_is_not_unhealthy(fate):
    world = UnhealthyWorld()
    world.api.of(PODS)[0]["status"] = fate
    world.said[world.pods[0]] = SILENT
    assert judge(world.observation()).unhealthy == ()


def test_a_faulty_device_makes_only_pods_with_devices_unhealthy():
    world = UnhealthyWorld()
    for pod in world.api.of(PODS):
        pod["spec"] = {"nodeName": "gpu-1"}
    assert judge(world.observation(faults={"gpu-1": "Xid 79"})).unhealthy == ()
    world.api.of(PODS)[0]["spec"]["containers"] = [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]
    (one,) = judge(world.observation(faults={"gpu-1": "Xid 79"})).unhealthy
    assert (one.reason, one.pod.name, "Xid 79" in one.why) == (conditions.DEVICE_FAULT, world.pods[0], True)


def test_a_fault_of_a_node_is_marked_on_its_pods_until_it_is_over():
    world = UnhealthyWorld()
    for pod in world.api.of(PODS):
        pod["spec"] = {"nodeName": "gpu-1", "containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}
    world.api.of(PODS)[2]["metadata"]["annotations"] = {ANNOTATION_DEVICE_FAULT: "Xid 48, says the vendor"}
    marks = judge(world.observation(faults={"gpu-1": "Xid 79"})).marks
    ours = {ANNOTATION_DEVICE_FAULT: "node: Xid 79"}
    assert [(mark.name, mark.annotations) for mark in marks] == [(name, ours) for name in world.pods[:2]]
    for pod in world.api.of(PODS)[:2]:
        pod["metadata"]["annotations"] = dict(ours)
    found = judge(world.observation(faults={"gpu-1": "Xid 79"}))
    assert ([one.pod.name for one in found.unhealthy], found.marks) == (world.pods, ())
    health = judge(world.observation())
    off = health.marks
    assert [(mark.name, mark.annotations) for mark in off] == [(name, {ANNOTATION_DEVICE_FAULT: None}) for name in world.pods[:2]]
    assert [one.pod.name for one in health.unhealthy] == [world.pods[2]]


def test_a_draining_replica_is_not_reported_as_unhealthy():
    world = UnhealthyWorld()
    world.api.of(PODS)[0]["metadata"]["annotations"] = {ANNOTATION_DRAIN_DEADLINE: "1767225660000"}
    world.said[world.pods[0]] = SILENT
    assert judge(world.observation()).unhealthy == ()


def test_a_mark_on_the_pod_itself_is_enough():
    world = UnhealthyWorld()
    world.api.of(PODS)[1]["metadata"]["annotations"] = {ANNOTATION_DEVICE_FAULT: "Xid 48 on GPU 2"}
    (one,) = judge(world.observation()).unhealthy
    assert (one.reason, one.pod.name) == (conditions.DEVICE_FAULT, world.pods[1])


def test_a_replica_that_may_not_answer_is_removed_before_those_that_answer():
    world = World(replicas=3)
    world.settle()
    world.make_ready()
    late, stuck, well = (pod["metadata"]["name"] for pod in world.api.of(PODS))
    signals = {
        late: EndpointSignal(Seen.DEAD, "overdue", bad_s=20.0),
        stuck: EndpointSignal(Seen.DEAD, "stuck", bad_s=CONFIRM_S),
        well: EndpointSignal(Seen.FRESH),
    }
    observed = replace(world.observed(), signals=ServiceSignals(fresh=True, endpoints=signals), unheard_s=0.0)
    assert judge(observed).order == {late: Removal.UNVERIFIED, stuck: Removal.FIRST}


def test_a_replica_that_does_not_answer_is_removed_before_one_on_a_faulty_device():
    world = UnhealthyWorld(3)
    stuck, faulty, _ = world.pods
    world.break_device(faulty)
    world.said |= {faulty: WELL, stuck: STUCK}
    world.edit(replicas=2)
    world.run()
    drained = [pod["metadata"]["name"] for pod in world.api.of(PODS) if ANNOTATION_DRAIN_DEADLINE in pod["metadata"].get("annotations", {})]
    assert drained == [stuck]


def test_a_replica_that_does_not_answer_is_removed_before_the_last_one_that_does():
    world = UnhealthyWorld(2)
    well, stuck = world.pods
    world.break_device(well)
    world.said |= {well: replace(WELL, in_flight=7), stuck: STUCK}
    world.pass_time(300)
    world.edit(replicas=1)
    world.run()
    drained = [pod["metadata"]["name"] for pod in world.api.of(PODS) if ANNOTATION_DRAIN_DEADLINE in pod["metadata"].get("annotations", {})]
    assert drained == [stuck]


def test_a_healthy_service_has_no_degraded_condition():
    world = UnhealthyWorld()
    written = len(world.api.journal)
    world.settle()
    assert world.degraded() is None
    assert len(world.api.journal) == written


@pytest.mark.parametrize("no_signals", [{}, {"endpoints": None}], ids=["heard of nobody", "heard of no gateway"])
def test_degraded_stays_after_a_restart_until_gateways_report_the_replica_well(no_signals):
    world = UnhealthyWorld(replicas=2)
    world.said = dict.fromkeys(world.pods, STUCK)
    world.settle()
    before = world.degraded()
    assert (before["status"], before["reason"]) == ("True", "ReplacementDelayed")
    world.restart()
    world.no_signals = True
    world.nobody = "endpoints" in no_signals
    world.settle()
    assert world.degraded() == before
    world.no_signals = False
    world.said = dict.fromkeys(world.pods, replace(STUCK, bad_s=1.0))  # a verdict that began with this process
    world.settle()
    assert world.degraded() == before
    world.said = {world.pods[0]: WELL, world.pods[1]: replace(STUCK, bad_s=1.0)}
    world.settle()
    assert world.degraded() == before
    world.said = {}
    world.settle()
    assert (world.degraded()["status"], world.degraded()["reason"]) == ("False", "Well")


def test_degraded_ends_if_the_replica_is_gone_or_its_device_is_repaired():
    world = UnhealthyWorld(replicas=2)
    name = world.pods[0]
    world.api.edit(PODS, "ns", name, lambda body: body["metadata"]["annotations"].update({ANNOTATION_DEVICE_FAULT: "Xid 79"}))
    world.operator._dependencies = dependencies_with(world.api, signals=world)
    world.run()
    assert world.degraded()["reason"] == "DeviceFault"
    world.no_signals = True
    world.api.edit(PODS, "ns", name, lambda body: body["metadata"]["annotations"].clear())
    world.run()
    assert world.degraded()["status"] == "False"
    world.no_signals, world.said = False, dict.fromkeys(world.pods, STUCK)
    world.settle()
    assert world.degraded()["reason"] == "ReplacementDelayed"
    world.no_signals = True
    for pod in list(world.pods):
        del world.api.objects["Pod", "ns", pod]
    world.settle()
    assert world.degraded()["status"] == "False"
