"""`pagoda validate FILE…`: the API server's verdict without a cluster, with file, line and path; and what the operator would refuse, or
not act on, of an object that the API server takes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import typer
from pagoda_contracts.crds.validation import Problem, is_ours, judge, parsed
from pagoda_contracts.names import CONTAINER_DAEMON
from pagoda_contracts.resources.effect import Note, not_built, notes
from pagoda_contracts.resources.engine import EngineSpec
from pagoda_contracts.resources.placement import Accelerator
from pagoda_contracts.resources.service import InferenceService, InferenceServiceSpec
from pagoda_contracts.resources.tenant import TenantQuota
from pagoda_contracts.units import parse_quantity
from pagoda_sizing.families import parse_model
from pagoda_sizing.platforms import matches, no_daemon, no_format, no_kept, products, slices, unknown_product
from pagoda_sizing.replica import Judged, Requirement, config_of, on_cpu, on_device, too_little
from pagoda_sizing.served import unserved
from pydantic import BaseModel

from pagoda_cli.documents import Document, documents, read
from pagoda_cli.errors import CliError


class Finding(NamedTuple):
    """One refusal, or one note, in a file."""

    file: str
    line: int
    object: str
    path: str
    message: str


def command(
    named_files: Annotated[list[str] | None, typer.Argument(help="YAML or JSON files; - is standard input.", metavar="FILE...")] = None,
    more: Annotated[list[str] | None, typer.Option("--filename", "-f", help="The same, as kubectl takes it; may repeat.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Check objects as the API server would, and refuse unknown fields. The exit code is 2 if an object is refused. Notes name what the
    operator refuses or does not act on; they change no exit code."""
    files = [*(named_files or ()), *(more or ())]
    if not files:
        raise CliError("give at least one FILE, or - for standard input")
    judged = [one for file in files for one in _judged(file)]
    findings, noted = [one for _, found, _ in judged for one in found], [one for _, _, found in judged for one in found]
    if not judged:
        raise CliError(f"no Pagoda object in {', '.join(files)}")
    if as_json:
        shown = {"refused": [one._asdict() for one in findings], "notes": [one._asdict() for one in noted]}
        print(json.dumps({"objects": len(judged), **shown}, indent=2))
    else:
        for one in findings:
            print(_line(one))
        for name in (name for name, found, _ in judged if not found):
            print(f"{name}: valid")
        for one in noted:
            print(f"note: {_line(one)}")
    if findings:
        raise CliError(f"{sum(bool(found) for _, found, _ in judged)} of {len(judged)} objects refused")


def _line(one: Finding) -> str:
    return f"{one.file}:{one.line}: {one.object}: {one.path}{': ' if one.path else ''}{one.message}"


def _judged(file: str) -> Iterator[tuple[str, list[Finding], list[Finding]]]:
    """Each object with its refusals, and with notes if it has none."""
    text = read(file, sys.stdin.read() if file == "-" else None)
    for one in documents(file, text):
        if is_ours(one.value):
            found = findings(file, one)
            yield named(one), found, [] if found else sorted(_notes(file, one), key=lambda note: note.line)


def _notes(file: str, document: Document) -> Iterator[Finding]:
    """What becomes of an object that the API server takes."""
    found = parsed(document.value)
    for note in _notes_of(found):
        at = Problem(("spec", *note.path), note.message)
        yield Finding(file, document.line(at.path), named(document), at.where, at.message)


def _notes_of(found: BaseModel) -> Iterator[Note]:
    if isinstance(found, InferenceService):
        yield from (*notes(found.spec), *_verdicts(found.spec))
    elif isinstance(found, TenantQuota) and found.spec.devices is not None and isinstance(found.spec.devices.gpus, dict):
        unknown = ((name, unknown_product(name)) for name in found.spec.devices.gpus)
        yield from (Note(("devices", "gpus", name), f"refused: {why}") for name, why in unknown if why)


def _verdicts(spec: InferenceServiceSpec) -> Iterator[Note]:
    """Memory in which no daemon starts. Placement's word on a published model and the devices that the catalogue knows by the name that an
    entry has."""
    for index, entry in enumerate(spec.accelerators):
        if entry.cpu is not None and (why := too_little(CONTAINER_DAEMON, float(parse_quantity(entry.cpu.memory)))):
            yield Note(("accelerators", index, "cpu", "memory"), f"refused: {why}")
    config = config_of(spec.model.uri)
    if config is None:
        return
    if why := unserved(config):
        yield Note(("model", "uri"), f"refused: no daemon serves this model: {why}")
        return
    required = Requirement.of(parse_model(config), spec)
    for index, entry in enumerate(spec.accelerators):
        if not_built(spec.engine, entry) is None and (message := _verdict(required, entry)):
            yield Note(("accelerators", index), message)


def _verdict(required: Requirement, entry: Accelerator) -> str:
    """Why an entry never fits; or how many requests it holds, if these are fewer than `maxConcurrency`."""
    if entry.cpu is not None:
        judged = [on_cpu(required, int(parse_quantity(entry.cpu.memory)))]
    else:
        named = sorted(_devices(entry, required.engine))
        judged = [Judged(one.why) if one.why else on_device(required, one.memory, one.product) for one in named]
    if judged and all(one.why for one in judged):
        return f"refused: {judged[-1].why}"
    held = min((one.requests for one in judged if one.requests is not None), default=None)
    if held is None or held >= required.engine.max_concurrency:
        return ""
    return f"holds {held} of maxConcurrency {required.engine.max_concurrency} requests at {required.context:,} tokens"


class _Named(NamedTuple):
    """A device that an entry may get. `why`: no daemon computes on it."""

    memory: int
    why: str
    product: str = ""


def _devices(entry: Accelerator, engine: EngineSpec) -> Iterator[_Named]:
    """The devices that an entry names; none if it names none."""
    if entry.gpu is not None and entry.gpu.product is not None:
        meant = ((product, memory) for product, memory in products().items() if matches(entry.gpu.product, product))
        for product, memory in meant:
            why = no_daemon(product) or no_format(product, engine.quantization) or no_kept(product, engine.kv_cache.dtype)
            yield _Named(memory, why, product)
    elif entry.mig is not None and entry.mig.profile is not None:
        size = ".".join(entry.mig.profile.replace("+", ".").split(".")[:2])
        yield from (_Named(memory, "") for profile, memory in slices().items() if profile == size)


def findings(file: str, document: Document) -> list[Finding]:
    """Every refusal of one object, in the order of lines."""
    twice = [Problem(path, "occurs twice in this map") for path in document.twice]
    problems = twice or list(judge(document.value))
    found = [Finding(file, document.line(one.path), named(document), one.where, one.message) for one in problems]
    return sorted(found, key=lambda finding: finding.line)


def named(document: Document) -> str:
    """Kind and name."""
    metadata = document.value.get("metadata")
    name = metadata.get("name") or metadata.get("generateName") if isinstance(metadata, dict) else None
    return f"{document.value.get('kind')}/{name or '?'}"
