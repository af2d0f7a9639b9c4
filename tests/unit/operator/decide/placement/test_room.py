"""What can be placed, as scaling sees it: counted where a fleet is what it is, unlimited where nodes come because pods wait."""

from datetime import timedelta

import pytest
from pagoda_operator.api.state import DEPLOYMENTS, PODS
from pagoda_operator.decide.placement import ask, placeable
from pagoda_placement.place import GROWS_S, spare
from support.harness.harness import Harness
from support.harness.inventories import A100_80, CPU, H100, TINY, gpu, inventory, node, pod, whole
from support.harness.placing import ENGINE
from support.kube.fake_api import running

LONG_AGO = "2025-06-01T00:00:00Z"
HOURS_AGO = "2025-12-31T20:00:00Z"


def h100(name, count, joined=LONG_AGO, **more):
    body = node(name, H100, whole(count), **more)
    body["metadata"]["creationTimestamp"] = joined
    return body


def harness(*accelerators, replicas=2):
    """Two replicas that have nodes."""
    made = Harness(accelerators=list(accelerators or [gpu("H100")]), engine=ENGINE, model={"uri": TINY}, replicas=replicas)
    made.inventory = inventory(h100("a", 8))
    made.settle()
    for body in made.api.of(PODS):
        body["status"] = running(ready=True)
    made.settle()
    return made


def count(made, *nodes, pods=()):
    made.inventory = inventory(*nodes, pods=tuple(pods))
    return placeable(made.observed())


@pytest.mark.parametrize(("others", "free"), [(0, 6), (5, 1), (6, 0)])
def test_replicas_with_a_place_and_places_that_others_leave(others, free):
    made = harness()
    uid = made.observed().meta.uid
    mine = [pod("a", f"mine-{n}", uid=uid, gpu=1) for n in range(2)]
    assert count(made, h100("a", 8), pods=(*mine, *[pod("a", f"other-{n}", gpu=1) for n in range(others)])) == 2 + free


def test_other_products_and_cordoned_nodes_are_not_counted_as_places():
    made = harness(gpu("H100"))
    other = node("b", A100_80, whole(8))
    assert count(made, h100("a", 2), other, h100("c", 8, cordoned=True), pods=[pod("a", gpu=2)]) == 2


def test_a_replica_that_waits_has_no_place():
    made = harness()
    made.edit(replicas=3)
    made.settle()
    assert count(made, h100("a", 2), pods=[pod("a", gpu=2)]) == 2


def test_places_are_unknown_while_nodes_are_added():
    made = harness()
    assert GROWS_S == 24 * 3600
    assert count(made, h100("a", 2), h100("b", 2, joined=HOURS_AGO)) is None
    made.later += timedelta(seconds=GROWS_S)
    assert count(made, h100("a", 2), h100("b", 2, joined=HOURS_AGO)) == 2 + 4


def test_places_are_unknown_on_cpu_without_a_revision_and_without_such_devices():
    assert count(harness(CPU), h100("a", 2)) is None
    fresh = Harness(accelerators=[gpu("H100")], engine=ENGINE, model={"uri": TINY})
    assert count(fresh, h100("a", 2)) is None
    assert count(harness()) is None


def test_more_pods_of_a_template_go_only_where_that_template_may():
    made, taint = harness(), {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    nodes, mine = (h100("a", 4), h100("b", 8, taints=[taint])), [pod("a", f"mine-{n}", uid="uid-tiny", gpu=1) for n in range(2)]

    def spared():
        observed = made.observed()
        return spare(ask(observed, observed.spec), made.plan().placement.resolved, observed.spec.accelerators[0])

    assert (count(made, *nodes, pods=mine), spared()) == (2 + 10, 10)
    (name,) = made.names(DEPLOYMENTS)
    # As an operator made it that knew no vendor's taints.
    made.api.edit(DEPLOYMENTS, "ns", name, lambda body: body["spec"]["template"]["spec"].pop("tolerations"))
    assert (count(made, *nodes, pods=mine), spared()) == (2 + 2, 2)


def test_a_service_that_wakes_is_not_sent_where_its_template_may_not_go():
    made, taint = harness(replicas=0), {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    (name,) = made.names(DEPLOYMENTS)
    made.api.edit(DEPLOYMENTS, "ns", name, lambda body: body["spec"]["template"]["spec"].pop("tolerations"))
    made.edit(replicas=1)
    made.inventory = inventory(h100("b", 8, taints=[taint]))
    (rejected,) = made.plan().placement.status.rejected
    assert "taint nvidia.com/gpu=present:NoSchedule is not tolerated" in rejected.why
