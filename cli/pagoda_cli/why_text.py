"""The page that `pagoda why` prints, out of the answer that `why` put together. Pure; holds no control characters of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]


def text(answer: Json) -> str:
    """All parts that have something to say, in the order in which a person asks."""
    parts = (_head, _conditions, _placement, _scaling, _revisions, _pods, _last_start, _quotas)
    return "\n".join(clean(line) for part in parts for line in part(answer))


def clean(line: str) -> str:
    """Returns a line without control characters: messages hold words of images, models and clients, and none of them moves a cursor."""
    return "".join(char if char.isprintable() else " " for char in line).rstrip()


def _head(answer: Json) -> Iterator[str]:
    replicas = answer["replicas"]
    yield f"service {answer['service']}: {replicas['ready']} of {replicas['existing']} replicas ready"
    seen = answer["observedGeneration"]
    if seen is None:
        yield "  the operator has not seen this service yet; check that the operator runs"
    elif seen < answer["generation"]:
        yield f"  the operator has not seen the newest spec yet (generation {answer['generation']}, seen {seen})"


def _conditions(answer: Json) -> Iterator[str]:
    for one in answer["conditions"]:
        if one["type"] in ("Ready", "Serving") or one["status"] == "True":
            yield f"  {one['type']} is {one['status']} since {one['lastTransitionTime']}: {one['reason']}"
            if one.get("message"):
                yield f"    {one['message']}"


def _placement(answer: Json) -> Iterator[str]:
    placement = answer["placement"]
    if not placement:
        return
    yield "placement"
    device = f" ({placement['device']})" if placement.get("device") else ""
    yield f"  chosen: {placement.get('chosen') or 'nothing'}{device}"
    if waiting := placement.get("waiting"):
        yield f"  waiting for {waiting['accelerator']} since {waiting['since']}: {waiting['why']}"
    for one in placement.get("rejected", []):
        yield f"  not {one['accelerator']}: {one['why']}"
    for warning in placement.get("warnings", []):
        yield f"  warning: {warning}"


def _scaling(answer: Json) -> Iterator[str]:
    scaling = answer["scaling"]
    if not scaling:
        return
    yield "scaling"
    if scaling.get("desired") is not None:
        yield f"  desired: {scaling['desired']}" + (f" ({scaling['reason']})" if scaling.get("reason") else "")
    for one in scaling.get("lastDecisions", []):
        yield f"  {one['time']}  {one['desired']} replicas: {one['reason']}"


def _revisions(answer: Json) -> Iterator[str]:
    if not answer["revisions"] and not answer["outdated"]:
        return
    yield "revisions"
    for one in answer["revisions"]:
        weight = f", {one['weight']} % of requests" if one.get("weight") is not None else ""
        yield f"  {one['hash']}: {one['readyReplicas']} of {one['replicas']} ready{weight}"
    if answer["outdated"]:
        yield f"  would be rendered differently now: {answer['outdated']}; a new value in spec.profileRef.adopt rolls it out"


def _pods(answer: Json) -> Iterator[str]:
    late = [pod for pod in answer["pods"] if not pod["ready"]]
    if not late:
        return
    yield "pods that are not ready"
    for pod in late:
        where = f" on {pod['node']}" if pod["node"] else ""
        yield f"  {pod['name']}: {pod['phase']}{where}" + (f": {pod['why']}" if pod["why"] else "")


def _last_start(answer: Json) -> Iterator[str]:
    """The phases, in their order, and what they add up to."""
    start = answer["lastStart"]
    if not start:
        return
    phases = {phase: start.get(f"{phase}Seconds", 0) for phase in ("scheduled", "image", "fetch", "load", "warm")}
    yield "last start"
    yield f"  {start['pod']}: Ready at {start['readyAt']}, after {sum(phases.values())} s"
    yield f"    {', '.join(f'{phase} {seconds} s' for phase, seconds in phases.items())}"


def _quotas(answer: Json) -> Iterator[str]:
    quotas = answer["quotas"]
    if quotas is None:
        yield "quota: you are not allowed to read TenantQuotas"
    elif quotas:
        yield "quota"
        for quota in quotas:
            yield f"  {quota['name']}: {_usage(quota['usage'])}"
            yield from (f"    {one['reason']}: {one['message']}" for one in _speaking(quota["conditions"]))


def _usage(usage: Json) -> str:
    words = [f"{name} {value}" for name, value in _flat(usage)]
    return ", ".join(words) or "no usage reported"


def _flat(usage: Json, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in usage.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}{name}.")
        elif isinstance(value, list):  # of devices, or of windows: each begins with its name
            rows = [list(entry.items()) for entry in value if entry]
            yield from ((f"{path}{name}.{row[0][1]}", ", ".join(f"{key} {one}" for key, one in row[1:])) for row in rows)
        else:
            yield f"{path}{name}", value


def _speaking(conditions: Sequence[Json]) -> list[Json]:
    return [one for one in conditions if one.get("message") and (one["type"] == "Ready" or one["status"] == "True")]
