"""Clusters as providers make them × first services, with the chart's default profile: each is placed, or gets its pods and waits for nodes,
or names the one thing that is missing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pagoda_operator.api.state import DEPLOYMENTS, PODS
from support.harness.inventories import CPU, H100, dra_of, gpu, mig, plain_node, resource_slice, whole
from support.harness.placing import bind, placement
from support.harness.platforms import default_profile, first_service, inventory, nodes, takes

ANY = gpu()
PLACED = [
    ("platforms/gke", gpu("L4"), ["l4"]),
    ("platforms/gke", gpu("A100"), ["a100"]),
    ("platforms/gke", gpu("H100"), ["h100"]),
    ("platforms/gke", ANY, ["l4", "a100", "h100"]),
    ("platforms/gke", mig("3g.40gb"), ["mig"]),
    ("platforms/gke", mig(least="40Gi"), ["mig"]),
    ("platforms/eks-karpenter", gpu("L4"), ["l4"]),
    ("platforms/eks-karpenter", gpu("rtx-pro-6000"), ["new"]),
    ("platforms/eks-karpenter", ANY, ["l4", "new"]),
    ("platforms/eks-managed", gpu("A10G"), ["a10g"]),
    ("platforms/eks-managed", ANY, ["a10g"]),
    ("platforms/aks", gpu("A100"), ["a100"]),
    ("platforms/aks", ANY, ["a100"]),
    ("platforms/gpu-operator", gpu("H100"), ["h100"]),
    ("platforms/gpu-operator", ANY, ["h100"]),
    ("platforms/coreweave", gpu("H100"), ["h100"]),
    ("platforms/coreweave", ANY, ["h100"]),
    ("platforms/cpu", CPU, ["cpu"]),
    ("h100-mixed", gpu("H100"), ["h100-mixed", "h100-whole"]),
    ("h100-mixed", mig("1g.10gb"), ["h100-mixed"]),
    ("a100-single", mig(least="10G"), ["a100-slices"]),
]
WAITING = [
    ("platforms/gke-zero", gpu("L4"), ["l4"], "cloud.google.com/gke-accelerator=nvidia-l4"),
    ("platforms/gke-zero", mig("3g.20gb"), ["mig"], "cloud.google.com/gke-gpu-partition-size=3g.20gb"),
    ("platforms/eks-zero", gpu("H100"), ["h100"], "node.kubernetes.io/instance-type=p5.4xlarge|p5.48xlarge"),
    ("platforms/coreweave", gpu("A100"), [], "gpu.nvidia.com/model=A100_NVLINK_80GB"),
    ("platforms/cpu", gpu("L4"), [], "nvidia.com/gpu.product=NVIDIA-L4"),
    ("platforms/cpu", mig("1g.10gb"), [], "1 nvidia.com/mig-1g.10gb"),
    ("platforms/amd", gpu("H200"), [], "nvidia.com/gpu.product=NVIDIA-H200"),
]
MISSING = [
    ("platforms/amd", ANY, "AMD devices (amd.com/gpu), for which Pagoda has no daemon yet"),
    ("platforms/amd", gpu("MI300X"), "AMD devices (amd.com/gpu), for which Pagoda has no daemon yet"),
    ("platforms/k3s-workstation", ANY, "no label names the GPU of rtx4090; say it in the ServingProfile's devices"),
    (
        "platforms/gpu-operator",
        gpu("A30"),
        "driver 550.144.03 supports CUDA 12.4, but the daemon needs 13.0, which driver 580.65.06",
    ),
    ("platforms/gke-zero", gpu("L44"), "neither the catalogue nor the ServingProfile's devices know it"),
    ("platforms/gke-zero", mig("3g.21gb"), "neither the catalogue nor the ServingProfile's devices know it"),
    ("platforms/gke-zero", mig(least="10Gi"), "set mig.profile, such as 1g.10gb, if a node pool"),
    ("platforms/cpu", ANY, "set gpu.product, such as L4, if a node pool without nodes has such GPUs"),
]


def title(case):
    return f"{case[0].rpartition('/')[2]}-{case[1]}"


def template(made):
    (deployment,) = made.api.of(DEPLOYMENTS)
    return deployment["spec"]["template"]


@pytest.mark.parametrize(("name", "entry", "where"), PLACED, ids=map(title, PLACED))
def test_first_service_is_placed(name, entry, where):
    made = first_service(name, entry)
    assert (made.reason(), placement(made).get("waiting"), len(made.api.of(PODS))) == ("Scheduling", None, 1), made.conditions()
    assert takes(template(made), name) == where
    bind(made)
    assert made.reason() == "Available"


@pytest.mark.parametrize(("name", "entry", "where", "asked"), WAITING, ids=map(title, WAITING))
def test_first_service_gets_its_pods_and_waits_for_nodes(name, entry, where, asked):
    made = first_service(name, entry)
    assert (made.reason(), len(made.api.of(PODS))) == ("WaitingForNodes", 1), made.conditions()
    assert asked in made.conditions()["Reconciling"]["message"]
    assert takes(template(made), name) == where
    revision = made.names(DEPLOYMENTS)
    made.inventory = inventory(*nodes(name, 0))
    made.settle()
    bind(made)
    assert (made.reason(), made.names(DEPLOYMENTS)) == ("Available", revision)


@pytest.mark.parametrize(("name", "entry", "what"), MISSING, ids=map(title, MISSING))
def test_first_service_names_the_one_thing_that_is_missing(name, entry, what):
    made = first_service(name, entry)
    assert (made.reason(), made.names(DEPLOYMENTS)) == ("NoAccelerator", [])
    assert what in made.conditions()["Stalled"]["message"]


RTX = {"nodeLabels": {"node.kubernetes.io/instance-type": "k3s"}, "product": "GeForce-RTX-4090", "memory": "24G"}


@pytest.mark.parametrize("entry", [ANY, gpu("RTX-4090")])
def test_profile_says_what_no_label_does(entry):
    made = first_service("platforms/k3s-workstation", entry, profile=default_profile(devices=[RTX]))
    assert (made.reason(), placement(made)["device"]) == ("Scheduling", "GeForce-RTX-4090, 22.4 GiB")
    assert takes(template(made), "platforms/k3s-workstation") == ["rtx4090"]


def test_a_product_that_only_the_profile_knows_is_waited_for():
    odd = {"nodeLabels": {"example.com/card": "x1"}, "product": "Corp-X1", "memory": "40G"}
    made = first_service("platforms/cpu", ANY, profile=default_profile(devices=[odd]))
    assert made.reason() == "WaitingForNodes"
    assert "on a node with example.com/card=x1" in made.conditions()["Reconciling"]["message"]


def test_first_service_is_placed_on_the_devices_of_a_dra_driver():
    made = first_service("platforms/cpu", CPU)
    made.inventory = inventory(plain_node("a"), slices=(resource_slice("a", H100, whole(2)),))
    made.edit(accelerators=[dra_of("gpu.nvidia.com")])
    made.settle()
    assert (made.reason(), placement(made)["device"]) == ("Scheduling", "NVIDIA-H100-80GB-HBM3, 79.6 GiB")


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
