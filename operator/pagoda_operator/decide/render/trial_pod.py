"""A trial: a pod that runs once, to show that a new revision's image starts and its model exists, before the last old replica goes. Pure.

It is made of what the revision is pinned to, so that it is pulled, mounted and confined as a replica is, but it has no device. It has the
labels of an inspection, so that Service, gateway and quota do not take it for a replica.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from pagoda_contracts.names import (
    ANNOTATION_DELETION_COST,
    ANNOTATION_ONLY_RUNS,
    CLAIMS_MOUNT,
    COMPONENT_TRIAL,
    CONTAINER_DAEMON,
    CONTAINER_FETCH,
    GROUP,
    LABEL_COMPONENT,
    LABEL_SERVICE_UID,
)
from pagoda_contracts.resources.effect import CLAIM_SCHEME
from pagoda_placement.values import digest

from pagoda_operator.api.state import PODS
from pagoda_operator.decide.render.children import Manifest, Owner, inspector_uid, stamped
from pagoda_operator.decide.render.fetch import AZURE_IDENTITY, brings_adapters, claim, inspecting
from pagoda_operator.decide.render.overlay import merge

# What it takes from a replica's pod: where it may run, how it is confined, and what it can reach there.
_POD_FIELDS: Final = (
    *("tolerations", "nodeSelector", "runtimeClassName", "schedulerName", "priorityClassName", "securityContext", "hostUsers"),
    *("imagePullSecrets", "serviceAccountName", "automountServiceAccountToken", "enableServiceLinks", "shareProcessNamespace"),
    *("hostAliases", "hostNetwork", "dnsConfig", "dnsPolicy"),
)
_CONTAINER_FIELDS: Final = (
    *("name", "image", "imagePullPolicy", "command", "workingDir", "env", "envFrom"),
    *("securityContext", "terminationMessagePolicy"),
)
# A trial does not need the model. It mounts all other volumes, because the program itself may be on one.
_MODEL_VOLUMES: Final = ("model", "fetched")
# Such volumes are made for each pod, and empty.
_EPHEMERAL: Final = "ephemeral"
_SOURCE: Final = "source"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
# The last argument of the daemon's command line. The daemon reads its DaemonConfig (exit code 78 if it cannot) and prints its version; an
# older daemon prints its version only.
_VERSION: Final = "--version"
# For runtimes that give devices to a container because its image asks for them.
_NO_DEVICES: Final = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
_RESOURCES: Final = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}


def trial_pod(owner: Owner, revision: str, data: Manifest, uri: str, node: str) -> Manifest:
    """`data`: what the revision is pinned to; `uri`: its model's address; `node`: the node of the replica that it is to replace, which has
    the image, or empty. The pod's name changes with its content, but not with the node."""
    spec, notes = _spec(data, uri), _notes(data)
    identity = {name: value for name, value in data["podTemplate"]["metadata"].get("labels", {}).items() if name == AZURE_IDENTITY}
    labels = owner.labels | identity | {LABEL_COMPONENT: COMPONENT_TRIAL, LABEL_SERVICE_UID: inspector_uid(owner.uid)}
    made = stamped(owner, PODS, f"{revision}-trial-{digest([spec, notes])}", labels, {"spec": _near(spec, node)})
    made["metadata"]["annotations"] |= notes | ({ANNOTATION_ONLY_RUNS: "true"} if _incomplete(data["podTemplate"]["spec"]) else {})
    return made


def _incomplete(pinned: dict[str, Any]) -> bool:
    """Whether the program may need what a trial lacks: a command of its own, other init containers, ephemeral volumes."""
    sidecar, daemon = _sidecar(pinned), _daemon(pinned)
    others = [one for one in pinned.get("initContainers") or () if one is not sidecar and not brings_adapters(one.get("args") or ())]
    mounted = {mount["name"] for mount in daemon.get("volumeMounts") or ()} - set(_MODEL_VOLUMES)
    ephemeral = any(_EPHEMERAL in volume for volume in pinned.get("volumes") or () if volume["name"] in mounted)
    return "command" in daemon or bool(others) or ephemeral


def _notes(data: Manifest) -> dict[str, str]:
    """Annotations that other programs act on, such as a service mesh; ours are for replicas."""
    notes: dict[str, str] = data["podTemplate"]["metadata"].get("annotations") or {}
    return {name: text for name, text in notes.items() if not name.startswith(f"{GROUP}/") and name != ANNOTATION_DELETION_COST}


def _spec(data: Manifest, uri: str) -> dict[str, Any]:
    pinned: dict[str, Any] = data["podTemplate"]["spec"]
    # With all arguments of the profile, so that one which the daemon does not accept is found.
    daemon: dict[str, Any] = merge(_of(_daemon(pinned), pinned), {"env": [_NO_DEVICES]})
    daemon |= {"args": [*_daemon(pinned).get("args", ()), _VERSION]}
    reader, claims = _reader(data, uri)
    mounted = {mount["name"] for container in (daemon, *reader) for mount in container["volumeMounts"]}
    nodes = (pinned.get("affinity") or {}).get("nodeAffinity") or {}
    return {
        **{name: pinned[name] for name in _POD_FIELDS if name in pinned},
        **({"affinity": {"nodeAffinity": {_REQUIRED: nodes[_REQUIRED]}}} if _REQUIRED in nodes else {}),
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 5,
        **({"initContainers": reader} if reader else {}),
        "containers": [daemon],
        "volumes": [*(volume for volume in pinned.get("volumes") or () if volume["name"] in mounted), *claims],
    }


def _reader(data: Manifest, uri: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The init container that reads the model's config.json, and a volume that the pinned template lacks; empty if nothing can read it."""
    pinned: dict[str, Any] = data["podTemplate"]["spec"]
    if (sidecar := _sidecar(pinned)) is not None:
        return [_of(sidecar, pinned) | {"args": inspecting(sidecar["args"])}], []
    image = ((data.get("profile") or {}).get("images") or {}).get("fetch")
    if not image or not uri.startswith(CLAIM_SCHEME):
        return [], []
    daemon, name = _daemon(pinned), claim(uri)
    own = {part: copy.deepcopy(daemon[part]) for part in ("imagePullPolicy", "securityContext") if part in daemon}
    mount = {"name": _SOURCE, "mountPath": f"{CLAIMS_MOUNT}/{name}", "readOnly": True}
    reader = {"name": CONTAINER_FETCH, "image": image, "args": ["inspect", uri], "resources": _RESOURCES, "volumeMounts": [mount]}
    return [own | reader], [{"name": _SOURCE, "persistentVolumeClaim": {"claimName": name, "readOnly": True}}]


def _of(container: dict[str, Any], pinned: dict[str, Any]) -> dict[str, Any]:
    """The replica's container, without its probes and its devices."""
    volumes = (volume for volume in pinned.get("volumes") or () if volume["name"] not in _MODEL_VOLUMES and _EPHEMERAL not in volume)
    mountable = {volume["name"] for volume in volumes}
    mounts = [copy.deepcopy(mount) for mount in container.get("volumeMounts") or () if mount["name"] in mountable]
    own = {part: copy.deepcopy(container[part]) for part in _CONTAINER_FIELDS if part in container}
    return own | {"resources": _RESOURCES, "volumeMounts": mounts}


def _daemon(pinned: dict[str, Any]) -> dict[str, Any]:
    return next(container for container in pinned["containers"] if container["name"] == CONTAINER_DAEMON)


def _sidecar(pinned: dict[str, Any]) -> dict[str, Any] | None:
    """The sidecar that fetches the model. An init container that the profile calls `fetch` as well names no model."""
    named = (container for container in pinned.get("initContainers") or () if container["name"] == CONTAINER_FETCH)
    return next((container for container in named if inspecting(container.get("args") or ())), None)


def _near(spec: dict[str, Any], node: str) -> dict[str, Any]:
    """Only on that node: another node may have another architecture, another runtime, or no access to the claims."""
    if not node:
        return spec
    own = {"key": "metadata.name", "operator": "In", "values": [node]}
    given = (spec.get("affinity") or {}).get("nodeAffinity", {}).get(_REQUIRED, {}).get("nodeSelectorTerms") or [{}]
    terms = [term | {"matchFields": [*term.get("matchFields", ()), own]} for term in given]
    return spec | {"affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}}}}
