"""The fetch sidecar of a replica's pod: a native sidecar (an init container that stays) which brings the model before the daemon starts.

Its startup probe passes once the model is complete, and only then does the kubelet start the next container: that is the whole order.
Models on a claim are mounted straight into the daemon, unless a cache is asked for; then the claim is copied from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pagoda_contracts.conditions.service import INVALID_PROFILE, UNSUPPORTED_URI
from pagoda_contracts.names import (
    CLAIMS_MOUNT,
    CONTAINER_DAEMON,
    CONTAINER_FETCH,
    CREDENTIALS_MOUNT,
    FETCHED_DIR,
    MODEL_MOUNT,
    PATH_LIVE,
    PATH_STARTUP,
    PORT_FETCH_PROBES,
)
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_contracts.resources.service import InferenceServiceSpec, ModelSpec

from pagoda_operator.api.errors import SpecProblem

CLAIM_SCHEME: Final = "pvc://"
# What the sidecar fetches from, and of these what has revisions.
SCHEMES: Final = (CLAIM_SCHEME, "hf://", "s3://", "gs://", "oci://")
_WITH_REVISIONS: Final = ("hf://", "oci://")
# The user of distroless images; Pod Security `restricted` asks for any but root.
_USER: Final = 65532
_MODEL: Final = "--model"
_PROBE: Final = "fetch-probes"
# A day: the sidecar itself tells a stall from a large model over a thin line, the probe must not. A restart loses nothing either way.
_STARTUP_FAILURES: Final = 86_400


def fetched(spec: InferenceServiceSpec) -> bool:
    """Whether the sidecar brings the model."""
    return not spec.model.uri.startswith(CLAIM_SCHEME) or spec.model.cache is not None


def has_revisions(model: ModelSpec) -> bool:
    """Whether model.revision means something at this address."""
    return model.uri.startswith(_WITH_REVISIONS)


def check(spec: InferenceServiceSpec, profile: ServingProfileSpec) -> None:
    """SpecProblem where nothing here can bring the model."""
    if not spec.model.uri.startswith(SCHEMES):
        raise SpecProblem(UNSUPPORTED_URI, unsupported(spec.model.uri))
    if fetched(spec) and profile.images.fetch is None:
        message = f"the profile has no images.fetch, which model.uri {spec.model.uri!r} needs (and model.cache, for {CLAIM_SCHEME})"
        raise SpecProblem(INVALID_PROFILE, message)


def unsupported(uri: str) -> str:
    """What is said of an address that nothing here can fetch from."""
    return f"model.uri {uri!r} cannot be fetched; it must start with one of: {', '.join(SCHEMES)}"


def defaults(spec: InferenceServiceSpec) -> dict[str, Any]:
    """What a profile may change: confinement, resources, and what kind of volume holds a model that is not cached."""
    container = {
        "name": CONTAINER_FETCH,
        # Idle after the fetch; while it fetches, what it hashes at full speed is a core.
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": restricted_container(),
    }
    pod: dict[str, Any] = {"initContainers": [container]}
    if spec.model.cache is None:
        return pod | {"volumes": [{"name": "model", "emptyDir": {}}]}
    # A fresh volume belongs to root. Only its root is looked at: a full one is not walked through at every start.
    return pod | {"securityContext": {"fsGroup": _USER, "fsGroupChangePolicy": "OnRootMismatch"}}


def fixed(spec: InferenceServiceSpec, profile: ServingProfileSpec) -> dict[str, Any]:
    """What the operator decides itself."""
    volumes, mounts = _volumes(spec), _mounts(spec)
    daemon = {"name": CONTAINER_DAEMON, "volumeMounts": [{"name": "fetched", "mountPath": FETCHED_DIR, "readOnly": True}]}
    return {"initContainers": [_sidecar(spec, profile, mounts)], "volumes": volumes, "containers": [daemon]}


def _sidecar(spec: InferenceServiceSpec, profile: ServingProfileSpec, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": CONTAINER_FETCH,
        "image": profile.images.fetch,
        "restartPolicy": "Always",
        "args": ["serve", _MODEL, *source(spec.model)],
        "env": [{"name": "PAGODA_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        "ports": [{"name": _PROBE, "containerPort": PORT_FETCH_PROBES}],
        "volumeMounts": mounts,
        "startupProbe": probe(PATH_STARTUP, _PROBE, period=1, failures=_STARTUP_FAILURES),
        "livenessProbe": probe(PATH_LIVE, _PROBE, period=10, failures=6),
        "terminationMessagePolicy": "File",
    }


def source(model: ModelSpec) -> list[str]:
    """The model on a command line of `pagoda-fetch`: its address, with the revision and the credential."""
    revision = ["--revision", model.revision] if model.revision is not None and has_revisions(model) else []
    return [model.uri, *revision, *(["--credential", model.credential] if model.credential is not None else [])]


def model_of(arguments: Sequence[str]) -> str:
    """The address in a sidecar's arguments; empty where there is none."""
    before = arguments.index(_MODEL) if _MODEL in arguments[:-1] else None
    return arguments[before + 1] if before is not None else ""


def inspecting(arguments: Sequence[str]) -> list[str]:
    """A sidecar's arguments, for reading the model's config.json and nothing else of it; none where they name no model."""
    return ["inspect", *arguments[arguments.index(_MODEL) + 1 :]] if model_of(arguments) else []


def _volumes(spec: InferenceServiceSpec) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [{"name": "fetched", "emptyDir": {}}]
    if spec.model.cache is not None:
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": spec.model.cache.pvc}})
    if spec.model.uri.startswith(CLAIM_SCHEME):
        volumes.append({"name": "source", "persistentVolumeClaim": {"claimName": claim(spec.model.uri), "readOnly": True}})
    secrets = enumerate(spec.credentials)
    return volumes + [{"name": f"credential-{index}", "secret": {"secretName": known.secret_ref.name}} for index, known in secrets]


def _mounts(spec: InferenceServiceSpec) -> list[dict[str, Any]]:
    """A credential's folder has its name; its volume a number, since a name of 63 characters leaves no room for a prefix."""
    mounts: list[dict[str, Any]] = [{"name": "model", "mountPath": MODEL_MOUNT}, {"name": "fetched", "mountPath": FETCHED_DIR}]
    if spec.model.uri.startswith(CLAIM_SCHEME):
        mounts.append({"name": "source", "mountPath": f"{CLAIMS_MOUNT}/{claim(spec.model.uri)}", "readOnly": True})
    for index, known in enumerate(spec.credentials):
        mounts.append({"name": f"credential-{index}", "mountPath": f"{CREDENTIALS_MOUNT}/{known.name}", "readOnly": True})
    return mounts


def claim(uri: str) -> str:
    """The claim of a pvc:// address."""
    return uri.removeprefix(CLAIM_SCHEME).partition("/")[0]


def probe(path: str, port: str, *, period: int, failures: int) -> dict[str, Any]:
    """By HTTP; a timeout above the kubelet's 1 s, which kills busy processes."""
    return {"httpGet": {"path": path, "port": port}, "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5}


def restricted_pod() -> dict[str, Any]:
    """The security context of a pod under Pod Security `restricted`."""
    return {"runAsNonRoot": True, "runAsUser": _USER, "runAsGroup": _USER, "seccompProfile": {"type": "RuntimeDefault"}}


def restricted_container() -> dict[str, Any]:
    """The same of a container."""
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
