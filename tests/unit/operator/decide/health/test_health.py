"""Which replicas are unhealthy, in what order replicas go, and what the condition Degraded keeps on saying."""

from dataclasses import replace

import pytest
from pagoda_contracts.conditions import health as conditions
from pagoda_contracts.names import ANNOTATION_DEVICE_FAULT, ANNOTATION_DRAIN_DEADLINE
from pagoda_operator.api.signals import CONFIRM_S, MISSING_S, EndpointSignal, Seen, ServiceSignals
from pagoda_operator.api.state import PODS
from pagoda_operator.decide.health import judge
from pagoda_operator.decide.plan import plan
from pagoda_operator.decide.replicas.drain import Removal
from pagoda_operator.decide.status.status import status
from support.harness.harness import Harness
from support.harness.stubs import dependencies_with
from support.harness.unhealthy import SILENT, STUCK, WELL, WRONG, UnhealthyHarness
from support.kube.fake_api import running


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
    harness = UnhealthyHarness()
    harness.said[harness.pods[0]] = signal
    assert [one.reason for one in judge(harness.observation()).unhealthy] == ([reason] if reason else [])


def test_a_service_grants_a_step_its_own_time():
    harness = UnhealthyHarness(health={"progressTimeout": "10m"})
    harness.said[harness.pods[0]] = replace(STUCK, reason="overdue", bad_s=569)
    assert judge(harness.observation()).unhealthy == ()
    harness.said[harness.pods[0]] = replace(STUCK, reason="overdue", bad_s=570)
    assert len(judge(harness.observation()).unhealthy) == 1


@pytest.mark.parametrize("fate", [running(), {"phase": "Failed"}])
def test_a_pod_that_is_not_ready_is_not_unhealthy(fate):
    harness = UnhealthyHarness()
    harness.api.of(PODS)[0]["status"] = fate
    harness.said[harness.pods[0]] = SILENT
    assert judge(harness.observation()).unhealthy == ()


def test_a_faulty_device_makes_only_pods_with_devices_unhealthy():
    harness = UnhealthyHarness()
    for pod in harness.api.of(PODS):
        pod["spec"] = {"nodeName": "gpu-1"}
    assert judge(harness.observation(faults={"gpu-1": "Xid 79"})).unhealthy == ()
    harness.api.of(PODS)[0]["spec"]["containers"] = [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]
    (one,) = judge(harness.observation(faults={"gpu-1": "Xid 79"})).unhealthy
    assert (one.reason, one.pod.name, "Xid 79" in one.why) == (conditions.DEVICE_FAULT, harness.pods[0], True)


def test_the_status_names_replicas_on_faulty_devices_for_gateways_until_the_fault_is_over():
    harness = UnhealthyHarness()
    for pod in harness.api.of(PODS):
        pod["spec"] = {"nodeName": "gpu-1", "containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}
    harness.api.of(PODS)[2]["metadata"]["annotations"] = {ANNOTATION_DEVICE_FAULT: "Xid 48, says the vendor"}
    # A copy of the node's fault that the operator before this one made, and nobody takes away.
    harness.api.of(PODS)[1]["metadata"]["annotations"] = {ANNOTATION_DEVICE_FAULT: "node: Xid 79"}
    harness.said[harness.pods[0]] = EndpointSignal(Seen.FRESH, "device-fault", phase="ready", device_fault="Xid 94")

    def named(**faults):
        observed = harness.observation(**faults)
        return status(observed, plan(observed), None, "2026-01-01T00:00:00Z").get("faultyReplicas")

    assert named(faults={"gpu-1": "Xid 79"}) == harness.pods
    assert named() == [harness.pods[2]], "gateways hear what a replica says of itself"
    harness.api.of(PODS)[2]["metadata"]["annotations"] = {}
    assert named() is None


def test_a_draining_replica_is_not_reported_as_unhealthy():
    harness = UnhealthyHarness()
    harness.api.of(PODS)[0]["metadata"]["annotations"] = {ANNOTATION_DRAIN_DEADLINE: "1767225660000"}
    harness.said[harness.pods[0]] = SILENT
    assert judge(harness.observation()).unhealthy == ()


def test_a_mark_on_the_pod_itself_is_enough():
    harness = UnhealthyHarness()
    harness.api.of(PODS)[1]["metadata"]["annotations"] = {ANNOTATION_DEVICE_FAULT: "Xid 48 on GPU 2"}
    (one,) = judge(harness.observation()).unhealthy
    assert (one.reason, one.pod.name) == (conditions.DEVICE_FAULT, harness.pods[1])


def test_what_a_replica_says_of_its_own_device_is_enough():
    harness = UnhealthyHarness()
    said = "H100 GPU-1: it has fallen off the bus (Xid 79)"
    harness.said[harness.pods[1]] = EndpointSignal(Seen.FRESH, "device-fault", phase="ready", device_fault=said)
    (one,) = judge(harness.observation()).unhealthy
    assert (one.reason, one.pod.name, one.answers) == (conditions.DEVICE_FAULT, harness.pods[1], True)
    assert one.why == f"the device is faulty: {said}"
    harness.run()
    assert harness.degraded()["reason"] == "DeviceFault"
    assert said in harness.degraded()["message"]
    assert harness.ordered()[0] == 4, "a successor starts"


def test_a_replica_that_may_not_answer_is_removed_before_those_that_answer():
    harness = Harness(replicas=3)
    harness.settle()
    harness.make_ready()
    late, stuck, well = (pod["metadata"]["name"] for pod in harness.api.of(PODS))
    signals = {
        late: EndpointSignal(Seen.DEAD, "overdue", bad_s=20.0),
        stuck: EndpointSignal(Seen.DEAD, "stuck", bad_s=CONFIRM_S),
        well: EndpointSignal(Seen.FRESH),
    }
    observed = replace(harness.observed(), signals=ServiceSignals(fresh=True, endpoints=signals), unheard_s=0.0)
    assert judge(observed).order == {late: Removal.UNVERIFIED, stuck: Removal.FIRST}


def test_a_replica_that_does_not_answer_is_removed_before_one_on_a_faulty_device():
    harness = UnhealthyHarness(3)
    stuck, faulty, _ = harness.pods
    harness.break_device(faulty)
    harness.said |= {faulty: WELL, stuck: STUCK}
    harness.edit(replicas=2)
    harness.run()
    drained = [
        pod["metadata"]["name"] for pod in harness.api.of(PODS) if ANNOTATION_DRAIN_DEADLINE in pod["metadata"].get("annotations", {})
    ]
    assert drained == [stuck]


@pytest.mark.parametrize(
    ("fault", "said"), [(True, WELL), (False, WRONG), (True, WRONG)], ids=["faulty device", "failed deep check", "both"]
)
def test_a_replica_that_does_not_answer_is_removed_before_the_last_one_that_gateways_use(fault, said):
    harness = UnhealthyHarness(2)
    stuck, well = harness.pods
    if fault:
        harness.break_device(well)
    harness.said |= {well: replace(said, in_flight=7), stuck: STUCK}
    harness.pass_time(300)
    harness.edit(replicas=1)
    harness.run()
    drained = [
        pod["metadata"]["name"] for pod in harness.api.of(PODS) if ANNOTATION_DRAIN_DEADLINE in pod["metadata"].get("annotations", {})
    ]
    assert drained == [stuck]


def test_a_healthy_service_has_no_degraded_condition():
    harness = UnhealthyHarness()
    written = len(harness.api.journal)
    harness.settle()
    assert harness.degraded() is None
    assert len(harness.api.journal) == written


@pytest.mark.parametrize("no_signals", [{}, {"endpoints": None}], ids=["heard of nobody", "heard of no gateway"])
def test_degraded_stays_after_a_restart_until_gateways_report_the_replica_well(no_signals):
    harness = UnhealthyHarness(replicas=2)
    harness.said = dict.fromkeys(harness.pods, STUCK)
    harness.settle()
    before = harness.degraded()
    assert (before["status"], before["reason"]) == ("True", "ReplacementDelayed")
    harness.restart()
    harness.no_signals = True
    harness.nobody = "endpoints" in no_signals
    harness.settle()
    assert harness.degraded() == before
    harness.no_signals = False
    harness.said = dict.fromkeys(harness.pods, replace(STUCK, bad_s=1.0))  # a verdict that began with this process
    harness.settle()
    assert harness.degraded() == before
    harness.said = {harness.pods[0]: WELL, harness.pods[1]: replace(STUCK, bad_s=1.0)}
    harness.settle()
    assert harness.degraded() == before
    harness.said = {}
    harness.settle()
    assert (harness.degraded()["status"], harness.degraded()["reason"]) == ("False", "Well")


def test_degraded_ends_if_the_replica_is_gone_or_its_device_is_repaired():
    harness = UnhealthyHarness(replicas=2)
    name = harness.pods[0]
    harness.api.edit(PODS, "ns", name, lambda body: body["metadata"]["annotations"].update({ANNOTATION_DEVICE_FAULT: "Xid 79"}))
    harness.operator._dependencies = dependencies_with(harness.api, signals=harness)
    harness.run()
    assert harness.degraded()["reason"] == "DeviceFault"
    harness.no_signals = True
    harness.api.edit(PODS, "ns", name, lambda body: body["metadata"]["annotations"].clear())
    harness.run()
    assert harness.degraded()["status"] == "False"
    harness.no_signals, harness.said = False, dict.fromkeys(harness.pods, STUCK)
    harness.settle()
    assert harness.degraded()["reason"] == "ReplacementDelayed"
    harness.no_signals = True
    for pod in list(harness.pods):
        del harness.api.objects["Pod", "ns", pod]
    harness.settle()
    assert harness.degraded()["status"] == "False"
