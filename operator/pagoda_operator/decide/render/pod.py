"""A replica's pod template, DaemonConfig and resource claims, rendered once per revision and then pinned in a ControllerRevision. Pure.

Layers, each over the one before: our defaults, the profile's podTemplate, the service's overlay (checked against the profile's `allow`),
and what the operator decides itself. A field that the operator would override is refused by its path, never dropped silently. The devices'
nodes come last and are only added: node selectors of a profile or service apply as well.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from pagoda_contracts.conditions.service import INVALID_PROFILE, INVALID_SPEC, POD_TEMPLATE_FORBIDDEN
from pagoda_contracts.conditions.types import Reason
from pagoda_contracts.launch import AdaptersConfig, AuthConfig, DaemonConfig, ModelConfig, SloConfig
from pagoda_contracts.names import (
    ANNOTATION_DELETION_COST,
    ANNOTATION_DEVICES,
    ANNOTATION_PRODUCTS,
    CLIENT_KEYS_DIR,
    CLIENT_KEYS_KEY,
    CONTAINER_DAEMON,
    DAEMON_CONFIG_DIR,
    DAEMON_CONFIG_KEY,
    ENV_POD_UID,
    FETCHED_LINK,
    GROUP,
    JWKS_CONFIG_MAP,
    JWKS_DIR,
    LABEL_SERVICE,
    LABEL_SERVICE_UID,
    MODEL_MOUNT,
    PATH_LIVE,
    PATH_READY,
    PATH_STARTUP,
    PORT_DAEMON_GRPC,
    PORT_DAEMON_HTTP,
    PORT_FETCH,
    PORT_PROBES,
    RUN_DIR,
)
from pagoda_contracts.resources.effect import CLAIM_SCHEME, fetched, has_sidecar
from pagoda_contracts.resources.placement import Accelerator
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_contracts.units import parse_duration
from pagoda_placement.charges import GPU, needs, written_products
from pagoda_placement.charges import written as written_devices
from pagoda_placement.result import Resolved
from pagoda_placement.revision import Revision

from pagoda_operator.api.callers import Callers
from pagoda_operator.api.errors import SpecProblem
from pagoda_operator.api.state import Key
from pagoda_operator.decide.render import devices, fetch, host, launch
from pagoda_operator.decide.render.overlay import covers, leaves, lost, merge, powerful_variable, written

# Seconds from the end of the drain to the kill: closing streams, leaving the engine.
_GRACE_AFTER_DRAIN: Final = 30
_META: Final = (("metadata", "labels"), ("metadata", "annotations"))
_SHM: Final = "/dev/shm"  # noqa: S108 (a path in the pod)


class Inputs(NamedTuple):
    """All that a pod template is made of."""

    key: Key
    revision: Revision
    spec: InferenceServiceSpec
    accelerator: Accelerator
    profile: ServingProfileSpec
    labels: dict[str, str]
    callers: Callers | None = None
    resolved: Resolved = Resolved()
    weights: int = 0
    """Bytes of the model's weights; 0 if unknown."""


def daemon_config(inputs: Inputs) -> dict[str, Any]:
    """The DaemonConfig on the wire; SpecProblem if the model cannot be brought into the pod."""
    spec, slo = inputs.spec, inputs.spec.slo
    fetch.check(spec, inputs.profile)
    _, _, folder = spec.model.uri.removeprefix(CLAIM_SCHEME).partition("/")
    mounted = f"{MODEL_MOUNT}/{folder}" if folder else MODEL_MOUNT
    path = FETCHED_LINK if fetched(spec) else mounted
    config = DaemonConfig(
        service=f"{inputs.key.namespace}/{inputs.key.name}",
        revision=inputs.revision.hash,
        model=ModelConfig(path=path, served_names=spec.model.served_names or (inputs.key.name,)),
        engine=launch.engine(spec, inputs.accelerator),
        drain_timeout=spec.drain.timeout,
        adapters=_adapters(spec),
        auth=_auth(inputs),
        health=launch.health(spec),
        slo=SloConfig(ttft=slo.ttft, itl=slo.itl) if slo else None,
    )
    return config.model_dump(mode="json", by_alias=True, exclude_none=True)


def _auth(inputs: Inputs) -> AuthConfig | None:
    """SpecProblem where clients' keys would pass by gateways and their quotas, or would shut out the operator, which has no token."""
    ours = inputs.callers.auth() if inputs.callers else None
    if inputs.spec.client_keys is None:
        return ours
    if inputs.callers is None or not inputs.callers.clients:
        raise SpecProblem(INVALID_SPEC, "clientKeys is for installations without a gateway (gateway.enabled: false in the chart's values)")
    if ours is None:
        raise SpecProblem(
            INVALID_SPEC, "clientKeys needs auth.enabled: true in the chart's values; without it replicas let every client in"
        )
    return ours.model_copy(update={"keys_file": f"{CLIENT_KEYS_DIR}/{CLIENT_KEYS_KEY}"})


def _adapters(spec: InferenceServiceSpec) -> AdaptersConfig | None:
    if spec.adapters is None:
        return None
    return AdaptersConfig(max_loaded=spec.adapters.max_loaded, max_rank=spec.adapters.max_rank, fetch_port=PORT_FETCH)


def pod_template(inputs: Inputs) -> dict[str, Any]:
    """The pod template; SpecProblem names the path that may not be set."""
    base, overlay = merge(inputs.profile.pod_template or {}, _wished(inputs)), inputs.spec.pod_template or {}
    _check_overlay(overlay, inputs)
    result: dict[str, Any] = {}
    for layer in (
        _defaults(inputs),
        _profile(inputs.profile),
        base,
        overlay,
        _fixed(inputs),
        _token_keys(inputs),
        _client_keys(inputs.spec),
    ):
        result = merge(result, layer)
    _check_kept(overlay, result, POD_TEMPLATE_FORBIDDEN, "the service's")
    _check_kept(merge(base, overlay), result, INVALID_PROFILE, "the profile's")
    result = host.with_requests(result, inputs.accelerator, inputs.resolved, inputs.weights)
    host.check(result["spec"], devices.chosen(inputs.spec.resources))
    host.check_memory(result["spec"], overlay, _memory_field(inputs), inputs.weights)
    return devices.on_devices(result, inputs.accelerator, inputs.resolved, inputs.revision.name)


def _check_kept(layer: dict[str, Any], result: dict[str, Any], reason: Reason, whose: str) -> None:
    if (path := lost(layer, result)) is not None:
        raise SpecProblem(reason, f"{whose} podTemplate sets {written(path) or 'a value'}, which the operator decides itself")


def _check_overlay(overlay: dict[str, Any], inputs: Inputs) -> None:
    """Refuses paths that the profile does not allow.

    Labels and annotations that the operator or a replica acts on are refused even if the profile allows them, and so is every other name of
    our group. A service must not say what it is charged, or that its device is faulty.
    """
    allow, reserved = inputs.profile.allow, (ANNOTATION_DELETION_COST, *inputs.labels)
    paths = tuple(leaves(overlay)) if overlay else ()
    for path in paths:
        if len(path) > 2 and path[:2] in _META and (path[2].startswith(f"{GROUP}/") or path[2] in reserved):
            message = f"the service's podTemplate sets {written(path[:3])}, which the operator decides itself"
            raise SpecProblem(POD_TEMPLATE_FORBIDDEN, message)
    for path in paths:
        covering = [allowed for allowed in allow if covers(allowed, path)]
        if not covering:
            accepted = ", ".join(allow) or "nothing"
            raise SpecProblem(POD_TEMPLATE_FORBIDDEN, f"podTemplate sets {written(path)}; the profile allows {accepted}")
        if (variable := powerful_variable(path)) and all(allowed.endswith(".env") for allowed in covering):
            message = f"podTemplate sets {written(path)}; the profile allows it only by the variable's own path: {written(variable)}"
            raise SpecProblem(POD_TEMPLATE_FORBIDDEN, message)


def _memory_field(inputs: Inputs) -> str:
    return f"spec.accelerators[{inputs.spec.accelerators.index(inputs.accelerator)}].cpu.memory" if inputs.accelerator.cpu else ""


def _wished(inputs: Inputs) -> dict[str, Any]:
    """What the service says in spec.resources."""
    requests = devices.chosen(inputs.spec.resources) if inputs.accelerator.cpu is None else {}
    return {"spec": {"containers": [{"name": CONTAINER_DAEMON, "resources": {"requests": requests}}]}} if requests else {}


def _defaults(inputs: Inputs) -> dict[str, Any]:
    """What a profile may change: identity and confinement of the process, scratch space, where replicas go."""
    spec = inputs.spec
    own_labels = {name: inputs.labels[name] for name in (LABEL_SERVICE, LABEL_SERVICE_UID)}
    own: dict[str, Any] = {
        "spec": {
            **devices.spread(own_labels),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": fetch.restricted_pod(),
            "volumes": [{"name": "run", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
            "containers": [{"name": CONTAINER_DAEMON, "securityContext": fetch.restricted_container()}],
        }
    }
    merged: dict[str, Any] = merge(own, {"spec": fetch.defaults(spec)}) if has_sidecar(spec) else own
    return merged


def _profile(profile: ServingProfileSpec) -> dict[str, Any]:
    """The profile's fields that a pod has, too; its podTemplate is merged over them."""
    fields = profile.model_dump(mode="json", by_alias=True, exclude_none=True)
    names = ("tolerations", "nodeSelector", "priorityClassName", "runtimeClassName", "imagePullSecrets")
    spec: dict[str, Any] = {name: fields[name] for name in names if fields.get(name)}
    if profile.shared_memory is not None:
        spec["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": profile.shared_memory}}]
        spec["containers"] = [{"name": CONTAINER_DAEMON, "volumeMounts": [{"name": "shm", "mountPath": _SHM}]}]
    return {"spec": spec}


def _fixed(inputs: Inputs) -> dict[str, Any]:
    """What the operator decides itself."""
    grace = math.ceil(parse_duration(inputs.spec.drain.timeout)) + _GRACE_AFTER_DRAIN
    own = {
        "terminationGracePeriodSeconds": grace,
        "volumes": [{"name": "config", "configMap": {"name": inputs.revision.name}}],
        "containers": [_daemon(inputs)],
        **fetch.account(inputs.spec.model),
    }
    needed = needs(inputs.accelerator, inputs.resolved.profile)
    products = written_products(inputs.resolved.products) if GPU in needed else ""
    charged = {ANNOTATION_DEVICES: written_devices(needed)} | ({ANNOTATION_PRODUCTS: products} if products else {})
    annotations = {"annotations": charged} if needed else {}
    claim = {"claimName": fetch.claim(inputs.spec.model.uri), "readOnly": True}
    mounted = {"volumes": [{"name": "model", "persistentVolumeClaim": claim}]}
    if not fetched(inputs.spec):
        own = merge(own, mounted)
    if has_sidecar(inputs.spec):
        own = merge(own, fetch.fixed(inputs.spec, inputs.profile))
    return {"metadata": {"labels": inputs.labels | fetch.labels(inputs.spec.model), **annotations}, "spec": own}


def _token_keys(inputs: Inputs) -> dict[str, Any]:
    """The keys that callers' tokens are verified by."""
    if inputs.callers is None or not inputs.callers.tokens:
        return {}
    return _folder("jwks", JWKS_DIR, {"configMap": {"name": JWKS_CONFIG_MAP}})


def _client_keys(spec: InferenceServiceSpec) -> dict[str, Any]:
    """The digests of the keys of clients that call replicas themselves."""
    if spec.client_keys is None:
        return {}
    entry = {"key": CLIENT_KEYS_KEY, "path": CLIENT_KEYS_KEY}  # the daemon sees nothing else that the Secret may have
    return _folder("client-keys", CLIENT_KEYS_DIR, {"secret": {"secretName": spec.client_keys.name, "items": [entry]}})


def _folder(name: str, path: str, source: dict[str, Any]) -> dict[str, Any]:
    """Mounted for the daemon to read. A folder, because the kubelet does not update a file that is mounted alone."""
    mount = {"name": name, "mountPath": path, "readOnly": True}
    return {"spec": {"volumes": [{"name": name, **source}], "containers": [{"name": CONTAINER_DAEMON, "volumeMounts": [mount]}]}}


def _daemon(inputs: Inputs) -> dict[str, Any]:
    return {
        "name": CONTAINER_DAEMON,
        "image": inputs.profile.images.daemon,
        "args": ["--config", f"{DAEMON_CONFIG_DIR}/{DAEMON_CONFIG_KEY}", *inputs.profile.args],
        "env": [{"name": ENV_POD_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        "ports": [
            {"name": "http", "containerPort": PORT_DAEMON_HTTP},
            {"name": "grpc", "containerPort": PORT_DAEMON_GRPC},
            {"name": "probes", "containerPort": PORT_PROBES},
        ],
        "resources": devices.resources(inputs.accelerator, inputs.resolved),
        "volumeMounts": [
            {"name": "model", "mountPath": MODEL_MOUNT, "readOnly": True},
            {"name": "config", "mountPath": DAEMON_CONFIG_DIR, "readOnly": True},
            {"name": "run", "mountPath": RUN_DIR},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 (an emptyDir of the pod)
        ],
        "terminationMessagePolicy": "File",
        # Startup passes as soon as loading begins; the daemon itself detects a load that stalls (livez).
        "startupProbe": fetch.probe(PATH_STARTUP, "probes", period=2, failures=300),
        "livenessProbe": fetch.probe(PATH_LIVE, "probes", period=5, failures=6),
        "readinessProbe": fetch.probe(PATH_READY, "probes", period=1, failures=3),
    }
