"""What the API server takes and no component acts on: entries that are refused because they are not built, and fields that change nothing.

Pure. Placement and the status of a service say it, and `pagoda validate` says the same before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pagoda_contracts.resources.engine import EngineSpec
from pagoda_contracts.resources.placement import Accelerator
from pagoda_contracts.resources.scaling import ScalingSpec
from pagoda_contracts.resources.service import InferenceServiceSpec, ModelSpec

CLAIM_SCHEME: Final = "pvc://"
_WITH_REVISIONS: Final = ("hf://", "oci://")
# Formats that a daemon makes of a checkpoint's own. Which device has fp8 is a question of its product (sizing, platforms.py).
_ON_CPU: Final = ("int8",)
_ON_DEVICES: Final = ("fp8", "int8", "int4")
_NOT_YET: Final = ("engine.kvCache.memoryFraction", "engine.kvCache.cpuOffload", "routing.overflow.service")
# Fields of `scaling` that a mode does not use: in Manual a person decides, in External another autoscaler does.
_IDLE: Final[Mapping[str, tuple[str, ...]]] = {
    "Manual": ("min", "max", "targets", "idleAfter", "behavior", "schedules", "predictive"),
    "External": ("min", "max", "targets", "behavior", "schedules", "predictive"),
}


class Note(NamedTuple):
    """One field of a spec, by its steps, and what becomes of it."""

    path: tuple[str | int, ...]
    message: str


def fetched(spec: InferenceServiceSpec) -> bool:
    """Whether the sidecar brings the model."""
    return not spec.model.uri.startswith(CLAIM_SCHEME) or spec.model.cache is not None


def has_sidecar(spec: InferenceServiceSpec) -> bool:
    """Whether the pod has the sidecar: it brings the model, or adapters."""
    return fetched(spec) or spec.adapters is not None


def has_revisions(model: ModelSpec) -> bool:
    """Whether models at such an address have revisions."""
    return model.uri.startswith(_WITH_REVISIONS)


def not_built(engine: EngineSpec, entry: Accelerator) -> Note | None:
    """Why no daemon can serve on an entry, whatever the model is; None if one can. The path begins at the entry."""
    counted = entry.gpu or entry.dra
    if counted is not None and counted.count > 1:
        kind = "".join(entry.kinds)
        why = f"{kind}.count must be 1, got {counted.count}: a replica computes on one device, because tensor parallelism is not built"
        return Note((kind, "count"), why)
    if why := _not_kept(engine, entry):
        return Note((), f"engine.kvCache.dtype {engine.kv_cache.dtype} is not built {why}")
    if entry.cpu is None and engine.quantization != "none" and (why := _not_fused(engine)):
        return Note((), f"engine.quantization {engine.quantization} is not built on devices {why}")
    known = _ON_DEVICES if entry.cpu is None else _ON_CPU
    if engine.quantization == "none" or engine.quantization in known:
        return None
    built = f"on {'devices' if entry.cpu is None else 'CPU'}, {', '.join(known)} {'are' if len(known) > 1 else 'is'}"
    return Note((), f"engine.quantization {engine.quantization} is not built; {built}")


def _not_kept(engine: EngineSpec, entry: Accelerator) -> str:
    """Where keys and values cannot be of the type that was asked for; empty if they can. The product of a device is judged elsewhere."""
    dtype = "bfloat16" if engine.dtype == "auto" else engine.dtype
    if engine.kv_cache.dtype in ("auto", dtype):
        return ""
    return "on CPU; use auto" if entry.cpu is not None else _not_fused(engine)


def _not_fused(engine: EngineSpec) -> str:
    """Why our kernels, which alone read numbers of few bits, do not compute on a device; empty if they do."""
    if engine.dtype not in ("auto", "bfloat16"):
        return f"with engine.dtype {engine.dtype}"
    return "with engine.deterministic" if engine.deterministic else ""


def notes(spec: InferenceServiceSpec) -> Iterator[Note]:
    """All that is refused or changes nothing."""
    for index, entry in enumerate(spec.accelerators):
        if (note := not_built(spec.engine, entry)) is not None:
            yield Note(("accelerators", index, *note.path), f"refused: {note.message}")
    for field in ignored_fields(spec):
        yield Note(tuple(field.split(".")), "not acted on yet, or of no use here")
    for field in idle_scaling(spec.scaling) if spec.scaling else ():
        yield Note(tuple(field.split(".")), f"of no effect in mode {spec.scaling.mode if spec.scaling else ''}")


def ignored_fields(spec: InferenceServiceSpec) -> tuple[str, ...]:
    """Names of fields that are set and change nothing."""
    words = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    # A claim's files need no credential, and only some sources have revisions.
    fetch = () if fetched(spec) else ("model.credential", "model.digest", *(() if has_sidecar(spec) else ("credentials",)))
    idle = (*_NOT_YET, *fetch, *(() if has_revisions(spec.model) else ("model.revision",)))
    # Entries on CPU say themselves what a replica requests.
    host = ("resources",) if words.get("resources") and all(entry.cpu for entry in spec.accelerators) else ()
    return (*(field for field in idle if _at(words, field)), *host)


def idle_scaling(scaling: ScalingSpec) -> tuple[str, ...]:
    """Fields of `scaling` that are set and change nothing in its mode. In External `idleAfter` works, and needs `min: 0`."""
    words = scaling.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    needed = ("min",) if scaling.mode == "External" and scaling.idle_after is not None else ()
    idle = (word for word in _IDLE.get(scaling.mode, ()) if word not in needed)
    # A block that has only defaults changes nothing.
    return tuple(f"scaling.{word}" for word in idle if words.get(word) not in (None, {}))


def _at(words: Mapping[str, Any], field: str) -> bool:
    """Whether a field is set, named with dots."""
    head, _, rest = field.partition(".")
    return head in words and (not rest or _at(words[head], rest))
