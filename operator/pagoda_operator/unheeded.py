"""Fields of a spec that are set and change nothing yet: the status names them, so that nobody relies on them. Pure; called by `status`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pagoda_contracts.resources.service import InferenceServiceSpec

FIELDS: Final = (
    *("model.revision", "model.credential", "model.cache", "credentials"),
    *("engine.quantization", "engine.deterministic", "engine.kvCache.memoryFraction", "engine.kvCache.dtype"),
    *("engine.kvCache.prefixCaching", "engine.kvCache.cpuOffload"),
    *("adapters", "scaling", "slo", "rollout", "health", "routing"),
)


def unheeded(spec: InferenceServiceSpec) -> tuple[str, ...]:
    """Names of fields that ask for something else than what is done."""
    words = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    waits = ("accelerators.fallbackAfter",) if any(entry.fallback_after for entry in spec.accelerators) else ()
    return (*(field for field in FIELDS if _at(words, field)), *waits)


def _at(words: Mapping[str, Any], field: str) -> bool:
    found: Any = words
    for part in field.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return False
        found = found[part]
    return found not in ({}, None)  # a block without a word of its own asks for the defaults
