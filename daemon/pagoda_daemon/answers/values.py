"""Values that a model writes without a type (in XML) → JSON, by the tool's schema. Pure; nothing is evaluated."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pagoda_daemon.answers.literals import literal

_MAX_DEPTH: Final = 16  # of references and alternatives that are followed
_ALL: Final = frozenset(("string", "integer", "number", "boolean", "object", "array", "null"))
_WORDS: Final[Mapping[str, Any]] = {"true": True, "false": False, "True": True, "False": False, "null": None, "None": None}
_OF: Final[Mapping[type, tuple[str, ...]]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    dict: ("object",),
    list: ("array",),
    type(None): ("null",),
    str: ("string",),
}


def types_of(parameters: Mapping[str, Any], name: str) -> frozenset[str]:
    """Returns the JSON types that the parameter `name` may have; all of them if the schema does not say. A parameter that the schema does
    not know is a string."""
    properties = parameters.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    if name in known:
        return _types(known[name], parameters, _MAX_DEPTH)
    more = parameters.get("additionalProperties")
    return _types(more, parameters, _MAX_DEPTH) if isinstance(more, Mapping) else frozenset(("string",))


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth <= 0:
        return _ALL
    said = schema.get("type")
    if said is not None:
        return frozenset(said if isinstance(said, list) else [said]) & _ALL or _ALL
    if isinstance(reference := schema.get("$ref"), str):
        return _types(_found(root, reference), root, depth - 1)
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return frozenset(name for value in values for name in _OF.get(type(value), ()))
    branches = next((schema[key] for key in ("anyOf", "oneOf", "allOf") if isinstance(schema.get(key), list)), None)
    if branches is None:
        return _ALL
    found = [_types(branch, root, depth - 1) for branch in branches]
    return frozenset.intersection(*found) or _ALL if "allOf" in schema and found else frozenset().union(*found) or _ALL


def _found(root: Mapping[str, Any], reference: str) -> Any:
    """What a reference within the document names."""
    at: Any = root
    for key in reference.removeprefix("#").strip("/").split("/") if reference.startswith("#/") else ("\0",):
        name = key.replace("~1", "/").replace("~0", "~")
        at = at.get(name) if isinstance(at, Mapping) else None
    return at


def json_of(text: str, types: frozenset[str]) -> str:
    """Returns the JSON text of a value. What has none of the types is a string: the tool can still say what is wrong with it."""
    if types == {"string"}:
        return quoted(text)
    try:
        value = parsed(text.strip())
        if isinstance(value, str):
            return quoted(text) if "string" in types else dumped(value)
        if types.intersection(_names(value)):
            return dumped(int(value) if isinstance(value, float) and "number" not in types else value)
    except ValueError:
        pass
    return quoted(text)


def _names(value: Any) -> Sequence[str]:
    """2.0 is an integer as well."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return ("number", "integer")
    return _OF[type(value)]


def parsed(text: str) -> Any:
    """Returns the value of JSON, or of a literal as Python writes it; ValueError if the text is neither."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if not text.startswith(("[", "{", "(")):
            raise ValueError("neither") from None
        return literal(text)


def dumped(value: Any) -> str:
    """Returns JSON text, which is valid UTF-8; ValueError for a number that JSON has not, and for what is nested too deeply."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    try:
        text.encode()
    except UnicodeEncodeError:  # half a pair of surrogates, which JSON can only escape
        return json.dumps(value, allow_nan=False)
    return text


def quoted(text: str) -> str:
    """Returns a JSON string. The pieces of a text, quoted, are the quoted text."""
    return json.dumps(text, ensure_ascii=False)
