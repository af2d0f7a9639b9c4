"""What placement reads of nodes, pods, slices and MIG profiles."""

import pytest
from hypothesis import given
from hypothesis import strategies as some
from pagoda_placement.inventory import Inventory, parse_occupant
from pagoda_placement.nodes import parse_node
from pagoda_placement.slices import devices, parse_claim, parse_slice, selects
from pagoda_placement.terms import Terms
from pagoda_placement.values import of_product, of_resource, parse_profile
from support.harness.inventories import A100_40, H100, claim, cut, node, pod, resource_slice, whole


@pytest.mark.parametrize("text", ["1g.5gb", "3g.71gb", "7g.141gb", "1g.23gb", "12g.999gb"])
def test_profiles_are_known_by_their_form(text):
    found = parse_profile(text)
    assert found is not None
    assert (found.name, found.resource) == (text, f"nvidia.com/mig-{text}")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("1g.5gb+me", "1g.5gb.me"),
        ("1g.5gb.me", "1g.5gb.me"),
        ("1g.5gb-me", "1g.5gb-me"),
        ("1g.12gb+me.all", "1g.12gb.me.all"),
        ("2g.10gb+gfx", "2g.10gb.gfx"),
    ],
)
def test_both_spellings_of_attributes_are_equal(text, name):
    assert parse_profile(text).name == name


@pytest.mark.parametrize("text", ["", "g.5gb", "1g5gb", "0g.5gb", "1g.5gb+", "1g.5gbme", "1c.3g.20gb", "1g.5gb+ME", "1g.5tb"])
def test_other_texts_are_no_profiles(text):
    assert parse_profile(text) is None


def test_resource_and_product_names_contain_the_profile():
    assert of_resource("nvidia.com/mig-3g.40gb.shared").name == "3g.40gb"
    assert of_resource("nvidia.com/gpu") is None
    assert of_product("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb") == ("NVIDIA-A100-SXM4-40GB", parse_profile("1g.5gb"))
    assert of_product("NVIDIA-H100-80GB-HBM3-MIG-INVALID") == ("NVIDIA-H100-80GB-HBM3-MIG-INVALID", None)


def test_a_node_is_parsed_with_devices_versions_and_health():
    found = parse_node(node("a", H100, whole(2), cut(1, p3g_40gb=2), gone={"nvidia.com/gpu": 1}))
    offers = {offer.resource: (offer.capacity, offer.allocatable, offer.memory) for offer in found.offers}
    assert offers == {"nvidia.com/gpu": (2, 1, 81559 << 20), "nvidia.com/mig-3g.40gb": (2, 2, 40448 << 20)}
    assert (found.driver, found.cuda, found.gpus, found.ready) == ("580.95.05", (13, 0), 3, True)


def test_old_spellings_of_versions_are_read():
    body = node("a", H100, whole(1))
    labels = {key.replace("-version", ""): value for key, value in body["metadata"]["labels"].items() if "-version" in key}
    labels["nvidia.com/cuda.driver.rev"] = labels.pop("nvidia.com/cuda.driver.revision")
    found = parse_node(body | {"metadata": {"name": "a", "labels": labels}})
    assert (found.driver, found.cuda) == ("580.95.05", (13, 0))


def test_a_gpu_is_stranded_only_if_the_slices_prove_it():
    assert parse_node(node("a", A100_40, cut(3, p1g_5gb=1))).stranded == 0
    assert parse_node(node("a", A100_40, cut(1, p1g_5gb=1), cut(2))).stranded == 2


def test_a_heartbeat_changes_nothing():
    body = node("a", H100, whole(1))
    later = node("a", H100, whole(1))
    later["metadata"]["resourceVersion"] = "77"
    later["status"]["conditions"][0]["lastHeartbeatTime"] = "now"
    assert parse_node(body) == parse_node(later)


def containers(*asked, init=()):
    return {
        "containers": [{"name": f"c{n}", "resources": {"requests": one}} for n, one in enumerate(asked)],
        "initContainers": [
            {"name": f"i{n}", "restartPolicy": policy, "resources": {"requests": one}} for n, (policy, one) in enumerate(init)
        ],
    }


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (containers({"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "2"}), 3),
        (containers({"nvidia.com/gpu": "1"}, init=[(None, {"nvidia.com/gpu": "4"})]), 4),
        (containers({"nvidia.com/gpu": "1"}, init=[("Always", {"nvidia.com/gpu": "1"})]), 2),
        (containers({"nvidia.com/gpu": "2"}, init=[("Always", {"nvidia.com/gpu": "1"}), (None, {"nvidia.com/gpu": "3"})]), 4),
        (containers({"nvidia.com/gpu": "2"}, init=[(None, {"nvidia.com/gpu": "3"}), ("Always", {"nvidia.com/gpu": "2"})]), 4),
    ],
)
def test_a_pod_uses_the_devices_that_the_scheduler_counts(spec, expected):
    found = parse_occupant({"metadata": {"name": "p"}, "spec": spec})
    assert dict(found.devices) == {"nvidia.com/gpu": expected}


def test_limits_without_requests_are_requests():
    spec = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "1Gi"}}}]}
    assert dict(parse_occupant({"metadata": {"name": "p"}, "spec": spec}).devices) == {"nvidia.com/gpu": 1}


def test_a_finished_pod_uses_no_devices_and_a_terminating_pod_does():
    body = pod("a", gpu=1)
    assert parse_occupant(body | {"status": {"phase": "Succeeded"}}) is None
    leaving = parse_occupant(body | {"metadata": body["metadata"] | {"deletionTimestamp": "now"}})
    assert leaving.devices == (("nvidia.com/gpu", 1),)
    assert parse_occupant(pod("a")) is None
    assert parse_occupant(pod("a", uid="mine")) is not None


def test_a_pods_claims_are_in_its_spec_or_its_status():
    spec = {"containers": [], "resourceClaims": [{"name": "a", "resourceClaimName": "given"}, {"name": "b"}, {"name": "c"}]}
    status = {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "made"}]}
    assert parse_occupant({"metadata": {"name": "p"}, "spec": spec, "status": status}).claims == ("given", "made")


QUANTITIES = (
    some.none()
    | some.text(max_size=6)
    | some.sampled_from(["1e30", "9" * 32])
    | some.integers()
    | some.from_regex(r"\A[+-]?[0-9]{0,3}\.?[0-9]{0,3}([eE]-?[0-9]|[EPGMk]i?|[mun])?\Z")
)
RESOURCES = some.dictionaries(some.sampled_from(["cpu", "memory", "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"]), QUANTITIES)


@given(RESOURCES, RESOURCES)
def test_no_quantity_of_a_node_or_a_pod_is_an_error(given_, asked):
    made = parse_node({"metadata": {"name": "n"}, "status": {"capacity": given_, "allocatable": asked}})
    assert (made is not None, isinstance(made.millicores, int), isinstance(made.memory, int)) == (True, True, True)
    containers = [{"resources": {"requests": asked, "limits": given_}}]
    body = {"metadata": {"name": "p", "labels": {"serving.pagoda.dev/service": "s"}}, "spec": {"containers": containers, "overhead": asked}}
    assert all(count >= 0 for _, count in parse_occupant(body).devices)


def test_unusual_spellings_of_quantities_are_read():
    made = parse_node({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": ".5", "memory": "+1e3", "nvidia.com/gpu": "8e0"}}})
    assert (made.millicores, made.memory, made.offers[0].allocatable) == (500, 1000, 8)


def test_the_cache_of_blocked_nodes_is_bounded():
    there = Inventory(tuple(parse_node(node(name, H100, whole(1))) for name in "ab"))
    for number in range(1000):
        assert len(there.blocks(Terms(selector={"pool": str(number)}))) == 2
    assert len(there._blocks) <= 32


PIECE = resource_slice("a", H100, cut(1, p3g_40gb=1, p1g_10gb=2))


@pytest.mark.parametrize(
    ("selector", "verdicts"),
    [
        ("device.driver == 'gpu.nvidia.com'", [True, True, True]),
        ("device.attributes['gpu.nvidia.com'].profile == '3g.40gb'", [True, False, False]),
        ('device.attributes["gpu.nvidia.com"].productName.startsWith("NVIDIA-H100")', [True, True, True]),
        ("device.attributes['gpu.nvidia.com'].productName.contains('A100')", [False, False, False]),
        ("device.capacity['gpu.nvidia.com'].memory >= quantity('20Gi')", [True, False, False]),
        ("device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('20Gi')) >= 0", [True, False, False]),
        ("device.driver == 'other' && device.attributes['x'].y.z()", [False, False, False]),
        ("(device.driver == 'gpu.nvidia.com') && (device.attributes['gpu.nvidia.com'].profile == '1g.10gb')", [False, True, True]),
        ("device.driver == 'a' || device.driver == 'gpu.nvidia.com'", [None, None, None]),
        ("!(device.driver == 'gpu.nvidia.com')", [None, None, None]),
        ("device.attributes['gpu.nvidia.com'].profile != '1g.10gb'", [None, None, None]),
    ],
)
def test_known_forms_of_selectors_are_evaluated(selector, verdicts):
    assert [selects(selector, device) for device in parse_slice(PIECE).devices] == verdicts


def test_an_older_generation_of_a_pool_is_stale():
    old = PIECE | {"spec": PIECE["spec"] | {"pool": {"name": "a", "generation": 0}}}
    assert len(devices([parse_slice(old), parse_slice(PIECE)])) == 3


def test_a_claim_has_devices_after_its_allocation():
    assert [where.device for where in parse_claim(claim(PIECE, 0)).devices] == ["gpu-0-mig-3g-40gb-0"]
    assert parse_claim({"metadata": {"name": "c"}, "status": {}}) is None
