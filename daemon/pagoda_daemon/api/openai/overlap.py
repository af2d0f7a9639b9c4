"""Whether a value may satisfy two branches of a `oneOf`. If it cannot, `anyOf` is the same. Pure; only sure answers are "no"."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any, Final

_BUDGET: Final = 20_000  # comparisons for one document, 20 ms: what is not compared may overlap
_DEEPEST: Final = 4  # properties within properties, and references to references
_MAX_REF: Final = 256
_TYPES: Final = frozenset(("null", "boolean", "number", "string", "array", "object"))
_TYPE_OF: Final = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}

Resolve = Callable[[str], Any]
"""A pointer into the document → what is there."""


class Overlaps:
    """Of one document."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._left = _BUDGET

    def within(self, branches: Any) -> bool:
        """Whether a value may satisfy two of them; False where these are no branches."""
        if not isinstance(branches, list):
            return False
        return not all(self._disjoint(one, other, _DEEPEST) for one, other in combinations(branches, 2))

    def _disjoint(self, one: Any, other: Any, depth: int) -> bool:
        self._left -= 1
        one, other = _followed(one, self._resolve), _followed(other, self._resolve)
        if one is False or other is False:
            return True
        if not isinstance(one, dict) or not isinstance(other, dict) or depth == 0 or self._left < 0:
            return False
        ours, theirs = _values(one), _values(other)
        self._left -= len(ours or ()) + len(theirs or ())
        if not _types(one) & _types(other):
            return True
        if ours is not None and theirs is not None:
            return {_key(value) for value in ours}.isdisjoint({_key(value) for value in theirs})
        return _types(one) == _types(other) == {"object"} and self._differ(one, other, depth)

    def _differ(self, one: dict[str, Any], other: dict[str, Any], depth: int) -> bool:
        """Whether a property that one of them requires cannot be both's."""
        ours, theirs = one.get("properties"), other.get("properties")
        if not isinstance(ours, dict) or not isinstance(theirs, dict):
            return False
        required = [name for schema in (one, other) for name in _strings(schema.get("required"))]
        self._left -= len(required)
        return any(name in ours and name in theirs and self._disjoint(ours[name], theirs[name], depth - 1) for name in required)


def _followed(schema: Any, resolve: Resolve) -> Any:
    """What a reference stands for. What stands beside one only narrows it."""
    for _ in range(_DEEPEST):
        ref = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(ref, str) or len(ref) > _MAX_REF or not (ref == "#" or ref.startswith("#/")):
            break
        schema = resolve(ref[1:])
    return schema


def _types(schema: dict[str, Any]) -> frozenset[str]:
    values = _values(schema)
    if values is not None:
        return frozenset(_TYPE_OF[type(value)] for value in values)
    said = schema.get("type")
    names = {said} if isinstance(said, str) else set(_strings(said))
    return frozenset("number" if name == "integer" else name for name in names) if names else _TYPES


def _values(schema: dict[str, Any]) -> list[Any] | None:
    """All that it allows, where it lists them."""
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum")
    return listed if isinstance(listed, list) else None


def _key(value: Any) -> tuple[str, Any]:
    """Equal for values that are equal in JSON: 1 is 1.0, true is not 1. Lists and objects are taken as equal."""
    kind = _TYPE_OF[type(value)]
    return kind, None if isinstance(value, list | dict) else value


def _strings(given: Any) -> list[str]:
    return [one for one in given if isinstance(one, str)] if isinstance(given, list) else []
