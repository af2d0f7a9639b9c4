"""Two services of one tenant whose quota is smaller than what they ask for, grown and shrunk: a scenario for the fault tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pagoda_contracts.names import API_VERSION
from pagoda_operator.api.state import QUOTAS, SERVICES
from support.kube.client import Body, eventually
from support.kube.fake_api import service_body
from support.kube.namespace import NAME, Real

SLICE = "1g.10gb"
SLICES = f"mig-{SLICE}"
YOUNGER = "younger"
# Its replicas run on CPU and are charged for a slice each: what is tested depends on no device.
CHARGED: dict[str, Any] = {"profileRef": {"name": "charged"}}


@dataclass
class Tenant:
    """One namespace, one quota of its name."""

    real: Real

    def capped(self, count: int) -> None:
        devices = {"migSlices": [{"profile": SLICE, "count": count}]}
        spec = {"subjects": {"namespaces": [self.real.namespace]}, "devices": devices}
        body = {"apiVersion": API_VERSION, "kind": QUOTAS.kind, "metadata": {"name": self.real.namespace}, "spec": spec}
        if self.real.kube.get(QUOTAS, "", self.real.namespace) is None:
            self.real.kube.create(QUOTAS, "", body)
        else:
            self.real.kube.merge(QUOTAS, "", self.real.namespace, {"spec": spec})

    def asks(self, name: str, replicas: int) -> None:
        kube, namespace = self.real.kube, self.real.namespace
        if kube.get(SERVICES, namespace, name) is None:
            kube.create(SERVICES, namespace, service_body(name, namespace, replicas=replicas, **CHARGED))
        else:
            kube.merge(SERVICES, namespace, name, {"spec": {"replicas": replicas}})

    def have(self, older: int, younger: int) -> None:
        """Waits until each has as many replicas as that, all ready, and says whether it wants more."""
        eventually(lambda: self._has(NAME, older) and self._has(YOUNGER, younger), f"{older} and {younger} replicas")

    def _has(self, name: str, count: int) -> bool:
        service = self.real.kube.get(SERVICES, self.real.namespace, name)
        if service is None:
            return count == 0
        status: Body = service.get("status", {})
        reported = {condition["type"]: condition["reason"] for condition in status.get("conditions", [])}
        stalled = reported.get("Stalled") == "QuotaExceeded"
        pods = [pod for pod in self.real.pods() if pod["metadata"]["name"].startswith(f"{name}-")]
        fresh = status.get("observedGeneration") == service["metadata"]["generation"]
        return fresh and len(pods) == count == status.get("readyReplicas", 0) and stalled == (count < service["spec"]["replicas"])

    def leave(self) -> None:
        for name in (NAME, YOUNGER):
            self.real.kube.delete(SERVICES, self.real.namespace, name)
        eventually(lambda: not self.real.children() and not self.real.pods(), "nothing left")
        self.real.kube.delete(QUOTAS, "", self.real.namespace)
