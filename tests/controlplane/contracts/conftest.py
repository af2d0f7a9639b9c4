"""A control plane with the generated CRDs, beside KServe's kind of the same name, and nothing else: no operator answers for the objects."""

import json
from pathlib import Path

import pytest
from pagoda_contracts.crds.crdgen import KINDS
from pagoda_contracts.names import GROUP
from support.kube import kserve
from support.kube.client import Kube, eventually
from support.kube.cluster import running_cluster

CRDS = Path(__file__).parents[3] / "crds"
NAMESPACE = "contracts"


@pytest.fixture(scope="package")
def cluster():
    # Never the cluster that PAGODA_TEST_CLUSTER names: an operator there would act on the objects.
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PAGODA_TEST_CLUSTER", raising=False)
        with running_cluster(nodes="control-plane") as running:
            kserve.install(running)
            running.kubectl("apply", "-f", str(CRDS))
            names = [f"crd/{kind.resource}" for kind in KINDS]
            running.kubectl("wait", "--for=condition=Established", "--timeout=300s", *names)
            running.kubectl("create", "namespace", NAMESPACE)
            for kind in KINDS:  # the API server publishes schemas for kubectl some time after it serves the kind
                eventually(lambda kind=kind: explained(running, kind.resource), f"the schema of {kind.plural} is published")
            yield running


def explained(cluster, resource):
    try:
        return cluster.kubectl("explain", f"{resource}.spec")
    except RuntimeError:
        return None


@pytest.fixture(scope="package")
def server(cluster):
    """Objects over HTTPS as kubectl sends them: unknown fields refused."""
    hands = Kube(cluster.kubeconfig)
    yield Server(hands)
    hands.close()


class Server:
    """Creates objects of our kinds; `dry` judges without storing."""

    def __init__(self, hands):
        self._hands = hands

    def path(self, kind, name=""):
        (found,) = [one for one in KINDS if one.kind == kind]
        scope = f"/namespaces/{NAMESPACE}" if found.scope == "Namespaced" else ""
        return f"/apis/{GROUP}/v1alpha1{scope}/{found.plural}" + (f"/{name}" if name else "")

    def create(self, body, dry=True, validation="Strict"):
        options = {"fieldValidation": validation} | ({"dryRun": "All"} if dry else {})
        headers = {"Content-Type": "application/json"}
        return self._hands.request("POST", self.path(body["kind"]), content=json.dumps(body), params=options, headers=headers)

    def update(self, body):
        """Puts the object over the stored one, as the newest version."""
        path = self.path(body["kind"], body["metadata"]["name"])
        version = self._hands.read(path)["metadata"]["resourceVersion"]
        body = body | {"metadata": body["metadata"] | {"resourceVersion": version}}
        return self._hands.request("PUT", path, json=body, params={"dryRun": "All"})

    def delete(self, kind, name):
        self._hands.request("DELETE", self.path(kind, name))
