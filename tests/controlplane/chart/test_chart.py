"""What `helm install` would create: checked by helm itself and held against our own rules for pods and roles."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cluster import Cluster, running_cluster
from pagoda_contracts.names import GROUP, VERSION

pytestmark = pytest.mark.cluster

CHART = str(Path(__file__).parents[3] / "charts/pagoda")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(nodes="control-plane") as running:
        yield running


def rendered(cluster: Cluster, *settings: str) -> list[dict]:
    options = [option for setting in settings for option in ("--set", setting)]
    text = cluster.helm("template", "pagoda", CHART, "--namespace", "pagoda-system", *options)
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(objects: list[dict], kind: str) -> list[dict]:
    return [found for found in objects if found["kind"] == kind]


def test_helm_finds_no_fault(cluster):
    assert "0 chart(s) failed" in cluster.helm("lint", "--strict", CHART)


def test_the_api_server_takes_every_object_and_the_pods_pass_restricted(cluster):
    namespace = "chart-dry-run"
    cluster.kubectl("create", "namespace", namespace)
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    for deployment in of_kind(rendered(cluster), "Deployment"):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "as-a-pod"}, "spec": deployment["spec"]["template"]["spec"]}
        pod["spec"] |= {"serviceAccountName": "default"}
        cluster.kubectl("create", "--dry-run=server", "-n", namespace, "-f", "-", input=yaml.safe_dump(pod))
    text = yaml.safe_dump_all(found | {"metadata": found["metadata"] | {"namespace": namespace}} for found in rendered(cluster))
    applied = cluster.kubectl("apply", "--dry-run=server", "-f", "-", input=text)
    assert "deployment.apps/pagoda-operator created (server dry run)" in applied
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def test_no_role_reads_secrets_or_holds_a_wildcard(cluster):
    rules = [rule for role in of_kind(rendered(cluster), "ClusterRole") for rule in role["rules"]]
    assert rules
    for rule in rules:
        assert "secrets" not in rule["resources"]
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]


def test_crds_are_kept_or_left_out_as_the_values_say(cluster):
    keep = {"helm.sh/resource-policy": "keep"}
    assert [crd["metadata"]["annotations"] for crd in of_kind(rendered(cluster), "CustomResourceDefinition")] == [keep] * 4
    assert all("annotations" not in crd["metadata"] for crd in of_kind(rendered(cluster, "crds.keep=false"), "CustomResourceDefinition"))
    assert of_kind(rendered(cluster, "crds.install=false"), "CustomResourceDefinition") == []


@pytest.mark.parametrize(("timeout", "grace"), [("30s", 60), ("10m", 630), ("1h", 3630)])
def test_a_gateway_s_grace_outlasts_its_drain(cluster, timeout, grace):
    gateway = of_kind(rendered(cluster, f"gateway.drainTimeout={timeout}"), "Deployment")
    found = [d["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] for d in gateway if d["metadata"]["name"] == "pagoda-gateway"]
    assert found == [grace]


@pytest.fixture(scope="module")
def schemas(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `kubeconform -schema-location` is told, our own kinds included."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(Path(CHART).parents[1] / "crds"))
    cluster.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=60s")
    deadline = time.monotonic() + 60
    while True:
        location = cluster.tool("schemas", str(tmp_path_factory.mktemp("schemas"))).strip()
        if len(list(Path(location).parent.glob(f"{GROUP}_{VERSION}_*"))) >= 4:
            return location
        assert time.monotonic() < deadline


def conformed(cluster: Cluster, schemas: str, *objects: dict) -> dict:
    argv = [str(cluster.bin / "kubeconform"), "-output", "json", "-summary", "-schema-location", schemas, "-"]
    done = subprocess.run(argv, input=yaml.safe_dump_all(objects), capture_output=True, text=True, check=False, timeout=60)
    found: dict = json.loads(done.stdout)
    return found


def test_every_rendered_object_conforms_to_its_schema(cluster, schemas):
    objects = rendered(cluster)
    assert conformed(cluster, schemas, *objects)["summary"] == {"valid": len(objects), "invalid": 0, "errors": 0, "skipped": 0}


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


def test_a_duration_that_is_none_is_refused_by_name(cluster):
    with pytest.raises(RuntimeError, match="is not a duration: use 30s, 10m or 1h"):
        rendered(cluster, "gateway.drainTimeout=soon")
