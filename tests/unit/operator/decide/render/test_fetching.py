"""The fetch sidecar in a replica's pod, and what the status says while it fetches."""

import copy

import pytest
from pagoda_contracts.launch import DaemonConfig
from pagoda_contracts.names import ANNOTATION_ONLY_RUNS, EXIT_PERMANENT, PORT_FETCH
from pagoda_contracts.resources.effect import ignored_fields
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_operator.api.errors import SpecProblem
from pagoda_operator.api.state import PODS, PROFILES, Key
from pagoda_operator.decide.render.children import Owner
from pagoda_operator.decide.render.fetch import inspecting
from pagoda_operator.decide.render.inspection import inspect_pod
from pagoda_operator.decide.render.pod import Inputs, daemon_config, pod_template
from pagoda_operator.decide.render.trial_pod import trial_pod
from pagoda_placement.revision import identify
from support.clients.fetching import TAKEN, Fetcher, contents, model_files
from support.harness.harness import Harness
from support.harness.placing import SMALL_CONFIG, inspected
from support.kube.fake_api import fetching, profile_body, running
from support.servers.fetch_hub import COMMIT, running_hub

HUB = {"uri": "hf://org/name", "revision": "v1", "credential": "hub"}
SECRETS = [{"name": "hub", "secretRef": {"name": "hub-token"}}, {"name": "other", "secretRef": {"name": "other-keys"}}]
LABELS = {"serving.pagoda.dev/service": "tiny", "serving.pagoda.dev/service-uid": "uid"}


def inputs(profile=None, images=("img:1", "fetch:1"), **spec):
    base = {"model": HUB, "credentials": SECRETS, "accelerators": [{"cpu": {"cores": "1", "memory": "1Gi"}}]}
    parsed = InferenceServiceSpec.model_validate(base | spec)
    named = {name: image for name, image in zip(("daemon", "fetch"), images, strict=True) if image}
    made = ServingProfileSpec.model_validate({"images": named} | (profile or {}))
    return Inputs(Key("ns", "tiny"), identify("tiny", parsed, parsed.accelerators[0]), parsed, parsed.accelerators[0], made, LABELS)


def rendered(**words):
    spec = pod_template(inputs(**words))["spec"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    (sidecar,), (daemon,) = spec["initContainers"], spec["containers"]
    return spec, sidecar, daemon, volumes


def mounts(container):
    return {mount["mountPath"]: (mount["name"], mount.get("readOnly", False)) for mount in container["volumeMounts"]}


def test_the_sidecar_stays_and_the_daemon_starts_when_its_startup_probe_passes():
    _, sidecar, _, _ = rendered()
    assert (sidecar["name"], sidecar["image"], sidecar["restartPolicy"]) == ("fetch", "fetch:1", "Always")
    assert sidecar["args"] == ["serve", "--model", "hf://org/name", "--revision", "v1", "--credential", "hub"]
    assert sidecar["startupProbe"]["httpGet"]["path"] == "/startupz"
    assert sidecar["startupProbe"]["failureThreshold"] * sidecar["startupProbe"]["periodSeconds"] >= 86_400


def test_daemon_mounts_the_model_and_no_credentials():
    spec, sidecar, daemon, volumes = rendered()
    assert mounts(sidecar)["/models"] == ("model", False)
    assert mounts(daemon)["/models"] == ("model", True)
    assert mounts(daemon)["/run/pagoda-fetch"] == ("fetched", True)
    assert not [path for path in mounts(daemon) if "credential" in path]
    assert mounts(sidecar)["/etc/pagoda-credentials/hub"] == ("credential-0", True)
    assert volumes["credential-1"]["secret"] == {"secretName": "other-keys"}
    assert volumes["model"]["emptyDir"] == {}
    assert (spec["automountServiceAccountToken"], "fsGroup" in spec["securityContext"]) == (False, False)
    assert DaemonConfig.model_validate(daemon_config(inputs())).model.path == "/run/pagoda-fetch/model"


def test_the_sidecar_is_confined_like_the_daemon():
    _, sidecar, daemon, _ = rendered()
    assert sidecar["securityContext"] == daemon["securityContext"]
    assert sidecar["resources"]["limits"] == {"memory": "512Mi"}


def test_a_service_account_s_cloud_identity_reads_buckets_where_no_credential_is_named():
    bucket = {"uri": "s3://models/llama", "serviceAccountName": "reader"}
    spec, sidecar, _, _ = rendered(model=bucket)
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("reader", False)
    assert sidecar["args"] == ["serve", "--model", "s3://models/llama", "--credential", "@pod"]
    assert rendered(model=bucket | {"credential": "hub"})[1]["args"][-1] == "hub"
    assert rendered(model=HUB | {"serviceAccountName": "reader", "credential": None})[1]["args"][-1] == "v1", "a hub knows no clouds"


def test_azure_gives_an_identity_to_pods_that_are_labelled_and_each_pod_that_reads_the_model_is():
    reader = {"uri": "az://account/models/llama", "serviceAccountName": "reader"}
    found = inputs(model=reader)
    template = pod_template(found)
    assert template["metadata"]["labels"]["azure.workload.identity/use"] == "true"
    owner = Owner("ns", "tiny", "uid")
    looking = inspect_pod(owner, found.spec, found.profile)
    trying = trial_pod(owner, "tiny-1", {"podTemplate": template, "daemonConfig": daemon_config(found)}, reader["uri"], "")
    for pod in (looking, trying):
        assert (pod["metadata"]["labels"]["azure.workload.identity/use"], pod["spec"]["serviceAccountName"]) == ("true", "reader")
    for other in ({"uri": "az://account/models/llama"}, reader | {"uri": "s3://models/llama"}, reader | {"credential": "hub"}):
        assert "azure.workload.identity/use" not in pod_template(inputs(model=other))["metadata"]["labels"]


def test_a_digest_is_for_the_fetch_and_not_for_who_reads_a_part_of_the_files():
    digest = f"sha256:{'a' * 64}"
    args = rendered(model=HUB | {"digest": digest})[1]["args"]
    assert args[:4] == ["serve", "--digest", digest, "--model"]
    assert inspecting(args) == ["inspect", *rendered()[1]["args"][2:]]


def test_a_profile_s_own_service_account_stays():
    profile = {"podTemplate": {"spec": {"serviceAccountName": "theirs"}}}
    with pytest.raises(SpecProblem, match="the profile's podTemplate sets spec"):
        rendered(profile=profile, model={"uri": "s3://models/llama", "serviceAccountName": "reader"})
    assert rendered(profile=profile)[0]["serviceAccountName"] == "theirs"
    found = inputs(profile=profile, model={"uri": "s3://models/llama", "serviceAccountName": "reader"})
    assert inspect_pod(Owner("ns", "tiny", "uid"), found.spec, found.profile)["spec"]["serviceAccountName"] == "theirs"


def test_a_cache_is_a_claim_that_the_pod_s_group_may_write():
    spec, sidecar, daemon, volumes = rendered(model=HUB | {"cache": {"pvc": "models"}})
    assert volumes["model"] == {"name": "model", "persistentVolumeClaim": {"claimName": "models"}}
    assert (mounts(sidecar)["/models"], mounts(daemon)["/models"]) == (("model", False), ("model", True))
    assert (spec["securityContext"]["fsGroup"], spec["securityContext"]["fsGroupChangePolicy"]) == (65532, "OnRootMismatch")


async def test_of_two_services_with_one_cache_one_downloads_and_both_run_the_same_files(tmp_path):
    """The addresses are those of their sidecars' arguments; the folder stands for the claim, which both mount at the same path."""
    files, places = model_files(), []
    with running_hub(files) as hub:
        for service in ("chat", "batch"):
            model = {"uri": "hf://org/model", "revision": COMMIT, "servedNames": [service], "cache": {"pvc": "models"}}
            _, sidecar, daemon, volumes = rendered(model=model, credentials=[])
            assert volumes["model"]["persistentVolumeClaim"] == {"claimName": "models"}
            assert (mounts(sidecar)["/models"], mounts(daemon)["/models"]) == (("model", False), ("model", True))
            _, uri, _, revision = inspecting(sidecar["args"])
            places.append(await Fetcher(tmp_path, hub.url).fetch(uri, revision))
        assert places[0] == places[1]
        assert contents(places[1]) == {name: files[name] for name in TAKEN}
        assert hub.sent == {name: len(files[name]) for name in TAKEN}, "the second pod asks the hub for nothing"


def test_a_claim_with_a_cache_is_copied_from_and_one_without_needs_no_sidecar():
    _, sidecar, _, volumes = rendered(model={"uri": "pvc://slow/llama", "cache": {"pvc": "quick"}})
    assert mounts(sidecar)["/claims/slow"] == ("source", True)
    assert volumes["source"]["persistentVolumeClaim"] == {"claimName": "slow", "readOnly": True}
    assert sidecar["args"] == ["serve", "--model", "pvc://slow/llama"]
    assert "initContainers" not in pod_template(inputs(model={"uri": "pvc://slow/llama"}))["spec"]


def test_a_profile_may_change_its_resources_and_the_volume_and_not_what_it_runs():
    template = {
        "spec": {
            "initContainers": [
                {"name": "fetch", "resources": {"limits": {"memory": "2Gi"}}, "env": [{"name": "HF_ENDPOINT", "value": "http://hub"}]}
            ]
        }
    }
    template["spec"]["volumes"] = [{"name": "model", "emptyDir": {"sizeLimit": "20Gi"}}]
    _, sidecar, _, volumes = rendered(profile={"podTemplate": template})
    assert sidecar["resources"]["limits"]["memory"] == "2Gi"
    assert {"name": "HF_ENDPOINT", "value": "http://hub"} in sidecar["env"]
    assert volumes["model"]["emptyDir"] == {"sizeLimit": "20Gi"}
    template["spec"]["initContainers"][0]["args"] = ["serve", "--model", "hf://evil/name"]
    with pytest.raises(SpecProblem, match="which the operator decides itself"):
        rendered(profile={"podTemplate": template})


def test_a_profile_without_the_image_is_named():
    with pytest.raises(SpecProblem, match=r"images\.fetch") as reported:
        daemon_config(inputs(images=("img:1", None)))
    assert reported.value.reason.name == "InvalidProfile"
    assert daemon_config(inputs(images=("img:1", None), model={"uri": "pvc://models"}))["model"]["path"] == "/models"


@pytest.mark.parametrize("own", [{}, {"args": ["prepare"]}])
def test_a_trial_reads_a_claim_though_the_profile_has_an_init_container_called_fetch(own):
    template = {"spec": {"initContainers": [{"name": "fetch", "image": "own:1"} | own]}}
    made = inputs(profile={"podTemplate": template}, model={"uri": "pvc://models/tiny"})
    data = {"profile": made.profile.wire(), "podTemplate": pod_template(made)}
    pod = trial_pod(Owner("ns", "tiny", "uid"), made.revision.name, data, made.spec.model.uri, "")
    (reader,) = pod["spec"]["initContainers"]
    assert (reader["image"], reader["args"]) == ("fetch:1", ["inspect", "pvc://models/tiny"])
    assert pod["metadata"]["annotations"][ANNOTATION_ONLY_RUNS] == "true"


def test_another_secret_is_another_revision_only_where_it_is_used():
    def revision(model, secret):
        secrets = [{"name": "hub", "secretRef": {"name": secret}}]
        return inputs(model=model, credentials=secrets).revision

    assert revision(HUB, "a") != revision(HUB, "b")
    assert revision({"uri": "pvc://models"}, "a") == revision({"uri": "pvc://models"}, "b")


def test_fields_used_by_the_fetch_are_not_reported_as_ignored():
    assert ignored_fields(inputs().spec) == ()
    assert ignored_fields(inputs(model={"uri": "s3://bucket/name", "revision": "v1"}).spec) == ("model.revision",)
    assert ignored_fields(inputs(model={"uri": "pvc://models", "credential": "hub"}).spec) == ("model.credential", "credentials")


def harness_with(status):
    harness = Harness(model=HUB, credentials=SECRETS)
    inspected(harness, SMALL_CONFIG)
    harness.settle()
    for pod in harness.api.of(PODS):
        pod["status"] = copy.deepcopy(status)
    harness.settle()
    return harness


@pytest.mark.parametrize(
    ("status", "kind", "reason", "says"),
    [
        (fetching(), "Reconciling", "FetchingModel", "fetches the model"),
        (
            fetching(1, "NoRoom: /models: needs 9.0 GiB more, 1.0 GiB are free\n"),
            "Reconciling",
            "FetchingModel",
            "NoRoom: /models: needs 9.0 GiB",
        ),
        (
            fetching(EXIT_PERMANENT, "NotFound: revision v1 does not exist\n"),
            "Stalled",
            "ModelRejected",
            "NotFound: revision v1 does not exist",
        ),
        (fetching(started=True), "Reconciling", "PullingImage", "pulls its image"),
    ],
    ids=["busy", "transient", "permanent", "complete"],
)
def test_status_reports_why_the_fetch_is_not_complete(status, kind, reason, says):
    harness = harness_with(status)
    line = harness.conditions()[kind]
    assert (line["status"], line["reason"]) == ("True", reason)
    assert says in line["message"]


def test_a_sidecar_that_fails_long_after_its_fetch_is_not_the_service_s_fault():
    status = running(ready=True)
    status["initContainerStatuses"] = fetching(EXIT_PERMANENT, "x", started=True)["initContainerStatuses"]
    assert harness_with(status).reason() == "Available"


def test_a_profile_that_gets_its_image_unblocks_the_service():
    harness = Harness(model=HUB, credentials=SECRETS)
    harness.api.put(PROFILES, profile_body(images={"daemon": "localhost/daemon:1"}))
    harness.settle()
    assert harness.reason() == "InvalidProfile"
    harness.api.put(PROFILES, profile_body())
    inspected(harness, SMALL_CONFIG)
    harness.settle()
    harness.make_ready()
    assert harness.reason() == "Available"


def test_with_adapters_a_claims_pod_has_a_sidecar_that_brings_no_model():
    made = inputs(model={"uri": "pvc://models/base"}, adapters={"maxLoaded": 4, "maxRank": 16, "claims": ["loras"]})
    config = DaemonConfig.model_validate(daemon_config(made))
    assert (config.model.path, config.adapters.max_loaded, config.adapters.max_rank) == ("/models/base", 4, 16)
    assert config.adapters.fetch_port == PORT_FETCH
    spec = pod_template(made)["spec"]
    (sidecar,) = spec["initContainers"]
    assert sidecar["args"] == ["serve", "--to", "/adapters"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["adapters"] == {"name": "adapters", "emptyDir": {}}
    assert volumes["source-0"]["persistentVolumeClaim"] == {"claimName": "loras", "readOnly": True}
    places = {mount["mountPath"]: (mount["name"], mount.get("readOnly", False)) for mount in sidecar["volumeMounts"]}
    assert places["/adapters"] == ("adapters", False)
    assert places["/claims/models"] == ("model", True)
    assert places["/claims/loras"] == ("source-0", True)
    assert "/etc/pagoda-credentials/hub" in places
    daemon = {mount["mountPath"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    assert daemon["/adapters"] == {"name": "adapters", "mountPath": "/adapters", "readOnly": True}
    assert "credentials" not in ignored_fields(made.spec)


def test_with_adapters_a_fetched_models_sidecar_brings_both():
    made = inputs(adapters={"claims": ["loras"]})
    spec = pod_template(made)["spec"]
    (sidecar,) = spec["initContainers"]
    assert sidecar["args"] == ["serve", "--model", "hf://org/name", "--revision", "v1", "--credential", "hub"]
    assert {"name": "source-0", "mountPath": "/claims/loras", "readOnly": True} in sidecar["volumeMounts"]
    assert "adapters" not in {volume["name"] for volume in spec["volumes"]}


def test_adapters_need_the_sidecars_image_and_are_part_of_the_revision_but_for_who_may_attach_them():
    claim = {"model": {"uri": "pvc://models"}}
    with pytest.raises(SpecProblem, match=r"no images\.fetch, which adapters need"):
        daemon_config(inputs(images=("img:1", ""), adapters={}, **claim))
    none, some, more = (inputs(**claim, **given).revision for given in ({}, {"adapters": {}}, {"adapters": {"maxLoaded": 9}}))
    assert len({none, some, more}) == 3
    selector = {"namespaces": "Selector", "selector": {"matchLabels": {"a": "b"}}}
    assert inputs(**claim, adapters={"allowFrom": selector}).revision == some


def test_a_sidecar_for_adapters_makes_no_trial_incomplete():
    made = inputs(model={"uri": "pvc://models"}, adapters={})
    data = {"podTemplate": pod_template(made), "profile": {"images": {"fetch": "fetch:1"}}}
    trial = trial_pod(Owner("ns", "tiny", "u"), "tiny-1", data, "pvc://models", "")
    assert ANNOTATION_ONLY_RUNS not in trial["metadata"]["annotations"]
    assert [one["args"] for one in trial["spec"]["initContainers"]] == [["inspect", "pvc://models"]]
