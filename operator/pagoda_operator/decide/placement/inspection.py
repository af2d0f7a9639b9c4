"""How the operator learns a model's shape: published models by name, else what a pod that runs once reports. Pure; called by `plan`.

Pod → its termination message → ConfigMap `<service>-model` → the pod goes. Another address or revision of the model is read anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pagoda_contracts.conditions.service import INSPECTING_MODEL, MODEL_REJECTED, UNSUPPORTED_URI
from pagoda_contracts.names import COMPONENT_TRIAL, EXIT_PERMANENT, LABEL_COMPONENT
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_sizing.errors import SizingError
from pagoda_sizing.model import Model

from pagoda_operator.api.placement import Held
from pagoda_operator.api.state import CONFIG_MAPS, PODS, Child, Json, Observed
from pagoda_operator.decide.render.children import Owner
from pagoda_operator.decide.render.fetch import SCHEMES, unsupported
from pagoda_operator.decide.render.inspect import CONTAINER, REPORT_KEY, SOURCE_KEY, inspect_pod, map_name, model_map, pod_name
from pagoda_operator.decide.render.writes import Apply, Create, Delete, Write
from pagoda_operator.inventory.fit import from_catalogue, from_report, is_report, source_of


class Inspection(NamedTuple):
    """What is known: a shape, or what is being done about it, or why there will be none."""

    shape: Model | None = None
    unknown: Held | None = None
    unknowable: str = ""


def inspect(observed: Observed, spec: InferenceServiceSpec) -> Inspection:
    """What placement may take as known."""
    if (shape := from_catalogue(spec.model.uri)) is not None:
        return Inspection(shape)
    kept = _kept(observed, spec)
    if kept is None:
        return _on_the_way(observed, spec)
    try:
        return Inspection(from_report(kept))
    except SizingError as refused:
        return Inspection(unknowable=f"the model cannot be sized: {refused}")


def _kept(observed: Observed, spec: InferenceServiceSpec) -> str | None:
    live = observed.find(CONFIG_MAPS, map_name(observed.meta.name))
    data: Json = live.body.get("data") or {} if live else {}
    text = str(data.get(REPORT_KEY, ""))
    return text if data.get(SOURCE_KEY) == source_of(spec) and is_report(text) else None


def _on_the_way(observed: Observed, spec: InferenceServiceSpec) -> Inspection:
    if not spec.model.uri.startswith(SCHEMES):
        return Inspection(unknown=Held(UNSUPPORTED_URI, unsupported(spec.model.uri), stalled=True))
    if observed.profile is None or observed.profile.images.fetch is None:
        name = spec.profile_ref.name
        return Inspection(unknowable=f"the model's size is unknown, because profile {name!r} has no images.fetch that could inspect it")
    pod = observed.find(PODS, pod_name(observed.meta.name, spec, observed.profile))
    ended = _last_end(pod) if pod else {}
    why = str(ended.get("message") or "no reason given").strip()
    if ended.get("exitCode") == EXIT_PERMANENT:
        return Inspection(unknown=Held(MODEL_REJECTED, f"the model cannot be inspected: {why}", stalled=True))
    if ended.get("exitCode") == 0 and not is_report(why):
        return Inspection(unknown=Held(MODEL_REJECTED, f"the inspection reported something that is not a model: {why[:200]}", stalled=True))
    failed = f"; the last attempt failed and will be repeated: {why}" if ended.get("exitCode") else ""
    return Inspection(unknown=Held(INSPECTING_MODEL, f"a pod reads the model's config.json{failed or _hindered(pod)}"))


def _hindered(pod: Child | None) -> str:
    """Without the words of the moment: ErrImagePull and ImagePullBackOff alternate."""
    if pod is None:
        return ""
    reasons = [one["state"]["waiting"].get("reason", "") for one in _containers(pod) if "waiting" in one.get("state", {})]
    if any("Image" in reason for reason in reasons):
        return "; its image cannot be pulled"
    scheduled = pod.condition("PodScheduled")
    return f"; {pod.name} has no node: {scheduled.get('message', '')}" if scheduled.get("status") == "False" else ""


def _containers(pod: Child) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (pod.body.get("status") or {}).get("containerStatuses") or []
    return found


def _last_end(pod: Child) -> Json:
    """How the inspecting container ended last."""
    mine: Json = next((one for one in _containers(pod) if one["name"] == CONTAINER), {})
    ended: Json = (mine.get("state") or {}).get("terminated") or (mine.get("lastState") or {}).get("terminated") or {}
    return ended


def steps(observed: Observed, owner: Owner, spec: InferenceServiceSpec) -> Iterator[Write]:
    """The next write of an inspection that placement waits for. Where nothing could fetch, nothing could inspect either."""
    if observed.profile is None or observed.profile.images.fetch is None or not spec.model.uri.startswith(SCHEMES):
        yield from _obsolete(observed, keep="")
        return
    wanted = inspect_pod(owner, spec, observed.profile)
    pod = observed.find(PODS, wanted["metadata"]["name"])
    yield from _obsolete(observed, keep=pod.name if pod else "")
    if pod is None:
        yield Create(PODS, wanted)
    elif report := _report(pod):
        manifest = model_map(owner, source_of(spec), report)
        live = observed.find(CONFIG_MAPS, map_name(owner.name))
        yield Apply(CONFIG_MAPS, manifest, live) if live else Create(CONFIG_MAPS, manifest)


def _report(pod: Child) -> str:
    ended = _last_end(pod)
    report = str(ended.get("message", "")).strip()
    return report if ended.get("exitCode") == 0 and is_report(report) else ""


def tidy(observed: Observed) -> Iterator[Write]:
    """Once nothing waits for it, an inspection's pod goes."""
    return _obsolete(observed, keep="")


def _obsolete(observed: Observed, keep: str) -> Iterator[Write]:
    """A rollout's trial is not its own."""
    for pod in observed.of(PODS):
        if pod.meta["labels"].get(LABEL_COMPONENT) != COMPONENT_TRIAL and pod.name != keep and not pod.deleting:
            yield Delete(PODS, pod)
