"""Clusters as providers make them × first services, with the chart's default profile: each is placed, or gets its pods and waits for nodes,
or names the one thing that is missing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pagoda_operator.api.state import DEPLOYMENTS, PODS
from support.harness.first_services import ALL, ANY, MISSING, PLACED, WAITING
from support.harness.inventories import CPU, gpu, inventory
from support.harness.placing import bind, placement
from support.harness.platforms import LAYOUTS, default_profile, first_service, nodes, slices, takes


@pytest.mark.parametrize("one", PLACED, ids=lambda one: one.title)
def test_first_service_is_placed(one):
    made = one.service()
    assert (made.reason(), placement(made).get("waiting"), len(made.api.of(PODS))) == ("Scheduling", None, 1), made.conditions()
    assert takes(made, one.cluster) == list(one.where)
    bind(made)
    assert made.reason() == "Available"


@pytest.mark.parametrize(("one", "asked"), WAITING, ids=[one.title for one, _ in WAITING])
def test_first_service_gets_its_pods_and_waits_for_nodes(one, asked):
    made = one.service()
    assert (made.reason(), len(made.api.of(PODS))) == ("WaitingForNodes", 1), made.conditions()
    assert asked in made.conditions()["Reconciling"]["message"]
    assert takes(made, one.cluster) == list(one.where)
    revision = made.names(DEPLOYMENTS)
    made.inventory = inventory(*nodes(one.cluster, 0), slices=slices(one.cluster, 0))
    made.settle()
    bind(made)
    assert (made.reason(), made.names(DEPLOYMENTS)) == ("Available", revision)


@pytest.mark.parametrize(("name", "entry", "what"), MISSING, ids=[f"{name.rpartition('/')[2]}-{entry}" for name, entry, _ in MISSING])
def test_first_service_names_the_one_thing_that_is_missing(name, entry, what):
    made = first_service(name, entry)
    assert (made.reason(), made.names(DEPLOYMENTS)) == ("NoAccelerator", [])
    assert what in made.conditions()["Stalled"]["message"]


def test_every_platform_of_the_dev_cluster_is_in_the_matrix():
    files = {f"platforms/{file.stem}" for file in (LAYOUTS / "platforms").glob("*.yaml")}
    assert files == {one.cluster for one in ALL if one.cluster.startswith("platforms/")}
    assert len({one.title for one in ALL}) == len(ALL), "nodes of the cluster tests are named by it"


def test_the_profile_tells_the_memory_that_no_label_does():
    (made,) = (one.service() for one in PLACED if one.devices and one.entry != ANY)
    assert placement(made)["device"] == "GeForce-RTX-4090, 22.4 GiB"


def test_a_product_that_only_the_profile_knows_is_waited_for():
    odd = {"nodeLabels": {"example.com/card": "x1"}, "product": "Corp-X1", "memory": "40G"}
    made = first_service("platforms/cpu", ANY, profile=default_profile(devices=[odd]))
    assert made.reason() == "WaitingForNodes"
    assert "on a node with example.com/card=x1" in made.conditions()["Reconciling"]["message"]


def test_what_the_model_needs_is_judged_before_a_node_is_waited_for():
    made = first_service("platforms/gke-zero", gpu("L4"), engine={"maxModelLen": 131072, "minConcurrency": 64})
    assert made.reason() == "NoAccelerator"
    assert "NVIDIA-L4: needs" in made.conditions()["Stalled"]["message"]


def test_nodes_that_do_not_come_need_a_person_and_are_still_taken_when_they_do():
    made = first_service("platforms/gke-zero", gpu("L4"), profile=default_profile(nodeDeadline="20m"))
    made.later += timedelta(minutes=19)
    made.settle()
    assert made.reason() == "WaitingForNodes"
    assert made.conditions()["Ready"]["message"].endswith("; at 2026-01-01T00:20:00Z the service becomes Stalled")
    made.later += timedelta(minutes=1)
    made.settle()
    assert (made.reason(), len(made.api.of(PODS)), made.conditions()["Stalled"]["status"]) == ("NoNodesCame", 1, "True")
    bind(made)
    assert made.reason() == "Available"


def test_the_wait_for_nodes_ends_at_fallback_after():
    made = first_service("platforms/gke-zero", gpu("L4", fallbackAfter="5m"), CPU)
    assert made.reason() == "WaitingForNodes"
    assert made.conditions()["Ready"]["message"].endswith("; at 2026-01-01T00:05:00Z the next entry is chosen")
    made.later += timedelta(minutes=5)
    made.settle()
    assert placement(made)["chosen"] == "cpu[1]"


def test_without_fallback_after_devices_that_nobody_may_ever_add_do_not_keep_a_service_from_its_next_entry():
    made = first_service("platforms/cpu", gpu("L4"), CPU)
    assert placement(made)["chosen"] == "cpu[1]"
    assert placement(made)["rejected"][0]["why"].startswith("no node offers a whole GPU L4; offered: nothing; the pods ask for")
