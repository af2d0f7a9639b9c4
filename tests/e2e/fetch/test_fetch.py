"""A service whose model comes from a hub: fetched by the sidecar before the daemon starts, verified, served; inspected before."""

import json
from datetime import datetime
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from pagoda_contracts.names import API_VERSION
from pydoc_answers import questions
from support.harness.fake_nodes import MIXED, TOLERATION, device_node
from support.kube.client import Kube
from support.kube.services import service
from support.servers.fetch_hub import Fault, running_hub

pytestmark = pytest.mark.cluster


@pytest.fixture
def hub(pagoda):
    """On the address by which pods reach this machine: that of the API server."""
    server = yaml.safe_load(pagoda.running.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    files = {path.name: path.read_bytes() for path in pagoda.model.iterdir() if path.is_file()}
    with running_hub(files, host=urlsplit(server).hostname, token="hub-token") as running:
        yield running


@pytest.fixture
def profile(pagoda, namespace, hub):
    """The default profile, its sidecar told where the hub is; a Secret with the token."""
    spec = pagoda.get("servingprofile", "default")["spec"]
    sidecar = {"name": "fetch", "env": [{"name": "HF_ENDPOINT", "value": hub.url}]}
    spec["podTemplate"]["spec"]["initContainers"] = [sidecar]
    pagoda.apply(namespace, {"apiVersion": API_VERSION, "kind": "ServingProfile", "metadata": {"name": namespace}, "spec": spec})
    pagoda.cluster.kubectl("create", "secret", "generic", "hub", "-n", namespace, "--from-literal=token=hub-token")
    yield namespace
    pagoda.cluster.kubectl("delete", "servingprofile", namespace)


def asked_for(name, profile, uri="hf://org/model"):
    words = {"profileRef": {"name": profile}, "credentials": [{"name": "hub", "secretRef": {"name": "hub"}}]}
    return service(name, model={"uri": uri, "servedNames": [name], "credential": "hub"}, **words)


def test_a_model_from_a_hub_is_fetched_once_over_a_cut_and_serves(pagoda, namespace, profile, hub):
    weights = max(hub.files, key=lambda name: len(hub.files[name]))
    size = len(hub.files[weights])
    hub.faults[weights] = Fault(cut_after=size // 2)
    pagoda.apply(namespace, asked_for("fetched", profile))
    line = pagoda.outcome(namespace, "fetched")
    assert line.ready, line
    known = questions()[0]
    body = {"model": "fetched", "messages": [{"role": "user", "content": known.question}], "temperature": 0}
    reply = httpx.post(f"{pagoda.url}/chat/completions", json=body, timeout=300).json()
    assert reply["choices"][0]["message"]["content"] == known.answer
    assert size <= hub.sent[weights] < size + 300_000, "the half that came before the cut is not fetched twice"
    (pod,) = pagoda.get("pods", "-n", namespace, "-l", "app.kubernetes.io/component=replica")["items"]
    (sidecar,) = pod["status"]["initContainerStatuses"]
    assert (sidecar["started"], sidecar["restartCount"]) == (True, 0)
    start = pagoda.get("inferenceservices.serving.pagoda.dev", "fetched", "-n", namespace)["status"]["lastStart"]
    created, ready = (datetime.fromisoformat(start[moment]) for moment in ("createdAt", "readyAt"))
    assert (start["pod"], created) == (pod["metadata"]["name"], datetime.fromisoformat(pod["metadata"]["creationTimestamp"]))
    assert sum(seconds for phase, seconds in start.items() if phase.endswith("Seconds")) == (ready - created).total_seconds()
    log = pagoda.cluster.kubectl("logs", pod["metadata"]["name"], "-n", namespace, "-c", "fetch")
    assert "hub-token" not in log + json.dumps(pod["status"])
    kept = json.loads(pagoda.get("configmap", "fetched-model", "-n", namespace)["data"]["model.json"])
    (daemon,) = pod["spec"]["containers"]
    disk = daemon["resources"]["requests"]["ephemeral-storage"]
    assert (kept["revision"], disk) == (hub.commit, f"{1024 + -(-kept['bytes'] // 2**20)}Mi"), "inspected before it was fetched"


def test_a_model_that_is_not_there_stalls_with_the_sidecars_words(pagoda, namespace, profile):
    pagoda.apply(namespace, asked_for("absent", profile, uri="hf://org/gone"))
    line = pagoda.outcome(namespace, "absent")
    assert (line.stalled, line.reason) == (True, "ModelRejected")
    assert "org/gone" in line.message


@pytest.fixture
def devices(pagoda, profile):
    """A node with slices, no kubelet behind it and no core to spare: the inspecting pod runs on the other one, whatever it bears."""
    pagoda.cluster.kubectl("patch", "servingprofile", profile, "--type=merge", "-p", json.dumps({"spec": {"tolerations": [TOLERATION]}}))
    kube = Kube(pagoda.running.kubeconfig)
    with device_node(kube, MIXED, "h100-e2e", cpu="1m"):
        yield
        pagoda.cluster.kubectl("delete", "inferenceservices", "--all", "-n", profile, "--timeout=300s")
        pagoda.cluster.kubectl("delete", "pods", "--all", "-n", profile, "--force", "--grace-period=0")
    kube.close()


def test_a_model_is_inspected_in_place_and_adding_the_missing_credential_resolves_it(pagoda, namespace, profile, devices, hub):
    wish = asked_for("sliced", profile)
    wish["spec"] |= {"accelerators": [{"mig": {"minMemory": "1Gi"}}]}
    credential = wish["spec"]["model"].pop("credential")
    pagoda.apply(namespace, wish)
    line = pagoda.outcome(namespace, "sliced")
    assert (line.stalled, line.reason) == (True, "ModelRejected")
    assert f"Forbidden: org/model at {hub.url} does not exist, or asks for a credential" in line.message
    wish["spec"]["model"]["credential"] = credential
    pagoda.apply(namespace, wish)
    pagoda.cluster.kubectl(
        "wait", "-n", namespace, "inferenceservice/sliced", "--for=jsonpath={.status.placement.chosen}=mig[0]", "--timeout=300s"
    )
    kept = json.loads(pagoda.get("configmap", "sliced-model", "-n", namespace)["data"]["model.json"])
    config = json.loads(hub.files["config.json"])
    assert (kept["config"]["model_type"], kept["revision"]) == (config["model_type"], hub.commit)
    assert set(hub.sent) == {"config.json"}
