"""What an inspection of a model is made of: the pod that reads its config.json once, and the ConfigMap that keeps its report. Pure.

The operator leaves neither the cluster nor its namespace: the pod does, with the service's own credential, under Pod Security `restricted`.
It asks where a replica's sidecar would: the profile's environment of the container `fetch` (a hub of one's own, a proxy) is its own too.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pagoda_contracts.names import (
    CLAIMS_MOUNT,
    COMPONENT_INSPECT,
    CONTAINER_FETCH,
    CREDENTIALS_MOUNT,
    LABEL_COMPONENT,
    LABEL_SERVICE_UID,
)
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_contracts.resources.service import InferenceServiceSpec

from pagoda_operator.api.state import CONFIG_MAPS, PODS
from pagoda_operator.decide.render.children import Manifest, Owner, stamped
from pagoda_operator.decide.render.fetch import CLAIM_SCHEME, claim, restricted_container, restricted_pod, source
from pagoda_operator.decide.render.overlay import merge
from pagoda_operator.inventory.values import digest

CONTAINER: Final = "inspect"
SOURCE_KEY: Final = "source"
REPORT_KEY: Final = "model.json"
# A replica's own volumes are called otherwise: a profile may call one of its own "claim" or "credential".
_CLAIM_VOLUME: Final = "pagoda-claim"
_CREDENTIAL_VOLUME: Final = "pagoda-credential"
# Of the profile: its own fields, and what its podTemplate says of the pod and of the sidecar. Of a service's podTemplate nothing: it is
# judged only once there is a replica.
_WORDS: Final = ("tolerations", "nodeSelector", "imagePullSecrets")
_POD: Final = (*_WORDS, "hostAliases", "dnsConfig", "dnsPolicy")
_SIDECAR: Final = ("env", "envFrom", "imagePullPolicy")


def map_name(service: str) -> str:
    """Of the ConfigMap."""
    return f"{service}-model"


def pod_name(service: str, spec: InferenceServiceSpec, profile: ServingProfileSpec) -> str:
    """Of the pod. One that would be made otherwise (another address, a credential that was missing, the right name of the hub) is another
    pod: the one that failed for lack of it goes."""
    return f"{service}-inspect-{digest(_pod_spec(spec, profile))}"


def inspector_uid(uid: str) -> str:
    """What stands for the service's uid in the pod's labels: with the uid itself, Service and gateway would take it for a replica."""
    return f"{COMPONENT_INSPECT}-{uid}"


def model_map(owner: Owner, source: str, report: str) -> Manifest:
    """The report, and the files that it is of."""
    compact = json.dumps(json.loads(report), separators=(",", ":"), ensure_ascii=False)
    return stamped(owner, CONFIG_MAPS, map_name(owner.name), owner.labels, {"data": {SOURCE_KEY: source, REPORT_KEY: compact}})


def inspect_pod(owner: Owner, spec: InferenceServiceSpec, profile: ServingProfileSpec) -> Manifest:
    """Runs once; what failed in passing is tried again by the kubelet, with its growing delays."""
    labels = owner.labels | {LABEL_COMPONENT: COMPONENT_INSPECT, LABEL_SERVICE_UID: inspector_uid(owner.uid)}
    return stamped(owner, PODS, pod_name(owner.name, spec, profile), labels, {"spec": _pod_spec(spec, profile)})


def _pod_spec(spec: InferenceServiceSpec, profile: ServingProfileSpec) -> dict[str, Any]:
    volumes, mounts = _volumes(spec, profile)
    return {
        "restartPolicy": "OnFailure",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": restricted_pod(),
        "containers": [_container(spec, profile, mounts)],
        **({"volumes": volumes} if volumes else {}),
        **_surroundings(profile),
    }


def _container(spec: InferenceServiceSpec, profile: ServingProfileSpec, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": CONTAINER,
        "image": profile.images.fetch,
        "args": ["inspect", *source(spec.model)],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        "terminationMessagePolicy": "File",
        "securityContext": restricted_container(),
        **{name: value for name, value in _sidecar(profile).items() if name in _SIDECAR},
        **({"volumeMounts": mounts} if mounts else {}),
    }


def _surroundings(profile: ServingProfileSpec) -> dict[str, Any]:
    """Where it may run, and whom it can reach there."""
    words = profile.model_dump(mode="json", by_alias=True, exclude_none=True)
    own = {name: words[name] for name in _WORDS if words.get(name)}
    found: dict[str, Any] = merge(own, {name: value for name, value in _template(profile).items() if name in _POD})
    return found


def _template(profile: ServingProfileSpec) -> dict[str, Any]:
    found: dict[str, Any] = (profile.pod_template or {}).get("spec") or {}
    return found


def _sidecar(profile: ServingProfileSpec) -> dict[str, Any]:
    containers: list[dict[str, Any]] = _template(profile).get("initContainers") or []
    return next((one for one in containers if one.get("name") == CONTAINER_FETCH), {})


def _volumes(spec: InferenceServiceSpec, profile: ServingProfileSpec) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the profile mounts into the sidecar (a certificate), the claim that a pvc:// address names, the credential's Secret."""
    known_volumes = {volume.get("name"): volume for volume in _template(profile).get("volumes") or []}
    mounts = [mount for mount in _sidecar(profile).get("volumeMounts") or [] if mount.get("name") in known_volumes]
    volumes = [known_volumes[name] for name in dict.fromkeys(mount["name"] for mount in mounts)]
    if spec.model.uri.startswith(CLAIM_SCHEME):
        name = claim(spec.model.uri)
        volumes.append({"name": _CLAIM_VOLUME, "persistentVolumeClaim": {"claimName": name, "readOnly": True}})
        mounts.append({"name": _CLAIM_VOLUME, "mountPath": f"{CLAIMS_MOUNT}/{name}", "readOnly": True})
    for known in spec.credentials:
        if known.name == spec.model.credential:
            volumes.append({"name": _CREDENTIAL_VOLUME, "secret": {"secretName": known.secret_ref.name}})
            mounts.append({"name": _CREDENTIAL_VOLUME, "mountPath": f"{CREDENTIALS_MOUNT}/{known.name}", "readOnly": True})
    return volumes, mounts
