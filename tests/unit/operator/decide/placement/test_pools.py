"""A pool of nodes that an autoscaler took away is waited for, not called impossible; and what never was there is called just that."""

import asyncio
import json
from datetime import timedelta
from itertools import count

import pytest
from pagoda_contracts.names import NODE_POOLS_CONFIG_MAP, NODE_POOLS_KEY
from pagoda_operator.api.errors import Unavailable
from pagoda_operator.api.state import CONFIG_MAPS, DEPLOYMENTS, PODS
from pagoda_operator.run.node_pools import NodePools
from pagoda_placement.inventory import Inventory
from pagoda_placement.pools import FORGET_S, STALE_S, gone, read, seen, with_gone, with_published, written
from support.harness.harness import Harness
from support.harness.inventories import (
    A100_80,
    CPU,
    H100,
    LLAMA70,
    TINY,
    cut,
    dra_of,
    gpu,
    inventory,
    mig,
    node,
    pod,
    resource_slice,
    whole,
)
from support.harness.placing import ENGINE, placement
from support.kube.fake_api import FakeApi, running

NAMED = "ip-10-0-0-"
MINE = "pagoda-system"


def h100(number=1, count=8, **more):
    labels = {"kubernetes.io/hostname": f"{NAMED}{number}", "pool": "h100", "nvidia.com/gfd.timestamp": str(number)}
    return node(f"{NAMED}{number}", H100, whole(count), labels=labels | more.pop("labels", {}), **more)


def nodes(*bodies):
    return inventory(*bodies).nodes


def names(found):
    return [example.name for example in found]


# What is remembered of nodes


def test_a_pool_is_remembered_once_and_is_gone_with_its_last_node():
    pools = seen({}, nodes(h100(1), h100(2)), 0.0)
    assert len(pools) == 1
    assert gone(pools, nodes(h100(2))) == ()
    assert names(gone(pools, ())) == [f"{NAMED}1"]
    assert all(example.gone for example in gone(pools, ()))


def test_other_devices_labels_and_taints_are_other_pools():
    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    many = nodes(h100(1), h100(2, count=4), h100(3, labels={"pool": "other"}), h100(4, taints=[taint]), node("a", A100_80, whole(8)))
    assert len(seen({}, many, 0.0)) == 5


def test_what_passes_is_no_pool_of_its_own():
    silent = {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}
    pools = seen({}, nodes(h100(1)), 0.0)
    later = nodes(h100(2, ready=False), h100(3, taints=[silent]), node("m", H100, cut(1, p1g_10gb=7), state="pending"))
    assert seen(pools, later, 0.0).keys() == pools.keys()
    assert gone(pools, nodes(h100(1, ready=False))) == (), "it is there, and its own block says what is the matter"


@pytest.mark.parametrize(
    "key", ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "node.cloudprovider.kubernetes.io/uninitialized"]
)
def test_an_autoscaler_s_taint_is_no_part_of_what_a_pool_is(key):
    """A pool that was never seen without one is remembered without it: nothing would tolerate its example otherwise."""
    (example,) = gone(seen({}, nodes(h100(1, taints=[{"key": key, "effect": "NoSchedule"}])), 0.0), ())
    assert example.taints == ()


def test_a_repartitioned_node_does_not_stand_for_its_old_pool():
    pools = seen({}, nodes(node("m", H100, cut(2, p1g_10gb=7))), 0.0)
    after = nodes(node("m", H100, cut(2, p3g_40gb=2)))
    pools = seen(pools, after, 1.0)
    assert gone(pools, after) == ()
    assert [one.profile.name for example in gone(pools, ()) for one in example.offers] == ["3g.40gb"]


def test_the_example_is_a_live_node_with_its_current_driver():
    pools = seen({}, nodes(h100(1)), 0.0)
    pools = seen(pools, nodes(h100(2)), 1.0)
    assert names(gone(pools, ())) == [f"{NAMED}2"]
    pools = seen(pools, nodes(h100(2, cuda="13.1")), 2.0)
    assert [example.cuda for example in gone(pools, ())] == [(13, 1)]


def test_an_old_pool_is_forgotten_and_a_live_one_is_written_weekly():
    pools = seen({}, nodes(h100(1)), 0.0)
    assert seen(pools, nodes(h100(1)), STALE_S - 1) == pools
    assert next(iter(seen(pools, nodes(h100(1)), STALE_S).values())).seen == STALE_S
    assert seen(pools, (), FORGET_S - 1) == pools
    assert seen(pools, (), FORGET_S) == {}


def test_the_newest_pools_are_kept_if_there_are_too_many():
    pools, ticks = {}, count()
    for number in range(40):
        pools = seen(pools, nodes(h100(1, labels={"pool": str(number)})), float(next(ticks)))
    assert len(pools) <= 32
    assert {pool.seen for pool in seen(pools, nodes(h100(1)), 100.0).values()} >= {100.0}


def test_what_is_written_is_read_and_garbage_is_nothing():
    pools = seen({}, nodes(h100(1), node("a", A100_80, cut(1, p1g_10gb=7))), 5.0)
    assert read(written(pools)) == pools
    for text in ("", "{", "[]", '{"a": 1}', '{"a": {"seen": 1, "node": {}}}', '{"a": {"seen": 1, "node": {"metadata": {"name": "x"}}}}'):
        assert read(text) == {}


# What is remembered of nodes whose devices a DRA driver publishes

CUT = cut(2, p1g_10gb=7)


def by_driver(number=1, *groups, product=H100, **more):
    """A node that offers nothing itself, and its slice."""
    name = f"{NAMED}{number}"
    body = node(name, product, whole(1), labels={"kubernetes.io/hostname": name} | more)
    body["status"]["capacity"] = body["status"]["allocatable"] = {"cpu": "64", "memory": "512Gi"}
    return body, resource_slice(name, product, *(groups or (whole(8),)))


def there(*pairs):
    """Those nodes and slices as placement is given them; a slice may be missing."""
    return inventory(*(body for body, _ in pairs), slices=tuple(piece for _, piece in pairs if piece))


def worn(*pairs):
    found = there(*pairs)
    return with_published(found.nodes, found.slices, {})


def test_a_pool_of_a_dra_driver_is_remembered_once_by_kinds_and_numbers_of_devices():
    pools = seen({}, worn(by_driver(1), by_driver(2)), 0.0)
    assert len(pools) == 1
    assert gone(pools, worn(by_driver(2))) == ()
    (example,) = gone(pools, ())
    assert [(one.count, one.attributes["productName"], "uuid" in one.attributes) for one in example.published] == [(8, H100.product, False)]
    assert len(seen(pools, worn(by_driver(3, whole(4)), by_driver(4, CUT), by_driver(5, product=A100_80)), 1.0)) == 4
    assert read(written(pools)) == pools


def test_nodes_that_did_not_change_keep_what_was_worked_out_of_them():
    found = there(by_driver(1), by_driver(2))
    first = with_published(found.nodes, found.slices, {})
    again = with_published(found.nodes, found.slices, {one.name: one for one in first})
    assert [a is b for a, b in zip(first, again, strict=True)] == [True, True]


def test_a_newer_driver_is_no_other_pool_and_its_word_is_kept():
    newer = H100.model_copy(update={"driver": "590.10.01"})
    pools = seen(seen({}, worn(by_driver(1)), 0.0), worn(by_driver(1, product=newer)), 1.0)
    assert [one.attributes["driverVersion"] for example in gone(pools, ()) for one in example.published] == ["590.10.1"]


def test_a_driver_that_starts_anew_takes_no_promise_away_and_other_partitions_do():
    pools = seen({}, worn(by_driver(1, CUT)), 0.0)
    silent = worn((by_driver(1)[0], None))
    assert seen(pools, silent, 1.0) == pools
    assert gone(pools, silent) == (), "it is there"
    both = node(f"{NAMED}1", H100, whole(1)), by_driver(1, CUT)[1]
    twofold = seen({}, worn(both), 0.0)
    assert seen(twofold, worn((both[0], None)), 1.0).keys() > twofold.keys()
    other = seen(pools, worn(by_driver(1, cut(2, p3g_40gb=2))), 2.0)
    assert [one.attributes["profile"] for example in gone(other, ()) for one in example.published] == ["3g.40gb"]


def test_as_many_pools_as_are_kept_fit_into_their_map_whatever_drivers_say():
    attributes = {f"a{number}": {"string": "x" * 64} for number in range(28)}
    pairs = [by_driver(number, pool=str(number)) for number in range(40)]
    for _, piece in pairs:
        kinds = [{"productName": {"string": str(kind)}, **attributes} for kind in range(20)]
        piece["spec"]["devices"] = [{"name": f"d-{kind}", "attributes": reported} for kind, reported in enumerate(kinds)]
    pools = seen({}, worn(*pairs), 0.0)
    assert len(pools) == 32
    assert len(written(pools)) < 2**20
    assert read(written(pools)) == pools


@pytest.mark.parametrize("devices", ["x", [1], [{}], [{"driver": "d", "count": "x", "attributes": {}, "capacity": {}}], None, 5])
def test_devices_that_are_not_ours_to_read_are_nothing(devices):
    text = written(seen({}, worn(by_driver(1)), 0.0))
    (name, reported), *_ = json.loads(text).items()
    assert read(text)
    assert read(json.dumps({name: reported | {"published": devices}})) == {}


# What a service is told


def asleep(*accelerators, replicas=0, model=TINY, **spec):
    """Lived on an H100 node that is gone now, as is remembered."""
    made = Harness(accelerators=list(accelerators), engine=ENGINE, model={"uri": model}, replicas=1, **spec)
    made.inventory = inventory(h100(1))
    made.settle()
    for body in made.api.of(PODS):
        body["status"] = running(ready=True)
    made.settle()
    made.edit(replicas=replicas)
    made.settle()
    made.inventory = Inventory(nodes=gone(seen({}, nodes(h100(1)), 0.0), ()))
    return made


@pytest.mark.parametrize("entry", [gpu("H100"), gpu()])
def test_a_service_asleep_on_a_pool_without_nodes_wakes(entry):
    made = asleep(entry)
    before = made.names(DEPLOYMENTS)
    assert made.reason() == "ScaledToZero"
    made.edit(replicas=1)
    made.settle()
    assert (made.names(DEPLOYMENTS), len(made.api.of(PODS))) == (before, 1)
    assert made.reason() == "WaitingForCapacity"
    assert f"{NAMED}1 is gone, but its node pool may scale up" in made.conditions()["Reconciling"]["message"]
    made.inventory = inventory(h100(2), pods=(pod(f"{NAMED}2", gpu=1),))
    for body in made.api.of(PODS):
        body["status"] = running(ready=True)
    made.settle()
    assert (made.names(DEPLOYMENTS), made.reason()) == (before, "Available")


GONE = with_gone(Inventory(), gone(seen({}, worn(by_driver(1, whole(8)), by_driver(2, CUT)), 0.0), ()))


@pytest.mark.parametrize(
    ("entry", "where"),
    [
        (dra_of("gpu.nvidia.com"), 1),
        (dra_of("gpu.nvidia.com", "device.attributes['gpu.nvidia.com'].productName.contains('H100')"), 1),
        (dra_of("mig.nvidia.com", "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"), 2),
    ],
)
def test_a_service_waits_for_dra_devices_of_a_gone_pool_and_gets_them(entry, where):
    made = Harness(accelerators=[entry], engine=ENGINE, model={"uri": TINY})
    made.inventory = GONE
    made.settle()
    assert (made.reason(), len(made.api.of(PODS))) == ("WaitingForCapacity", 1)
    assert f"{NAMED}{where} is gone, but its node pool may scale up" in made.conditions()["Reconciling"]["message"]
    before = made.names(DEPLOYMENTS)
    made.inventory = there(by_driver(7, whole(8)), by_driver(8, CUT))
    for body in made.api.of(PODS):
        body["status"] = running(ready=True)
    made.settle()
    assert (made.names(DEPLOYMENTS), made.reason()) == (before, "Available")


@pytest.mark.parametrize(
    "entry",
    [
        dra_of("gpu.nvidia.com", "device.attributes['gpu.nvidia.com'].productName.contains('A100')"),
        dra_of("gpu.nvidia.com", "device.attributes['gpu.nvidia.com'].uuid == 'GPU-1'"),
    ],
)
def test_what_no_driver_ever_published_is_stalled(entry):
    made = Harness(accelerators=[entry], engine=ENGINE, model={"uri": TINY})
    made.inventory = GONE
    made.settle()
    assert made.reason() == "NoAccelerator"


def test_a_new_service_waits_for_a_pool_without_nodes_and_falls_back_in_time():
    made = Harness(accelerators=[gpu("H100", fallbackAfter="5m"), CPU], engine=ENGINE, model={"uri": TINY})
    made.inventory = Inventory(nodes=gone(seen({}, nodes(h100(1)), 0.0), ()))
    made.settle()
    assert (made.reason(), placement(made)["chosen"]) == ("WaitingForCapacity", "gpu[0]")
    made.later += timedelta(minutes=5)
    made.settle()
    assert placement(made)["chosen"] == "cpu[1]"


@pytest.mark.parametrize(
    ("entry", "model", "why"),
    [(gpu("A1000"), TINY, "no node offers a whole GPU A1000"), (mig("1g.11gb"), TINY, "no node offers"), (gpu("H100"), LLAMA70, "needs")],
)
def test_what_no_node_ever_seen_could_do_is_still_stalled(entry, model, why):
    made = Harness(accelerators=[entry], engine=ENGINE, model={"uri": model})
    made.inventory = Inventory(nodes=gone(seen({}, nodes(h100(1)), 0.0), ()))
    made.settle()
    assert made.reason() == "NoAccelerator"
    assert why in made.conditions()["Stalled"]["message"]


# What outlasts the process


class Memory:
    """NodePools on a fake API server, with a fleet to set."""

    def __init__(self, api):
        self.api, self.inventory, self.at = api, Inventory(), 0.0
        self.remembered = NodePools(api, lambda: self.inventory, MINE, lambda: self.at)

    def run(self, *steps):
        for step in steps:
            asyncio.run(step())


@pytest.fixture
def api():
    made = FakeApi()
    made.put(CONFIG_MAPS, {"metadata": {"name": NODE_POOLS_CONFIG_MAP, "namespace": MINE}})
    return made


def test_a_restart_remembers_and_at_rest_nothing_is_written(api):
    first = Memory(api)
    first.inventory = inventory(h100(1))
    first.run(first.remembered.load, first.remembered.save)
    assert len(api.journal) == 1
    for first.at in (30.0, 60.0):
        first.run(first.remembered.save)
    first.inventory = Inventory()
    first.run(first.remembered.save)
    assert len(api.journal) == 1
    second = Memory(api)
    assert names(second.remembered().nodes) == []
    second.run(second.remembered.load, second.remembered.save)
    assert names(second.remembered().nodes) == [f"{NAMED}1"]
    assert len(api.journal) == 1


def test_dra_devices_of_a_gone_pool_outlast_the_process(api):
    first = Memory(api)
    first.inventory = there(by_driver(1, whole(2)))
    first.run(first.remembered.load, first.remembered.save)
    first.inventory = Inventory()
    first.run(first.remembered.save)
    second = Memory(api)
    second.run(second.remembered.load, second.remembered.save)
    for memory in (first, second):
        found = memory.remembered()
        assert names(found.nodes) == [f"{NAMED}1"]
        assert [device.node for one in found.slices for device in one.devices] == [f"{NAMED}1"] * 2
    assert len(api.journal) == 1
    # The node joins before its driver publishes: the pool is not back yet.
    second.inventory = there((by_driver(2)[0], None))
    assert names(second.remembered().nodes) == [f"{NAMED}2", f"{NAMED}1"]
    second.inventory = there(by_driver(2, whole(2)))
    assert names(second.remembered().nodes) == [f"{NAMED}2"]
    second.run(second.remembered.save)
    assert len(api.journal) == 2, "the example is one that is there"


def test_the_view_is_rebuilt_only_after_a_change(api):
    memory = Memory(api)
    memory.inventory = inventory(h100(1))
    assert memory.remembered() is memory.inventory
    memory.inventory = Inventory()
    assert memory.remembered() is memory.remembered()
    assert names(memory.remembered().nodes) == [f"{NAMED}1"]


def test_without_the_charts_configmap_pools_are_kept_in_memory():
    api = FakeApi()
    memory = Memory(api)
    memory.inventory = inventory(h100(1))
    memory.run(memory.remembered.load, memory.remembered.save)
    memory.inventory = Inventory()
    assert (api.journal, names(memory.remembered().nodes)) == ([], [f"{NAMED}1"])


def test_a_failed_read_is_repeated(api, monkeypatch):
    first = Memory(api)
    first.inventory = inventory(h100(1))
    first.run(first.remembered.load, first.remembered.save)
    second, read, rounds = Memory(api), api.get, []

    async def away(*_):
        raise Unavailable("503")

    async def answers_again(seconds):
        rounds.append(seconds)
        api.get = read
        if len(rounds) == 2:
            raise asyncio.CancelledError

    api.get = away
    second.run(second.remembered.load)
    assert names(second.remembered().nodes) == []
    monkeypatch.setattr(asyncio, "sleep", answers_again)
    with pytest.raises(asyncio.CancelledError):
        second.run(second.remembered.run)
    assert names(second.remembered().nodes) == [f"{NAMED}1"]


def test_a_failed_write_is_repeated(api):
    memory = Memory(api)
    memory.inventory = inventory(h100(1))
    memory.run(memory.remembered.load)
    api.refuse["ConfigMap"] = Unavailable("503")
    memory.run(memory.remembered.save)
    api.refuse.clear()
    memory.run(memory.remembered.save)
    assert NODE_POOLS_KEY in api.objects["ConfigMap", MINE, NODE_POOLS_CONFIG_MAP]["data"]
