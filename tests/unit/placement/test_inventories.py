"""One table of inventories: what a service gets in each, or why nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from pagoda_placement.inventory import Inventory
from pagoda_placement.place import alternatives, place
from pagoda_placement.question import Run
from pagoda_placement.result import Pin, read_pin
from pagoda_placement.revision import identify
from pagoda_placement.terms import Terms
from support.harness.inventories import (
    A100_40,
    A100_80,
    B200,
    CPU,
    H100,
    H200,
    LLAMA8,
    LLAMA70,
    TINY,
    claim,
    cut,
    dra_of,
    gpu,
    inventory,
    mig,
    node,
    plain_node,
    pod,
    question,
    resource_slice,
    spec,
    whole,
)

OLD = {"driver": "535.216.01", "cuda": "12.2"}
DEDICATED = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
PASSING = [
    ("ToBeDeletedByClusterAutoscaler", "1790000000", "NoSchedule"),
    ("karpenter.sh/disrupted", "", "NoSchedule"),
    ("karpenter.sh/disruption", "disrupting", "NoSchedule"),
    ("karpenter.sh/unregistered", "", "NoExecute"),
    ("node.cloudprovider.kubernetes.io/uninitialized", "true", "NoSchedule"),
    ("node.cloudprovider.kubernetes.io/shutdown", "", "NoSchedule"),
    ("startup-taint.cluster-autoscaler.kubernetes.io/gpu-driver", "true", "NoSchedule"),
    ("ignore-taint.cluster-autoscaler.kubernetes.io/gpu-driver", "true", "NoSchedule"),
    ("status-taint.cluster-autoscaler.kubernetes.io/busy", "", "NoSchedule"),
    ("node.kubernetes.io/disk-pressure", "", "NoSchedule"),
]
TOLERANT = Terms(tolerations=({"key": "nvidia.com/gpu", "operator": "Exists"},), service_uid="mine")
H100_MIXED = node("a", H100, whole(2), cut(2, p3g_40gb=1, p2g_20gb=1, p1g_10gb=2))
H100_SLICE = resource_slice("a", H100, cut(1, p3g_40gb=1, p1g_10gb=2))
H100_DRA = node("a", H100, cut(1, p3g_40gb=1, p1g_10gb=2))
WHOLE_SLICE = resource_slice("a", H200, whole(2))


class Row(NamedTuple):
    """What is there, what is asked, and what comes of it. `why`: a part of each reason, in order of `rejected[]`."""

    title: str
    there: Inventory
    asked: Any
    chosen: str | None
    device: str = ""
    resource: str = ""
    why: tuple[str, ...] = ()
    waits: str = ""
    warns: str = ""
    terms: Terms = Terms(service_uid="mine")


ROWS = [
    Row(
        "a whole H100 by a word of its label",
        inventory(node("a", H100, whole(8))),
        spec(gpu("H100")),
        "gpu[0]",
        "NVIDIA-H100-80GB-HBM3, 79.6 GiB",
    ),
    Row("any GPU", inventory(node("a", A100_40, whole(1))), spec(gpu()), "gpu[0]", "NVIDIA-A100-SXM4-40GB, 40.0 GiB", "nvidia.com/gpu"),
    Row(
        "four GPUs of one node for a model that one cannot hold",
        inventory(node("a", H100, whole(8))),
        spec(gpu("H100", 4), CPU, model=TINY),
        "cpu[1]",
        why=("gpu.count must be 1, got 4: a replica computes on one device",),
    ),
    Row(
        "one GPU is too small for 70 B",
        inventory(node("a", H100, whole(8))),
        spec(gpu("H100"), model=LLAMA70),
        None,
        why=("NVIDIA-H100-80GB-HBM3: needs 146.0 GiB for weights + 8 requests at 4,096 tokens, has 79.6 GiB",),
    ),
    Row(
        "a B200 holds what an H100 cannot",
        inventory(node("a", H100, whole(8)), node("b", B200, whole(8))),
        spec(gpu(), model=LLAMA70),
        "gpu[0]",
        "NVIDIA-B200, 179.1 GiB",
        why=("NVIDIA-H100-80GB-HBM3: needs 146.0 GiB",),
    ),
    Row(
        "another product",
        inventory(node("a", A100_80, whole(8))),
        spec(gpu("H1000")),
        None,
        why=("no node offers a whole GPU H1000; offered: NVIDIA-A100",),
    ),
    Row("part of a word is none", inventory(node("a", A100_80, whole(8))), spec(gpu("A1")), None, why=("no node offers a whole GPU A1",)),
    Row("no GPUs at all", inventory(), spec(gpu("H100"), CPU), "cpu[1]", why=("no node offers a whole GPU H100; offered: nothing",)),
    Row(
        "mixed: a slice by profile",
        inventory(H100_MIXED),
        spec(mig("3g.40gb")),
        "mig[0]",
        "mig-3g.40gb, 39.5 GiB",
        "nvidia.com/mig-3g.40gb",
    ),
    Row(
        "mixed: a profile that is too small",
        inventory(H100_MIXED),
        spec(mig("1g.10gb")),
        None,
        why=("mig-1g.10gb: needs 21.6 GiB for weights + 8 requests at 4,096 tokens, has 9.8 GiB",),
    ),
    Row("the smallest profile that fits", inventory(H100_MIXED), spec(mig(least="1Gi"), model=TINY), "mig[0]", "mig-1g.10gb, 9.8 GiB"),
    Row(
        "the smallest profile that fits is not the smallest there is",
        inventory(H100_MIXED),
        spec(mig(least="1Gi")),
        "mig[0]",
        "mig-3g.40gb, 39.5 GiB",
        why=("mig-1g.10gb: needs 21.6 GiB", "mig-2g.20gb: needs 21.6 GiB"),
    ),
    Row(
        "minMemory is kept though the model needs less",
        inventory(H100_MIXED),
        spec(mig(least="15Gi"), model=TINY),
        "mig[0]",
        "mig-2g.20gb, 19.6 GiB",
        why=("mig-1g.10gb: is sold with 10 GB, but minMemory is 15Gi",),
    ),
    Row(
        "no slice has so much",
        inventory(H100_MIXED),
        spec(mig(least="41Gi"), model=TINY),
        None,
        why=("but minMemory is 41Gi",) * 3,
    ),
    Row(
        "minMemory is the size that a vendor sells",
        inventory(H100_MIXED),
        spec(mig(least="40Gi"), model=TINY),
        "mig[0]",
        "mig-3g.40gb, 39.5 GiB",
        why=("mig-1g.10gb", "mig-2g.20gb"),
    ),
    Row(
        "minMemory in decimal units",
        inventory(H100_MIXED),
        spec(mig(least="40G"), model=TINY),
        "mig[0]",
        "mig-3g.40gb, 39.5 GiB",
        why=("mig-1g.10gb", "mig-2g.20gb"),
    ),
    Row(
        "the smallest slice is found without labels of memory",
        inventory(
            node("a", H200, cut(1, p7g_141gb=1), labels={"nvidia.com/mig-7g.141gb.memory": None}), node("b", H200, cut(1, p1g_18gb=1))
        ),
        spec(mig(least="10Gi"), model=TINY),
        "mig[0]",
        "mig-1g.18gb, 16.0 GiB",
    ),
    Row(
        "single: slices under the name of GPUs",
        inventory(node("a", A100_80, cut(8, p1g_10gb=7), strategy="single")),
        spec(mig("1g.10gb"), model=TINY),
        "mig[0]",
        "mig-1g.10gb, 9.5 GiB",
        "nvidia.com/gpu",
    ),
    Row(
        "single: what a slice has, as the issue's example",
        inventory(node("a", A100_80, cut(8, p1g_10gb=7), strategy="single")),
        spec(mig(least="8Gi"), requests=1),
        None,
        why=("mig-1g.10gb: needs 17.2 GiB for weights + 1 request at 4,096 tokens, has 9.5 GiB",),
    ),
    Row(
        "single: slices are no whole GPUs",
        inventory(node("a", A100_80, cut(8, p1g_10gb=7), strategy="single")),
        spec(gpu("A100")),
        "gpu[0]",
        waits="no node offers a whole GPU A100; offered: mig-1g.10gb; the pods ask for 1 nvidia.com/gpu on a node with nvidia.com/gpu.prod",
    ),
    Row(
        "H200: sizes of its own",
        inventory(node("a", H200, cut(1, p1g_18gb=7), strategy="mixed"), node("b", H200, cut(1, p3g_71gb=2))),
        spec(mig(least="10Gi")),
        "mig[0]",
        "mig-3g.71gb",
        why=("mig-1g.18gb: needs 21.6 GiB",),
    ),
    Row(
        "B200: sizes of its own",
        inventory(node("a", B200, cut(1, p1g_23gb=7))),
        spec(mig(least="10Gi"), requests=4),
        "mig[0]",
        "mig-1g.23gb, 21.5 GiB",
    ),
    Row(
        "a step that is asked for takes memory",
        inventory(node("a", B200, cut(1, p1g_23gb=7))),
        spec(mig(least="10Gi"), requests=4, tokenBudget=8192),
        None,
        why=("mig-1g.23gb: needs 22.0 GiB for weights + a step of 8,192 tokens + 4 requests at 4,096 tokens, has 21.5 GiB",),
    ),
    Row(
        "a smaller step leaves room for more requests",
        inventory(node("a", B200, cut(1, p1g_23gb=7))),
        spec(mig(least="10Gi"), requests=8, tokenBudget=512),
        "mig[0]",
    ),
    Row(
        "a profile with an attribute, asked for with a plus",
        inventory(node("a", A100_40, cut(1, p1g_5gbme=1, p1g_5gb=6))),
        spec(mig("1g.5gb+me"), model=TINY, requests=1),
        "mig[0]",
        "mig-1g.5gb.me",
        "nvidia.com/mig-1g.5gb.me",
    ),
    Row(
        "a slice without media engines is taken before one with",
        inventory(node("a", A100_40, cut(1, p1g_5gbme=1, p1g_5gb=6))),
        spec(mig(least="4Gi"), model=TINY, requests=1),
        "mig[0]",
        "mig-1g.5gb, 4.8 GiB",
    ),
    Row(
        "stranded: MIG is on and nothing is cut",
        inventory(node("a", H100, cut(8))),
        spec(gpu("H100"), CPU),
        "cpu[1]",
        why=("no node offers a whole GPU H100",),
        warns="a: MIG is enabled, and 8 of 8 GPUs have no partitions",
    ),
    Row(
        "what no entry means is not warned of",
        inventory(node("a", A100_80, cut(8)), node("b", H100, whole(1))),
        spec(gpu("H100")),
        "gpu[0]",
    ),
    Row(
        "partly stranded: the others still serve",
        inventory(node("a", H100, whole(2), cut(2))),
        spec(gpu("H100")),
        "gpu[0]",
        warns="a: MIG is enabled, and 2 of 4 GPUs have no partitions",
    ),
    Row(
        "mig-manager at work: waited for",
        inventory(node("a", H100, whole(8), strategy="none", labels={"nvidia.com/mig.config.state": "pending"})),
        spec(gpu("H100")),
        "gpu[0]",
        waits="a is being reconfigured by mig-manager",
    ),
    Row(
        "mig-manager pending for hours is warned of",
        inventory(node("a", H100, cut(1, p3g_40gb=2), state="pending", since="1970-01-01T00:00:00Z")),
        spec(mig("3g.40gb")),
        "mig[0]",
        waits="mig.config.state is pending",
        warns="a: mig.config.state has been pending since 1970-01-01 00:00 UTC",
    ),
    Row(
        "mig-manager failed: nothing to wait for",
        inventory(node("a", H100, cut(1, p3g_40gb=2), state="failed")),
        spec(mig("3g.40gb")),
        None,
        why=("a: MIG configuration custom has failed",),
        warns="a: mig-manager could not apply custom",
    ),
    Row("cordoned: waited for", inventory(node("a", H100, whole(8), cordoned=True)), spec(gpu("H100")), "gpu[0]", waits="a is cordoned"),
    Row("not ready: waited for", inventory(node("a", H100, whole(8), ready=False)), spec(gpu("H100")), "gpu[0]", waits="a is not ready"),
    Row(
        "a cordoned node beside one that is full",
        inventory(node("a", H100, whole(1), cordoned=True), node("b", H100, whole(1)), pods=(pod("b", gpu=1),)),
        spec(gpu("H100")),
        "gpu[0]",
        waits="all 2 devices are in use; a is cordoned",
    ),
    Row(
        "tainted and not tolerated",
        inventory(node("a", H100, whole(8), taints=DEDICATED)),
        spec(gpu("H100")),
        None,
        why=("NVIDIA-H100-80GB-HBM3: a: taint nvidia.com/gpu=present:NoSchedule is not tolerated",),
    ),
    *(
        Row(
            f"{key}: passes, waited for",
            inventory(node("a", H100, whole(8), taints=[{"key": key, "value": value, "effect": effect}])),
            spec(gpu("H100")),
            "gpu[0]",
            waits=f"a is tainted {key}, which is temporary",
        )
        for key, value, effect in PASSING
    ),
    Row(
        "a taint that looks like a passing one",
        inventory(node("a", H100, whole(8), taints=[{"key": "karpenter.sh/mine", "effect": "NoSchedule"}])),
        spec(gpu("H100")),
        None,
        why=("a: taint karpenter.sh/mine:NoSchedule is not tolerated",),
    ),
    Row(
        "a passing taint that is tolerated",
        inventory(node("a", H100, whole(8), taints=[{"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"}])),
        spec(gpu("H100")),
        "gpu[0]",
        terms=Terms(tolerations=({"operator": "Exists"},), service_uid="mine"),
    ),
    Row("tainted and tolerated", inventory(node("a", H100, whole(8), taints=DEDICATED)), spec(gpu("H100")), "gpu[0]", terms=TOLERANT),
    Row(
        "a taint that only prefers is none",
        inventory(node("a", H100, whole(8), taints=[{"key": "x", "effect": "PreferNoSchedule"}])),
        spec(gpu("H100")),
        "gpu[0]",
    ),
    Row(
        "nodes that the profile does not select",
        inventory(*(node(n, H100, whole(8), labels={"pool": "batch"}) for n in "ab")),
        spec(gpu("H100")),
        None,
        why=("2 nodes: lacks the label pool=serving",),
        terms=Terms({"pool": "serving"}, service_uid="mine"),
    ),
    Row(
        "driver too old",
        inventory(node("a", H100, whole(8), **OLD)),
        spec(gpu("H100")),
        None,
        why=("driver 535.216.01 supports CUDA 12.2, but the daemon needs 13.0",),
    ),
    Row("an image that does with less", inventory(node("a", H100, whole(8), **OLD)), spec(gpu()), "gpu[0]", terms=Terms(cuda="12.2")),
    Row(
        "no version label: not judged",
        inventory(node("a", H100, whole(8), labels={"nvidia.com/cuda.runtime-version.major": None})),
        spec(gpu("H100")),
        "gpu[0]",
    ),
    Row(
        "heterogeneous: the class with room",
        inventory(node("a", A100_80, whole(8)), node("b", H100, whole(8)), pods=(pod("b", gpu=8),)),
        spec(gpu()),
        "gpu[0]",
        "NVIDIA-H100-80GB-HBM3, 79.6 GiB, or NVIDIA-A100-SXM4-80GB, 80.0 GiB",
    ),
    Row(
        "occupied: waited for",
        inventory(node("a", H100, whole(8)), pods=(pod("a", gpu=8),)),
        spec(gpu("H100"), CPU),
        "gpu[0]",
        waits="all 8 devices are in use",
    ),
    Row(
        "own pods do not stand in the way",
        inventory(node("a", H100, whole(1)), pods=(pod("a", uid="mine", gpu=1),)),
        spec(gpu("H100")),
        "gpu[0]",
    ),
    Row(
        "all small slices in use: a larger one",
        inventory(H100_MIXED, pods=(pod("a", mig_1g_10gb=4),)),
        spec(mig(least="1Gi"), model=TINY),
        "mig[0]",
        "mig-2g.20gb, 19.6 GiB",
        why=("mig-1g.10gb: all 4 devices are in use",),
    ),
    Row(
        "unhealthy: some are gone",
        inventory(node("a", H100, whole(8), gone={"nvidia.com/gpu": 3})),
        spec(gpu("H100")),
        "gpu[0]",
        warns="a: 3 of 8 nvidia.com/gpu are unhealthy",
    ),
    Row(
        "unhealthy: all are gone",
        inventory(node("a", H100, whole(8), gone={"nvidia.com/gpu": 8})),
        spec(gpu("H100")),
        "gpu[0]",
        waits="all 8 devices are in use",
        warns="a: 8 of 8 nvidia.com/gpu are unhealthy",
    ),
    Row(
        "time-sliced GPUs are nobody's own",
        inventory(node("a", H100, whole(8), labels={"nvidia.com/gpu.replicas": "4"})),
        spec(gpu("H100")),
        None,
        why=("shared by several pods",),
    ),
    Row(
        "no label tells the memory of an unknown GPU",
        inventory(node("a", H100, whole(1), labels={"nvidia.com/gpu.memory": None, "nvidia.com/gpu.product": "Corp-X1"})),
        spec(gpu()),
        None,
        why=("memory unknown, because no label says the memory of Corp-X1 of a; say it in the ServingProfile's devices",),
    ),
    Row(
        "no label tells the memory of a slice: its name does",
        inventory(node("a", H100, cut(1, p3g_40gb=1), labels={"nvidia.com/mig-3g.40gb.memory": None})),
        spec(mig("3g.40gb")),
        "mig[0]",
        "mig-3g.40gb, 34.6 GiB",
    ),
    Row(
        "DRA: the smallest slice that fits",
        inventory(H100_DRA, slices=(H100_SLICE,)),
        spec(dra_of("mig.nvidia.com")),
        "dra[0]",
        "mig-3g.40gb, 39.5 GiB",
        why=("mig-1g.10gb: needs 21.6 GiB",),
    ),
    Row(
        "DRA: selectors narrow",
        inventory(H100_DRA, slices=(H100_SLICE,)),
        spec(dra_of("mig.nvidia.com", "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"), model=TINY),
        "dra[0]",
        "mig-1g.10gb",
    ),
    Row(
        "DRA: a capacity that no device has",
        inventory(H100_DRA, slices=(H100_SLICE,)),
        spec(dra_of("mig.nvidia.com", "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('60Gi')) >= 0")),
        None,
        why=("no ResourceSlice has a device of class mig.nvidia.com that matches the selectors",),
    ),
    Row(
        "DRA: several slices are no tensor parallelism",
        inventory(H100_DRA, slices=(H100_SLICE,)),
        spec(dra_of("mig.nvidia.com", count=2), model=TINY),
        None,
        why=("dra.count must be 1, got 2",),
    ),
    Row(
        "DRA: whole GPUs",
        inventory(node("a", H200, whole(2)), slices=(WHOLE_SLICE,)),
        spec(dra_of("gpu.nvidia.com")),
        "dra[0]",
    ),
    Row(
        "DRA: held by others' claims",
        inventory(H100_DRA, slices=(H100_SLICE,), claims=(claim(H100_SLICE, 0),)),
        spec(dra_of("mig.nvidia.com")),
        "dra[0]",
        why=("mig-1g.10gb: needs 21.6 GiB",),
        waits="mig-3g.40gb: the only device is in use",
    ),
    Row(
        "order: the first that can be had, though a later one has room",
        inventory(H100_MIXED, node("b", H200, whole(8))),
        spec(mig("1g.10gb"), gpu("H100"), gpu("H200")),
        "gpu[1]",
        "NVIDIA-H100",
        why=("mig-1g.10gb: needs 21.6 GiB",),
    ),
    Row(
        "a first entry without patience for what is full",
        inventory(H100_MIXED, node("b", H200, whole(8)), pods=(pod("a", gpu=2),)),
        spec(gpu("H100", fallbackAfter="0s"), gpu("H200")),
        "gpu[1]",
        "NVIDIA-H200",
        why=("NVIDIA-H100-80GB-HBM3: all 2 devices are in use",),
    ),
    Row(
        "nothing anywhere: each entry says why",
        inventory(node("a", H100, whole(8), **OLD), node("b", A100_40, cut(1, p1g_5gb=7))),
        spec(gpu("H100"), mig("1g.5gb"), dra_of("gpu.nvidia.com")),
        None,
        why=("the daemon needs 13.0", "mig-1g.5gb: needs", "no ResourceSlice"),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.title for row in ROWS])
def test_an_inventory_gives(row):
    placed = place(question(row.there, row.asked, terms=row.terms))
    status = placed.status
    assert status.chosen == row.chosen, status
    assert (status.device or "").startswith(row.device), status
    assert not row.resource or placed.resolved.resource == row.resource
    assert len(status.rejected) == len(row.why), status.rejected
    assert all(part in rejected.why for part, rejected in zip(row.why, status.rejected, strict=True)), status.rejected
    assert (row.waits in status.waiting.why) if row.waits else status.waiting is None, status.waiting
    assert any(row.warns in reported for reported in status.warnings) if row.warns else status.warnings == (), status.warnings


def test_the_table_is_as_long_as_was_asked():
    assert len(ROWS) >= 30


def test_fewer_requests_need_less_and_wider_weights_more():
    there = inventory(H100_MIXED)
    assert place(question(there, spec(mig("2g.20gb"), requests=1))).entry is not None
    assert place(question(there, spec(mig("2g.20gb")))).entry is None
    assert place(question(there, spec(mig("3g.40gb"), dtype="float32", requests=16))).entry is None


def test_a_cache_of_a_given_size_counts_instead_of_requests():
    there = inventory(H100_MIXED)
    given = place(question(there, spec(mig("2g.20gb"), kvCache={"size": "1Gi"}, requests=2)))
    assert given.entry is not None
    small = place(question(there, spec(mig("2g.20gb"), kvCache={"size": "1Gi"})))
    assert small.status.rejected[0].why == "mig-2g.20gb: kvCache.size 1Gi holds 2 of 8 requests at 4,096 tokens"
    refused = place(question(there, spec(mig("1g.10gb"), kvCache={"size": "1Gi"})))
    assert "weights + 1Gi of KV cache" in refused.why_none


@pytest.mark.parametrize(
    ("entry", "products"),
    [
        (gpu(), (A100_80.product, H100.product)),
        (gpu("80GB"), (A100_80.product, H100.product)),
        (gpu("H100"), (H100.product,)),
        (gpu("L40S"), ("NVIDIA-L40S",)),  # of a node pool without nodes
        (mig("3g.40gb"), ()),
        (dra_of("gpu.nvidia.com"), (H100.product,)),
    ],
)
def test_what_a_pod_may_get_is_told_by_product_and_kept_with_its_revision(entry, products):
    there = inventory(H100_MIXED, node("b", A100_80, whole(8)), slices=(resource_slice("a", H100, whole(8)),))
    placed = place(question(there, spec(entry)))
    assert placed.resolved.products == products
    written = placed.resolved.written("x")
    assert read_pin(written).resolved == placed.resolved
    assert ("products" in written) == bool(products), "an older revision's is read and written as it was"
    assert there.products == {"a": H100.product, "b": A100_80.product}


@pytest.mark.parametrize(
    ("least", "profile"),
    [
        *((wish, "3g.40gb") for wish in ("40G", "40Gi", "40000M", "40960Mi", "20.5Gi", "21G", "42949672960")),
        *((wish, "2g.20gb") for wish in ("20G", "20Gi", "10.5G", "11G", "10241Mi")),
        *((wish, "") for wish in ("40.5G", "41G", "42G", "41Gi", "40001M")),
    ],
)
def test_a_size_is_what_a_vendor_sells_in_the_unit_in_which_it_is_written(least, profile):
    assert place(question(inventory(H100_MIXED), spec(mig(least=least), model=TINY))).resolved.profile == profile


@pytest.mark.parametrize("missing", range(8))
def test_the_smallest_slice_is_found_whichever_labels_are_missing(missing):
    sizes = ("1g.10gb", "2g.20gb", "3g.40gb")
    absent = {f"nvidia.com/mig-{name}.memory": None for number, name in enumerate(sizes) if missing >> number & 1}
    there = inventory(node("a", H100, cut(1, p3g_40gb=1, p2g_20gb=1, p1g_10gb=1), labels=absent), node("b", H100, cut(1, p3g_40gb=1)))
    for least, profile in zip(("1Gi", "15Gi", "21G"), sizes, strict=True):
        assert place(question(there, spec(mig(least=least), model=TINY))).resolved.profile == profile


@pytest.mark.parametrize(("driver", "vendor"), [("gpu.amd.com", "AMD"), ("gpu.intel.com", "Intel"), ("gaudi.intel.com", "Intel Gaudi")])
def test_claimed_devices_of_other_vendors_are_refused_by_their_name(driver, vendor):
    published = resource_slice("a", H100, whole(8))
    published["spec"]["driver"] = driver
    placed = place(question(inventory(plain_node("a"), slices=(published,)), spec(dra_of(driver), model=TINY)))
    assert placed.status.rejected[0].why.endswith(f": {vendor} devices ({driver}), for which Pagoda has no daemon yet")


def test_without_a_limit_a_request_counts_as_four_thousand_tokens():
    wanted = spec(gpu("H100"), model=LLAMA8)
    free = wanted.model_copy(update={"engine": wanted.engine.model_copy(update={"max_model_len": None})})
    assert place(question(inventory(H100_MIXED), free)).status.chosen == "gpu[0]"


def test_earlier_of_two_awaited_entries_is_taken_when_both_become_free():
    there = inventory(node("a", H100, whole(8)), node("b", A100_80, whole(8)))
    wanted = spec(gpu("H100", fallbackAfter="1m"), gpu("A100"))
    full = inventory(*(node(n, p, whole(1)) for n, p in (("a", H100), ("b", A100_80))), pods=(pod("a", gpu=1), pod("b", "o", gpu=1)))
    waited = place(question(full, wanted, kept=place(question(full, wanted)).status, now=2000.0)).status
    assert (waited.chosen, waited.waiting.since) == ("gpu[1]", "1970-01-01T00:17:40Z")
    assert place(question(there, wanted, kept=waited, now=2001.0)).status.chosen == "gpu[0]"


def test_newest_placement_counts_though_an_older_one_has_a_running_pod():
    """The first was given up, and its pod was bound after all, before the replica on the second was."""
    asked = spec(gpu("H100"), gpu("A100"))
    there = inventory(node("a", H100, whole(8)), node("b", A100_80, whole(8)))
    runs = []
    for number, wanted in enumerate((spec(gpu("H100")), spec(gpu("A100")))):
        placed = place(question(there, wanted))
        name = identify("s", asked, asked.accelerators[number], placed.resolved.identity).name
        runs.append(Run(name, number, Pin(placed.resolved, alternatives(asked)), running=number == 0))
    assert place(question(there, asked, runs=tuple(runs))).status.chosen == "gpu[1]"
    assert place(question(there, asked, runs=tuple(runs[:1]))).status.chosen == "gpu[0]"
