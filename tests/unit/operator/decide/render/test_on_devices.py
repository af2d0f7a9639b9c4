"""What a replica on devices requests besides them, where it prefers to go, and what a service may say of that."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import permutations

import pytest
from pagoda_contracts.names import ANNOTATION_DEVICES, ANNOTATION_PRODUCTS
from pagoda_contracts.resources.effect import ignored_fields
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_operator.api.errors import SpecProblem
from pagoda_operator.api.state import Key
from pagoda_operator.decide.render.pod import Inputs, pod_template
from pagoda_placement.result import Resolved
from pagoda_placement.revision import identify
from pagoda_placement.terms import terms_of
from pagoda_sizing.host import DAEMON_LEAST, process_memory
from support.harness.inventories import CPU, gpu, mig
from support.harness.platforms import default_profile

LABELS = {"serving.pagoda.dev/service": "tiny", "serving.pagoda.dev/service-uid": "uid"}
LABEL = {"nvidia.com/gpu": Resolved("nvidia.com/gpu"), "slice": Resolved("nvidia.com/mig-1g.10gb", "1g.10gb")}
HUB = {"uri": "hf://org/name"}


def rendered(*args, **more):
    return template_of(*args, **more)["spec"]


def template_of(entry, resolved=LABEL["nvidia.com/gpu"], *, profile=None, weights=16 << 30, **spec):
    parsed = InferenceServiceSpec.model_validate({"model": {"uri": "pvc://models"}, "accelerators": [entry]} | spec)
    made = ServingProfileSpec.model_validate(profile or default_profile()["spec"])
    where = parsed.accelerators[0]
    return pod_template(Inputs(Key("ns", "tiny"), identify("tiny", parsed, where), parsed, where, made, LABELS, None, resolved, weights))


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
    assert requests(rendered(CPU, model=HUB)) == {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "17408Mi"}
    assert requests(rendered(CPU, model=HUB, weights=0)) == {"cpu": "8", "memory": "32Gi"}, "its size is not known"


def test_a_service_says_what_it_requests_and_the_profile_says_it_for_all():
    own = {"spec": {"containers": [{"name": "daemon", "resources": {"requests": {"cpu": "3", "memory": "9Gi"}}}]}}
    profile = default_profile(podTemplate=own)["spec"]
    assert requests(rendered(gpu(), profile=profile)) == {"cpu": "3", "memory": "9Gi", "ephemeral-storage": "1024Mi"}
    asked = {"cpu": "6", "ephemeralStorage": "50Gi"}
    assert requests(rendered(gpu(), profile=profile, resources=asked)) == {"cpu": "6", "memory": "9Gi", "ephemeral-storage": "50Gi"}


def daemon_of(**resources):
    return {"spec": {"containers": [{"name": "daemon", "resources": resources}]}}


def test_a_limit_of_the_profile_takes_the_place_of_our_request():
    small = default_profile(podTemplate=daemon_of(limits={"cpu": "500m", "memory": "3Gi"}))["spec"]
    assert requests(rendered(gpu(), profile=small)) == {"ephemeral-storage": "1024Mi"}, "the API server requests what is limited"
    assert requests(rendered(gpu(), profile=small, resources={"memory": "2Gi"})) == {"memory": "2Gi", "ephemeral-storage": "1024Mi"}


def test_a_request_above_its_limit_is_refused_with_both_values():
    limited = default_profile(podTemplate=daemon_of(limits={"memory": "3Gi"}))["spec"]
    with pytest.raises(SpecProblem, match=r"spec\.resources requests 4Gi of memory, above the limit of 3Gi") as refused:
        rendered(gpu(), profile=limited, resources={"memory": "4Gi"})
    assert refused.value.reason.name == "InvalidSpec"
    own = default_profile(podTemplate=daemon_of(requests={"cpu": "2"}, limits={"cpu": "500m"}))["spec"]
    with pytest.raises(SpecProblem, match="a replica requests 2 of cpu, above the limit of 500m") as refused:
        rendered(gpu(), profile=own)
    assert refused.value.reason.name == "InvalidProfile"


LIMIT = r"spec\.containers\[daemon\]\.resources\.limits\.memory"


@pytest.mark.parametrize(
    ("entry", "words", "reason", "says"),
    [
        (gpu(), {"profile": daemon_of(limits={"memory": "64Mi"})}, "InvalidProfile", rf"podTemplate\.{LIMIT} of the profile is 64Mi"),
        (gpu(), {"podTemplate": daemon_of(limits={"memory": "64Mi"})}, "InvalidSpec", rf"podTemplate\.{LIMIT} of the service is 64Mi"),
        (
            {"cpu": {"cores": "1", "memory": "64Mi"}},
            {},
            "InvalidSpec",
            r"spec\.accelerators\[0\]\.cpu\.memory is 64Mi: container daemon takes",
        ),
        (
            gpu(),
            {"model": HUB, "profile": {"spec": {"initContainers": [{"name": "fetch", "resources": {"limits": {"memory": "8Mi"}}}]}}},
            *(
                "InvalidProfile",
                r"spec\.initContainers\[fetch\]\.resources\.limits\.memory of the profile is 8Mi: container fetch takes",
            ),
        ),
    ],
)
def test_a_memory_limit_that_the_processes_alone_exceed_is_named_with_its_field(entry, words, reason, says):
    template = {"podTemplate": template} if (template := words.get("profile")) else {}
    profile = default_profile(allow=["spec.containers[daemon].resources"], **template)["spec"]
    with pytest.raises(SpecProblem, match=says) as refused:
        rendered(entry, **words | {"profile": profile})
    assert refused.value.reason.name == reason


@pytest.mark.parametrize(("entry", "taken"), [({"cpu": {"cores": "1", "memory": f"{DAEMON_LEAST}"}}, DAEMON_LEAST), (gpu(), 681_050_112)])
def test_a_memory_limit_that_holds_the_processes_is_left_to_the_daemon(entry, taken):
    def limited(limit):
        return rendered(entry, profile=default_profile(podTemplate=daemon_of(limits={"memory": f"{limit}"}))["spec"])

    assert process_memory(cuda="gpu" in entry) == taken
    assert limited(taken)
    if "gpu" in entry:
        with pytest.raises(
            SpecProblem, match=r"takes 0\.7 GiB besides the device: PyTorch, buffers and CUDA's context, for which 256\.0 MiB"
        ):
            limited(taken - 1)


def test_a_model_that_is_fetched_into_memory_counts_for_the_sidecar_s_limit():
    def fetched(limit):
        sidecar = {"name": "fetch", "resources": {"limits": {"memory": limit}}}
        template = {"spec": {"initContainers": [sidecar], "volumes": [{"name": "model", "emptyDir": {"medium": "Memory"}}]}}
        return rendered(gpu(), model=HUB, profile=default_profile(podTemplate=template)["spec"])

    with pytest.raises(SpecProblem, match=r"container fetch takes 16\.1 GiB with the model's files, 16\.0 GiB, in memory"):
        fetched("16Gi")
    assert fetched("17Gi")


NOT_SCRATCH = [{"emptyDir": {"medium": "Memory"}}, {"hostPath": {"path": "/mnt/nvme"}}, {"ephemeral": {"volumeClaimTemplate": {}}}]


@pytest.mark.parametrize("kind", NOT_SCRATCH)
def test_a_model_on_another_volume_of_the_profile_needs_no_scratch_disk(kind):
    sidecar = {"name": "fetch", "resources": {"limits": {"memory": "20Gi"}}}
    profile = default_profile(podTemplate={"spec": {"initContainers": [sidecar], "volumes": [{"name": "model", **kind}]}})["spec"]
    assert requests(rendered(gpu(), model=HUB, profile=profile))["ephemeral-storage"] == "1024Mi"


@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
def test_who_says_what_pods_to_be_near_gets_no_preference_of_ours(kind):
    near = {kind: {"requiredDuringSchedulingIgnoredDuringExecution": []}}
    assert rendered(gpu(), podTemplate={"spec": {"affinity": near}})["affinity"] == near


def test_other_requests_are_another_revision_and_none_are_the_same():
    def revision(**spec):
        parsed = InferenceServiceSpec.model_validate({"model": HUB, "accelerators": [gpu()]} | spec)
        return identify("tiny", parsed, parsed.accelerators[0])

    assert revision() == revision(resources={})
    assert revision() != revision(resources={"cpu": "2"})
    assert revision(accelerators=[CPU]) == revision(accelerators=[CPU], resources={"cpu": "2"}), "it changes nothing there"


def test_requests_beside_entries_on_cpu_only_are_named_as_ignored():
    def ignored(*entries):
        spec = {"model": HUB, "resources": {"cpu": "2"}, "accelerators": [*entries]}
        return ignored_fields(InferenceServiceSpec.model_validate(spec))

    assert ignored(CPU) == ("resources",)
    assert ignored(gpu(), CPU) == ()


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


@pytest.mark.parametrize(
    ("entry", "products", "written"),
    [
        (gpu(), ("NVIDIA-L4",), "NVIDIA-L4"),
        (gpu(), ("NVIDIA H200 NVL", "NVIDIA-L4"), "NVIDIA-H200-NVL|NVIDIA-L4"),
        (gpu(), ("", "NVIDIA-L4"), None),
        (gpu(), (), None),
        (mig("1g.10gb"), ("NVIDIA-L4",), None),
    ],
)
def test_a_replica_says_which_products_it_may_get_if_all_are_known(entry, products, written):
    kind = LABEL["nvidia.com/gpu" if "gpu" in entry else "slice"]
    annotations = template_of(entry, replace(kind, products=products))["metadata"]["annotations"]
    assert annotations.get(ANNOTATION_PRODUCTS) == written
    assert annotations[ANNOTATION_DEVICES] == ("gpu=1" if "gpu" in entry else "mig-1g.10gb=1")


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


SECRET = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "other", "key": "token"}}}
POWERFUL = [SECRET, *({"name": name, "value": "x"} for name in ("LD_PRELOAD", "PYTHONPATH", "PAGODA_POD_UID", "NVIDIA_VISIBLE_DEVICES"))]


@pytest.mark.parametrize("variable", POWERFUL, ids=lambda one: one["name"])
def test_a_variable_that_reads_secrets_or_brings_code_needs_a_path_of_its_own_or_its_whole_container(variable):
    overlay = {"spec": {"containers": [{"name": "daemon", "env": [variable]}]}}
    own = f"spec.containers[daemon].env[{variable['name']}]"
    with pytest.raises(SpecProblem, match=re.escape(f"only by the variable's own path: {own}")) as refused:
        rendered(gpu(), podTemplate=overlay)
    assert refused.value.reason.name == "PodTemplateForbidden"
    if variable["name"] != "PAGODA_POD_UID":  # the operator's own
        for allowed in (own, "spec.containers[daemon]"):
            rendered(gpu(), podTemplate=overlay, profile=default_profile(allow=["spec.containers[daemon].env", allowed])["spec"])


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


WHERE = (
    {"nodeSelector": {"pool": "gold", "zone": "a"}},
    {"tolerations": [{"key": "gold", "operator": "Exists"}]},
    {"nodeSelector": {"zone": "b"}, "tolerations": []},
)


@pytest.mark.parametrize(("own", "template", "overlay"), list(permutations(WHERE)), ids=str)
def test_placement_counts_the_nodes_that_the_rendered_pod_may_use(own, template, overlay):
    allow = ["spec.nodeSelector", "spec.tolerations"]
    profile = default_profile(**own, podTemplate={"spec": template}, allow=allow)["spec"]
    found = rendered(gpu(), profile=profile, podTemplate={"spec": overlay})
    spec = InferenceServiceSpec.model_validate({"model": HUB, "accelerators": [gpu()], "podTemplate": {"spec": overlay}})
    terms = terms_of(ServingProfileSpec.model_validate(profile), spec, "uid")
    assert (terms.selector, [*terms.tolerations]) == (found["nodeSelector"], found["tolerations"])
