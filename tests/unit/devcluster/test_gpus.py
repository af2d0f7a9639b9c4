"""A GPU layout: what is refused, and what a cluster shows of one that is accepted."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from pagoda_devcluster.binaries import recipe
from pagoda_devcluster.cluster.errors import UsageError
from pagoda_devcluster.gpus import devices, dra, labels, layout
from pagoda_sizing.devices import find, profiles_of

FOLDER = recipe.of_checkout().folder / "layouts"
MIXED, SINGLE = (layout.read(FOLDER / name) for name in ("h100-mixed.yaml", "a100-single.yaml"))
NODE = MIXED.kubelet_class
RAW = yaml.safe_load((FOLDER / "h100-mixed.yaml").read_text())


def changed(path: str, value: Any) -> str:
    """The example with one value replaced (`...` removes it)."""
    raw = copy.deepcopy(RAW)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    target = raw
    for part in parents:
        target = target[part]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return yaml.safe_dump(raw)


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("classes/0/gpus/1/mig", {"3g.40gb": 3}, r"9 of 7 compute and 12 of 8 memory slices"),
        ("classes/0/gpus/1/mig", {"1g.20gb": 5}, r"5 of 7 compute and 10 of 8 memory slices"),
        ("classes/0/gpus/1/mig", {"4g.40gb": 1}, r"'4g\.40gb' is not among mig_profiles: 1g\.10gb, 1g\.20gb"),
        ("classes", [{"name": "h100-mixed", "weight": 0}], r"at least one class needs a weight above 0"),
        ("classes/0/gpus/1/mig", {"half": 1}, r"MIG profile 'half': write it as 3g\.40gb"),
        ("classes/0/gpus/1/mig", {"1g.10gb": 0}, r"at least 1"),
        ("classes/0/mig_strategy", "none", r"mig_strategy none and `mig` contradict"),
        ("classes/0/mig_strategy", "single", r"single needs `mig` on every group; use mixed"),
        ("classes/0/mig_strategy", "both", r"mig_strategy \('both'\).*'none', 'single' or 'mixed'"),
        ("classes/0/gpu", None, r"`gpu` and `gpus` go together"),
        ("classes/0/gpus", [], r"`gpu` and `gpus` go together"),
        ("classes/0/gpus/0/count", 0, r"classes\.0\.gpus\.0\.count \(0\): .*greater than or equal to 1"),
        ("classes/0/gpu/driver", "new", r"classes\.0\.gpu\.driver \('new'\)"),
        ("classes/0/gpu/product", "H 100", r"classes\.0\.gpu\.product \('H 100'\)"),
        ("classes/0/gpu/memory_mib", ..., r"classes\.0\.gpu\.memory_mib: Field required"),
        ("classes/0/gpu/colour", "green", r"classes\.0\.gpu\.colour \('green'\): Extra inputs"),
        ("classes/1/name", "h100-mixed", r"class names repeat"),
        ("kubelet", "b200", r"must be one of the classes h100-mixed, h100-whole, cpu, got 'b200'"),
        ("ready_seconds", [3, 1], r"must be \[least, most\], got \[3\.0, 1\.0\]"),
        ("classes", [], r"classes: .*at least 1"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place_and_what_is_accepted(path, value, complaint):
    with pytest.raises(UsageError, match=complaint) as refused:
        layout.parse(changed(path, value), "here.yaml")
    assert str(refused.value).startswith("here.yaml: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("text", "complaint"), [("a: [", "is not YAML"), ("", "needs `classes`"), ("[]", "needs `classes`")])
def test_a_file_that_is_no_layout_is_refused_in_one_line(text, complaint):
    with pytest.raises(UsageError, match=complaint) as refused:
        layout.parse(text, "x.yaml")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match=r"gone\.yaml cannot be read"):
        layout.read(tmp_path / "gone.yaml")


def test_slices_are_offered_under_their_own_names_and_their_gpu_is_not():
    assert devices.allocatable(NODE, "n") == {
        "nvidia.com/gpu": "2",
        "nvidia.com/mig-3g.40gb": "2",
        "nvidia.com/mig-2g.20gb": "2",
        "nvidia.com/mig-1g.10gb": "4",
    }


def test_under_single_slices_are_offered_as_gpus():
    assert devices.allocatable(SINGLE.kubelet_class, "n") == {"nvidia.com/gpu": "56"}


def test_without_a_device_plugin_devices_are_in_resource_slices_only():
    node = NODE.model_copy(update={"device_plugin": False})
    assert devices.allocatable(node, "n") == {}
    assert dra.resource_slice(node, "n", "u") == dra.resource_slice(NODE, "n", "u")


def test_a_gpu_with_mig_on_and_no_slice_is_offered_to_nobody():
    stranded = layout.parse(changed("classes/0/gpus/1/mig", {}), "x").kubelet_class
    assert devices.allocatable(stranded, "n") == {"nvidia.com/gpu": "2"}
    placed = dra.resource_slice(stranded, "n", "u")
    assert placed
    assert [one["name"] for one in placed[1]["spec"]["devices"]] == ["gpu-0", "gpu-1"]
    assert labels.labels_of(stranded)["nvidia.com/gpu.count"] == "4"


def test_an_attribute_of_a_profile_is_written_with_a_dot_where_a_plus_may_not_be():
    raw = yaml.safe_load(changed("classes/0/gpus/1/mig", {"1g.10gb+me": 1}))
    raw["classes"][0]["gpu"]["mig_profiles"]["1g.10gb+me"] = {"memory_mib": 9984, "multiprocessors": 16, "memory_slices": 1}
    node = layout.parse(yaml.safe_dump(raw), "x").kubelet_class
    assert devices.allocatable(node, "n")["nvidia.com/mig-1g.10gb.me"] == "2"
    assert labels.labels_of(node)["nvidia.com/mig-1g.10gb.me.count"] == "2"


def test_every_device_of_a_fleet_has_an_identity_of_its_own_that_stays():
    uuids = [device.uuid for number in range(20) for device in devices.devices_of(NODE, f"node-{number}")]
    assert len(set(uuids)) == len(uuids) == 20 * 10
    assert devices.devices_of(NODE, "n") == devices.devices_of(NODE, "n")


def test_under_mixed_the_gpu_labels_describe_gpus_and_each_profile_has_its_own():
    found = labels.labels_of(NODE)
    expected = {
        "gpu.product": "NVIDIA-H100-80GB-HBM3",
        "gpu.count": "4",
        "gpu.memory": "81559",
        "gpu.compute.major": "9",
        "cuda.driver-version.revision": "05",
        "mig.strategy": "mixed",
        "mig.config.state": "success",
        "mig-3g.40gb.count": "2",
        "mig-3g.40gb.memory": "40448",
        "mig-3g.40gb.product": "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb",
        "mig-3g.40gb.slices.gi": "3",
        "mig-3g.40gb.engines.copy": "3",
    }
    assert {key: found[f"nvidia.com/{key}"] for key in expected} == expected


def test_under_single_the_gpu_labels_describe_slices():
    found = labels.labels_of(SINGLE.kubelet_class)
    expected = {"product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "count": "56", "memory": "9728", "slices.gi": "1"}
    assert {key: found[f"nvidia.com/gpu.{key}"] for key in expected} == expected
    assert not any(key.startswith("nvidia.com/mig-") for key in found)


def test_a_node_without_gpus_shows_none():
    bare = next(one for one in MIXED.classes if one.name == "cpu")
    assert labels.labels_of(bare) == {}
    assert devices.allocatable(bare, "n") == {}
    assert dra.resource_slice(bare, "n", "u") is None


@pytest.mark.parametrize("node", [one for each in (MIXED, SINGLE) for one in each.classes], ids=lambda node: node.name)
def test_every_label_is_one_the_api_takes(node):
    for key, value in labels.labels_of(node).items():
        assert len(key.partition("/")[2]) <= 63
        assert len(value) <= 63
        assert isinstance(value, str)


def test_a_slice_can_be_chosen_by_profile_and_by_parent():
    placed = dra.resource_slice(NODE, "n", "u")
    assert placed
    path, body = placed
    assert path == "/apis/resource.k8s.io/v1/resourceslices/n-gpu.nvidia.com"
    found = {one["name"]: one for one in body["spec"]["devices"]}
    slice_ = found["gpu-2-mig-3g-40gb-0"]
    assert slice_["attributes"]["profile"] == {"string": "3g.40gb"}
    assert slice_["attributes"]["driverVersion"] == {"version": "580.95.5"}
    assert slice_["capacity"]["memory"] == {"value": "40448Mi"}
    parents = {one["attributes"]["parentUUID"]["string"] for name, one in found.items() if name.startswith("gpu-2-")}
    assert parents == {slice_["attributes"]["parentUUID"]["string"]}
    assert found["gpu-0"]["attributes"]["type"] == {"string": "gpu"}


def test_classes_take_turns_by_their_weight():
    raw = yaml.safe_load(changed("classes/0/weight", 2))
    found = layout.parse(yaml.safe_dump(raw), "x")
    assert [found.class_of(number).name for number in range(5)] == ["h100-mixed", "h100-mixed", "h100-whole", "cpu", "h100-mixed"]


@pytest.mark.parametrize(("node", "name"), [(NODE, "h100"), (SINGLE.kubelet_class, "a100-80")])
def test_the_examples_profiles_are_those_the_sizing_catalogue_knows(node, name):
    known = {slice_.profile for slice_ in profiles_of(name)}
    assert set(node.gpu.mig_profiles) <= known
    for profile, described in node.gpu.mig_profiles.items():
        nominal = find(f"{name}:{profile}").memory_bytes
        assert 0.9 < described.memory_mib * 2**20 / nominal < 1.08
