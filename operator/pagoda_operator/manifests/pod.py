"""A replica's pod template and its DaemonConfig, rendered once per revision and then pinned in a ControllerRevision.

Layers, each over the one before: our defaults, the profile's podTemplate, the service's overlay (judged by the profile's
`allow`), and what the operator must decide itself. Nobody's word is dropped in silence: a lost one is refused by its path.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from pagoda_contracts.launch import DaemonConfig, EngineConfig, ModelConfig
from pagoda_contracts.names import (
    CONTAINER_DAEMON,
    DAEMON_CONFIG_DIR,
    DAEMON_CONFIG_KEY,
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

from pagoda_operator.errors import SpecProblem
from pagoda_operator.manifests.overlay import covers, leaves, lost, merge, written
from pagoda_operator.manifests.revision import Revision
from pagoda_operator.state import Key

INVALID_SPEC: Final = "InvalidSpec"
INVALID_PROFILE: Final = "InvalidProfile"
POD_TEMPLATE_FORBIDDEN: Final = "PodTemplateForbidden"
UNSUPPORTED_URI: Final = "UnsupportedUri"

# The user of distroless images; Pod Security `restricted` asks for any but root.
_USER: Final = 65532
# From the end of the drain to the kill: closing streams, leaving the engine.
_GRACE_AFTER_DRAIN: Final = 30
_SCHEME: Final = "pvc://"
_SHM: Final = "/dev/shm"  # noqa: S108 (a path in the pod)


class Inputs(NamedTuple):
    """All that a pod template is made of."""

    key: Key
    revision: Revision
    spec: InferenceServiceSpec
    accelerator: Accelerator
    profile: ServingProfileSpec
    labels: dict[str, str]


def daemon_config(inputs: Inputs) -> dict[str, Any]:
    """The DaemonConfig on the wire; SpecProblem where nothing here can bring the model."""
    spec = inputs.spec
    if not spec.model.uri.startswith(_SCHEME):
        message = f"model.uri {spec.model.uri!r}: nothing fetches models yet; accepted: {_SCHEME}<claim>[/<path>]"
        raise SpecProblem(UNSUPPORTED_URI, message)
    config = DaemonConfig(
        service=f"{inputs.key.namespace}/{inputs.key.name}",
        revision=inputs.revision.hash,
        model=ModelConfig(path=_model_path(spec.model.uri), served_names=spec.model.served_names or (inputs.key.name,)),
        engine=_engine(spec, inputs.accelerator),
        drain_timeout=spec.drain.timeout,
    )
    return config.model_dump(mode="json", by_alias=True, exclude_none=True)


def pod_template(inputs: Inputs) -> dict[str, Any]:
    """The pod template; SpecProblem names the path that may not be set."""
    words = _profile(inputs.profile)
    base, overlay = inputs.profile.pod_template or {}, inputs.spec.pod_template or {}
    _judge(overlay, inputs.profile.allow)
    result: dict[str, Any] = merge(merge(merge(merge(_defaults(), words), base), overlay), _fixed(inputs))
    _heard(overlay, result, POD_TEMPLATE_FORBIDDEN, "the service's")
    _heard(merge(base, overlay), result, INVALID_PROFILE, "the profile's")
    return result


def _heard(layer: dict[str, Any], result: dict[str, Any], reason: str, whose: str) -> None:
    if (path := lost(layer, result)) is not None:
        raise SpecProblem(reason, f"{whose} podTemplate sets {written(path) or 'a value'}, which the operator decides itself")


def _judge(overlay: dict[str, Any], allow: tuple[str, ...]) -> None:
    for path in leaves(overlay) if overlay else ():
        if not any(covers(allowed, path) for allowed in allow):
            accepted = ", ".join(allow) or "nothing"
            raise SpecProblem(POD_TEMPLATE_FORBIDDEN, f"podTemplate sets {written(path)}; the profile allows {accepted}")


def _model_path(uri: str) -> str:
    _, _, path = uri.removeprefix(_SCHEME).partition("/")
    return f"{MODEL_MOUNT}/{path}" if path else MODEL_MOUNT


def _claim(uri: str) -> str:
    return uri.removeprefix(_SCHEME).partition("/")[0]


def _engine(spec: InferenceServiceSpec, accelerator: Accelerator) -> EngineConfig:
    engine, size = spec.engine, spec.engine.kv_cache.size
    # A request without a limit leaves the cgroup open: without this, a replica of 2 cores starts a thread per core of the node.
    threads = math.ceil(parse_quantity(accelerator.cpu.cores)) if accelerator.cpu else None
    return EngineConfig(
        max_model_len=engine.max_model_len,
        max_concurrency=engine.max_concurrency,
        dtype="bfloat16" if engine.dtype == "auto" else engine.dtype,
        block_size=engine.kv_cache.block_size,
        kv_bytes=int(parse_quantity(size)) if size is not None else None,
        threads=max(1, threads) if threads is not None else None,
        quantization=None if engine.quantization == "none" else engine.quantization,
        deterministic=engine.deterministic or None,
        prefix_caching=None if engine.kv_cache.prefix_caching else False,
    )


def _defaults() -> dict[str, Any]:
    """What a profile may change: identity and confinement of the process, scratch space."""
    return {
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "runAsGroup": _USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumes": [{"name": "run", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
            "containers": [
                {
                    "name": CONTAINER_DAEMON,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        }
    }


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
    claim = {"claimName": _claim(inputs.spec.model.uri), "readOnly": True}
    grace = math.ceil(parse_duration(inputs.spec.drain.timeout)) + _GRACE_AFTER_DRAIN
    return {
        "metadata": {"labels": inputs.labels},
        "spec": {
            "terminationGracePeriodSeconds": grace,
            "volumes": [
                {"name": "model", "persistentVolumeClaim": claim},
                {"name": "config", "configMap": {"name": inputs.revision.name}},
            ],
            "containers": [_daemon(inputs)],
        },
    }


def _daemon(inputs: Inputs) -> dict[str, Any]:
    return {
        "name": CONTAINER_DAEMON,
        "image": inputs.profile.images.daemon,
        "args": ["--config", f"{DAEMON_CONFIG_DIR}/{DAEMON_CONFIG_KEY}", *inputs.profile.args],
        "ports": [
            {"name": "http", "containerPort": PORT_DAEMON_HTTP},
            {"name": "grpc", "containerPort": PORT_DAEMON_GRPC},
            {"name": "probes", "containerPort": PORT_PROBES},
        ],
        "resources": _resources(inputs.accelerator),
        "volumeMounts": [
            {"name": "model", "mountPath": MODEL_MOUNT, "readOnly": True},
            {"name": "config", "mountPath": DAEMON_CONFIG_DIR, "readOnly": True},
            {"name": "run", "mountPath": RUN_DIR},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 (an emptyDir of the pod)
        ],
        "terminationMessagePolicy": "File",
        **_probes(),
    }


def _resources(accelerator: Accelerator) -> dict[str, Any]:
    """Cores are a request without a limit: a small node must fit the replacement of a pod that still drains."""
    if accelerator.cpu is None:
        raise SpecProblem(INVALID_SPEC, "accelerators: each entry sets exactly one kind; accepted: cpu")
    cpu = accelerator.cpu
    return {"requests": {"cpu": cpu.cores, "memory": cpu.memory}, "limits": {"memory": cpu.memory}}


def _probes() -> dict[str, Any]:
    """Startup passes as soon as loading moves; the daemon itself judges a load that stalls (livez).
    Timeouts above the kubelet's 1 s, which kills busy replicas."""
    return {
        "startupProbe": _probe(PATH_STARTUP, period=2, failures=300),
        "livenessProbe": _probe(PATH_LIVE, period=5, failures=6),
        "readinessProbe": _probe(PATH_READY, period=1, failures=3),
    }


def _probe(path: str, *, period: int, failures: int) -> dict[str, Any]:
    get = {"path": path, "port": "probes"}
    return {"httpGet": get, "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5}
