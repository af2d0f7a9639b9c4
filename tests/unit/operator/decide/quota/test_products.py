"""Caps on GPUs by product: what a replica counts as before and after its node tells, and that no race exceeds a cap."""

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.names import ANNOTATION_DEVICES, ANNOTATION_PRODUCTS
from pagoda_contracts.resources.tenant import DeviceCaps
from pagoda_operator.api.caps import Quota, parse_quota
from pagoda_operator.api.state import DEPLOYMENTS, PODS, PROFILES, QUOTAS, RESOURCE_QUOTAS, Key
from pagoda_operator.decide.quota import Age, Ledger
from pagoda_placement.charges import Holding, counted, devices_of, holdings, is_certain, spoken
from pydantic import ValidationError
from support.harness.quota import QuotaHarness

H100, PCIE, L4 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe", "NVIDIA-L4"
NODES = {"h": H100, "p": PCIE, "l": L4}
ANY, BIG, SMALL, MIXED = {"gpu": 1}, {"gpu": 1, f"gpu:{H100}": 1}, {"gpu": 1, f"gpu:{L4}": 1}, {"gpu": 1, f"gpu:{H100}|{L4}": 1}
CAP = "gpu:H100"
A, B, OLD, NEW = Key("ns", "a"), Key("ns", "b"), Age("2026-01-01", "a"), Age("2026-01-02", "b")


def on(node):
    return NODES.get(node, "")


def ledger():
    made = Ledger()
    made.on = on
    return made


def team(count, **products):
    return Quota("team", frozenset({"ns"}), {CAP: count} | {f"gpu:{name}": most for name, most in products.items()})


# What a replica counts as


@pytest.mark.parametrize(
    ("need", "cap", "count", "certain"),
    [
        (BIG, "gpu", 1, True),
        (BIG, CAP, 1, True),
        (BIG, "gpu:h100", 1, True),
        (BIG, "gpu:80GB", 1, True),
        (BIG, "gpu:100", 0, True),
        (SMALL, CAP, 0, True),
        (MIXED, CAP, 1, False),
        ({"gpu": 1, f"gpu:{H100}|{PCIE}": 1}, CAP, 1, True),
        (ANY, CAP, 1, False),
        ({"gpu": 4, f"gpu:{H100}": 4}, CAP, 4, True),
        ({"mig-1g.10gb": 1}, CAP, 0, False),
        ({}, CAP, 0, False),
        (BIG, "mig-1g.10gb", 0, True),
    ],
)
def test_a_replica_counts_for_each_cap_that_its_entry_admits(need, cap, count, certain):
    assert (counted(need, cap), is_certain(need, cap)) == (count, certain)


@pytest.mark.parametrize(
    ("holding", "uses", "stays", "surely"),
    [
        (Holding("d", ANY, 2), 2, 2, 0),
        (Holding("d", ANY, 2, nodes=("l",)), 1, 1, 0),
        (Holding("d", ANY, 2, nodes=("l", "h")), 1, 1, 1),
        (Holding("d", ANY, 2, nodes=("l", "gone")), 1, 1, 0),
        (Holding("d", ANY, 1, 2, nodes=("l", "l", "h")), 1, 1, 0),  # two of the three may be ending
        (Holding("d", ANY, 0, 1, ending=("l",)), 0, 0, 0),
        (Holding("d", ANY, 0, 1, ending=("h",)), 1, 0, 0),
        (Holding("d", ANY, 1, nodes=("l", "l", "h")), 1, 0, 1),  # lowered, and no pod has heard of it: the H100 is in use
        (Holding("d", BIG, 2, nodes=("l",)), 2, 2, 2),  # the pods require its nodes
        (Holding("d", SMALL, 2), 0, 0, 0),
    ],
)
def test_a_node_tells_what_its_replica_counts_as(holding, uses, stays, surely):
    assert (holding.uses(CAP, on), holding.stays(CAP, on), holding.surely_stays(CAP, on)) == (uses, stays, surely)
    assert holding.uses("gpu", on) == holding.target + holding.leaving


def test_pods_say_the_products_that_they_may_get_and_the_node_that_they_are_on():
    labels = {"serving.pagoda.dev/service-uid": "u", "serving.pagoda.dev/revision": "r", "serving.pagoda.dev/accelerator": "c"}
    meta = {"name": "d", "labels": labels, "annotations": {ANNOTATION_DEVICES: "gpu=2", ANNOTATION_PRODUCTS: f"{H100}|{L4}"}}
    need = {"gpu": 2, f"gpu:{H100}|{L4}": 2}
    assert devices_of(meta, {}) == need
    assert devices_of({"annotations": {ANNOTATION_DEVICES: "mig-1g.5gb=1", ANNOTATION_PRODUCTS: L4}}, {}) == {"mig-1g.5gb": 1}
    pods = [
        {"metadata": meta | more, "spec": {"nodeName": node} if node else {}, "status": {}}
        for node, more in (("l", {}), ("", {}), ("h", {"deletionTimestamp": "t"}))
    ]
    deployment = {"metadata": {"name": "d"}, "spec": {"replicas": 2, "template": {"metadata": meta, "spec": {}}}}
    assert holdings([deployment], pods) == (Holding("d", need, 2, 1, nodes=("l",), ending=("h",)),)
    assert [one.ending for one in holdings([], pods)] == [("l",), (), ("h",)]


# The spec


def parsed(gpus):
    return parse_quota({"metadata": {"name": "team"}, "spec": {"subjects": {"namespaces": ["ns"]}, "devices": {"gpus": gpus}}})


@pytest.mark.parametrize(
    ("gpus", "caps"),
    [(8, {"gpu": 8}), (0, {"gpu": 0}), ({"H100": 8, "a100-sxm4": 0}, {"gpu:H100": 8, "gpu:a100-sxm4": 0})],
)
def test_a_cap_is_a_number_or_a_number_for_each_product(gpus, caps):
    assert (parsed(gpus).caps, parsed(gpus).invalid) == (caps, "")


@pytest.mark.parametrize(
    ("gpus", "says"),
    [
        ({"H1000": 8}, "spec.devices.gpus.H1000: the catalogue has no GPU H1000; near names are H100, "),
        ({"L4": 1, "l4s": 8}, "spec.devices.gpus.l4s: the catalogue has no GPU l4s; near names are "),
        ({"H100": -1}, "devices.gpus: H100 must be a number of 0 to 100000, got -1"),
        ({"H100 80GB": 1}, "devices.gpus: 'H100 80GB' is not a product of GPUs"),
        ({}, "devices.gpus: must name 1 to 32 products, got 0"),
        (True, "devices.gpus: must be a number of 0 to 100000, or a map of products such as {H100: 8}, got True"),
    ],
)
def test_a_wrong_cap_is_refused_by_the_name_of_its_field_and_nothing_grows(gpus, says):
    found = parsed(gpus)
    assert found.invalid.startswith(says)
    assert (found.caps, found.namespaces) == ({}, frozenset({"ns"}))


def test_what_the_api_server_takes_is_read_back_as_it_was_sent():
    for gpus in (8, {"H100": 8}):
        assert DeviceCaps.model_validate({"gpus": gpus}).wire()["gpus"] == gpus
    with pytest.raises(ValidationError):
        DeviceCaps.model_validate({"gpus": "8"})


# The ledger


def test_a_replica_of_an_unknown_product_is_charged_until_its_node_tells():
    books, cap = ledger(), team(1, L4=5)
    for key, age in ((A, OLD), (B, NEW)):
        books.settle(key, (), age, 0)
    assert books.admit(A, (Holding("d", MIXED, 1),), [cap], 0) == ""
    assert books.used(cap) == {CAP: 1, "gpu:L4": 1}
    refused = books.offer(B, (), "d", MIXED, [cap])
    assert (refused.replicas, refused.room) == (0, 0)
    assert refused.why.startswith("TenantQuota team allows 1 H100 GPUs, and 1 is in use; a replica may get one, because ")
    assert books.offer(B, (), "d", BIG, [cap]).why == "TenantQuota team allows 1 H100 GPUs, and 1 is in use"
    assert books.offer(B, (), "d", SMALL, [cap]).room == 4
    books.settle(A, (Holding("d", MIXED, 1, nodes=("l",)),), OLD, 1)
    assert books.used(cap) == {CAP: 0, "gpu:L4": 1}
    assert books.offer(B, (), "d", MIXED, [cap]).room == 1
    own = (Holding("d", MIXED, 1, nodes=("l",)),)
    assert (books.offer(A, own, "d", MIXED, [cap]).replicas, books.offer(A, own, "d", MIXED, [cap]).room) == (2, 2)


def test_a_replica_that_moves_to_another_product_is_charged_for_both():
    books, cap = ledger(), team(1)
    books.settle(A, (Holding("old", SMALL, 1),), OLD, 0)
    books.settle(B, (), NEW, 0)
    moved = (Holding("old", SMALL, 0), Holding("new", BIG, 1))
    assert books.admit(A, moved, [cap], 0) == ""
    books.settle(A, (Holding("old", SMALL, 1),), OLD, 1)  # a read that does not show it yet
    assert books.admit(B, (Holding("d", BIG, 1),), [cap], 1)


def test_a_shrunk_cap_takes_replicas_that_are_on_the_product_and_no_others():
    books = ledger()
    here, there = (Holding("d", MIXED, 2, nodes=("h", "l")),), (Holding("d", MIXED, 2, nodes=("l", "l")),)
    books.settle(A, here, OLD, 0)
    books.settle(B, there, NEW, 0)
    for cap, kept in ((1, (2, 2)), (0, (1, 2))):
        assert (books.offer(A, here, "d", MIXED, [team(cap)]).replicas, books.offer(B, there, "d", MIXED, [team(cap)]).replicas) == kept


def test_nodes_that_are_not_known_take_nothing_away_and_let_nothing_grow():
    """As at the start of a process, or if labels are lost."""
    books, cap = ledger(), team(1)
    found = (Holding("d", ANY, 3, nodes=("h", "l", "l")),)
    books.settle(A, found, OLD, 0)
    books.on = lambda _: ""
    offer = books.offer(A, found, "d", ANY, [cap])
    assert (offer.replicas, offer.room, books.used(cap), books.over(cap)) == (3, 3, {CAP: 3}, [])
    assert books.full(found, [cap]).keys() == {"d"}
    books.on = on
    assert (books.used(cap), books.offer(A, found, "d", ANY, [cap]).replicas) == ({CAP: 1}, 3)


def test_under_a_quota_that_cannot_be_read_no_service_moves_to_another_product():
    books, bad = ledger(), Quota("team", frozenset({"ns"}), invalid="?")
    old = (Holding("old", SMALL, 1),)
    books.settle(A, old, OLD, 0)
    books.freeze([bad])
    offer = books.offer(A, old, "new", BIG, [bad])
    assert (offer.replicas, offer.room, offer.unread) == (1, 0, True)
    assert "cannot be read" in books.admit(A, (*old, Holding("new", BIG, 1)), [bad], 0)


class Race:
    """Services that ask and are admitted between any others, with late reads, and a scheduler that puts a pod on whatever it may."""

    def __init__(self, services, caps, chance):
        self.books, self.caps, self.chance = ledger(), caps, chance
        self.quota = Quota("team", frozenset({"ns"}), dict(zip((CAP, "gpu:L4"), caps, strict=True)))
        self.services = {Key("ns", f"s{number}"): one for number, one in enumerate(services)}
        self.found = {key: Holding("d", need, 0) for key, (need, _) in self.services.items()}

    def see(self, key):
        self.books.settle(key, (self.found[key],), Age("2026", key.name), 0.0)

    def run(self, key):
        need, wanted = self.services[key]
        before = self.found[key]
        offer = self.books.offer(key, (before,), "d", need, [self.quota])
        asked = wanted if offer is None else min(wanted, offer.room)
        after = replace(before, target=max(asked, before.target))
        if not self.books.admit(key, (after,), [self.quota], 0.0):
            self.found[key] = after
        return self.found[key] != before

    def land(self, key):
        need, one = self.services[key][0], self.found[key]
        may = [node for node in NODES if not is_certain(need, CAP) or counted(need, f"gpu:{NODES[node]}")]
        more = tuple(self.chance.choice(may) for _ in range(one.target - len(one.nodes)))
        self.found[key] = replace(one, nodes=(*one.nodes, *more))

    def held(self):
        nodes = [on(node) for one in self.found.values() for node in one.nodes]
        return sum("H100" in product for product in nodes), nodes.count(L4)

    def play(self):
        for turn in range(3):
            for key in self.chance.sample(list(self.services), len(self.services)):
                self.run(key)
                if turn or self.chance.random() < 0.5:
                    self.land(key)
                    self.see(key)
                assert all(count <= most for count, most in zip(self.held(), self.caps, strict=True))
        for key in self.services:
            self.land(key)
            self.see(key)
        assert tuple(self.books.used(self.quota).values()) == self.held()
        self.assert_that_nothing_is_left_unused()

    def assert_that_nothing_is_left_unused(self):
        """A service that lacks replicas and gets none admits a product of which all are in use."""
        used = self.books.used(self.quota)
        for key, (need, wanted) in self.services.items():
            full = any(counted(need, cap) and used[cap] >= most for cap, most in self.quota.caps.items())
            assert full or self.found[key].target == wanted


WISHES = st.tuples(st.sampled_from([ANY, BIG, SMALL, MIXED]), st.integers(1, 3))


@given(services=st.lists(WISHES, min_size=2, max_size=5), caps=st.tuples(st.integers(0, 6), st.integers(0, 6)), chance=st.randoms())
def test_services_that_race_exceed_no_cap_and_leave_nothing_unused(services, caps, chance):
    Race(services, caps, chance).play()


@pytest.mark.parametrize("seed", [1, 2])
def test_of_a_hundred_services_that_race_for_eight_no_more_than_eight_get_one(seed):
    chance = random.Random(seed)
    race = Race([(chance.choice([ANY, BIG, MIXED]), 1) for _ in range(100)], (8, 20), chance)
    race.play()
    assert race.held()[0] == 8


# Services


def test_a_service_waits_for_a_product_until_another_one_s_pod_is_on_another():
    harness = QuotaHarness()
    template = {"metadata": {"annotations": {ANNOTATION_DEVICES: "gpu=1", ANNOTATION_PRODUCTS: f"{H100}|{L4}"}}}
    harness.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(podTemplate=template))
    harness.quotas.ledger.on = on
    harness.cap(0, "ns", gpus={"H100": 1, "L4": 4}, resourceQuota=True)
    first, second = harness.serve("ns", 1), harness.serve("ns", 1)
    for key in (first, second):
        harness.run(key, 8)
    assert (harness.replicas(first), harness.replicas(second)) == (1, 0)
    stalled = harness.condition(second, "Stalled")
    assert stalled["reason"] == "QuotaExceeded"
    assert stalled["message"].startswith(
        "0 of 1 replicas ready: TenantQuota team allows 1 H100 GPUs, and 1 is in use; a replica may get one"
    )
    asyncio.run(harness.status_writer.write())
    status = harness.api.objects[QUOTAS.kind, "", "team"]["status"]
    assert status["usage"]["gpuProducts"] == [{"product": "H100", "used": 1, "left": 0}, {"product": "L4", "used": 1, "left": 3}]
    assert "gpus" not in status["usage"]
    ready = "in force; the ResourceQuota does not limit H100 GPUs and L4 GPUs: it cannot distinguish products"
    assert status["conditions"][0]["message"] == ready
    assert [body["spec"]["hard"] for body in harness.api.of(RESOURCE_QUOTAS)] == [{"requests.nvidia.com/mig-1g.10gb": "0"}]
    harness.control()
    (pod,) = harness.api.of(PODS)
    harness.api.edit(PODS, "ns", pod["metadata"]["name"], lambda body: body["spec"].update(nodeName="l"))
    harness.woken.clear()
    harness.run(first)
    assert harness.woken == [second]
    harness.run(second, 3)
    assert harness.replicas(second) == 1
    (one, _) = harness.api.of(DEPLOYMENTS)
    assert one["spec"]["template"]["metadata"]["annotations"][ANNOTATION_PRODUCTS] == f"{H100}|{L4}"
    assert spoken(CAP) == "H100 GPUs"
