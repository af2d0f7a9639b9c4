"""The table of what clusters say of their devices."""

import pytest
from pagoda_sizing.devices import catalogue
from pagoda_sizing.platforms import driver_for, identify, label_of, platforms, products, seen, slices, vendor_of


def test_every_value_of_a_provider_means_one_known_product():
    for platform in platforms().platforms:
        values = [value for found in platform.values.values() for value in found]
        assert len(values) == len(set(values))
        assert set(platform.values) <= set(products())


def test_machine_types_of_two_providers_do_not_clash():
    keys = [(one.key, value) for one in platforms().platforms for found in one.values.values() for value in found]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("labels", "product", "gb"),
    [
        ({"cloud.google.com/gke-accelerator": "nvidia-tesla-a100"}, "NVIDIA-A100-SXM4-40GB", 40),
        ({"node.kubernetes.io/instance-type": "Standard_NC40ads_H100_v5"}, "NVIDIA-H100-NVL", 94),
        ({"node.kubernetes.io/instance-type": "g6e.xlarge", "karpenter.k8s.aws/instance-gpu-name": "l40s"}, "NVIDIA-L40S", 48),
        ({"gpu.nvidia.com/model": "H200", "gpu.nvidia.com/vram": "143"}, "H200", 143),
    ],
)
def test_a_node_is_known_by_the_labels_of_its_provider(labels, product, gb):
    known = identify(labels)
    assert (known.product, known.memory) == (product, gb * 10**9)


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"node.kubernetes.io/instance-type": "g6f.xlarge"},  # an eighth of an L4
        {"node.kubernetes.io/instance-type": "Standard_NV6ads_A10_v5"},  # a sixth of an A10
        {"karpenter.k8s.aws/instance-gpu-name": "x1", "karpenter.k8s.aws/instance-gpu-memory": "many"},
        {"kubernetes.azure.com/accelerator": "nvidia"},
    ],
)
def test_what_no_label_says_is_not_guessed(labels):
    assert identify(labels) is None


def test_memory_as_a_provider_sells_it_is_not_more_than_what_a_driver_reports():
    sold = {"karpenter.k8s.aws/instance-gpu-name": "t4", "karpenter.k8s.aws/instance-gpu-memory": "16384"}
    assert identify(sold).memory <= 15360 << 20


def test_a_platform_is_seen_by_its_labels_and_says_how_its_nodes_are_found():
    gke = seen(["kubernetes.io/os", "cloud.google.com/gke-nodepool"])
    assert label_of(gke, "NVIDIA-H100-80GB-HBM3") == "cloud.google.com/gke-accelerator=nvidia-h100-80gb|nvidia-h100-mega-80gb"
    assert label_of(gke, "NVIDIA-GeForce-RTX-4090") == ""
    assert seen(["kubernetes.io/os"]) is None


def test_every_gpu_of_the_catalogue_is_a_product_that_clusters_name_with_the_same_memory():
    """But AMD's, which no daemon serves."""
    gpus = {device.product: device.memory_bytes for device in catalogue() if not device.profile and device.name not in ("mi300x", "cpu")}
    assert {product: products().get(product) for product in gpus} == gpus


def test_a_profile_that_several_devices_have_counts_with_the_least_memory():
    assert slices()["1g.10gb"] == 40 * 10**9 * 2 // 8
    # 21.5 GiB of an H100 NVL, 24 GB of a GH200 and of an RTX PRO 6000.
    assert slices()["1g.24gb"] == 43 << 29
    assert "1g.11gb" not in slices()


def test_slices_and_shared_devices_belong_to_their_vendor():
    assert [vendor_of(name).name for name in ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb.me", "amd.com/gpu")] == ["NVIDIA", "NVIDIA", "AMD"]
    assert vendor_of("cpu") is None
    assert vendor_of("nvidia.com/gpus") is None


def test_a_cuda_version_names_its_driver():
    assert (driver_for("13.0"), driver_for("99.9")) == ("580.65.06", "")
