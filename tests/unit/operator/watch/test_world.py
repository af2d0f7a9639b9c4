"""The mirrors of the cluster: they tell what changed, and forget what is gone."""

from __future__ import annotations

from pagoda_operator.api.state import NODES, Key
from pagoda_operator.watch.world import World


def node(name="a", **more):
    return {"metadata": {"name": name, "resourceVersion": "1"}, "status": {"allocatable": {"cpu": "4"}}} | more


def make():
    return World({NODES: lambda body: body["status"]["allocatable"] or None}, lambda: 0.0)


def test_only_what_is_decided_by_counts_as_a_change():
    world = make()
    assert world.put(NODES, node())
    assert not world.put(NODES, node(metadata={"name": "a", "resourceVersion": "2"}))
    assert world.put(NODES, node(status={"allocatable": {"cpu": "8"}}))
    assert world.get(NODES, Key("", "a")) == {"cpu": "8"}


def test_what_is_gone_or_no_longer_kept_is_forgotten_and_that_is_a_change():
    world = make()
    for name in ("b", "a"):
        world.put(NODES, node(name))
    assert len(world.all(NODES)) == 2
    assert world.drop(NODES, node("a"))
    assert not world.drop(NODES, node("a"))
    assert world.put(NODES, node("b", status={"allocatable": {}}))
    assert world.all(NODES) == ()
