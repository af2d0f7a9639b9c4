"""A replica whose model is fetched, on a real API server that enforces Pod Security `restricted`."""

import json

import pytest
from pagoda_contracts.names import CONTAINER_FETCH, EXIT_PERMANENT
from pagoda_operator.api.state import DEPLOYMENTS
from support.harness.fake_nodes import inspected, reported_by_inspection
from support.harness.placing import LLAMA_CONFIG, SMALL_CONFIG
from support.kube.client import eventually
from support.kube.fake_api import fetching, running

pytestmark = pytest.mark.cluster

HUB = {"uri": "hf://org/name", "revision": "main", "credential": "hub"}
SECRETS = [{"name": "hub", "secretRef": {"name": "hub-token"}}]


def test_the_pod_passes_restricted_and_its_start_is_reported_step_by_step(real, operator):
    real.apply(model=HUB, credentials=SECRETS)
    inspected(real, SMALL_CONFIG)
    (pod,) = real.node.placed(real.namespace, 1)
    (sidecar,) = pod["spec"]["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == (CONTAINER_FETCH, "Always")
    real.node.report(pod, fetching())
    real.reported(Reconciling="FetchingModel")
    real.node.report(pod, fetching(1, "NoRoom: /models: needs 9.0 GiB more, 1.0 GiB are free"))
    eventually(lambda: "1.0 GiB are free" in real.reported(Reconciling="FetchingModel")["Reconciling"]["message"], "the reason")
    real.node.report(pod, fetching(EXIT_PERMANENT, "NotFound: revision main of org/name does not exist"))
    assert "NotFound" in real.reported(Stalled="ModelRejected")["Stalled"]["message"]
    real.node.report(pod, running(ready=True) | {"initContainerStatuses": fetching(started=True)["initContainerStatuses"]})
    real.reported(Ready="Available")


def test_a_model_that_no_daemon_serves_is_refused_on_cpu_before_a_pod_that_would_fetch_it(real, operator):
    real.apply(model=HUB, credentials=SECRETS)
    reported_by_inspection(real, message=json.dumps({"config": LLAMA_CONFIG | {"auto_map": True}}))
    said = real.reported(Stalled="ModelRejected")["Stalled"]["message"]
    assert "no daemon serves this model: config.json has auto_map" in said
    assert real.kube.list(DEPLOYMENTS, real.namespace) == []
    eventually(lambda: real.pods() == [], "no pod is left")


def test_a_cached_model_s_pod_is_placed_and_nothing_of_it_is_written_twice(real, operator):
    real.apply(model=HUB | {"cache": {"pvc": "models"}}, credentials=SECRETS)
    inspected(real, SMALL_CONFIG)
    (pod,) = real.node.placed(real.namespace, 1)
    assert pod["spec"]["securityContext"]["fsGroup"] == 65532
    real.node.report(pod, running(ready=True))
    real.reported(Ready="Available")
    (deployment,) = real.kube.list(DEPLOYMENTS, real.namespace)
    assert deployment["metadata"]["generation"] == 1, "what the server stored is what was rendered"


def test_a_model_that_is_taken_from_its_claim_and_cached_is_placed(real, operator):
    real.apply(model={"uri": "pvc://models/tiny", "cache": {"pvc": "mended"}})
    inspected(real, SMALL_CONFIG)
    (pod,) = real.node.placed(real.namespace, 1)
    assert {volume["name"] for volume in pod["spec"]["volumes"]} >= {"model", "source", "fetched"}
