"""What a replica on devices requests besides them, where it prefers to go, and what a service may say of that."""

from __future__ import annotations

import pytest
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_operator.api.errors import SpecProblem
from pagoda_operator.api.placement import Resolved
from pagoda_operator.api.state import Key
from pagoda_operator.decide.render.children import identify
from pagoda_operator.decide.render.pod import Inputs, pod_template
from support.harness.inventories import CPU, gpu, mig
from support.harness.platforms import default_profile

LABELS = {"serving.pagoda.dev/service": "tiny", "serving.pagoda.dev/service-uid": "uid"}
LABEL = {"nvidia.com/gpu": Resolved("nvidia.com/gpu"), "slice": Resolved("nvidia.com/mig-1g.10gb", "1g.10gb")}
HUB = {"uri": "hf://org/name"}


def rendered(entry, resolved=LABEL["nvidia.com/gpu"], *, profile=None, weights=16 << 30, **spec):
    parsed = InferenceServiceSpec.model_validate({"model": {"uri": "pvc://models"}, "accelerators": [entry]} | spec)
    made = ServingProfileSpec.model_validate(profile or default_profile()["spec"])
    where = parsed.accelerators[0]
    return pod_template(Inputs(Key("ns", "tiny"), identify("tiny", parsed, where), parsed, where, made, LABELS, None, resolved, weights))[
        "spec"
    ]


def requests(spec):
    (daemon,) = spec["containers"]
    return {name: value for name, value in daemon["resources"]["requests"].items() if "/" not in name}


def test_no_replica_on_devices_is_best_effort():
    assert requests(rendered(gpu())) == {"cpu": "1000m", "memory": "4096Mi", "ephemeral-storage": "1024Mi"}
    assert requests(rendered(gpu(count=4)))["cpu"] == "4000m"
    assert requests(rendered(mig("1g.10gb"), LABEL["slice"])) == {"cpu": "500m", "memory": "2048Mi", "ephemeral-storage": "1024Mi"}
    assert requests(rendered(CPU)) == {"cpu": "8", "memory": "32Gi"}


def test_a_model_that_is_fetched_into_the_pod_needs_scratch_disk():
    assert requests(rendered(gpu(), model=HUB))["ephemeral-storage"] == "17408Mi"
    assert requests(rendered(gpu(), model=HUB | {"cache": {"pvc": "cache"}}))["ephemeral-storage"] == "1024Mi"


def test_a_service_says_what_it_requests_and_the_profile_says_it_for_all():
    own = {"spec": {"containers": [{"name": "daemon", "resources": {"requests": {"cpu": "3", "memory": "9Gi"}}}]}}
    profile = default_profile(podTemplate=own)["spec"]
    assert requests(rendered(gpu(), profile=profile)) == {"cpu": "3", "memory": "9Gi", "ephemeral-storage": "1024Mi"}
    asked = {"cpu": "6", "ephemeralStorage": "50Gi"}
    assert requests(rendered(gpu(), profile=profile, resources=asked)) == {"cpu": "6", "memory": "9Gi", "ephemeral-storage": "50Gi"}


def test_other_requests_are_another_revision_and_none_are_the_same():
    def revision(**spec):
        parsed = InferenceServiceSpec.model_validate({"model": HUB, "accelerators": [gpu()]} | spec)
        return identify("tiny", parsed, parsed.accelerators[0])

    assert revision() == revision(resources={})
    assert revision() != revision(resources={"cpu": "2"})


@pytest.mark.parametrize("entry", [gpu(), CPU])
def test_replicas_of_a_service_keep_apart_if_they_can(entry):
    spread = rendered(entry)["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    assert all(one["whenUnsatisfiable"] == "ScheduleAnyway" and one["labelSelector"] == {"matchLabels": LABELS} for one in spread)


def test_a_replica_with_one_gpu_prefers_nodes_in_use_and_others_do_not():
    (preferred,) = rendered(gpu())["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    selects = preferred["podAffinityTerm"]["labelSelector"]["matchExpressions"]
    assert {"key": "serving.pagoda.dev/service-uid", "operator": "NotIn", "values": ["uid"]} in selects
    assert "podAffinity" not in rendered(gpu(count=2)).get("affinity", {})
    assert "podAffinity" not in rendered(CPU).get("affinity", {})


def test_tolerations_of_vendors_taints_are_added_to_what_is_said_and_not_on_cpu():
    own = [{"key": "team", "operator": "Exists"}]
    found = rendered(gpu(), profile=default_profile(tolerations=own)["spec"])["tolerations"]
    assert [one["key"] for one in found] == ["team", "nvidia.com/gpu", "sku"]
    assert "tolerations" not in rendered(CPU)


ALLOWED = [
    {"tolerations": [{"key": "team", "operator": "Exists"}]},
    {"nodeSelector": {"pool": "a"}},
    {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}},
    {"topologySpreadConstraints": []},
    {"containers": [{"name": "daemon", "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}]}]},
]


@pytest.mark.parametrize("overlay", ALLOWED)
def test_the_charts_profile_allows_a_service_what_concerns_only_itself(overlay):
    rendered(gpu(), podTemplate={"spec": overlay})


@pytest.mark.parametrize("overlay", [{"hostNetwork": True}, {"containers": [{"name": "daemon", "command": ["sh"]}]}])
def test_the_charts_profile_allows_nothing_else(overlay):
    with pytest.raises(SpecProblem, match=r"the profile allows metadata\.labels"):
        rendered(gpu(), podTemplate={"spec": overlay})


def test_alternatives_of_node_labels_are_joined_to_those_that_are_there():
    two = Resolved("nvidia.com/gpu", labels=("NVIDIA-L4", "NVIDIA-A10", "a.example/gpu=x,b.example/size=1|2"))
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
    given = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    found = rendered(gpu(), two, podTemplate={"spec": {"affinity": {"nodeAffinity": given}}})
    joined = found["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [[(one["key"], one["values"]) for one in term["matchExpressions"]] for term in joined] == [
        [("zone", [zone]), *rest]
        for zone in "ab"
        for rest in (
            [("nvidia.com/gpu.product", ["NVIDIA-L4", "NVIDIA-A10"])],
            [("a.example/gpu", ["x"]), ("b.example/size", ["1", "2"])],
        )
    ]
