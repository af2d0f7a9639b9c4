"""A JSON schema as clients write it → one that the grammar library follows exactly. BadRequest names the place of what it cannot. Pure.

Two things are accepted although they are not followed exactly. An unknown `format` is an annotation, as in JSON Schema. A `oneOf` whose
branches may overlap is followed as `anyOf`, and its place is named in the answer's header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec

from pagoda_daemon.api.openai import bounds
from pagoda_daemon.api.openai.bounds import EXACT
from pagoda_daemon.api.openai.overlap import Overlaps
from pagoda_daemon.core.errors import BadRequest

INVALID: Final = "invalid_grammar"
MAX_LISTED: Final = 8  # places in a header
FORMATS: Final = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"))
"""Those that the grammar library enforces; "unknown" allows anything."""
REFUSED: Final = frozenset(
    (
        *("not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains", "propertyNames"),
        *("dependencies", "dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties"),
        *("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"),
    )
)
_MOST_MULTIPLE: Final = 10**8  # of 10**9 the library finds no multiple at all

_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_MAPS: Final = ("properties", "patternProperties")
_DEFINITIONS: Final = ("$defs", "definitions")
_SINGLE: Final = ("items", "additionalItems", "additionalProperties")
_NAMED: Final = re.compile(r'"(?:\$id|\$anchor|id)":"')
_SANE: Final = re.compile(r"[A-Za-z0-9_$.-]{1,64}")


class Place(NamedTuple):
    """Where a schema stands in the request: a chain, as most are never written out."""

    above: Place | str
    step: str

    def __str__(self) -> str:
        steps: list[str] = []
        at: Place | str = self
        while isinstance(at, Place):
            steps.append(at.step)
            at = at.above
        return at + "".join(reversed(steps))

    def key(self, name: str) -> Place:
        """Below a name, which a client chose: what may not stand in a header is shown as `?`."""
        return Place(self, f".{name}" if _SANE.fullmatch(name) else ".?")


class Fitted(NamedTuple):
    """A schema for the grammar library, and the places where it allows more than was asked for."""

    schema: dict[str, Any]
    loosened: tuple[str, ...]


def fitted(text: str, param: str, home: str = "#") -> Fitted:
    """Of a schema as JSON; `home` is where it will stand in a larger one, to which its references are written anew."""
    root = msgspec.json.decode(text)
    if root is False:
        raise BadRequest(f"{param} is false, which no answer satisfies; give a schema that allows one", param, INVALID)
    root = {} if root is True else root
    root.pop("x-guidance", None)  # options of the library, not of the schema
    overlaps = Overlaps(lambda pointer: _target(root, pointer))
    loosened: list[str] = []
    reached = list(_reachable(root, param, everything=bool(_NAMED.search(text))))
    for schema, place in reached:
        _refuse(schema, place)
        if isinstance(schema.get("format"), str) and schema["format"] not in FORMATS:
            del schema["format"]
        if overlaps.within(schema.get("oneOf")):
            loosened.append(str(place.key("oneOf")))
    for schema, _ in reached if home != "#" else ():
        if (pointer := _pointer(schema)) is not None:
            schema["$ref"] = home + pointer
    return Fitted(root, tuple(loosened[:MAX_LISTED]))


def _reachable(root: dict[str, Any], param: str, *, everything: bool) -> Iterator[tuple[dict[str, Any], Place]]:
    """Every schema that the answer may have to follow, once. Definitions that nothing refers to are left out, unless schemas have names
    of their own (`everything`), by which they may be referred to."""
    start = Place(param, "")
    waiting: list[tuple[Any, Place]] = [(root, start)]
    seen: set[int] = set()
    while waiting:
        schema, place = waiting.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        waiting += _below(schema, place, (*_MAPS, *_DEFINITIONS) if everything else _MAPS)
        if (ref := _pointer(schema)) is not None:
            waiting.append((_target(root, ref), _place(start, ref)))
        yield schema, place


def _below(schema: dict[str, Any], place: Place, maps: tuple[str, ...]) -> Iterator[tuple[Any, Place]]:
    for keyword in maps:
        if isinstance(named := schema.get(keyword), dict):
            inside = place.key(keyword)
            yield from ((inner, inside.key(name)) for name, inner in named.items())
    for keyword in _LISTS:
        if isinstance(listed := schema.get(keyword), list):
            yield from ((inner, Place(place, f".{keyword}[{at}]")) for at, inner in enumerate(listed))
    for keyword in _SINGLE:
        if isinstance(inner := schema.get(keyword), dict):
            yield inner, place.key(keyword)


def _pointer(schema: dict[str, Any]) -> str | None:
    """Of a reference into the same document; others are the library's to follow or to refuse."""
    ref = schema.get("$ref")
    return ref[1:] if isinstance(ref, str) and (ref == "#" or ref.startswith("#/")) else None


def _steps(pointer: str) -> list[str]:
    return [unquote(step).replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _target(root: dict[str, Any], pointer: str) -> Any:
    """None where there is nothing: the library says so."""
    found: Any = root
    for step in _steps(pointer):
        if isinstance(found, list):
            found = found[int(step)] if step.isdecimal() and len(step) < 6 and int(step) < len(found) else None
        else:
            found = found.get(step) if isinstance(found, dict) else None
    return found


def _place(place: Place, pointer: str) -> Place:
    for step in _steps(pointer):
        place = place.key(step)
    return place


def _refuse(schema: dict[str, Any], place: Place) -> None:
    """BadRequest names the first keyword that cannot be followed. Bounds of integers are moved to where the library is exact."""
    for keyword in schema:
        if keyword in REFUSED:
            where = str(place.key(keyword))
            raise BadRequest(f"{where}: the keyword {keyword} is not supported; leave it out", where, INVALID)
    for keyword in bounds.KEYWORDS:
        bound = schema.get(keyword)
        if isinstance(bound, int) and not bounds.fit(schema, keyword, bound):
            _refuse_number(bound, place.key(keyword), f"integers beyond {EXACT} are not exact here")
    step = schema.get("multipleOf")
    if isinstance(step, int | float) and step > _MOST_MULTIPLE:
        _refuse_number(step, place.key("multipleOf"), f"must be at most {_MOST_MULTIPLE}")
    for keyword in ("const", "enum"):
        if (large := _large(schema.get(keyword))) is not None:
            _refuse_number(large, place.key(keyword), f"integers beyond {EXACT} must be float64 numbers of at most 18 digits")


def _refuse_number(number: float, place: Place, why: str) -> None:
    raise BadRequest(f"{place}: {why}, got {number!s:.32}", str(place), INVALID)


def _large(value: Any) -> int | None:
    """An integer anywhere in a value that is not exact here."""
    level = [value]
    while level:
        large = next((one for one in level if isinstance(one, int) and not bounds.is_exact(one)), None)
        if large is not None:
            return large
        level = [inner for one in level if isinstance(one, dict | list) for inner in (one.values() if isinstance(one, dict) else one)]
    return None
