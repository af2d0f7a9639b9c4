"""What somebody adds to a Deployment by hand, for tests that see it removed: strategic merge patches of its pods' spec.

Each is taken by the API server. After `HOST_PATH` and `PRIVILEGED`, it refuses the operator's server-side apply.
"""

from typing import Any

from pagoda_contracts.names import CONTAINER_DAEMON


def _daemon(**more: Any) -> dict[str, Any]:
    return {"containers": [{"name": CONTAINER_DAEMON, **more}]}


SIDECAR: dict[str, Any] = {"containers": [{"name": "miner", "image": "localhost/miner:1"}]}
VARIABLE = _daemon(env=[{"name": "LD_PRELOAD", "value": "/tmp/evil.so"}])  # noqa: S108 (a path in a pod)
HOST_NETWORK: dict[str, Any] = {"hostNetwork": True}
PRIVILEGED = _daemon(securityContext={"privileged": True, "allowPrivilegeEscalation": True})
ACCOUNT: dict[str, Any] = {"serviceAccountName": "admin", "automountServiceAccountToken": True}
HOST_PATH: dict[str, Any] = {"volumes": [{"name": "run", "emptyDir": None, "hostPath": {"path": "/", "type": ""}}]}
# A patch, and a part of the path that its Event names.
EDITS: dict[str, tuple[dict[str, Any], str]] = {
    "sidecar": (SIDECAR, "containers[miner]"),
    "variable": (VARIABLE, "containers[daemon].env[LD_PRELOAD]"),
    "host network": (HOST_NETWORK, "spec.hostNetwork"),
    "privileged": (PRIVILEGED, "containers[daemon].securityContext.privileged"),
    "account": (ACCOUNT, "spec.serviceAccountName"),
    "host path": (HOST_PATH, "volumes[run].hostPath"),
}
