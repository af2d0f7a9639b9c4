"""A replica's pod template and its DaemonConfig, rendered once per revision and then pinned in a ControllerRevision.

Layers, each over the one before: our defaults, the profile's podTemplate, the service's overlay (judged by the profile's
`allow`), and what the operator must decide itself. Nobody's word is dropped in silence: a lost one is refused by its path.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from pagoda_contracts.conditions.service import INVALID_PROFILE, POD_TEMPLATE_FORBIDDEN
from pagoda_contracts.conditions.types import Reason
from pagoda_contracts.launch import DaemonConfig, EngineConfig, HealthConfig, ModelConfig, SloConfig
from pagoda_contracts.names import (
    ANNOTATION_DELETION_COST,
    ANNOTATION_DEVICES,
    CONTAINER_DAEMON,
    DAEMON_CONFIG_DIR,
    DAEMON_CONFIG_KEY,
    ENV_POD_UID,
    FETCHED_LINK,
    GROUP,
    JWKS_CONFIG_MAP,
    JWKS_DIR,
    MODEL_MOUNT,
    PATH_LIVE,
    PATH_READY,
    PATH_STARTUP,
    PORT_DAEMON_GRPC,
    PORT_DAEMON_HTTP,
    PORT_PROBES,
    RUN_DIR,
)
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_contracts.resources.service import Accelerator, InferenceServiceSpec
from pagoda_contracts.units import parse_duration, parse_quantity

from pagoda_operator.api.callers import Callers
from pagoda_operator.api.errors import SpecProblem
from pagoda_operator.api.placement import Resolved
from pagoda_operator.api.quota import needs
from pagoda_operator.api.quota import written as written_devices
from pagoda_operator.api.state import Key
from pagoda_operator.decide.render import devices, fetch
from pagoda_operator.decide.render.children import Revision
from pagoda_operator.decide.render.overlay import covers, leaves, lost, merge, written

# From the end of the drain to the kill: closing streams, leaving the engine.
_GRACE_AFTER_DRAIN: Final = 30
# Where keys have owners.
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


def daemon_config(inputs: Inputs) -> dict[str, Any]:
    """The DaemonConfig on the wire; SpecProblem where nothing here can bring the model."""
    spec = inputs.spec
    fetch.check(spec, inputs.profile)
    path = FETCHED_LINK if fetch.fetched(spec) else _model_path(spec.model.uri)
    config = DaemonConfig(
        service=f"{inputs.key.namespace}/{inputs.key.name}",
        revision=inputs.revision.hash,
        model=ModelConfig(path=path, served_names=spec.model.served_names or (inputs.key.name,)),
        engine=_engine(spec, inputs.accelerator),
        drain_timeout=spec.drain.timeout,
        auth=inputs.callers.auth() if inputs.callers else None,
        health=_health(spec),
        slo=SloConfig(ttft=spec.slo.ttft, itl=spec.slo.itl) if spec.slo else None,
    )
    return config.model_dump(mode="json", by_alias=True, exclude_none=True)


def _health(spec: InferenceServiceSpec) -> HealthConfig | None:
    if spec.health is None:
        return None
    return HealthConfig(progress_timeout=spec.health.progress_timeout, deep_probe_every=spec.health.deep_probe_every)


def pod_template(inputs: Inputs) -> dict[str, Any]:
    """The pod template; SpecProblem names the path that may not be set."""
    words = _profile(inputs.profile)
    base, overlay = inputs.profile.pod_template or {}, inputs.spec.pod_template or {}
    _own(overlay, inputs.labels)
    _judge(overlay, inputs.profile.allow)
    fixed = merge(_fixed(inputs), _token_keys(inputs))
    result: dict[str, Any] = merge(merge(merge(merge(_defaults(inputs.spec), words), base), overlay), fixed)
    _heard(overlay, result, POD_TEMPLATE_FORBIDDEN, "the service's")
    _heard(merge(base, overlay), result, INVALID_PROFILE, "the profile's")
    return devices.placed(result, inputs.revision.name, inputs.accelerator, inputs.resolved)


def scheduling(profile: ServingProfileSpec, spec: InferenceServiceSpec) -> dict[str, Any]:
    """The pod spec as far as it says which nodes may be used."""
    merged: dict[str, Any] = merge(merge(_profile(profile), profile.pod_template or {}), spec.pod_template or {})
    found: dict[str, Any] = merged["spec"] or {}
    return found


def _heard(layer: dict[str, Any], result: dict[str, Any], reason: Reason, whose: str) -> None:
    if (path := lost(layer, result)) is not None:
        raise SpecProblem(reason, f"{whose} podTemplate sets {written(path) or 'a value'}, which the operator decides itself")


def _own(overlay: dict[str, Any], labels: dict[str, str]) -> None:
    """Refuses labels and annotations that the operator or a replica acts on, whatever the profile allows: what a service is charged is not
    its own to say, and with a device fault every replica would be born sick. Also those that only a later version will know."""
    for path in leaves(overlay) if overlay else ():
        if len(path) > 2 and path[:2] in _META and (path[2].startswith(f"{GROUP}/") or path[2] in (ANNOTATION_DELETION_COST, *labels)):
            message = f"the service's podTemplate sets {written(path[:3])}, which the operator decides itself"
            raise SpecProblem(POD_TEMPLATE_FORBIDDEN, message)


def _judge(overlay: dict[str, Any], allow: tuple[str, ...]) -> None:
    for path in leaves(overlay) if overlay else ():
        if not any(covers(allowed, path) for allowed in allow):
            accepted = ", ".join(allow) or "nothing"
            raise SpecProblem(POD_TEMPLATE_FORBIDDEN, f"podTemplate sets {written(path)}; the profile allows {accepted}")


def _model_path(uri: str) -> str:
    _, _, path = uri.removeprefix(fetch.CLAIM_SCHEME).partition("/")
    return f"{MODEL_MOUNT}/{path}" if path else MODEL_MOUNT


def _engine(spec: InferenceServiceSpec, accelerator: Accelerator) -> EngineConfig:
    engine, size = spec.engine, spec.engine.kv_cache.size
    # A request without a limit leaves the cgroup open: without this, a replica of 2 cores starts a thread per core of the node.
    threads = math.ceil(parse_quantity(accelerator.cpu.cores)) if accelerator.cpu else None
    return EngineConfig(
        max_model_len=engine.max_model_len,
        max_concurrency=engine.max_concurrency,
        dtype="bfloat16" if engine.dtype == "auto" else engine.dtype,
        device=None if accelerator.cpu else "cuda",
        tensor_parallel=ranks if (ranks := devices.count(accelerator)) > 1 else None,
        block_size=engine.kv_cache.block_size,
        kv_bytes=int(parse_quantity(size)) if size is not None else None,
        threads=max(1, threads) if threads is not None else None,
        quantization=None if engine.quantization == "none" else engine.quantization,
        deterministic=engine.deterministic or None,
        prefix_caching=None if engine.kv_cache.prefix_caching else False,
    )


def _defaults(spec: InferenceServiceSpec) -> dict[str, Any]:
    """What a profile may change: identity and confinement of the process, scratch space."""
    own: dict[str, Any] = {
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": fetch.restricted_pod(),
            "volumes": [{"name": "run", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
            "containers": [{"name": CONTAINER_DAEMON, "securityContext": fetch.restricted_container()}],
        }
    }
    merged: dict[str, Any] = merge(own, {"spec": fetch.defaults(spec)}) if fetch.fetched(spec) else own
    return merged


def _profile(profile: ServingProfileSpec) -> dict[str, Any]:
    """The profile's fields that have their place in a pod; its podTemplate lies over them."""
    words = profile.model_dump(mode="json", by_alias=True, exclude_none=True)
    names = ("tolerations", "nodeSelector", "priorityClassName", "runtimeClassName", "imagePullSecrets")
    spec: dict[str, Any] = {name: words[name] for name in names if words.get(name)}
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
    }
    return {"metadata": {"labels": inputs.labels, **_charged(inputs)}, "spec": merge(own, _model(inputs))}


def _model(inputs: Inputs) -> dict[str, Any]:
    """How the model comes into the pod: by the sidecar, or straight from its claim."""
    if fetch.fetched(inputs.spec):
        return fetch.fixed(inputs.spec, inputs.profile)
    claim = {"claimName": fetch.claim(inputs.spec.model.uri), "readOnly": True}
    return {"volumes": [{"name": "model", "persistentVolumeClaim": claim}]}


def _charged(inputs: Inputs) -> dict[str, Any]:
    """What a TenantQuota charges for a replica, where it is charged at all."""
    charged = written_devices(needs(inputs.accelerator, inputs.resolved.profile))
    return {"annotations": {ANNOTATION_DEVICES: charged}} if charged else {}


def _token_keys(inputs: Inputs) -> dict[str, Any]:
    """The keys that callers' tokens are verified by; as a folder, because kubelet renews no file that is mounted alone."""
    if inputs.callers is None or not inputs.callers.tokens:
        return {}
    mount = {"name": "jwks", "mountPath": JWKS_DIR, "readOnly": True}
    volume = {"name": "jwks", "configMap": {"name": JWKS_CONFIG_MAP}}
    return {"spec": {"volumes": [volume], "containers": [{"name": CONTAINER_DAEMON, "volumeMounts": [mount]}]}}


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
        **_probes(),
    }


def _probes() -> dict[str, Any]:
    """Startup passes as soon as loading moves; the daemon itself judges a load that stalls (livez)."""
    return {
        "startupProbe": fetch.probe(PATH_STARTUP, "probes", period=2, failures=300),
        "livenessProbe": fetch.probe(PATH_LIVE, "probes", period=5, failures=6),
        "readinessProbe": fetch.probe(PATH_READY, "probes", period=1, failures=3),
    }
