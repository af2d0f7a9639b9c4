"""The fetch sidecar of a replica's pod: an init container that keeps running and brings the model before the daemon starts. Pure.

Its startup probe passes when the model is complete. Only then does the kubelet start the daemon. A model on a claim is mounted into the
daemon without a sidecar, unless the service asks for a cache; then the sidecar copies it from the claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pagoda_contracts.conditions.service import INVALID_PROFILE
from pagoda_contracts.names import (
    ADAPTERS_MOUNT,
    CLAIMS_MOUNT,
    CONTAINER_DAEMON,
    CONTAINER_FETCH,
    CREDENTIALS_MOUNT,
    FETCHED_DIR,
    MODEL_MOUNT,
    PATH_LIVE,
    PATH_STARTUP,
    POD_IDENTITY,
    PORT_FETCH_PROBES,
)
from pagoda_contracts.resources.effect import CLAIM_SCHEME, fetched, has_revisions, has_sidecar
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_contracts.resources.service import InferenceServiceSpec, ModelSpec

from pagoda_operator.api.errors import SpecProblem

_AZURE: Final = "az://"
_BUCKETS: Final = ("s3://", "gs://", _AZURE)
AZURE_IDENTITY: Final = "azure.workload.identity/use"
# The user of distroless images; Pod Security `restricted` asks for any but root.
_USER: Final = 65532
_MODEL: Final = "--model"
# The volume for adapters where no model is fetched.
_ADAPTERS: Final = "adapters"
_PROBE: Final = "fetch-probes"
_ONLY_ADAPTERS: Final = ["--to", ADAPTERS_MOUNT]
# In seconds, a day: the sidecar itself detects a fetch that stalls, and a large model over a slow network must not fail the probe.
_STARTUP_FAILURES: Final = 86_400


def adapter_claims(spec: InferenceServiceSpec) -> tuple[str, ...]:
    """The claims from which adapters may come: those that the service names, and its model's."""
    if spec.adapters is None:
        return ()
    own = (claim(spec.model.uri),) if spec.model.uri.startswith(CLAIM_SCHEME) else ()
    return tuple(dict.fromkeys((*own, *spec.adapters.claims)))


def check(spec: InferenceServiceSpec, profile: ServingProfileSpec) -> None:
    """SpecProblem if the model cannot be brought into the pod."""
    if has_sidecar(spec) and profile.images.fetch is None:
        what = f"model.uri {spec.model.uri!r} needs (and model.cache, for {CLAIM_SCHEME})" if fetched(spec) else "adapters need"
        message = f"the profile has no images.fetch, which {what}"
        raise SpecProblem(INVALID_PROFILE, message)


def defaults(spec: InferenceServiceSpec) -> dict[str, Any]:
    """What a profile may change: confinement, resources, and the kind of volume for a model that is not cached."""
    container = {
        "name": CONTAINER_FETCH,
        # Idle after the fetch; during the fetch, hashing at full speed uses one core.
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": restricted_container(),
    }
    pod: dict[str, Any] = {"initContainers": [container]}
    if not fetched(spec):
        return pod | {"volumes": [{"name": _ADAPTERS, "emptyDir": {}}]}
    if spec.model.cache is None:
        return pod | {"volumes": [{"name": "model", "emptyDir": {}}]}
    # A new volume belongs to root. OnRootMismatch does not walk through a full volume at every start.
    return pod | {"securityContext": {"fsGroup": _USER, "fsGroupChangePolicy": "OnRootMismatch"}}


def fixed(spec: InferenceServiceSpec, profile: ServingProfileSpec) -> dict[str, Any]:
    """What the operator decides itself."""
    volumes, mounts = _storage(spec)
    sidecar = {
        "name": CONTAINER_FETCH,
        "image": profile.images.fetch,
        "restartPolicy": "Always",
        "args": ["serve", *(_order(spec.model) if fetched(spec) else _ONLY_ADAPTERS)],
        "env": [{"name": "PAGODA_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        "ports": [{"name": _PROBE, "containerPort": PORT_FETCH_PROBES}],
        "volumeMounts": mounts,
        "startupProbe": probe(PATH_STARTUP, _PROBE, period=1, failures=_STARTUP_FAILURES),
        "livenessProbe": probe(PATH_LIVE, _PROBE, period=10, failures=6),
        "terminationMessagePolicy": "File",
    }
    shared = {"name": "fetched", "mountPath": FETCHED_DIR} if fetched(spec) else {"name": _ADAPTERS, "mountPath": ADAPTERS_MOUNT}
    daemon = {"name": CONTAINER_DAEMON, "volumeMounts": [shared | {"readOnly": True}]}
    return {"initContainers": [sidecar], "volumes": volumes, "containers": [daemon]}


def source(model: ModelSpec) -> list[str]:
    """The model on a command line of `pagoda-fetch`: its address, with the revision and the credential."""
    revision = ["--revision", model.revision] if model.revision is not None and has_revisions(model) else []
    credential = model.credential
    if credential is None and model.service_account_name is not None and model.uri.startswith(_BUCKETS):
        credential = POD_IDENTITY
    return [model.uri, *revision, *(["--credential", credential] if credential is not None else [])]


def _order(model: ModelSpec) -> list[str]:
    """The digest stands before the rest, which an inspection takes too (`inspecting`): it reads a part of the files."""
    return [*(["--digest", model.digest] if model.digest is not None else []), _MODEL, *source(model)]


def labels(model: ModelSpec) -> dict[str, str]:
    """Azure's webhook gives an identity to pods with this label only."""
    return {AZURE_IDENTITY: "true"} if model.uri.startswith(_AZURE) and POD_IDENTITY in source(model) else {}


def account(model: ModelSpec) -> dict[str, Any]:
    """The pod's ServiceAccount. Its token for the API server is not mounted; the cloud's own is, by the platform."""
    return {"serviceAccountName": model.service_account_name} if model.service_account_name is not None else {}


def model_of(arguments: Sequence[str]) -> str:
    """The address in a sidecar's arguments; empty if there is none."""
    return next(iter(inspecting(arguments)[1:]), "")


def inspecting(arguments: Sequence[str]) -> list[str]:
    """A sidecar's arguments, for reading only the model's config.json; none if they name no model."""
    return ["inspect", *arguments[arguments.index(_MODEL) + 1 :]] if _MODEL in arguments[:-1] else []


def brings_adapters(arguments: Sequence[str]) -> bool:
    """Whether these are a sidecar's arguments that brings adapters and no model."""
    return list(arguments) == ["serve", *_ONLY_ADAPTERS]


def _storage(spec: InferenceServiceSpec) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The volumes, and the sidecar's mounts of them."""
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = [{"name": _ADAPTERS, "mountPath": ADAPTERS_MOUNT}]
    if fetched(spec):
        volumes = [{"name": "fetched", "emptyDir": {}}]
        mounts = [{"name": "model", "mountPath": MODEL_MOUNT}, {"name": "fetched", "mountPath": FETCHED_DIR}]
    if spec.model.cache is not None:
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": spec.model.cache.pvc}})
    for name, volume in _sources(spec):
        # Without a copy the model's own claim is a volume of the daemon already.
        if volume != "model":
            volumes.append({"name": volume, "persistentVolumeClaim": {"claimName": name, "readOnly": True}})
        mounts.append({"name": volume, "mountPath": f"{CLAIMS_MOUNT}/{name}", "readOnly": True})
    for index, known in enumerate(spec.credentials):
        # A number, because a volume's name has at most 63 characters, as many as the credential's may have.
        volume = f"credential-{index}"
        volumes.append({"name": volume, "secret": {"secretName": known.secret_ref.name}})
        mounts.append({"name": volume, "mountPath": f"{CREDENTIALS_MOUNT}/{known.name}", "readOnly": True})
    return volumes, mounts


def _sources(spec: InferenceServiceSpec) -> list[tuple[str, str]]:
    """The claims that are copied from, and the name of each one's volume."""
    own = claim(spec.model.uri) if spec.model.uri.startswith(CLAIM_SCHEME) else ""
    found = [(own, "source" if fetched(spec) else "model")] if own else []
    others = (name for name in adapter_claims(spec) if name != own)
    return found + [(name, f"source-{index}") for index, name in enumerate(others)]


def claim(uri: str) -> str:
    """The claim of a pvc:// address."""
    return uri.removeprefix(CLAIM_SCHEME).partition("/")[0]


def probe(path: str, port: str, *, period: int, failures: int) -> dict[str, Any]:
    """By HTTP. The timeout is 5 s, because the kubelet's default of 1 s kills busy processes."""
    return {"httpGet": {"path": path, "port": port}, "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5}


def restricted_pod() -> dict[str, Any]:
    """The security context of a pod under Pod Security `restricted`."""
    return {"runAsNonRoot": True, "runAsUser": _USER, "runAsGroup": _USER, "seccompProfile": {"type": "RuntimeDefault"}}


def restricted_container() -> dict[str, Any]:
    """The security context of its containers."""
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
