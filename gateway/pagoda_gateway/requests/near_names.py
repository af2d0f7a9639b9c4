"""near: the served names that a client may have meant by a name that nobody has. Pure; called by names.py."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

# The comparison takes 10 µs a name and more for long ones, and anybody may ask for a name that nobody has.
_MOST_NAMES: Final = 200
_LONGEST: Final = 128


def near(model: str, names: Collection[str]) -> list[str]:
    """Returns at most two names, the nearest first; none for a name that is too long, or of too many names."""
    if len(model) > _LONGEST or len(names) > _MOST_NAMES:
        return []
    return get_close_matches(model, sorted(name for name in names if len(name) <= _LONGEST), n=2)
