"""What `helm install` would create: checked by helm itself and held against our own rules for pods and roles."""

import base64
import json
import re
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
import yaml
from pagoda_contracts import gateway_metrics, metrics
from pagoda_contracts.launch import AuthConfig
from pagoda_contracts.name_owners import read_reserved
from pagoda_contracts.names import (
    CLIENT_KEYS_KEY,
    GROUP,
    LABEL_CLASS,
    LABEL_COMPONENT,
    LABEL_NAME,
    LABEL_SERVICE,
    LABEL_SERVICE_UID,
    PORT_METRICS,
    VERSION,
)
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_daemon.api.access.auth import Guard
from pagoda_daemon.api.access.caller import ROLE_CLIENT
from pagoda_gateway.access.keys import KeyRing
from pagoda_gateway.requests.outside import read_targets
from pagoda_gateway.serve.settings import OPTIONS, load
from pagoda_gateway.watch.key_secrets import read_secret
from pagoda_operator.api.callers import Callers
from pagoda_operator.api.state import Key, Resource
from pagoda_operator.decide.render.children import Owner
from pagoda_operator.decide.render.inspection import inspect_pod
from pagoda_operator.decide.render.pod import Inputs, pod_template
from pagoda_operator.decide.render.trial_pod import trial_pod
from pagoda_placement.revision import identify
from support.judges.rights import granted
from support.kube.chart import CHART, NAMESPACE, RELEASE, images, metric_names, of_kind, profile, rendered, the
from support.kube.client import Kube, eventually
from support.kube.cluster import Cluster, running_cluster
from support.suite.tour import ROOT, blocks

pytestmark = pytest.mark.cluster
AIR_GAPPED = Path(__file__).parents[3] / "examples/values-air-gapped.yaml"
EXAMPLES = Path(__file__).parents[3] / "examples/02-expose"
MONITORING_SCHEMAS = Path(__file__).parents[2] / "data/monitoring"

FLOW_SCHEMAS = Resource("flowcontrol.apiserver.k8s.io/v1", "FlowSchema", "flowschemas")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Never the cluster that PAGODA_TEST_CLUSTER names: what is left of CRDs here would stand in the way of an install there.
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PAGODA_TEST_CLUSTER", raising=False)
        with running_cluster(nodes="control-plane") as running:
            yield running


def test_helm_finds_no_fault(cluster):
    assert "0 chart(s) failed" in cluster.helm("lint", "--strict", str(CHART))


def test_the_api_server_takes_every_object_and_the_pods_pass_restricted(cluster):
    namespace = "chart-dry-run"
    cluster.create_namespace(namespace)
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    for deployment in of_kind(rendered(cluster), "Deployment"):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "as-a-pod"}, "spec": deployment["spec"]["template"]["spec"]}
        pod["spec"] |= {"serviceAccountName": "default"}
        cluster.kubectl("create", "--dry-run=server", "-n", namespace, "-f", "-", input=yaml.safe_dump(pod))
    text = yaml.safe_dump_all(found | {"metadata": found["metadata"] | {"namespace": namespace}} for found in rendered(cluster))
    applied = cluster.kubectl("apply", "--dry-run=server", "-f", "-", input=text)
    assert "deployment.apps/pagoda-operator created (server dry run)" in applied
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def test_no_role_holds_a_wildcard_and_only_the_gateways_namespaced_one_reads_secrets(cluster):
    roles = [role for kind in ("ClusterRole", "Role") for role in of_kind(rendered(cluster), kind)]
    rules = [rule for role in roles for rule in role["rules"]]
    assert rules
    reading = [
        (role["kind"], role["metadata"]["name"], rule) for role in roles for rule in role["rules"] if "secrets" in rule.get("resources", [])
    ]
    assert reading == [("Role", "pagoda-gateway", {"apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "watch"]})]
    for rule in rules:
        resources, groups = rule.get("resources", []), rule.get("apiGroups", [])
        assert not any("*" in word for word in [*rule["verbs"], *resources, *groups, *rule.get("nonResourceURLs", [])])
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])
        assert not {"pods/exec", "pods/attach", "pods/portforward"} & set(resources)


def test_operator_and_gateways_are_told_the_same_reserved_names(cluster):
    objects = rendered(cluster, "reservedNames.prod-*={platform,team-a}")
    found = [
        the(objects, "Deployment", f"pagoda-{name}")["spec"]["template"]["spec"]["containers"][0]["env"] for name in ("operator", "gateway")
    ]
    texts = {entry["value"] for env in found for entry in env if entry["name"] == "PAGODA_RESERVED_NAMES"}
    assert [read_reserved(text).rules for text in texts] == [(("prod-*", ("platform", "team-a")),)]


def test_a_class_reaches_operator_and_gateways_and_names_the_profile_that_the_operator_may_write(cluster):
    objects = rendered(cluster, "operator.class=blue")
    found = [
        the(objects, "Deployment", f"pagoda-{name}")["spec"]["template"]["spec"]["containers"][0]["env"] for name in ("operator", "gateway")
    ]
    assert all({"name": "PAGODA_SERVICE_CLASS", "value": "blue"} in env for env in found)
    (profiles, _) = the(objects, "ValidatingAdmissionPolicy", "pagoda-operator")["spec"]["validations"]
    assert '== "blue"' in profiles["expression"]


def test_every_kind_that_the_operator_may_write_is_under_the_admission_policy(cluster):
    objects = rendered(cluster)
    rights = granted([the(objects, "ClusterRole", "pagoda-operator")])
    writing = {(right.group, right.resource) for right in rights if right.verb not in ("get", "list", "watch")}
    rules = the(objects, "ValidatingAdmissionPolicy", "pagoda-operator")["spec"]["matchConstraints"]["resourceRules"]
    fenced = {(group, resource) for rule in rules for group in rule["apiGroups"] for resource in rule["resources"]}
    own = {(GROUP, f"{kind}/status") for kind in ("inferenceservices", "loraadapters", "tenantquotas", "servingprofiles")}
    assert writing - fenced == own | {(GROUP, "inferenceservices/finalizers"), ("events.k8s.io", "events")}
    assert fenced <= writing
    assert [binding["spec"]["policyName"] for binding in of_kind(objects, "ValidatingAdmissionPolicyBinding")] == ["pagoda-operator"]
    without = rendered(cluster, "operator.admissionPolicy.enabled=false")
    assert [found["kind"] for found in without if "Admission" in found["kind"]] == []


def test_with_a_list_of_namespaces_the_operator_may_write_nowhere_else(cluster):
    objects = rendered(cluster, "operator.namespaces={a,b}")
    everywhere = the(objects, "ClusterRole", "pagoda-operator")["rules"]
    writing = {what for rule in everywhere if {*rule["verbs"]} - {"get", "list", "watch"} for what in rule["resources"]}
    assert writing == {"servingprofiles", "servingprofiles/status", "tenantquotas/status"}
    roles = [role for role in of_kind(objects, "Role") if role["metadata"]["name"] == "pagoda-operator-services"]
    assert sorted(role["metadata"]["namespace"] for role in roles) == ["a", "b", NAMESPACE]
    (container,) = the(objects, "Deployment", "pagoda-operator")["spec"]["template"]["spec"]["containers"]
    assert {"name": "PAGODA_NAMESPACES", "value": f"a,b,{NAMESPACE}"} in container["env"]


def test_crds_are_kept_or_left_out_as_the_values_say(cluster):
    keep = {"helm.sh/resource-policy": "keep"}
    assert [crd["metadata"]["annotations"] for crd in of_kind(rendered(cluster), "CustomResourceDefinition")] == [keep] * 4
    assert all("annotations" not in crd["metadata"] for crd in of_kind(rendered(cluster, "crds.keep=false"), "CustomResourceDefinition"))
    assert of_kind(rendered(cluster, "crds.install=false"), "CustomResourceDefinition") == []


@pytest.mark.parametrize(("timeout", "grace"), [("30s", 75), ("10m", 645), ("1h", 3645)])
def test_a_gateway_s_grace_outlasts_its_lame_duck_and_its_drain(cluster, timeout, grace):
    gateway = of_kind(rendered(cluster, f"gateway.drainTimeout={timeout}", "gateway.lameDuck=15s"), "Deployment")
    found = [d["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] for d in gateway if d["metadata"]["name"] == "pagoda-gateway"]
    assert found == [grace]


def pods_of(objects):
    return {found["metadata"]["name"]: found["spec"]["template"]["spec"] for found in of_kind(objects, "Deployment")}


SECURITY = {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}}


def test_a_value_in_a_block_leaves_the_block_s_other_defaults(cluster):
    """`operator.pod` once replaced securityContext as a whole: a pod with another user ran without the other restrictions."""
    settings = [f"{one}.pod.securityContext.runAsUser=1000" for one in ("operator", "gateway")]
    settings += [*(f"{one}.resources.limits.memory=3Gi" for one in ("operator", "gateway")), "gateway.pod.securityContext.runAsGroup=null"]
    pods = pods_of(rendered(cluster, *settings))
    other = SECURITY | {"runAsUser": 1000}
    assert pods["pagoda-operator"]["securityContext"] == other
    assert pods["pagoda-gateway"]["securityContext"] == {name: value for name, value in other.items() if name != "runAsGroup"}
    for pod in pods.values():
        assert pod["containers"][0]["resources"] == {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "3Gi"}}
    assert [pod["securityContext"] for pod in pods_of(rendered(cluster)).values()] == [SECURITY] * 2


def test_a_list_or_a_plain_field_of_a_pod_is_replaced_and_no_other(cluster):
    words = ("topologySpreadConstraints=null", "terminationGracePeriodSeconds=99", "priorityClassName=system")
    before, pods = pods_of(rendered(cluster)), pods_of(rendered(cluster, *(f"gateway.pod.{word}" for word in words)))
    changed = {"topologySpreadConstraints": None, "terminationGracePeriodSeconds": 99, "priorityClassName": "system"}
    assert pods == before | {"pagoda-gateway": before["pagoda-gateway"] | changed}


def test_values_of_an_older_release_are_refused_before_defaults_are_lost(cluster):
    """As --reuse-values brings them: without securityContext a pod was installed without its restrictions."""
    older = ("reservedNames=null", "operator.pod=null", "gateway.pod=null")
    for settings in (older, (*older, f"global.imageRegistry={REGISTRY}"), ("reservedNames=null", "global=null")):
        with pytest.raises(RuntimeError, match=r"use --reset-then-reuse-values.*docs/operations/upgrade\.md"):
            rendered(cluster, *settings)


REGISTRY = "registry.example.com:5000/mirror"


def test_one_registry_and_one_pull_secret_reach_all_pods(cluster):
    """What the operator makes gets them by its profile (tests/unit/operator/decide/render/test_pod.py)."""
    objects = rendered(cluster, f"global.imageRegistry={REGISTRY}", "global.imagePullSecrets[0].name=pull")
    assert images(objects) == [f"{REGISTRY}/{image}" for image in images(rendered(cluster))]
    asking = [*pods_of(objects).values(), profile(objects)]
    assert [one["imagePullSecrets"] for one in asking] == [[{"name": "pull"}]] * 3
    own = [f"{one}.imagePullSecrets[0].name=own" for one in ("operator.pod", "gateway.pod", "defaultProfile")]
    both = rendered(cluster, "global.imagePullSecrets[0].name=pull", *own)
    assert [one["imagePullSecrets"] for one in (*pods_of(both).values(), profile(both))] == [[{"name": "pull"}, {"name": "own"}]] * 3


def pods_of_a_service(made, spec):
    """What the operator makes with the profile: a replica, a trial of its revision and an inspection of its model."""
    parsed = InferenceServiceSpec.model_validate({"accelerators": [{"cpu": {"cores": 1, "memory": "1Gi"}}]} | spec)
    entry, owner = parsed.accelerators[0], Owner("ns", "tiny", "uid")
    revision = identify("tiny", parsed, entry)
    template = pod_template(Inputs(Key("ns", "tiny"), revision, parsed, entry, made, {LABEL_SERVICE: "tiny", LABEL_SERVICE_UID: "u"}))
    pinned = {"podTemplate": template, "profile": made.model_dump(mode="json", by_alias=True)}
    return [
        one["spec"] for one in (template, trial_pod(owner, revision.name, pinned, parsed.model.uri, ""), inspect_pod(owner, parsed, made))
    ]


def values_of(key, body):
    """All values of a key in an object, at any depth."""
    if isinstance(body, list):
        return [found for one in body for found in values_of(key, one)]
    if not isinstance(body, dict):
        return []
    return [value for name, value in body.items() if name == key] + [found for one in body.values() for found in values_of(key, one)]


def test_without_internet_every_image_is_of_the_private_registry_by_digest_and_pulled_with_its_secret(cluster):
    objects = rendered(cluster, values=AIR_GAPPED)
    made = ServingProfileSpec.model_validate(profile(objects))
    services = (
        {"model": {"uri": "s3://bucket/model"}, "adapters": {}},
        {"model": {"uri": "hf://org/model"}},
        {"model": {"uri": "pvc://models"}},
    )
    served = [pods_of_a_service(made, spec) for spec in services]
    pods = [*pods_of(objects).values(), *(pod for some in served for pod in some)]
    assert [pod.get("imagePullSecrets") for pod in pods] == [[{"name": "pull"}]] * 11
    pulled = [
        image for body in (objects, pods, profile(objects)["podTemplate"]) for image in values_of("image", body) if isinstance(image, str)
    ]
    mine = re.compile(r"registry\.example\.com/mirror/pagoda/(operator|gateway|daemon|fetch)@sha256:[0-9a-f]{64}")
    assert {mine.sub(r"\1", image) for image in pulled} == {"operator", "gateway", "daemon", "fetch"}
    # A model comes from addresses of the values, too.
    replica, trial, inspection = served[1]
    for container in (replica["initContainers"][0], trial["initContainers"][0], inspection["containers"][0]):
        assert {"name": "HF_ENDPOINT", "value": "https://hub.example.com"} in container["env"]
    assert not {"0.0.0.0/0", "::/0"} & {entry.cidr for entry in made.egress}


def test_the_registry_stands_before_images_that_name_none(cluster):
    values = ("operator.image", "gateway.image", "defaultProfile.images.daemon", "defaultProfile.images.fetch")
    pinned = f"pagoda/fetch@sha256:{'a' * 64}"
    for given in (
        {"pagoda/operator:0.2.0": REGISTRY, "gateway:1": REGISTRY, "a/b/daemon:1": REGISTRY, pinned: REGISTRY},
        {"ghcr.io/pagoda/operator:1": "", "localhost/gateway:1": "", "host:5000/daemon:1": "", f"ghcr.io/{pinned}": ""},
    ):
        objects = rendered(cluster, f"global.imageRegistry={REGISTRY}/", *map("=".join, zip(values, given, strict=True)))
        assert sorted(images(objects)) == sorted(f"{before}/{image}".lstrip("/") for image, before in given.items())


def gateway_of(cluster, *settings):
    """The gateways' Deployment, their container, and its environment."""
    deployment = the(rendered(cluster, *settings), "Deployment", "pagoda-gateway")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return deployment, container, {entry["name"]: entry.get("value") for entry in container["env"]}


def test_without_a_gateway_nothing_of_it_is_installed_and_the_operator_reads_replicas_itself(cluster):
    objects = rendered(cluster, "gateway.enabled=false", "monitoring.serviceMonitor.enabled=true")
    assert [body["metadata"]["name"] for body in objects if "gateway" in body["metadata"]["name"]] == []
    assert {body["kind"] for body in objects} >= {"Deployment", "PodMonitor"}
    environment = the(objects, "Deployment", "pagoda-operator")["spec"]["template"]["spec"]["containers"][0]["env"]
    set_to = {one["name"]: one.get("value") for one in environment}
    assert set_to["PAGODA_READ_REPLICAS"] == "true"
    assert {"PAGODA_GATEWAYS", "PAGODA_GATEWAY_URL"}.isdisjoint(set_to)
    config = the(objects, "ConfigMap", "pagoda-operator")["data"]["callers.json"]
    assert Callers.model_validate_json(config).clients
    # As --reuse-values brings them from a release before this value.
    older = rendered(cluster, "gateway.enabled=null")
    assert "pagoda-gateway" in {body["metadata"]["name"] for body in of_kind(older, "Deployment")}
    assert not Callers.model_validate_json(the(older, "ConfigMap", "pagoda-operator")["data"]["callers.json"]).clients


def test_the_commands_of_the_page_without_a_gateway_install_that_and_make_keys_that_replicas_take(cluster, tmp_path):
    """An install is only rendered here; the Secret is made, and the daemon's own reader reads what a pod would have mounted."""
    install, make_key = blocks("docs/operations/without-gateway.md")
    said = install.run(cluster, {"helm install": "helm install --dry-run=client --no-hooks", "REGISTRY": "registry.example.com"})
    installed = [body for body in yaml.safe_load_all(said.split("\nMANIFEST:\n")[1].split("\nNOTES:\n")[0]) if body]
    assert installed == rendered(cluster, "global.imageRegistry=registry.example.com", "gateway.enabled=false")
    file = tmp_path / CLIENT_KEYS_KEY
    key = make_key.run(cluster, {"> keys": f"> {file}; echo $key", "--from-file=keys": f"--from-file={file}"}).split()[0]
    entries = json.loads(cluster.kubectl("get", "secret", "llama-keys", "-o", "json"))["data"]
    file.write_bytes(base64.b64decode(entries[CLIENT_KEYS_KEY]))
    principal = Guard(AuthConfig(keys_file=str(file))).identify(f"Bearer {key}")
    assert (principal.role, principal.name) == (ROLE_CLIENT, "my-proxy")
    named = yaml.safe_load(re.search(r"```yaml\n(.*?)```", (ROOT / "docs/operations/without-gateway.md").read_text(), re.DOTALL)[1])
    cluster.kubectl("delete", "secret", named["spec"]["clientKeys"]["name"])


def test_the_first_key_in_the_notes_is_the_one_that_gateways_let_in(cluster):
    """As `helm install` prints it once; an upgrade and a GitOps tool that is told so make none."""
    said = cluster.helm("install", "--dry-run=client", RELEASE, str(CHART), "--namespace", NAMESPACE)
    hooks, notes = said.split("\nHOOKS:\n")[1].split("\nMANIFEST:\n")[0], said.split("\nNOTES:\n")[1]
    (text,) = re.findall(r"API key of tenant default: (\S+)", notes)
    (secret,) = (body for body in yaml.safe_load_all(hooks) if body and body["kind"] == "Secret")
    assert secret["metadata"]["annotations"] == {"helm.sh/hook": "pre-install"}
    assert text not in said.split("\nNOTES:\n")[0]
    made = read_secret(msgspec.Raw(json.dumps(secret | {"metadata": secret["metadata"] | {"resourceVersion": "1"}}).encode()))
    ring = KeyRing()
    ring.put(made.key.name, made.value.tenant, made.value.keys)
    owner = ring.owner(text, datetime.now(UTC))
    assert (owner.tenant, owner.key_id) == ("default", "first")
    for never in (("--set", "gateway.auth.firstKey.create=false"), ("--set", "gateway.auth.anonymous=true"), ("--is-upgrade",)):
        if never == ("--is-upgrade",):
            assert of_kind(list(yaml.safe_load_all(cluster.helm("template", RELEASE, str(CHART), *never))), "Secret") == []
        else:
            assert "API key of tenant" not in cluster.helm("install", "--dry-run=client", RELEASE, str(CHART), "-n", NAMESPACE, *never)


def test_two_gateways_stand_apart_and_an_upgrade_or_a_drained_node_takes_one_at_a_time(cluster):
    deployment, _, env = gateway_of(cluster)
    spec = deployment["spec"]
    (rule,) = spec["template"]["spec"]["topologySpreadConstraints"]
    assert (spec["replicas"], env["PAGODA_QUOTA_GATEWAYS"]) == (2, "2")
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert (rule["topologyKey"], rule["labelSelector"]) == ("kubernetes.io/hostname", spec["selector"])
    budget = the(rendered(cluster), "PodDisruptionBudget", "pagoda-gateway")["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert budget["selector"] == spec["selector"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_the_examples_let_streams_live_as_long_as_the_gateway_holds_and_answers(cluster):
    """The silence that a proxy allows is longer than the longest hold, and no proxy buffers, repeats or cuts an answer."""
    _, _, env = gateway_of(cluster)
    ingress, route = (yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text()) for name in ("ingress", "httproute"))
    nginx = {name.partition("/")[2]: value for name, value in ingress["metadata"]["annotations"].items()}
    held_s = load([], env).hold_timeout
    assert min(int(nginx["proxy-read-timeout"]), int(nginx["proxy-send-timeout"])) > held_s > 0
    assert [nginx[name] for name in ("proxy-buffering", "proxy-request-buffering", "proxy-next-upstream")] == ["off"] * 3
    assert nginx["proxy-body-size"] == f"{load([], env).body_limit >> 20}m"
    assert [rule["timeouts"] for rule in route["spec"]["rules"]] == [{"request": "0s", "backendRequest": "0s"}]


def test_a_quota_is_divided_among_as_many_gateways_as_there_may_be(cluster):
    """Without a common store each gateway takes its part. Fewer parts than an autoscaler makes gateways would admit too much."""

    def parts(*settings):
        return gateway_of(cluster, *settings)[2]["PAGODA_QUOTA_GATEWAYS"]

    assert (parts(), parts("gateway.replicas=3"), parts("gateway.quota.gateways=5")) == ("2", "3", "5")
    command = (EXAMPLES / "README.md").read_text().split("--set gateway.replicas=null")[1].split()[0]
    hpa = yaml.safe_load((EXAMPLES / "hpa.yaml").read_text())
    assert parts(f"gateway.replicas=null{command}") == str(hpa["spec"]["maxReplicas"])
    with pytest.raises(RuntimeError, match=r"set gateway\.quota\.gateways to the autoscaler's maximum"):
        rendered(cluster, "gateway.replicas=null")


def test_a_gateway_reads_its_certificate_from_the_secret_that_is_named(cluster):
    deployment, container, env = gateway_of(cluster, "gateway.tls.secretName=models")
    (volume,) = [one for one in deployment["spec"]["template"]["spec"]["volumes"] if one["name"] == "tls"]
    assert volume["secret"]["secretName"] == "models"
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "tls"]
    folder = mount["mountPath"]
    assert (env["PAGODA_TLS_CERT"], env["PAGODA_TLS_KEY"]) == (f"{folder}/tls.crt", f"{folder}/tls.key")
    assert "PAGODA_TLS_CERT" not in gateway_of(cluster)[2]


def test_the_gateway_s_variables_are_its_settings(cluster):
    _, _, env = gateway_of(cluster, "gateway.tls.secretName=models", "gateway.tracing.endpoint=http://c/v1/traces")
    known = {f"PAGODA_{option.name.upper()}" for option in OPTIONS}
    assert {name for name in env if name.startswith("PAGODA_")} <= known
    load([], env)


def test_the_examples_name_what_the_chart_installs_and_the_api_server_takes_them(cluster):
    objects = rendered(cluster, "gateway.replicas=null", "gateway.quota.gateways=10")
    deployment, service = the(objects, "Deployment", "pagoda-gateway"), the(objects, "Service", "pagoda-gateway")
    assert "replicas" not in deployment["spec"]
    hpa, ingress, route = (yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text()) for name in ("hpa", "ingress", "httproute"))
    namespace = "chart-examples"
    cluster.create_namespace(namespace)
    for body in (hpa, ingress):
        assert body["metadata"]["namespace"] == NAMESPACE
        text = yaml.safe_dump(body | {"metadata": body["metadata"] | {"namespace": namespace}})
        cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=text)
    assert hpa["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    (path,) = ingress["spec"]["rules"][0]["http"]["paths"]
    (port,) = service["spec"]["ports"]
    assert path["backend"]["service"] == {"name": service["metadata"]["name"], "port": {"name": port["name"]}}
    assert route["spec"]["rules"][0]["backendRefs"] == [{"name": service["metadata"]["name"], "port": port["port"]}]


@pytest.fixture(scope="module")
def schemas(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `kubeconform -schema-location` is told, our own kinds included."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CHART.parents[1] / "crds"))
    cluster.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=300s")
    deadline = time.monotonic() + 300
    while True:
        location = cluster.tool("schemas", str(tmp_path_factory.mktemp("schemas"))).strip()
        if len(list(Path(location).parent.glob(f"{GROUP}_{VERSION}_*"))) >= 4:
            return location
        assert time.monotonic() < deadline


def conformed(cluster: Cluster, schemas: str, *objects: dict) -> dict:
    # The Prometheus operator's kinds have schemas of ours: what we may use of them, since its CRDs are no part of a cluster.
    locations = [
        option for location in (schemas, f"{MONITORING_SCHEMAS}/{Path(schemas).name}") for option in ("-schema-location", location)
    ]
    argv = [str(cluster.bin / "kubeconform"), "-output", "json", "-summary", *locations, "-"]
    done = subprocess.run(argv, input=yaml.safe_dump_all(objects), capture_output=True, text=True, check=False, timeout=300)
    found: dict = json.loads(done.stdout)
    return found


# What installations set: everything on, everything off, and what an admin of a large cluster changes.
VALUES = {
    "default": (),
    "all of it": (
        *(f"monitoring.{part}.enabled=true" for part in ("serviceMonitor", "prometheusRule", "dashboard")),
        *(f"monitoring.{part}.labels.release=prometheus" for part in ("serviceMonitor", "prometheusRule", "dashboard")),
        "monitoring.serviceMonitor.interval=90s",
        "auth.metrics.accounts={monitoring/prometheus,other/scraper}",
        "auth.metrics.networks={192.0.2.0/28,2001:db8::/32}",
    ),
    "little of it": (
        *("crds.install=false", "auth.enabled=false", "networkPolicy.enabled=false", "operator.replicas=1", "gateway.replicas=1"),
        "defaultProfile.images.fetch=null",
    ),
    "an admin's": (
        *("crds.keep=false", "gateway.service.type=LoadBalancer", "gateway.drainTimeout=1h", "gateway.holdTimeout=90s"),
        *("operator.pod.nodeSelector.pool=system", "gateway.pod.imagePullSecrets[0].name=pull", "operator.imagePullPolicy=Always"),
        *("operator.pod.tolerations[0].key=system", "operator.pod.tolerations[0].operator=Exists", "gateway.resources.limits.cpu=2"),
        *("defaultProfile.tolerations[0].key=nvidia.com/gpu", "defaultProfile.tolerations[0].operator=Exists"),
        *("gateway.overflow.targets.hosted.url=https://api.example.com/v1", "gateway.overflow.targets.hosted.secret=hosted-api"),
        *("defaultProfile.sharedMemory=8Gi", "defaultProfile.nodeSelector.pool=gpu", "defaultProfile.priorityClassName=serving"),
    ),
}


def test_a_gateway_finds_the_targets_of_overflow_and_their_keys_where_the_chart_mounts_them(cluster, tmp_path):
    objects = rendered(cluster, *VALUES["an admin's"])
    pod = the(objects, "Deployment", "pagoda-gateway")["spec"]["template"]["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    text = the(objects, "ConfigMap", "pagoda-gateway-overflow")["data"]["targets.json"]
    (tmp_path / "api-key").write_text("k")
    (tmp_path / "targets.json").write_text(text.replace(mounts["overflow-hosted"], str(tmp_path)))
    targets = read_targets(tmp_path / "targets.json")
    assert (targets["hosted"].url, targets["hosted"].authorization()) == ("https://api.example.com/v1", "Bearer k")
    assert {"name": "overflow-hosted", "secret": {"secretName": "hosted-api"}} in pod["volumes"]
    settings = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
    assert settings["PAGODA_OVERFLOW_TARGETS"] == f"{mounts['overflow']}/targets.json"


@pytest.mark.parametrize("name", VALUES)
def test_every_rendered_object_conforms_to_its_schema(cluster, schemas, name):
    objects = rendered(cluster, *VALUES[name])
    found = conformed(cluster, schemas, *objects)
    assert found["summary"] == {"valid": len(objects), "invalid": 0, "errors": 0, "skipped": 0}, found["resources"]


@pytest.mark.parametrize(
    ("kind", "spoil", "named"),
    [
        ("ServiceMonitor", lambda spec: spec["endpoints"][0].update(intervall="15s"), "intervall"),
        ("ServiceMonitor", lambda spec: spec["endpoints"][0].update(interval="soon"), "interval"),
        ("ServiceMonitor", lambda spec: spec.pop("selector"), "selector"),
        ("PodMonitor", lambda spec: spec["podMetricsEndpoints"][0].update(port=8000), "port"),
        ("PodMonitor", lambda spec: spec.update(endpoints=[]), "endpoints"),
        ("PrometheusRule", lambda spec: spec["groups"][0]["rules"][0].update({"for": "10 minutes"}), "for"),
        ("PrometheusRule", lambda spec: spec["groups"][0]["rules"][0]["labels"].update(severity=1), "severity"),
        ("PrometheusRule", lambda spec: spec["groups"][0]["rules"][0].pop("alert"), "rules/0"),
    ],
)
def test_a_monitoring_object_that_its_operator_would_refuse_is_named(cluster, schemas, kind, spoil, named):
    (body, *_) = of_kind(rendered(cluster, *VALUES["all of it"]), kind)
    spoil(body["spec"])
    (found,) = conformed(cluster, schemas, body)["resources"]
    assert (found["status"], named in found["msg"]) == ("statusInvalid", True), found["msg"]


def test_an_object_that_breaks_its_schema_is_named(cluster, schemas):
    (deployment, *_) = of_kind(rendered(cluster), "Deployment")
    deployment["spec"]["replicas"] = "many"
    deployment["spec"]["template"]["spec"]["containres"] = []
    (found,) = conformed(cluster, schemas, deployment)["resources"]
    assert (found["status"], found["name"]) == ("statusInvalid", deployment["metadata"]["name"])
    assert "at '/spec/replicas': got string, want integer" in found["msg"]
    assert "at '/spec/template/spec': additional properties 'containres' not allowed" in found["msg"]


def test_our_own_kinds_conform_or_are_named_too(cluster, schemas):
    spec = {"model": {"uri": "pvc://models/m"}, "accelerators": [{"cpu": {"cores": "1", "memory": "1Gi"}}]}
    service = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "InferenceService", "metadata": {"name": "s"}, "spec": spec}
    assert conformed(cluster, schemas, service)["summary"]["valid"] == 1
    (found,) = conformed(cluster, schemas, service | {"spec": spec | {"modle": {}}})["resources"]
    assert "modle" in found["msg"]


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("operator.imgae=x", "imgae"),
        ("opreator.image=x", "opreator"),
        ("crds.kepe=false", "kepe"),
        ("operator.replicas=two", "replicas"),
        ("gateway.imagePullPolicy=Sometimes", "imagePullPolicy"),
        ("gateway.pod.volumes[0].name=x", "volumes"),
        ("operator.pod.serviceAccountName=x", "serviceAccountName"),
        ("global.imageRegistry=https://x", "imageRegistry"),
        ("gateway.drainTimeout=soon", "drainTimeout"),
        ("gateway.tls.secret=x", "secret"),
        ("defaultProfile.images.deamon=x", "deamon"),
        ("defaultProfile.sharedMemory=much", "sharedMemory"),
        ("monitoring.serviceMonitor.enable=true", "enable"),
        ("auth.enabledd=false", "enabledd"),
        ("operator.class=default", "class"),
        ("auth.metrics.networks={anywhere}", "anywhere"),
    ],
)
def test_a_misspelt_value_is_refused_by_its_name(cluster, setting, named):
    with pytest.raises(RuntimeError, match=f"(?s)values don't meet the specifications of the schema.*{named}"):
        rendered(cluster, setting)


def test_the_values_that_the_chart_comes_with_are_all_in_its_schema():
    """A value that the schema does not know could not be set."""
    schema = json.loads((CHART / "values.schema.json").read_text())

    def unknown(values, part, path):
        if part.get("additionalProperties") is not False:
            return []
        return [
            found
            for name, value in values.items()
            for found in (
                [f"{path}.{name}"] if name not in part["properties"] else unknown(value, part["properties"][name], f"{path}.{name}")
            )
        ]

    assert unknown(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "") == []


def test_two_operators_stand_apart_and_know_their_names(cluster):
    objects = rendered(cluster)
    spec = the(objects, "Deployment", "pagoda-operator")["spec"]
    pod = spec["template"]["spec"]
    assert spec["replicas"] == 2
    assert [rule["topologyKey"] for rule in pod["topologySpreadConstraints"]] == ["kubernetes.io/hostname"]
    env = {entry["name"]: entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") for entry in pod["containers"][0]["env"]}
    assert (env["POD_NAME"], env["POD_NAMESPACE"]) == ("metadata.name", "metadata.namespace")
    budget = the(objects, "PodDisruptionBudget", "pagoda-operator")["spec"]
    assert (budget["maxUnavailable"], budget["selector"]) == (1, spec["selector"])


MONITORING = [f"monitoring.{part}.enabled=true" for part in ("serviceMonitor", "prometheusRule", "dashboard")]


def test_each_install_reads_metrics_of_its_own_replicas_only(cluster):
    """The monitors show a token, which replicas of another install refuse and could keep."""

    def spec_with(*settings):
        return the(rendered(cluster, *MONITORING, *settings), "PodMonitor", "pagoda-replicas")["spec"]

    own = {LABEL_NAME: "pagoda", LABEL_COMPONENT: "replica"}
    plain, blue, some = spec_with(), spec_with("operator.class=blue"), spec_with("operator.namespaces={b,a}")
    none = {"matchExpressions": [{"key": LABEL_CLASS, "operator": "DoesNotExist"}]}
    assert (plain["selector"], plain["namespaceSelector"]) == ({"matchLabels": own} | none, {"any": True})
    assert blue["selector"] == {"matchLabels": own | {LABEL_CLASS: "blue"}}
    assert some["namespaceSelector"] == {"matchNames": ["a", "b", NAMESPACE]}


@pytest.fixture
def kube(cluster):
    hands = Kube(cluster.kubeconfig)
    yield hands
    hands.close()


def test_renewals_of_the_lease_and_nothing_else_pass_other_clients_requests(cluster, kube):
    (schema,) = of_kind(rendered(cluster), "FlowSchema")
    own = kube.create(FLOW_SCHEMAS, "", schema)["metadata"]["uid"]
    user, leases = f"system:serviceaccount:{NAMESPACE}:pagoda-operator", "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
    lease = leases.format(NAMESPACE)
    eventually(lambda: kube.flow(user, f"{lease}/pagoda-operator") == own, "the API server goes by it")
    assert kube.flow(user, lease, "POST") == own
    assert kube.flow(user, f"{lease}/pagoda-operator", "PUT") == own
    assert own not in {kube.flow(user, leases.format("kube-system") + "/x"), kube.flow(user, "/api/v1/pods"), kube.flow("somebody", lease)}
    level = kube.get(FLOW_SCHEMAS._replace(plural="prioritylevelconfigurations"), "", schema["spec"]["priorityLevelConfiguration"]["name"])
    assert level is not None  # else the schema would be ignored
    kube.delete(FLOW_SCHEMAS, "", schema["metadata"]["name"])


def test_no_flow_schema_where_it_is_not_wanted(cluster):
    assert of_kind(rendered(cluster, "operator.flowSchema=false"), "FlowSchema") == []


@pytest.mark.parametrize(("enabled", "ports"), [("false", [8080]), ("true", [8080, 9100])])
def test_keda_finds_the_gateways_only_where_it_is_wanted(cluster, enabled, ports):
    objects = rendered(cluster, f"gateway.keda.enabled={enabled}")
    (service,) = [one for one in of_kind(objects, "Service") if one["metadata"]["name"] == "pagoda-gateway"]
    (gateway,) = [one for one in of_kind(objects, "Deployment") if one["metadata"]["name"] == "pagoda-gateway"]
    environment = {row["name"]: row["value"] for row in gateway["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert [port["port"] for port in service["spec"]["ports"]] == ports
    assert (environment.get("PAGODA_KEDA"), "PAGODA_PEERS" in environment) == (("true", True) if enabled == "true" else (None, False))


def test_envoy_finds_the_gateways_only_where_it_is_wanted(cluster):
    asked = ("gateway.extProc.enabled=true", "gateway.extProc.secret=envoy", "networkPolicy.proxies[0]=edge")
    plain, objects = rendered(cluster), rendered(cluster, *asked)
    assert "9002" not in yaml.safe_dump_all(plain)
    assert len(objects) == len(plain) + 1
    assert {"name": "ext-proc", "port": 9002} in [
        {"name": port["name"], "port": port["port"]} for port in the(objects, "Service", "pagoda-gateway")["spec"]["ports"]
    ]
    gateway = the(objects, "Deployment", "pagoda-gateway")["spec"]["template"]["spec"]
    environment = {row["name"]: row["value"] for row in gateway["containers"][0]["env"]}
    assert (environment["PAGODA_EXT_PROC_PORT"], environment["PAGODA_EXT_PROC_OPEN"]) == ("9002", "false")
    [mount] = [one for one in gateway["containers"][0]["volumeMounts"] if one["name"] == "envoy"]
    assert environment["PAGODA_EXT_PROC_SECRET"] == f"{mount['mountPath']}/secret"
    others, envoy = the(objects, "NetworkPolicy", "pagoda-gateway")["spec"]["ingress"]
    assert "from" not in others
    assert {port["port"] for port in others["ports"]} == {port["name"] for port in gateway["containers"][0]["ports"]} - {"ext-proc"}
    assert [port["port"] for port in envoy["ports"]] == ["ext-proc"]
    assert envoy["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "edge"}}}]
    assert callers_of(objects).proxies == ("edge",)


def test_envoys_port_is_encrypted_with_the_certificate_of_the_api(cluster):
    asked = ("gateway.extProc.enabled=true", "gateway.extProc.secret=envoy", "gateway.extProc.tls=true")
    with pytest.raises(RuntimeError, match=r"gateway\.extProc\.tls needs gateway\.tls\.secretName"):
        rendered(cluster, *asked)
    objects = rendered(cluster, *asked, "gateway.tls.secretName=models-tls")
    (port,) = [port for port in the(objects, "Service", "pagoda-gateway")["spec"]["ports"] if port["name"] == "ext-proc"]
    environment = the(objects, "Deployment", "pagoda-gateway")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert port["appProtocol"] == "https"
    assert {"name": "PAGODA_EXT_PROC_TLS", "value": "true"} in environment


@pytest.mark.parametrize("missing", [("networkPolicy.enabled=false", "networkPolicy.proxies[0]=edge"), ("networkPolicy.enabled=true",)])
def test_an_open_port_9002_needs_a_policy_that_names_envoys_namespace(cluster, missing):
    """Any caller with an API key would read the gateways' token in its answers, or none could call at all."""
    asked = ("gateway.extProc.enabled=true", "gateway.extProc.open=true")
    with pytest.raises(RuntimeError, match=r"gateway\.extProc\.open .*networkPolicy\.enabled.*networkPolicy\.proxies"):
        rendered(cluster, *asked, *missing)
    assert rendered(cluster, *asked, "networkPolicy.proxies[0]=edge")
    assert rendered(cluster, "gateway.extProc.open=true", *missing), "the port is closed"


def test_nothing_of_prometheus_or_grafana_is_installed_unasked(cluster):
    assert not [found["kind"] for found in rendered(cluster) if "monitoring.coreos.com" in found["apiVersion"]]
    assert len(rendered(cluster, *MONITORING)) == len(rendered(cluster)) + 8
    assert len(rendered(cluster, *MONITORING, "auth.enabled=false")) == len(rendered(cluster)) + 6
    alone = rendered(cluster, *MONITORING, "gateway.enabled=false")
    named = {body["metadata"]["name"] for kind in ("PodMonitor", "ServiceAccount", "Secret") for body in of_kind(alone, kind)}
    assert named == {"pagoda-operator", "pagoda-replicas", "pagoda-metrics"}


def test_monitors_select_what_exports(cluster):
    objects = rendered(cluster, *MONITORING, "monitoring.serviceMonitor.labels.release=prometheus")
    monitors = {found["metadata"]["name"]: found for found in of_kind(objects, "PodMonitor")}
    pods, operators = monitors.pop("pagoda-replicas"), monitors.pop("pagoda-operator")
    assert not monitors
    assert pods["spec"]["selector"]["matchLabels"] == {LABEL_NAME: "pagoda", LABEL_COMPONENT: "replica"}
    (service,) = of_kind(objects, "ServiceMonitor")
    target = the(objects, "Service", "pagoda-gateway-metrics")
    assert service["spec"]["selector"]["matchLabels"].items() <= target["metadata"]["labels"].items()
    assert [port["port"] for port in target["spec"]["ports"]] == [PORT_METRICS]
    assert [endpoint["port"] for endpoint in operators["spec"]["podMetricsEndpoints"]] == ["metrics"]
    selected = {"gateway": target["spec"]["selector"], "operator": operators["spec"]["selector"]["matchLabels"]}
    for component, selector in selected.items():
        pod = the(objects, "Deployment", f"pagoda-{component}")["spec"]["template"]
        assert selector.items() <= pod["metadata"]["labels"].items()
        assert {"name": "metrics", "containerPort": PORT_METRICS} in pod["spec"]["containers"][0]["ports"]
    assert all(found["metadata"]["labels"]["release"] == "prometheus" for found in (pods, operators, service))


def callers_of(objects):
    (found,) = [body["data"]["callers.json"] for body in of_kind(objects, "ConfigMap") if "callers.json" in body.get("data", {})]
    return Callers.model_validate_json(found)


def test_rules_and_dashboard_name_only_metrics_that_are_exported(cluster):
    objects = rendered(cluster, *MONITORING)
    (rule,) = of_kind(objects, "PrometheusRule")
    alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    board = json.loads(the(objects, "ConfigMap", "pagoda-dashboard")["data"]["pagoda.json"])
    asked = [alert["expr"] for alert in alerts] + [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    exported = {family.name for family in (*metrics.DAEMON, *gateway_metrics.GATEWAY, *metrics.OPERATOR)}
    for expression in asked:
        assert metric_names(expression), expression
        assert metric_names(expression) <= exported
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(alert["annotations"]["summary"] and alert["labels"]["severity"] for alert in alerts)


def test_a_metric_that_nobody_exports_would_be_found():
    assert metric_names('rate(pagoda_gateway_requests_total{code="500"}[5m]) / vllm:num_request_running') == {
        "pagoda_gateway_requests",
        "vllm:num_request_running",
    }
    assert "vllm:num_request_running" not in {family.name for family in metrics.DAEMON}


def test_expressions_use_labels_that_their_metrics_have(cluster):
    labels = {family.name: set(family.labels) for family in (*metrics.DAEMON, *gateway_metrics.GATEWAY, *metrics.OPERATOR)}
    for line in (CHART / "rules.yaml").read_text().splitlines():
        for name, matchers in re.findall(r"((?:pagoda_|vllm:)[a-z_]+)\{([^}]*)\}", line):
            (family,) = metric_names(name)
            assert set(re.findall(r"(\w+)(?:=~|!=|=)", matchers)) <= labels[family], line
