"""Fields of a spec that are set and change nothing yet: the status names them, so that nobody relies on them. Pure; called by `status`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pagoda_contracts.resources.scaling import ScalingSpec
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_contracts.resources.traffic import RolloutSpec, RoutingSpec, SloSpec

_WORDS: Final = (
    *("model.revision", "model.credential", "model.cache", "credentials"),
    *("engine.kvCache.memoryFraction", "engine.kvCache.dtype", "engine.kvCache.cpuOffload"),
)
# Blocks, and what each may say that is done anyway; a block that is there asks for its defaults too.
_BLOCKS: Final[Mapping[str, tuple[Any, ...]]] = {
    "adapters": (None,),
    "scaling": (None, ScalingSpec()),
    "slo": (None, SloSpec()),
    "rollout": (None, RolloutSpec(), RolloutSpec(strategy="Surge")),
    "health": (None,),
    "routing": (None, RoutingSpec(policy="LeastLoad")),
}
FIELDS: Final = (*_WORDS, *_BLOCKS)


def unheeded(spec: InferenceServiceSpec) -> tuple[str, ...]:
    """Names of fields that ask for something else than what is done."""
    words = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    blocks = (name for name, done in _BLOCKS.items() if getattr(spec, name) not in done)
    waits = ("accelerators.fallbackAfter",) if any(entry.fallback_after for entry in spec.accelerators) else ()
    return (*(field for field in _WORDS if _at(words, field)), *blocks, *waits)


def _at(words: Mapping[str, Any], field: str) -> bool:
    found: Any = words
    for part in field.split("."):
        if part not in found:
            return False
        found = found[part]
    return True
