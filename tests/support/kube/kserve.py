"""KServe's kind of the same name as ours, named as its own CRD has it; any object is valid."""

import json

from support.kube.cluster import Cluster

GROUP = "serving.kserve.io"
_NAMES = {
    "kind": "InferenceService",
    "listKind": "InferenceServiceList",
    "plural": "inferenceservices",
    "singular": "inferenceservice",
    "shortNames": ["isvc"],
}
_COLUMNS = [
    {"name": "URL", "type": "string", "jsonPath": ".status.url"},
    {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
]
_VERSION = {
    "name": "v1beta1",
    "served": True,
    "storage": True,
    "additionalPrinterColumns": _COLUMNS,
    "subresources": {"status": {}},
    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
}
NAME = f"{_NAMES['plural']}.{GROUP}"


def install(cluster: Cluster) -> None:
    """Creates the CRD and waits until the API server serves the kind."""
    spec = {"group": GROUP, "scope": "Namespaced", "names": _NAMES, "versions": [_VERSION]}
    body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": NAME}, "spec": spec}
    cluster.kubectl("create", "-f", "-", input=json.dumps(body))
    cluster.kubectl("wait", f"crd/{NAME}", "--for=condition=Established", "--timeout=300s")


def service(name: str) -> str:
    """An object of the kind, as JSON."""
    return json.dumps({"apiVersion": f"{GROUP}/v1beta1", "kind": "InferenceService", "metadata": {"name": name}, "spec": {"predictor": {}}})
