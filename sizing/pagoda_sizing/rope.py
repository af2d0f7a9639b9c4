"""Which rotary embedding config.json names, and whether a daemon computes it. Called by `served` before a fetch, and by the daemon.

Reads the keys of transformers 4 (`rope_scaling`) and 5 (`rope_parameters`); if both are there, `rope_scaling` wins, as in transformers.
"""

from __future__ import annotations

from typing import Final

from pagoda_sizing.config import Config
from pagoda_sizing.errors import BadConfig

KINDS: Final = ("default", "linear", "dynamic", "llama3", "yarn")


def rope_of(config: Config) -> tuple[str, Config]:
    """Returns the kind and its parameters; BadConfig if no daemon computes it."""
    rope = _section(config)
    kind = rope.text("rope_type") or rope.text("type") or "default"
    if kind not in KINDS:
        raise BadConfig(f"rope_type {kind!r:.100} is not supported; supported are {', '.join(KINDS)}")
    if rope.real("partial_rotary_factor", config.real("partial_rotary_factor", 1.0)) != 1.0:
        raise BadConfig("partial_rotary_factor other than 1 is not supported")
    return kind, rope


def _section(config: Config) -> Config:
    for key in ("rope_scaling", "rope_parameters"):
        found = config.section(key)
        nested = [name for name, value in (found or {}).items() if isinstance(value, dict)]
        if nested:
            raise BadConfig(f"{key} differs by layer ({', '.join(nested)}); it must be the same for all layers")
        if found:
            return Config(found, {})
    return Config({}, {})
