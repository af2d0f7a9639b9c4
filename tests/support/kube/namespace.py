"""A namespace of a real API server as a user of the operator sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pagoda_contracts.names import API_VERSION
from pagoda_operator.api.state import CHILD_RESOURCES, PODS, PROFILES, SERVICES, Resource
from support.kube.client import Body, Kube, eventually
from support.kube.cluster import Cluster
from support.kube.fake_api import running, service_body
from support.kube.operator_process import NodeWithoutKubelet

NAMESPACES = Resource("v1", "Namespace", "namespaces")
ACCOUNTS = Resource("v1", "ServiceAccount", "serviceaccounts")
VOLUMES = Resource("v1", "PersistentVolume", "persistentvolumes")
CLAIMS = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
NAME = "tiny"
MODELS = ("models", "mended")


@dataclass
class Real:
    """One service `tiny` in one namespace, with a profile named as the namespace."""

    cluster: Cluster
    kube: Kube
    node: NodeWithoutKubelet
    namespace: str

    def prepare(self, **profile: Any) -> None:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.kube.create(NAMESPACES, "", {"metadata": {"name": self.namespace, "labels": labels}})
        eventually(lambda: self.kube.get(ACCOUNTS, self.namespace, "default"), "the account without which no pod is taken")
        spec = {"images": {"daemon": "localhost/daemon:1", "fetch": "localhost/fetch:1"}, "allow": ["metadata.labels"]} | profile
        body = {"apiVersion": API_VERSION, "kind": PROFILES.kind, "metadata": {"name": self.namespace}, "spec": spec}
        self.kube.create(PROFILES, "", body)
        for name in MODELS:
            self.claim(name)
        # Else the scheduler finds a pod unschedulable first, and each word of that is one more write of the operator.
        eventually(lambda: all(map(self.bound, MODELS)), "the claims are bound")

    def claim(self, name: str) -> None:
        """A claim that will be bound: the scheduler places no pod without."""
        volume = f"{self.namespace}-{name}"
        common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
        own = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": "/nowhere"}, "claimRef": {"namespace": self.namespace, "name": name}}
        self.kube.create(VOLUMES, "", {"metadata": {"name": volume}, "spec": common | own})
        wish = {"volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}}
        self.kube.create(CLAIMS, self.namespace, {"metadata": {"name": name}, "spec": common | wish})

    def bound(self, claim: str) -> bool:
        found = self.kube.get(CLAIMS, self.namespace, claim)
        return found is not None and found["status"].get("phase") == "Bound"

    def clean(self) -> None:
        self.kube.delete(SERVICES, self.namespace, NAME)
        self.kube.delete(PROFILES, "", self.namespace)
        # Its pods too: the garbage collector comes to them last, and in a namespace that is going nobody would end them, so that they
        # would keep the next test's devices.
        eventually(lambda: not self.end_pods() and not self.children() and not self.pods(), "children collected")
        self.kube.delete(NAMESPACES, "", self.namespace)
        for name in MODELS:
            self.kube.delete(VOLUMES, "", f"{self.namespace}-{name}")

    def apply(self, **spec: Any) -> Body:
        profile = {"profileRef": {"name": self.namespace}}
        return self.kube.create(SERVICES, self.namespace, service_body(NAME, self.namespace, **profile | spec))

    def edit(self, **spec: Any) -> Body:
        return self.kube.merge(SERVICES, self.namespace, NAME, {"spec": spec})

    def service(self) -> Body:
        found = self.kube.get(SERVICES, self.namespace, NAME)
        assert found is not None
        return found

    def reported(self, **wanted: str) -> dict[str, Body]:
        """Waits until each named condition of the newest generation has this reason (Ready="Available") and returns all conditions."""

        def look() -> dict[str, Body] | None:
            service = self.service()
            status = service.get("status", {})
            conditions = {found["type"]: found for found in status.get("conditions", [])}
            fresh = status.get("observedGeneration") == service["metadata"]["generation"]
            right = all(conditions.get(kind, {}).get("reason") == reason for kind, reason in wanted.items())
            return conditions if fresh and right else None

        try:
            return eventually(look, f"conditions {wanted}")
        except AssertionError as error:
            raise AssertionError(f"{error}; is {self.service().get('status')}") from error

    def children(self) -> list[str]:
        """Kind and name of all that the operator made."""
        listed = [(resource, item) for resource in CHILD_RESOURCES for item in self.kube.list(resource, self.namespace)]
        return sorted(f"{r.kind} {i['metadata']['name']}" for r, i in listed if "ownerReferences" in i["metadata"])

    def serve(self, count: int = 1) -> list[Body]:
        """Waits for the pods and makes them ready."""
        pods = self.node.placed(self.namespace, count)
        for pod in pods:
            self.node.report(pod, running(ready=True))
        return pods

    def end_pods(self) -> int:
        return self.node.end_deleted(self.namespace)

    def pods(self) -> list[Body]:
        return self.kube.list(PODS, self.namespace)
