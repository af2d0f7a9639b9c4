"""A replica's pod template and DaemonConfig."""

import pytest
from pagoda_contracts.launch import DaemonConfig, HealthConfig
from pagoda_contracts.names import (
    ANNOTATION_DELETION_COST,
    ANNOTATION_DEVICE_FAULT,
    ANNOTATION_DEVICES,
    ANNOTATION_DRAIN_DEADLINE,
    GROUP,
    LABEL_CLASS,
    LABEL_COMPONENT,
    LABEL_REVISION,
    LABEL_SERVICE,
)
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_operator.api.callers import Callers
from pagoda_operator.api.errors import SpecProblem
from pagoda_operator.api.state import CHILD_RESOURCES, PODS, SERVICES, Key
from pagoda_operator.decide.render.children import Owner, core_service
from pagoda_operator.decide.render.inspection import inspect_pod
from pagoda_operator.decide.render.pod import Inputs, daemon_config, pod_template
from pagoda_operator.decide.render.trial_pod import trial_pod
from pagoda_placement.revision import identify
from support.harness.harness import Harness

LABELS = {"a": "label", "serving.pagoda.dev/service": "tiny", "serving.pagoda.dev/service-uid": "uid"}


def inputs(profile=None, **spec):
    base = {"model": {"uri": "pvc://models/llama/tiny"}, "accelerators": [{"cpu": {"cores": "2500m", "memory": "1Gi"}}]}
    parsed = InferenceServiceSpec.model_validate(base | spec)
    made = ServingProfileSpec.model_validate({"images": {"daemon": "img:1"}} | (profile or {}))
    return Inputs(Key("ns", "tiny"), identify("tiny", parsed, parsed.accelerators[0]), parsed, parsed.accelerators[0], made, LABELS)


def container(template):
    (daemon,) = template["spec"]["containers"]
    return daemon


def test_the_config_says_what_the_service_says():
    engine = {"maxModelLen": 256, "maxConcurrency": 8, "kvCache": {"size": "512Mi", "blockSize": 32}}
    config = DaemonConfig.model_validate(daemon_config(inputs(engine=engine, drain={"timeout": "45s"})))
    assert (config.service, config.model.path, config.model.served_names) == ("ns/tiny", "/models/llama/tiny", ("tiny",))
    assert config.revision == inputs(engine=engine, drain={"timeout": "45s"}).revision.hash
    assert (config.engine.max_model_len, config.engine.max_concurrency, config.engine.dtype) == (256, 8, "bfloat16")
    assert (config.engine.kv_bytes, config.engine.block_size, config.engine.threads) == (512 << 20, 32, 3)
    assert (config.drain_timeout, config.unknown_fields()) == ("45s", ())


@pytest.mark.parametrize(
    ("asked", "told"), [("auto", {}), ("bfloat16", {}), ("float8", {"kvDtype": "float8"}), ("int8", {"kvDtype": "int8"})]
)
def test_config_has_the_type_of_keys_and_values_if_it_is_another_one(asked, told):
    written = daemon_config(inputs(engine={"kvCache": {"dtype": asked}}, accelerators=[{"gpu": {}}]))["engine"]
    assert {name: value for name, value in written.items() if name == "kvDtype"} == told


def test_config_has_slo_and_health():
    spec = {"health": {"progressTimeout": "5m"}, "slo": {"ttft": "800ms", "itl": "50ms"}}
    config = DaemonConfig.model_validate(daemon_config(inputs(**spec)))
    assert (config.health.progress_timeout, config.health.deep_probe_every) == ("5m", "30s")
    assert (config.slo.ttft, config.slo.itl) == ("800ms", "50ms")
    assert {"health", "slo"}.isdisjoint(daemon_config(inputs()))


@pytest.mark.parametrize(
    ("entry", "usual"), [({"cpu": {"cores": 4, "memory": "1Gi"}}, 512), ({"gpu": {}}, 2048), ({"mig": {"profile": "1g.10gb"}}, 2048)]
)
def test_config_has_the_tokens_of_a_step_or_what_suits_the_device(entry, usual):
    for engine, tokens in (({}, usual), ({"tokenBudget": 1024}, 1024)):
        assert daemon_config(inputs(engine=engine, accelerators=[entry]))["engine"]["tokenBudget"] == tokens


@pytest.mark.parametrize("entry", [{"cpu": {"cores": 4, "memory": "1Gi"}}, {"gpu": {}}])
def test_config_has_the_tool_parser_the_threads_and_how_long_a_load_may_stand_still(entry):
    engine = {"toolParser": "qwen3_coder", "threads": 2, "loadTimeout": "20m"}
    config = DaemonConfig.model_validate(daemon_config(inputs(engine=engine, accelerators=[entry])))
    assert (config.engine.tool_parser, config.engine.threads) == ("qwen3_coder", 2)
    assert config.health == HealthConfig(load_timeout="20m")
    both = daemon_config(inputs(engine=engine, accelerators=[entry], health={"progressTimeout": "5m"}))
    assert both["health"] == {"progressTimeout": "5m", "deepProbeEvery": "30s", "loadTimeout": "20m"}


def test_a_replica_lets_in_the_clients_of_the_secret_that_the_service_names_and_gateways_all_the_same():
    ours = Callers(gateway="pagoda/gateway", operator="pagoda/operator", clients=True)
    named = inputs(clientKeys={"name": "llama-keys"})._replace(callers=ours)
    auth, pod = DaemonConfig.model_validate(daemon_config(named)).auth, pod_template(named)["spec"]
    assert (auth.keys_file, set(auth.tokens.subjects.values())) == ("/etc/pagoda-client-keys/keys", {"gateway", "operator"})
    only = {"secretName": "llama-keys", "items": [{"key": "keys", "path": "keys"}]}
    assert {"name": "client-keys", "secret": only} in pod["volumes"]
    (mount,) = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "client-keys"]
    assert (mount["mountPath"], mount["readOnly"]) == ("/etc/pagoda-client-keys", True)


@pytest.mark.parametrize(
    ("callers", "said"),
    [
        (None, "without a gateway"),
        (Callers(gateway="pagoda/gateway", operator="pagoda/operator"), "without a gateway"),
        (Callers(gateway="pagoda/gateway", operator="pagoda/operator", clients=True, tokens=False), "auth.enabled: true"),
    ],
)
def test_client_keys_are_refused_where_gateways_count_requests_or_the_operator_would_be_shut_out(callers, said):
    with pytest.raises(SpecProblem, match=said):
        daemon_config(inputs(clientKeys={"name": "llama-keys"})._replace(callers=callers))


def test_absent_limits_stay_absent_for_the_daemon_to_resolve():
    assert "kvBytes" not in daemon_config(inputs())["engine"]
    assert daemon_config(inputs(model={"uri": "pvc://models", "servedNames": ["a", "b"]}))["model"] == {
        "path": "/models",
        "servedNames": ["a", "b"],
    }


def test_the_pod_reads_its_model_and_config_and_may_write_scratch_only():
    template = pod_template(inputs())
    volumes = {volume.pop("name"): volume for volume in template["spec"]["volumes"]}
    assert volumes["model"] == {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in container(template)["volumeMounts"]}
    assert mounts == {"/models": True, "/etc/pagoda": True, "/run/pagoda": False, "/tmp": False}  # noqa: S108
    assert container(template)["args"] == ["--config", "/etc/pagoda/daemon.json"]


def test_the_pod_is_confined_and_asks_for_what_the_accelerator_says():
    template = pod_template(inputs(drain={"timeout": "1500ms"}))
    spec, daemon = template["spec"], container(template)
    assert (spec["automountServiceAccountToken"], spec["securityContext"]["runAsNonRoot"]) == (False, True)
    assert daemon["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert daemon["resources"] == {"requests": {"cpu": "2500m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
    assert spec["terminationGracePeriodSeconds"] == 32


def test_probes_match_the_daemon_s_endpoints():
    daemon = container(pod_template(inputs()))
    wanted = {"startupProbe": ("/startupz", 2, 300), "livenessProbe": ("/livez", 5, 6), "readinessProbe": ("/readyz", 1, 3)}
    assert {name: probe for name, probe in daemon.items() if name.endswith("Probe")} == {
        name: {"httpGet": {"path": path, "port": "probes"}, "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5}
        for name, (path, period, failures) in wanted.items()
    }


def test_the_pod_s_ports_are_those_that_the_daemon_listens_on():
    made = inputs()
    ports = {port["name"]: port["containerPort"] for port in container(pod_template(made))["ports"]}
    assert ports == {"http": 8000, "grpc": 9000, "probes": 8081}
    listen = DaemonConfig.model_validate(daemon_config(made)).listen
    assert ports == {"http": listen.http, "grpc": listen.grpc, "probes": listen.probes}
    service = core_service(Owner("ns", "tiny", "uid"))["spec"]["ports"]
    assert {(port["targetPort"], port["port"]) for port in service} == {("http", 8000), ("grpc", 9000)}


def test_the_profile_is_the_base_of_the_template():
    extra = {"name": "deps", "persistentVolumeClaim": {"claimName": "deps"}}
    mount = {"name": "deps", "mountPath": "/opt/deps"}
    base = {"spec": {"runtimeClassName": "gvisor", "volumes": [extra], "containers": [{"name": "daemon", "volumeMounts": [mount]}]}}
    template = pod_template(inputs({"podTemplate": base}))
    assert template["spec"]["runtimeClassName"] == "gvisor"
    assert extra in template["spec"]["volumes"]
    assert mount in container(template)["volumeMounts"]
    assert container(template)["image"] == "img:1"


def test_profile_s_template_overrides_its_own_fields():
    words = {
        "args": ["--log-level=debug"],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "nodeSelector": {"zone": "a"},
        "priorityClassName": "serving",
        "runtimeClassName": "nvidia",
        "imagePullSecrets": [{"name": "registry"}],
        "sharedMemory": "1Gi",
        "podTemplate": {"spec": {"runtimeClassName": "gvisor", "nodeSelector": {"disk": "ssd"}}},
    }
    template = pod_template(inputs(words))
    spec, daemon = template["spec"], container(template)
    assert daemon["args"] == ["--config", "/etc/pagoda/daemon.json", "--log-level=debug"]
    assert (spec["tolerations"], spec["imagePullSecrets"]) == (words["tolerations"], words["imagePullSecrets"])
    assert (spec["priorityClassName"], spec["runtimeClassName"]) == ("serving", "gvisor")
    assert spec["nodeSelector"] == {"zone": "a", "disk": "ssd"}
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}} in spec["volumes"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in daemon["volumeMounts"]  # noqa: S108


def test_all_pods_of_a_service_have_the_profile_s_images_and_pull_secrets():
    """Replica with sidecars, inspection and trial: by digest and by a pull Secret, as in a cluster without internet."""
    images = {name: f"registry.example.com/pagoda/{name}@sha256:{'a' * 64}" for name in ("daemon", "fetch")}
    words = {"images": images, "imagePullSecrets": [{"name": "pull"}]}
    made = inputs(words, model={"uri": "s3://bucket/model"}, adapters={})
    owner, template = Owner("ns", "tiny", "uid"), pod_template(made)
    trial = trial_pod(owner, made.revision.name, {"podTemplate": template}, "s3://bucket/model", "")
    specs = [found["spec"] for found in (template, trial, inspect_pod(owner, made.spec, made.profile))]
    assert [spec["imagePullSecrets"] for spec in specs] == [[{"name": "pull"}]] * 3
    used = [{one["image"] for one in (*spec.get("initContainers", ()), *spec["containers"])} for spec in specs]
    assert used == [set(images.values())] * 2 + [{images["fetch"]}]


def test_a_profile_may_relax_our_defaults():
    base = {"spec": {"securityContext": {"runAsUser": 1000}}}
    assert pod_template(inputs({"podTemplate": base}))["spec"]["securityContext"]["runAsUser"] == 1000


def test_overlay_within_the_allowed_paths_is_applied():
    overlay = {"metadata": {"labels": {"team": "blue"}}, "spec": {"nodeSelector": {"zone": "a"}}}
    template = pod_template(inputs({"allow": ["metadata.labels", "spec.nodeSelector"]}, podTemplate=overlay))
    assert template["metadata"]["labels"] == LABELS | {"team": "blue"}
    assert template["spec"]["nodeSelector"] == {"zone": "a"}


@pytest.mark.parametrize(
    ("overlay", "path"),
    [
        ({"spec": {"hostNetwork": True}}, "spec.hostNetwork"),
        ({"spec": {"containers": [{"name": "daemon", "image": "evil"}]}}, "spec.containers[daemon].image"),
        ({"spec": {"containers": [{"name": "spy"}]}}, "spec.containers[spy]"),
        ({"metadata": {"annotations": None}}, "metadata.annotations"),
        ({"spec": 7}, "spec"),
    ],
)
def test_a_forbidden_path_is_named(overlay, path):
    with pytest.raises(SpecProblem, match=r"the profile allows metadata\.labels") as refused:
        pod_template(inputs({"allow": ["metadata.labels"]}, podTemplate=overlay))
    assert refused.value.reason.name == "PodTemplateForbidden"
    assert f"sets {path};" in refused.value.message


@pytest.mark.parametrize(
    "overlay",
    [
        {"spec": {"terminationGracePeriodSeconds": 1}},
        {"spec": {"containers": [{"name": "daemon", "image": "evil"}]}},
        {"spec": {"containers": "none"}},
        {"spec": "none"},
        {"spec": {"volumes": [{"name": "model", "hostPath": {"path": "/"}}]}},
        {"metadata": {"labels": {"a": "stolen"}}},
    ],
)
def test_fields_of_the_operator_are_refused_even_if_all_is_allowed(overlay):
    with pytest.raises(SpecProblem, match="which the operator decides itself"):
        pod_template(inputs({"allow": ["spec", "metadata"]}, podTemplate=overlay))


@pytest.mark.parametrize("allow", [["metadata"], ["metadata.annotations", "metadata.labels"]])
@pytest.mark.parametrize(
    ("kind", "key"),
    [
        *(
            ("annotations", name)
            for name in (ANNOTATION_DEVICE_FAULT, ANNOTATION_DRAIN_DEADLINE, ANNOTATION_DELETION_COST, ANNOTATION_DEVICES)
        ),
        *(("annotations", f"{GROUP}/{word}") for word in ("rendered", "new-tomorrow")),
        *(("labels", name) for name in (LABEL_SERVICE, LABEL_REVISION, LABEL_COMPONENT, f"{GROUP}/new-tomorrow")),
    ],
)
def test_reserved_labels_and_annotations_are_refused_whatever_is_allowed(allow, kind, key):
    """With a device fault of its making every replica would be born sick."""
    own = LABELS | {LABEL_COMPONENT: "replica"}
    overlay = {"metadata": {kind: {key: own.get(key, "1")}}}
    with pytest.raises(SpecProblem, match="which the operator decides itself") as refused:
        pod_template(inputs({"allow": allow}, podTemplate=overlay)._replace(labels=own))
    assert refused.value.reason.name == "PodTemplateForbidden"
    assert f"sets metadata.{kind}.{key}," in refused.value.message


@pytest.mark.parametrize("key", ["prometheus.io/scrape", "kueue.x-k8s.io/queue-name", f"my-{GROUP}/x", f"{GROUP}.example.com/x", "team"])
def test_labels_and_annotations_of_others_are_allowed(key):
    overlay = {"metadata": {"annotations": {key: "a"}, "labels": {key: "b"}}}
    meta = pod_template(inputs({"allow": ["metadata.annotations", "metadata.labels"]}, podTemplate=overlay))["metadata"]
    assert (meta["annotations"][key], meta["labels"][key]) == ("a", "b")


def test_a_profile_against_the_operator_is_the_profiles_fault():
    with pytest.raises(SpecProblem, match=r"the profile's podTemplate sets spec\.containers\[daemon\]\.image") as refused:
        pod_template(inputs({"podTemplate": {"spec": {"containers": [{"name": "daemon", "image": "other"}]}}}))
    assert refused.value.reason.name == "InvalidProfile"


def test_children_and_pods_have_the_class_of_their_service():
    harness = Harness()
    harness.api.edit(SERVICES, "ns", "tiny", lambda body: body["metadata"].update(labels={LABEL_CLASS: "blue"}))
    harness.settle()
    made = [body for resource in (*CHILD_RESOURCES, PODS) for body in harness.api.of(resource)]
    assert {body["metadata"]["labels"].get(LABEL_CLASS) for body in made} == {"blue"}
    assert len({body["kind"] for body in made}) == 6
