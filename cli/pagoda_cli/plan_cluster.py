"""`pagoda plan -f FILE`: where the services of a file would be placed now, and why not elsewhere. Writes nothing.

The operator decides by the same code (`pagoda_placement`), so the reasons are those of the service's condition.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pagoda_contracts.conditions.service import INSPECTING_MODEL, NO_ACCELERATOR
from pagoda_contracts.crds.validation import is_ours, parsed
from pagoda_contracts.resources.placement import Accelerator
from pagoda_contracts.resources.profile import NODE_DEADLINE, SERVING_PROFILE
from pagoda_contracts.resources.service import INFERENCE_SERVICE, InferenceService, InferenceServiceSpec
from pagoda_contracts.units import parse_duration
from pagoda_placement.fit import largest, too_small
from pagoda_placement.model import Inspection, known_model, map_name, of_config
from pagoda_placement.options import Candidate, Option
from pagoda_placement.place import candidates, place
from pagoda_placement.question import Question
from pagoda_placement.result import Placement, Undecided
from pagoda_placement.terms import terms_of

from pagoda_cli.documents import documents, read
from pagoda_cli.errors import CliError
from pagoda_cli.kubectl import Access
from pagoda_cli.plan_model import find_model
from pagoda_cli.snapshot import CLAIM, CONFIG_MAP, POD, SLICE, Snapshot, live, saved
from pagoda_cli.validate import findings
from pagoda_cli.why_text import clean

Json = Mapping[str, Any]
_VERDICTS: Final = {"never": "never", "full": "no room now", "unused": "not considered"}
_UNKNOWN: Final = Inspection(
    unknown=Undecided(INSPECTING_MODEL, "the model's size is not known yet; to count with it, name the model's folder", until=0.0)
)


class Request(NamedTuple):
    """The command line. `nodes`: a saved file in place of the cluster; `model`: whose config.json counts for every service."""

    files: Sequence[str]
    nodes: str | None
    model: str | None
    access: Access


def place_services(request: Request, *, as_json: bool) -> None:
    """Prints an answer for each service."""
    services, profiles = _objects(request.files)
    seen = (saved(request.nodes) if request.nodes else live(request.access, services)).overlaid(profiles)
    model = of_config(find_model(request.model, None if request.nodes else request.access).config) if request.model else None
    answers = [answer(one, question(one, seen, model, time.time()), seen.find(*_key(one))) for one in services]
    notes = list(_notes(services, seen))
    if as_json:
        print(json.dumps({"services": answers, "notes": notes}, indent=2))
        return
    for line in (*(line for one in answers for line in text(one)), *(f"note: {note}" for note in notes)):
        print(clean(line))


def _objects(files: Sequence[str]) -> tuple[list[InferenceService], list[Json]]:
    """The services, and the profiles that stand beside them."""
    found = [(file, one) for file in files for one in documents(file, read(file, sys.stdin.read() if file == "-" else None))]
    ours = [(file, one) for file, one in found if is_ours(one.value)]
    for file, one in ours:
        if refused := findings(file, one):
            raise CliError(f"{file}:{refused[0].line}: {refused[0].object}: {refused[0].path}: {refused[0].message}")
    services = [service for _, one in ours if isinstance(service := parsed(one.value), InferenceService)]
    if not services:
        raise CliError(f"no InferenceService in {', '.join(files)}")
    return services, [one.value for _, one in ours if one.value["kind"] == SERVING_PROFILE.kind]


def _key(service: InferenceService) -> tuple[str, str, str]:
    return INFERENCE_SERVICE.kind, service.metadata.name, service.metadata.namespace


def question(service: InferenceService, seen: Snapshot, model: Inspection | None, now: float) -> Question:
    """Returns what the operator would ask of a service that has no replica yet. What pods of the same service use counts as free."""
    name, spec, profile = service.metadata.name, service.spec, seen.profile(service.spec.profile_ref.name)
    known = seen.find(*_key(service)).get("metadata") or {}
    report = seen.find(CONFIG_MAP, map_name(name), service.metadata.namespace).get("data") or {}
    return Question(
        name=name,
        spec=spec,
        inventory=seen.inventory,
        terms=terms_of(profile, spec, str(known.get("uid", ""))),
        model=model or known_model(name, spec, report) or _UNKNOWN,
        wanted=_wanted(spec),
        now=now,
        sizes=largest(seen.inventory.nodes),
        node_deadline=parse_duration(profile.node_deadline if profile else NODE_DEADLINE),
    )


def _wanted(spec: InferenceServiceSpec) -> int:
    """The replicas of a service that scaling has not decided on yet. In mode Auto, spec.replicas is moved between min and max."""
    scaling = spec.scaling
    if scaling is None or scaling.mode != "Auto":
        return spec.replicas
    return min(scaling.max or 0, max(scaling.min, spec.replicas))  # mode Auto has a max


def answer(service: InferenceService, asked: Question, existing: Json) -> dict[str, Any]:
    """Returns what is shown of a service. `existing`: the object in the cluster, if there is one."""
    placed, found = place(asked), candidates(asked)
    reason, message = _state(asked, placed)
    now = ((existing.get("status") or {}).get("placement")) or {}
    return {
        "service": "/".join(filter(None, (service.metadata.namespace, asked.name))),
        "reason": reason or None,
        "message": message or None,
        "chosen": placed.status.chosen,
        "device": placed.status.device,
        "replicas": {"wanted": asked.wanted, "room": _room(asked, placed, found)},
        "entries": [*(one for each in found for one in _judged(asked, each)), *_passed_over(asked, found)],
        "warnings": list(placed.status.warnings),
        "now": {"chosen": now["chosen"], "device": now.get("device")} if now.get("chosen") and not now.get("waiting") else None,
    }


def _state(asked: Question, placed: Placement) -> tuple[str, str]:
    """Reason and message of the condition that the service would get; empty if it would start."""
    if placed.undecided is not None:
        return placed.undecided.reason.name, placed.undecided.message
    if placed.entry is None:
        return NO_ACCELERATOR.name, placed.why_none
    waits = placed.awaited(asked.node_deadline)
    return (waits[0].name, waits[1]) if waits else ("", "")


def _small(asked: Question, entry: Accelerator) -> str:
    return too_small(asked.sizes, entry.cpu) if entry.cpu is not None else ""


def _room(asked: Question, placed: Placement, found: Sequence[Candidate]) -> int | None:
    """How many replicas have room on what was chosen; None on CPU, where only the scheduler knows, unless all nodes are too small."""
    if placed.entry is None or placed.entry.cpu is not None:
        return 0 if placed.entry and _small(asked, placed.entry) else None
    able = (option for one in found if one.entry is placed.entry for option in one.able)
    return next((option.free for option in able if option.identity == placed.resolved.identity), 0)


def _judged(asked: Question, one: Candidate) -> Iterator[dict[str, Any]]:
    """An entry, with a line for each class of devices that it could mean."""
    if one.absent:
        yield _line(one.name, "never", one.absent)
    for option in one.options:
        why = option.why or _small(asked, one.entry)
        verdict = "never" if not option.ever else "full" if why else "fits"
        yield _line(one.name, verdict, why) | _counts(option)


def _line(name: str, verdict: str, why: str) -> dict[str, Any]:
    return {"accelerator": name, "verdict": verdict, "why": why or None}


def _counts(option: Option) -> dict[str, Any]:
    device = option.resolved.device or None
    return {"device": device, "room": option.free if option.kind else None, "requests": option.requests}


def _passed_over(asked: Question, found: Sequence[Candidate]) -> Iterator[dict[str, Any]]:
    """Entries after one that is waited for without end."""
    for index in range(len(found), len(asked.spec.accelerators)):
        name = Candidate(index, asked.spec.accelerators[index], (), "").name
        yield _line(name, "unused", f"{found[-1].name} comes first and is waited for without end")


def _notes(services: Sequence[InferenceService], seen: Snapshot) -> Iterator[str]:
    if POD not in seen.objects:
        yield "no pods were read, so all devices count as free"
    if any(entry.dra is not None for one in services for entry in one.spec.accelerators):
        if SLICE not in seen.objects:
            yield "no ResourceSlices were read, so no device counts for a dra entry"
        elif CLAIM not in seen.objects:
            yield "no ResourceClaims were read, so all devices of ResourceSlices count as free"
    for name in sorted({one.spec.profile_ref.name for one in services}):
        if seen.profile(name) is None:
            yield f"ServingProfile {name!r} was not read, so its node selector, tolerations, minCuda and devices do not count"


def text(found: Json) -> Iterator[str]:
    """Yields the lines for people."""
    yield f"service {found['service']}: " + (f"{found['reason']}: {found['message']}" if found["reason"] else _would_start(found))
    if found["now"]:
        yield f"  it runs on {_on(found['now'])} now, and stays there until its accelerators or what it runs change"
    yield from (f"  {one['accelerator']}: {_words(one)}" for one in found["entries"])
    yield from (f"  warning: {warning}" for warning in found["warnings"])


def _would_start(found: Json) -> str:
    room, wanted = found["replicas"]["room"], found["replicas"]["wanted"]
    if room is None:
        return f"{_on(found)}: the scheduler finds the node"
    count = f"{_replicas(room)}, {wanted} wanted" if room >= wanted else f"{room} of {_replicas(wanted)}"
    return f"{_on(found)}: room for {count}"


def _on(place: Json) -> str:
    return f"{place['chosen']} ({place['device']})" if place["device"] else str(place["chosen"])


def _words(one: Json) -> str:
    if one["verdict"] != "fits":
        return f"{_VERDICTS[one['verdict']]}: {one['why']}"
    if one["room"] is None:
        return "fits; the scheduler finds the node"
    held = f", each with {one['requests']} requests of full length" if one["requests"] else ""
    return f"{one['device']}: room for {_replicas(one['room'])}{held}"


def _replicas(count: int) -> str:
    return f"{count} replica" + ("" if count == 1 else "s")
