"""Specs out of a CRD's own schema: a good one with some of its fields set to anything that the schema says of them, or to nonsense."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from hypothesis import strategies as st
from pagoda_contracts.crds.crdgen import crd
from pagoda_contracts.resources.meta import Kind
from support.kube.object_table import GONE, edit

Schema = dict[str, Any]
Spec = dict[str, Any]
Values = st.SearchStrategy[Any]

NONSENSE = st.sampled_from(
    [None, "", "\u0000", " ", "x" * 5000, -1, 2**40, 1.5, True, [], {}, [[]], {"a": {}}, "{{ .Values }}", "../../etc"]
)
# In a field without a schema: what the operator must judge by itself.
OVERLAYS = st.sampled_from(
    [
        {"spec": {"hostNetwork": True}},
        {"metadata": {"labels": {"team": "blue"}}},
        {"spec": {"containers": [{"name": "daemon", "image": "evil"}]}},
        {"spec": {"containers": "none"}},
        {"spec": None},
        {"metadata": {"labels": {"a b": "c d"}}},
        {"metadata": {"labels": {"team": 7}}},
        {"kind": "Pod"},
        {"spec": {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}},
    ]
)
# What the API server takes and the operator does not.
REFUSED = st.sampled_from(
    [
        ("spec.profileRef.name", "nobody"),
        ("spec.podTemplate", {"spec": {"hostNetwork": True}}),
        ("spec.podTemplate", {"spec": {"tolerations": []}}),
    ]
)
MAX_REPLICAS = 2


class Edit(NamedTuple):
    """One field and what it is set to."""

    path: str
    value: Any


def schema_of(kind: Kind) -> Schema:
    """The schema of the kind's spec, as the API server has it."""
    (version,) = crd(kind)["spec"]["versions"]
    found: Schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def edits(schema: Schema, most: int = 3) -> st.SearchStrategy[list[Edit]]:
    """Up to so many fields of the spec, each with a value of its schema, with nonsense, or gone."""
    fields = list(_fields(schema, "spec"))
    one = st.sampled_from(fields).flatmap(lambda field: _edit(*field))
    one = st.one_of(one, one, REFUSED.map(lambda made: Edit(*made)))
    return st.lists(one, min_size=1, max_size=most, unique_by=lambda made: made.path)


def edited(good: Spec, changes: list[Edit]) -> Spec:
    """The spec with these fields so."""
    body = {"spec": copy.deepcopy(good)}
    for path, value in changes:
        try:
            edit(body, path, value)
        except (KeyError, IndexError, TypeError, AttributeError):
            continue  # another edit took away where it stands
    body["spec"]["replicas"] = _few(body["spec"].get("replicas"))
    return body["spec"]


def _few(replicas: Any) -> Any:
    """A thousand pods prove nothing more than two."""
    return MAX_REPLICAS if type(replicas) is int and replicas > MAX_REPLICAS else 1 if replicas is None else replicas


def _edit(path: str, schema: Schema) -> st.SearchStrategy[Edit]:
    # Mostly as the schema says: the API server stops nonsense, and what it lets through is what the operator must bear.
    value = st.one_of(values(schema), values(schema), values(schema), NONSENSE, st.just(GONE))
    return value.map(lambda drawn: Edit(path, drawn))


def _fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    for name, below in schema.get("properties", {}).items():
        yield f"{path}.{name}", below
        yield from _fields(below, f"{path}.{name}")


def values(schema: Schema) -> Values:
    """Anything that the schema takes; rules across fields (CEL) are the API server's to judge."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return st.integers(0, 4) | st.sampled_from(["250m", "1Gi", "0", "1e3", "nine"])
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return OVERLAYS
    return _TYPES[schema["type"]](schema)


def _object(schema: Schema) -> Values:
    if "properties" not in schema:
        return st.dictionaries(st.sampled_from(["a", "team", "zone"]), values(schema["additionalProperties"]), max_size=2)
    parts = {name: values(below) for name, below in schema["properties"].items()}
    required = {name: parts[name] for name in schema.get("required", ())}
    return st.fixed_dictionaries(required, optional={name: part for name, part in parts.items() if name not in required})


def _array(schema: Schema) -> Values:
    low = schema.get("minItems", 0)
    return st.lists(values(schema["items"]), min_size=low, max_size=max(low, 2), unique_by=lambda item: json.dumps(item, sort_keys=True))


def _string(schema: Schema) -> Values:
    low, high = schema.get("minLength", 0), schema.get("maxLength", 64)
    if "pattern" in schema:
        return st.from_regex(schema["pattern"], fullmatch=True).filter(lambda text: low <= len(text) <= high and text.isprintable())
    return st.text("abc-é ", min_size=low, max_size=min(high, low + 12))


def _integer(schema: Schema) -> Values:
    low, high = schema.get("minimum", -5), schema.get("maximum", 5)
    return st.sampled_from(sorted({low, min(low + 1, high), (low + high) // 2, high}))


_TYPES = {
    "object": _object,
    "array": _array,
    "string": _string,
    "integer": _integer,
    "number": lambda schema: st.floats(schema.get("minimum", 0), schema.get("maximum", 1)),
    "boolean": lambda _: st.booleans(),
}
