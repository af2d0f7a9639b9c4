"""A trial: the pod of one run that has a new revision's image start and its model found, before the last old replica goes. Pure.

Made of what the revision is pinned to, so that it is pulled, read and confined as a replica of it is, but without any device, and as nobody
whom Service, gateway or quota would take for a replica: of their labels it has what an inspection has (inspect.py).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
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

from pagoda_operator.api.state import PODS
from pagoda_operator.decide.render.children import Manifest, Owner, stamped
from pagoda_operator.decide.render.fetch import CLAIM_SCHEME, claim, inspecting
from pagoda_operator.decide.render.inspect import inspector_uid
from pagoda_operator.decide.render.overlay import merge
from pagoda_operator.inventory.values import digest

# Of a replica's pod: where it may run, how it is confined, and whom it can reach there.
_POD: Final = (
    *("tolerations", "nodeSelector", "runtimeClassName", "schedulerName", "priorityClassName", "securityContext", "hostUsers"),
    *("imagePullSecrets", "serviceAccountName", "automountServiceAccountToken", "enableServiceLinks", "shareProcessNamespace"),
    *("hostAliases", "hostNetwork", "dnsConfig", "dnsPolicy"),
)
_CONTAINER: Final = (
    *("name", "image", "imagePullPolicy", "command", "workingDir", "env", "envFrom"),
    *("securityContext", "terminationMessagePolicy"),
)
# The model itself is not its business. All else that a replica mounts is: the program itself may lie on a volume.
_MODEL_VOLUMES: Final = ("model", "fetched")
# Made for each pod, and empty.
_SCRATCH: Final = "ephemeral"
_SOURCE: Final = "source"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
# The last word of the daemon's command line: tells the version, and on the way whether it can read its DaemonConfig (exit code 78).
# A daemon that is too old for that tells the version alone.
_TELL: Final = "--version"
# A runtime that hands out devices by an image's own word hands out none.
_NO_DEVICES: Final = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
_RESOURCES: Final = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}


def trial_pod(owner: Owner, revision: str, data: Manifest, uri: str, node: str) -> Manifest:
    """`data`: what the revision is pinned to; `uri`: its model's address; `node`: where the replica runs whose place it is to get, if
    anybody knows: the image is there then, too. One that would be made otherwise is another pod, but for the node."""
    spec, notes = _spec(data, uri), _notes(data)
    labels = owner.labels | {LABEL_COMPONENT: COMPONENT_TRIAL, LABEL_SERVICE_UID: inspector_uid(owner.uid)}
    made = stamped(owner, PODS, f"{revision}-trial-{digest([spec, notes])}", labels, {"spec": _near(spec, node)})
    made["metadata"]["annotations"] |= notes | ({ANNOTATION_ONLY_RUNS: "true"} if _loose(data["podTemplate"]["spec"]) else {})
    return made


def _loose(pinned: dict[str, Any]) -> bool:
    """Whether the program may need what a trial does not have: a command of its own, or what other init containers or scratch bring."""
    others = [one for one in pinned.get("initContainers") or () if one["name"] != CONTAINER_FETCH]
    daemon = _named(pinned["containers"], CONTAINER_DAEMON)
    mounted = {mount["name"] for mount in daemon.get("volumeMounts") or ()} - set(_MODEL_VOLUMES)
    scratch = any(_SCRATCH in volume for volume in pinned.get("volumes") or () if volume["name"] in mounted)
    return "command" in daemon or bool(others) or scratch


def _notes(data: Manifest) -> dict[str, str]:
    """What others act on (a mesh that is to leave the pod alone); what we act on is said of replicas."""
    said: dict[str, str] = data["podTemplate"]["metadata"].get("annotations") or {}
    return {name: text for name, text in said.items() if not name.startswith(f"{GROUP}/") and name != ANNOTATION_DELETION_COST}


def _spec(data: Manifest, uri: str) -> dict[str, Any]:
    pinned: dict[str, Any] = data["podTemplate"]["spec"]
    daemon, (reader, claims) = _daemon(pinned), _reader(data, uri)
    mounted = {mount["name"] for container in (daemon, *reader) for mount in container["volumeMounts"]}
    return {
        **{name: pinned[name] for name in _POD if name in pinned},
        **_required(pinned),
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 5,
        **({"initContainers": reader} if reader else {}),
        "containers": [daemon],
        "volumes": [*(volume for volume in pinned.get("volumes") or () if volume["name"] in mounted), *claims],
    }


def _daemon(pinned: dict[str, Any]) -> dict[str, Any]:
    """Any of its own words that the daemon cannot take (an argument of the profile's) is found, too."""
    own = _named(pinned["containers"], CONTAINER_DAEMON)
    daemon: dict[str, Any] = merge(_of(own, pinned), {"env": [_NO_DEVICES]})
    return daemon | {"args": [*own.get("args", ()), _TELL]}


def _reader(data: Manifest, uri: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What reads the model's config.json, first of all; and a volume that the pinned template does not have. Nobody where nothing here
    can read it."""
    pinned: dict[str, Any] = data["podTemplate"]["spec"]
    sidecar = _named(pinned.get("initContainers") or (), CONTAINER_FETCH)
    if sidecar:
        read = inspecting(sidecar["args"])
        return ([_of(sidecar, pinned) | {"args": read}] if read else []), []
    image = ((data.get("profile") or {}).get("images") or {}).get("fetch")
    if not image or not uri.startswith(CLAIM_SCHEME):
        return [], []
    daemon, name = _named(pinned["containers"], CONTAINER_DAEMON), claim(uri)
    own = {part: copy.deepcopy(daemon[part]) for part in ("imagePullPolicy", "securityContext") if part in daemon}
    mount = {"name": _SOURCE, "mountPath": f"{CLAIMS_MOUNT}/{name}", "readOnly": True}
    reader = {"name": CONTAINER_FETCH, "image": image, "args": ["inspect", uri], "resources": _RESOURCES, "volumeMounts": [mount]}
    return [own | reader], [{"name": _SOURCE, "persistentVolumeClaim": {"claimName": name, "readOnly": True}}]


def _of(container: dict[str, Any], pinned: dict[str, Any]) -> dict[str, Any]:
    """As the replica has it, without its probes and without what a device would be asked for with."""
    mountable = {volume["name"] for volume in pinned.get("volumes") or () if _mountable(volume)}
    mounts = [copy.deepcopy(mount) for mount in container.get("volumeMounts") or () if mount["name"] in mountable]
    own = {part: copy.deepcopy(container[part]) for part in _CONTAINER if part in container}
    return own | {"resources": _RESOURCES, "volumeMounts": mounts}


def _mountable(volume: dict[str, Any]) -> bool:
    return volume["name"] not in _MODEL_VOLUMES and _SCRATCH not in volume


def _named(containers: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    return next((container for container in containers if container["name"] == name), {})


def _required(pinned: dict[str, Any]) -> dict[str, Any]:
    """On which nodes a replica can run; that it keeps away from other pods is no matter here."""
    nodes = (pinned.get("affinity") or {}).get("nodeAffinity") or {}
    return {"affinity": {"nodeAffinity": {_REQUIRED: nodes[_REQUIRED]}}} if _REQUIRED in nodes else {}


def _near(spec: dict[str, Any], node: str) -> dict[str, Any]:
    """On that node and no other: another one's architecture, runtime and claims are no word on the revision."""
    if not node:
        return spec
    own = {"key": "metadata.name", "operator": "In", "values": [node]}
    said = (spec.get("affinity") or {}).get("nodeAffinity", {}).get(_REQUIRED, {}).get("nodeSelectorTerms") or [{}]
    terms = [term | {"matchFields": [*term.get("matchFields", ()), own]} for term in said]
    return spec | {"affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}}}}
