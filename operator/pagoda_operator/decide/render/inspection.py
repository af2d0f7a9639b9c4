"""How the operator learns the shape of a model that is not published: from the report of a pod that runs once. Pure.

The pod reads the model's config.json and reports it as its termination message. The operator keeps the report in the ConfigMap
`<service>-model` and deletes the pod.

The operator itself connects to nothing outside its cluster. The pod does, with the service's own credential, under Pod Security
`restricted`. It has the environment that the profile gives to the sidecar `fetch` (a private hub, a proxy).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from pagoda_contracts.conditions.service import INSPECTING_MODEL, MODEL_REJECTED
from pagoda_contracts.names import (
    CLAIMS_MOUNT,
    COMPONENT_INSPECT,
    COMPONENT_TRIAL,
    CONTAINER_FETCH,
    CREDENTIALS_MOUNT,
    EXIT_PERMANENT,
    LABEL_COMPONENT,
    LABEL_SERVICE_UID,
)
from pagoda_contracts.resources.effect import CLAIM_SCHEME
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_placement.model import REPORT_KEY, SOURCE_KEY, Inspection, is_report, known_model, map_name, source_of
from pagoda_placement.result import Undecided
from pagoda_placement.values import digest

from pagoda_operator.api.pods import parse_pod
from pagoda_operator.api.state import CONFIG_MAPS, PODS, Child, Json, Observed
from pagoda_operator.decide.render.children import Manifest, Owner, inspector_uid, stamped
from pagoda_operator.decide.render.fetch import account, claim, restricted_container, restricted_pod, source
from pagoda_operator.decide.render.fetch import labels as azure
from pagoda_operator.decide.render.overlay import merge
from pagoda_operator.decide.render.writes import Apply, Create, Delete, Write

CONTAINER: Final = "inspect"
# Not the names of a replica's volumes: a profile may call one of its own "claim" or "credential".
_CLAIM_VOLUME: Final = "pagoda-claim"
_CREDENTIAL_VOLUME: Final = "pagoda-credential"
# What the pod takes from the profile: its own fields, and those of its podTemplate for pod and sidecar. The service's podTemplate is
# not used, because it is checked only when there is a replica.
_PROFILE_FIELDS: Final = ("tolerations", "nodeSelector", "imagePullSecrets")
_POD_FIELDS: Final = (*_PROFILE_FIELDS, "serviceAccountName", "hostAliases", "dnsConfig", "dnsPolicy")
# Seconds that an entry on CPU waits for the pod. A replica there needs no more than what the pod may lack: a node, an image, the source.
_PATIENCE_S: Final = 120.0
_SIDECAR_FIELDS: Final = ("env", "envFrom", "imagePullPolicy")


def inspect(observed: Observed, spec: InferenceServiceSpec) -> Inspection:
    """What is known of the model's shape, or why nothing is."""
    return known(observed, spec) or _unknown(observed, spec)


def known(observed: Observed, spec: InferenceServiceSpec) -> Inspection | None:
    """What is known of the model's shape; None if nothing is."""
    live = observed.find(CONFIG_MAPS, map_name(observed.meta.name))
    data: Json = live.body.get("data") or {} if live else {}
    return known_model(observed.meta.name, spec, data)


def _unknown(observed: Observed, spec: InferenceServiceSpec) -> Inspection:
    if observed.profile is None or observed.profile.images.fetch is None:
        name = spec.profile_ref.name
        return Inspection(unknowable=f"the model's size is unknown, because profile {name!r} has no images.fetch that could inspect it")
    pod = observed.find(PODS, _pod_name(observed.meta.name, _pod_spec(spec, observed.profile)))
    ended = _last_end(pod) if pod else {}
    why = str(ended.get("message") or "no reason given").strip()
    if ended.get("exitCode") == EXIT_PERMANENT:
        return Inspection(unknown=Undecided(MODEL_REJECTED, f"the model cannot be inspected: {why}", stalled=True, until=0.0))
    if ended.get("exitCode") == 0 and not is_report(why):
        said = f"the inspection reported something that is not a model: {why[:200]}"
        return Inspection(unknown=Undecided(MODEL_REJECTED, said, stalled=True, until=0.0))
    failed = f"; the last attempt failed and will be repeated: {why}" if ended.get("exitCode") else ""
    said = f"a pod reads the model's config.json{failed or _obstacle(observed, pod)}"
    since = parse_pod(pod.body).created if pod else 0.0
    until = since + _PATIENCE_S if pod else 0.0 if observed.uninspected else None
    return Inspection(unknown=Undecided(INSPECTING_MODEL, said, since=since, until=until))


def _obstacle(observed: Observed, live: Child | None) -> str:
    """Without the kubelet's reason, because ErrImagePull and ImagePullBackOff alternate."""
    if live is None:
        return ""
    pod = parse_pod(live.body)
    if "Image" in pod.waiting:
        return "; its image cannot be pulled"
    if fault := observed.mount_faults.get(pod.uid, ""):
        return f"; {pod.name}: {fault}"
    return f"; {pod.name} has no node: {pod.unscheduled}" if pod.unscheduled else ""


def _last_end(pod: Child) -> Json:
    """How the inspecting container ended last."""
    statuses: list[Json] = (pod.body.get("status") or {}).get("containerStatuses") or []
    own: Json = next((one for one in statuses if one["name"] == CONTAINER), {})
    ended: Json = (own.get("state") or {}).get("terminated") or (own.get("lastState") or {}).get("terminated") or {}
    return ended


def steps(observed: Observed, owner: Owner, spec: InferenceServiceSpec) -> Iterator[Write]:
    """The next write of an inspection that placement waits for; a finished one goes."""
    if inspect(observed, spec).unknown is None or observed.profile is None or observed.profile.images.fetch is None:
        yield from tidy(observed)
        return
    wanted = inspect_pod(owner, spec, observed.profile)
    pod = observed.find(PODS, wanted["metadata"]["name"])
    yield from tidy(observed, keep=pod)
    if pod is None:
        yield Create(PODS, wanted)
        return
    ended = _last_end(pod)
    report = str(ended.get("message", "")).strip()
    if ended.get("exitCode") == 0 and is_report(report):
        data = {SOURCE_KEY: source_of(spec), REPORT_KEY: json.dumps(json.loads(report), separators=(",", ":"), ensure_ascii=False)}
        manifest = stamped(owner, CONFIG_MAPS, map_name(owner.name), owner.labels, {"data": data})
        live = observed.find(CONFIG_MAPS, map_name(owner.name))
        yield Apply(CONFIG_MAPS, manifest, live) if live else Create(CONFIG_MAPS, manifest)


def tidy(observed: Observed, keep: Child | None = None) -> Iterator[Write]:
    """Deletes the pods of inspections that nothing waits for, and no trial pod of a rollout."""
    for pod in observed.of(PODS):
        if pod.meta["labels"].get(LABEL_COMPONENT) != COMPONENT_TRIAL and pod != keep and not pod.deleting:
            yield Delete(PODS, pod)


def inspect_pod(owner: Owner, spec: InferenceServiceSpec, profile: ServingProfileSpec) -> Manifest:
    """Runs once; the kubelet repeats a temporary failure with growing delays."""
    made = _pod_spec(spec, profile)
    labels = owner.labels | azure(spec.model) | {LABEL_COMPONENT: COMPONENT_INSPECT, LABEL_SERVICE_UID: inspector_uid(owner.uid)}
    return stamped(owner, PODS, _pod_name(owner.name, made), labels, {"spec": made})


def _pod_name(service: str, spec: dict[str, Any]) -> str:
    """With a digest: another address or an added credential needs another pod, and the one that failed without it is deleted."""
    return f"{service}-inspect-{digest(spec)}"


def _pod_spec(spec: InferenceServiceSpec, profile: ServingProfileSpec) -> dict[str, Any]:
    volumes, mounts = _storage(spec, profile)
    container = {
        "name": CONTAINER,
        "image": profile.images.fetch,
        "args": ["inspect", *source(spec.model)],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        "terminationMessagePolicy": "File",
        "securityContext": restricted_container(),
        **{name: value for name, value in _sidecar(profile).items() if name in _SIDECAR_FIELDS},
        **({"volumeMounts": mounts} if mounts else {}),
    }
    return {
        "restartPolicy": "OnFailure",
        **account(spec.model),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": restricted_pod(),
        "containers": [container],
        **({"volumes": volumes} if volumes else {}),
        **_pod_fields(profile),
    }


def _pod_fields(profile: ServingProfileSpec) -> dict[str, Any]:
    """On which nodes the pod may run, and what it can reach there."""
    fields = profile.model_dump(mode="json", by_alias=True, exclude_none=True)
    own = {name: fields[name] for name in _PROFILE_FIELDS if fields.get(name)}
    found: dict[str, Any] = merge(own, {name: value for name, value in _template(profile).items() if name in _POD_FIELDS})
    return found


def _template(profile: ServingProfileSpec) -> dict[str, Any]:
    return (profile.pod_template or {}).get("spec") or {}


def _sidecar(profile: ServingProfileSpec) -> dict[str, Any]:
    containers = _template(profile).get("initContainers") or []
    return next((one for one in containers if one.get("name") == CONTAINER_FETCH), {})


def _storage(spec: InferenceServiceSpec, profile: ServingProfileSpec) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and mounts: what the profile mounts into the sidecar (a certificate), the claim of a pvc:// address, the credential's
    Secret."""
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
