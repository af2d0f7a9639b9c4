"""Fields of a spec that are set and change nothing: the status names them, so that nobody relies on them. Pure; called by `status`.

Those that nothing acts on yet, and those of `scaling` that its mode has no use for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pagoda_contracts.resources.scaling import ScalingSpec
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_contracts.resources.traffic import RoutingSpec

from pagoda_operator.decide.render.fetch import fetched, has_revisions

_WORDS: Final = (*("engine.kvCache.memoryFraction", "engine.kvCache.dtype", "engine.kvCache.cpuOffload"),)
# Blocks, and what each may say that is done anyway; a block that is there asks for its defaults too.
_BLOCKS: Final[Mapping[str, tuple[Any, ...]]] = {
    "adapters": (None,),
    "routing": (None, RoutingSpec(policy="LeastLoad")),
}
# What only says something where the sidecar fetches; on a claim's files, or where there are no revisions, it changes nothing.
_OF_A_FETCH: Final = ("model.credential", "credentials")
_REVISION: Final = "model.revision"
# Of `scaling`, what each mode has no use for: in Manual a person decides, in External somebody else does.
_IDLE: Final[Mapping[str, tuple[str, ...]]] = {
    "Manual": ("min", "max", "targets", "idleAfter", "behavior", "schedules", "predictive"),
    "External": ("min", "max", "targets", "behavior", "schedules", "predictive"),
}
FIELDS: Final = (*_WORDS, *_OF_A_FETCH, _REVISION, *_BLOCKS)


def ignored_fields(spec: InferenceServiceSpec) -> tuple[str, ...]:
    """Names of fields that ask for something else than what is done."""
    words = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    blocks = (name for name, done in _BLOCKS.items() if getattr(spec, name) not in done)
    ranks = ("accelerators.gpu.count",) if any(entry.gpu and entry.gpu.count > 1 for entry in spec.accelerators) else ()
    idle = (*_WORDS, *(() if fetched(spec) else _OF_A_FETCH), *(() if has_revisions(spec.model) else (_REVISION,)))
    return (*(field for field in idle if _at(words, field)), *blocks, *ranks)


def idle_scaling(scaling: ScalingSpec) -> tuple[str, ...]:
    """Words of `scaling` that are set and do nothing in its mode. In External `idleAfter` acts, and needs min 0 beside it."""
    words = scaling.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    needed = ("min",) if scaling.mode == "External" and scaling.idle_after is not None else ()
    idle = (word for word in _IDLE.get(scaling.mode, ()) if word not in needed)
    # A block that is there and says only what holds anyway says nothing.
    return tuple(f"scaling.{word}" for word in idle if words.get(word) not in (None, {}))


def _at(words: Mapping[str, Any], field: str) -> bool:
    found: Any = words
    for part in field.split("."):
        if part not in found:
            return False
        found = found[part]
    return True


def in_vain(spec: InferenceServiceSpec) -> str:
    """What is added to a service's sentence: a matter of the spec alone, so that it never changes while the spec stands."""
    yet, idle = ignored_fields(spec), idle_scaling(spec.scaling) if spec.scaling else ()
    told = f"; not acted on yet: {', '.join(yet)}" if yet else ""
    return f"{told}; of no effect in mode {spec.scaling.mode}: {', '.join(idle)}" if idle and spec.scaling else told
