"""Which words of others make a node's devices suspect, and which do not."""

import pytest
from pagoda_contracts.names import ANNOTATION_DEVICE_FAULT
from pagoda_operator.api.state import NODES, PODS
from pagoda_operator.watch.caches import Caches, InventoryView
from pagoda_placement.nodes import device_fault


def node(*conditions, annotations=None, name="n"):
    reported = [{"type": kind, "status": status, "reason": reason} for kind, status, reason in conditions]
    return {"metadata": {"name": name, "annotations": annotations or {}}, "status": {"conditions": reported}}


@pytest.mark.parametrize(
    ("kind", "status", "faulty"),
    [
        ("SysLogsXIDError", "True", True),
        ("SysLogsSXIDError", "True", True),
        ("SysLogsGPUFallenOff", "True", True),
        ("GpuMemWatch", "True", True),
        ("GpuNvlinkWatch", "True", True),
        ("GpuMemWatch", "False", False),
        ("XIDErrors", "True", True),
        ("GpuXidError", "True", True),
        ("GPUMissing", "True", True),
        ("NVLinkStatusInactive", "True", True),
        ("AcceleratedHardwareReady", "False", True),
        ("AcceleratedHardwareReady", "True", False),
        ("AcceleratedHardwareReady", "Unknown", False),
        ("Ready", "False", False),
        ("MemoryPressure", "True", False),
        ("GpuWatchdogRestarted", "True", False),
    ],
)
def test_conditions(kind, status, faulty):
    assert bool(device_fault(node((kind, status, "why")))) is faulty


def reported(caches):
    return InventoryView(caches).faults()


def show(caches, resource, body):
    """Whether the event is news."""
    before = caches.changes(resource)
    caches.event(resource, body, gone=False)
    return caches.changes(resource) > before


def test_a_fault_has_its_reason_and_a_heartbeat_is_no_change():
    caches, unhealthy = Caches(), node(("AcceleratedHardwareReady", "False", "NvidiaXID79Error"), ("Ready", "True", ""))
    assert show(caches, NODES, unhealthy)
    assert reported(caches) == {"n": "AcceleratedHardwareReady: NvidiaXID79Error"}
    unhealthy["status"]["conditions"][1]["lastHeartbeatTime"] = "later"
    assert not show(caches, NODES, unhealthy)
    assert show(caches, NODES, node(("Ready", "True", "")))
    assert reported(caches) == {}


def test_our_own_annotation_counts_and_a_node_that_is_gone_does_not():
    caches, marked = Caches(), node(annotations={ANNOTATION_DEVICE_FAULT: "Xid 79 on GPU 3"})
    show(caches, NODES, marked)
    assert reported(caches) == {"n": "Xid 79 on GPU 3"}
    caches.event(NODES, marked, gone=True)
    assert reported(caches) == {}


def test_faults_are_looked_for_anew_only_where_a_node_changed():
    caches = Caches()
    view = InventoryView(caches)
    show(caches, NODES, node(annotations={ANNOTATION_DEVICE_FAULT: "Xid 79"}))
    before = view.faults()
    show(caches, PODS, {"metadata": {"name": "p", "namespace": "d"}, "spec": {"nodeName": "n", "containers": []}, "status": {}})
    assert view.faults() is before
    caches.event(NODES, node(), gone=True)
    assert view.faults() == {}
