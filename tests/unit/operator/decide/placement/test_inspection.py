"""How a model's shape is learnt: a pod that runs once, what it may do, what it tells, and what comes of its failures."""

import json

import pytest
from pagoda_contracts.names import LABEL_SERVICE, LABEL_SERVICE_UID
from pagoda_operator.api.state import CONFIG_MAPS, DEPLOYMENTS, PODS, PROFILES
from support.harness.harness import Harness
from support.harness.inventories import CPU, gpu, inventory, mig
from support.harness.placing import ENGINE, LLAMA_CONFIG, MIXED, bind, placement, template

REPORT = json.dumps({"config": LLAMA_CONFIG, "weightBytes": 2471645608, "digest": ""})


def harness(*accelerators, image="fetch:1", **spec):
    made = Harness(accelerators=list(accelerators or [mig(least="1Gi")]), engine=ENGINE, **spec)
    images = {"daemon": "daemon:1"} | ({"fetch": image} if image else {})
    made.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(images=images))
    made.inventory = inventory(MIXED)
    made.settle()
    return made


def inspectors(made):
    return [body for body in made.api.of(PODS) if "inspect" in body["metadata"]["name"]]


def ends(made, code=0, message=REPORT, **more):
    (body,) = inspectors(made)
    ended = {"terminated": {"exitCode": code, "message": message}}
    state = {"state": ended} if code == 0 else {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended}
    body["status"] = {"phase": "Succeeded" if code == 0 else "Running", "containerStatuses": [{"name": "inspect", **state, **more}]}
    made.settle()


def test_a_model_of_unknown_size_is_inspected_before_anything_runs():
    made = harness()
    assert (made.reason(), made.names(DEPLOYMENTS)) == ("InspectingModel", [])
    (body,) = inspectors(made)
    spec = body["spec"]
    assert spec["containers"][0]["args"] == ["inspect", "pvc://models/tiny"]
    assert (spec["restartPolicy"], spec["automountServiceAccountToken"]) == ("OnFailure", False)
    assert spec["containers"][0]["volumeMounts"] == [{"name": "pagoda-claim", "mountPath": "/claims/models", "readOnly": True}]
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_inspection_pod_is_not_a_replica():
    made = harness()
    (body,) = inspectors(made)
    labels, uid = body["metadata"]["labels"], made.observed().meta.uid
    assert (labels[LABEL_SERVICE], labels[LABEL_SERVICE_UID] == uid) == ("tiny", False)
    assert body["metadata"]["ownerReferences"][0]["uid"] == uid
    assert made.observed().pods == ()


COUNTED = {
    "counted": ({"bytes": 20 << 30}, "21504Mi"),
    "in bf16": ({}, "3382Mi"),
    "compressed": ({"bytes": 1 << 30, "compressed": True}, "3382Mi"),
    "compressed, more than weights": ({"bytes": 20 << 30, "compressed": True}, "21504Mi"),
    "smaller than in bf16": ({"bytes": 1 << 30}, "2048Mi"),
}


@pytest.mark.parametrize(("counted", "disk"), COUNTED.values(), ids=COUNTED)
def test_the_scratch_disk_has_room_for_the_files_as_they_were_counted(counted, disk):
    made = harness(model={"uri": "hf://org/model"})
    ends(made, message=json.dumps(json.loads(REPORT) | counted))
    assert template(made)["containers"][0]["resources"]["requests"]["ephemeral-storage"] == disk


def test_report_is_kept_the_pod_deleted_and_the_service_placed():
    made = harness()
    ends(made)
    assert inspectors(made) == []
    kept = next(body for body in made.api.of(CONFIG_MAPS) if body["metadata"]["name"] == "tiny-model")
    assert json.loads(kept["data"]["model.json"])["config"] == LLAMA_CONFIG
    assert placement(made)["device"] == "mig-1g.10gb, 9.8 GiB"
    bind(made)
    assert (made.reason(), "tiny-model" in made.names(CONFIG_MAPS)) == ("Available", True)


def test_another_model_is_inspected_while_running_replicas_stay():
    made = harness()
    ends(made)
    bind(made)
    before = made.names(DEPLOYMENTS)
    made.edit(model={"uri": "hf://org/other", "revision": "v2"})
    made.settle()
    assert (made.reason(), made.names(DEPLOYMENTS)) == ("InspectingModel", before)
    assert "continues to serve" in made.conditions()["Ready"]["message"]
    (body,) = inspectors(made)
    assert body["spec"]["containers"][0]["args"] == ["inspect", "hf://org/other", "--revision", "v2"]
    ends(made)
    assert made.names(DEPLOYMENTS) != before


def test_a_credential_is_mounted_by_its_name():
    secret = {"name": "hub", "secretRef": {"name": "hub-token"}}
    made = harness(model={"uri": "hf://org/unpublished", "credential": "hub"}, credentials=[secret])
    spec = inspectors(made)[0]["spec"]
    assert spec["volumes"] == [{"name": "pagoda-credential", "secret": {"secretName": "hub-token"}}]
    assert spec["containers"][0]["args"][-2:] == ["--credential", "hub"]


def test_a_model_that_cannot_be_sized_runs_on_cpu_only():
    made = harness(gpu("H100"), CPU)
    ends(made, message=json.dumps({"config": {"model_type": "llama"}}))
    assert placement(made)["chosen"] == "cpu[1]"
    assert "the model cannot be sized: config.json: hidden_size is missing" in placement(made)["rejected"][0]["why"]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "novel"}, "model_type 'novel' is not served"),
        ({"architectures": ["NovelForCausalLM"]}, "architectures 'NovelForCausalLM' is not served"),
        ({"architectures": ["MistralForCausalLM"]}, "model_type 'llama' is not served; it must be mistral"),
        ({"auto_map": True}, "config.json has auto_map"),
        ({"quantization_config": {"quant_method": "awq", "bits": 8}}, "quantization_config: bits 8 is not served; it must be 4"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not served"),
        ({"head_dim": 63}, "head_dim 63 is odd"),
        ({"rope_scaling": {"type": "longrope"}}, "rope_type 'longrope' is not supported"),
    ],
)
def test_a_model_that_no_daemon_serves_is_rejected_before_a_replica_is_made(config, why):
    made = harness(gpu("H100"), CPU)
    ends(made, message=json.dumps({"config": LLAMA_CONFIG | config}))
    assert (made.reason(), made.names(DEPLOYMENTS), inspectors(made)) == ("ModelRejected", [], [])
    assert f"no daemon serves this model: {why}" in made.conditions()["Stalled"]["message"]
    written = len(made.api.journal)
    made.restart()
    made.settle()
    assert len(made.api.journal) == written


def test_inspection_pod_is_deleted_if_no_device_can_hold_the_model():
    made = harness(mig(least="1Gi"))
    ends(made, message=json.dumps({"config": LLAMA_CONFIG | {"num_hidden_layers": 2000}}))
    assert (made.reason(), inspectors(made), made.names(CONFIG_MAPS)) == ("NoAccelerator", [], ["tiny-model"])


@pytest.mark.parametrize("message", ['{"weights": 1}', "[]", "killed", '{"config": []}', ""])
def test_invalid_report_stalls_and_is_not_kept(message):
    made = harness()
    ends(made, message=message)
    assert (made.reason(), made.names(CONFIG_MAPS)) == ("ModelRejected", [])


def test_without_an_image_that_could_inspect_devices_are_rejected_and_cpu_goes_on():
    made = harness(gpu("H100"), CPU, image="")
    assert (inspectors(made), placement(made)["chosen"]) == ([], "cpu[1]")
    assert "has no images.fetch" in placement(made)["rejected"][0]["why"]


@pytest.mark.parametrize("accelerators", [[CPU], [CPU, gpu("H100")], [gpu("L40S"), CPU]])
def test_nothing_is_inspected_if_no_device_is_available(accelerators):
    made = harness(*accelerators)
    assert inspectors(made) == []
    assert made.names(DEPLOYMENTS) != []


def test_a_needless_inspection_ends():
    made = harness()
    made.edit(accelerators=[CPU])
    made.settle()
    assert inspectors(made) == []


def test_inspection_has_the_sidecar_s_environment():
    made = harness()
    sidecar = {
        "name": "fetch",
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "volumeMounts": [{"name": "authority", "mountPath": "/etc/authority"}, {"name": "model", "mountPath": "/models"}],
    }
    daemon = {"name": "daemon", "env": [{"name": "OTHER", "value": "1"}]}
    volumes = [{"name": "authority", "configMap": {"name": "authority"}}, {"name": "unused", "emptyDir": {}}]
    spec = {
        "initContainers": [sidecar],
        "containers": [daemon],
        "volumes": volumes,
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["hub"]}],
    }
    made.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(podTemplate={"spec": spec}))
    made.edit(model={"uri": "hf://org/other"})
    made.settle()
    found = inspectors(made)[0]["spec"]
    assert found["containers"][0]["env"] == sidecar["env"]
    assert found["containers"][0]["volumeMounts"] == sidecar["volumeMounts"][:1]
    assert (found["volumes"], found["hostAliases"]) == (volumes[:1], spec["hostAliases"])


def test_profile_s_volume_names_do_not_clash_with_the_inspection_s():
    made = harness(model={"uri": "pvc://models/tiny"})
    mine = [{"name": name, "emptyDir": {}} for name in ("claim", "credential")]
    sidecar = {"name": "fetch", "volumeMounts": [{"name": one["name"], "mountPath": f"/etc/{one['name']}"} for one in mine]}
    template = {"spec": {"initContainers": [sidecar], "volumes": mine}}
    made.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(podTemplate=template))
    secret = {"name": "hub", "secretRef": {"name": "hub-token"}}
    made.edit(model={"uri": "pvc://models/other", "credential": "hub"}, credentials=[secret])
    made.settle()
    names = [volume["name"] for volume in inspectors(made)[0]["spec"]["volumes"]]
    assert (len(names), len(set(names))) == (4, 4), names


def test_added_credential_starts_a_new_inspection():
    made = harness(model={"uri": "hf://org/unpublished"})
    ends(made, code=78, message="Forbidden: org/unpublished asks for a credential")
    assert made.reason() == "ModelRejected"
    secret = {"name": "hub", "secretRef": {"name": "hub-token"}}
    made.edit(model={"uri": "hf://org/unpublished", "credential": "hub"}, credentials=[secret])
    made.settle()
    assert made.reason() == "InspectingModel"
    (body,) = inspectors(made)
    assert body["spec"]["containers"][0]["args"][-2:] == ["--credential", "hub"]
    ends(made)
    assert placement(made)["chosen"] == "mig[0]"
