"""Which words of others make a node's devices suspect, and which do not."""

import pytest
from pagoda_contracts.names import ANNOTATION_DEVICE_FAULT
from pagoda_operator.api.state import NODES, PODS
from pagoda_operator.inventory.device_health import device_fault
from pagoda_operator.watch.check import fill
from pagoda_operator.watch.view import View
from pagoda_operator.watch.world import World
from pagoda_operator.watch.world_parsers import PARSERS


def node(*conditions, annotations=None, name="n"):
    told = [{"type": kind, "status": status, "reason": reason} for kind, status, reason in conditions]
    return {"metadata": {"name": name, "annotations": annotations or {}}, "status": {"conditions": told}}


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


def told(world):
    return View(world).faults()


def test_the_reason_is_told_and_heartbeats_are_no_news():
    world, sick = World(PARSERS, lambda: 0.0), node(("AcceleratedHardwareReady", "False", "NvidiaXID79Error"), ("Ready", "True", ""))
    assert world.put(NODES, sick)
    assert told(world) == {"n": "AcceleratedHardwareReady: NvidiaXID79Error"}
    sick["status"]["conditions"][1]["lastHeartbeatTime"] = "later"
    assert not world.put(NODES, sick)
    assert world.put(NODES, node(("Ready", "True", "")))
    assert told(world) == {}


def test_our_own_annotation_counts_and_a_node_that_is_gone_does_not():
    world, marked = World(PARSERS, lambda: 0.0), node(annotations={ANNOTATION_DEVICE_FAULT: "Xid 79 on GPU 3"})
    world.put(NODES, marked)
    assert told(world) == {"n": "Xid 79 on GPU 3"}
    assert world.drop(NODES, marked)
    assert told(world) == {}


class Nodes:
    """An API server's list of nodes."""

    def __init__(self, *nodes):
        self.nodes = nodes

    async def pages(self, resource):
        yield self.nodes if resource == NODES else ()


async def test_a_fault_is_known_before_any_watch_has_spoken_and_forgotten_with_a_node_whose_end_nobody_saw():
    world = World(PARSERS, lambda: 0.0)
    await fill(Nodes(node(annotations={ANNOTATION_DEVICE_FAULT: "Xid 79"})), world, [NODES])
    assert told(world) == {"n": "Xid 79"}
    await fill(Nodes(), world, [NODES])
    assert told(world) == {}


def test_faults_are_looked_for_anew_only_where_a_node_changed():
    world = World(PARSERS, lambda: 0.0)
    view = View(world)
    world.put(NODES, node(annotations={ANNOTATION_DEVICE_FAULT: "Xid 79"}))
    before = view.faults()
    world.put(PODS, {"metadata": {"name": "p", "namespace": "d"}, "spec": {"nodeName": "n", "containers": []}, "status": {}})
    assert view.faults() is before
    world.drop(NODES, node())
    assert view.faults() == {}
