"""pydantic model → structural schema of a CRD. Pure; raises on what a structural schema cannot say.

Called by `crdgen`. Rules of the API server that it keeps: no `$ref`, no `null` unions (optional means absent), no unbounded
string, list or map (CEL's cost budget is computed from the bounds), schemaless only where a field says so itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, get_args

from pydantic import BaseModel

from pagoda_contracts.resources.meta import Model, Rule, Transition
from pagoda_contracts.resources.scaling import HORIZON_PATTERN
from pagoda_contracts.resources.service import URI_PATTERN
from pagoda_contracts.resources.traffic import RATIO_PATTERN
from pagoda_contracts.units import DURATION_PATTERN

Schema = dict[str, Any]

# What people write most often, in words. The API server refuses a pattern with the pattern itself, and says these beside it.
IN_WORDS: Final = {
    URI_PATTERN: "must begin with pvc://, hf://, s3://, gs://, az://, oci:// or https:// and name the files, such as pvc://claim/path, "
    "hf://org/name, s3://bucket/prefix or az://account/container/prefix, with letters, digits, '.', '_' and '-' only",
    DURATION_PATTERN: "must be a duration with ms, s, m or h, such as 800ms, 30s or 1h30m",
    HORIZON_PATTERN: "must be startupTime or a duration such as 5m",
    RATIO_PATTERN: "must be a multiple such as 2x, or a duration such as 800ms",
}

_KEEP: Final = (
    *("type", "description", "default", "enum", "format", "pattern", "minimum", "maximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties", "required", "multipleOf"),
)
# Which model a schema was written from. Not its title: a field called `accelerator` has the title of the model Accelerator.
_MODEL: Final = "x-pagoda-model"
_DROP: Final = frozenset({_MODEL, "title", "additionalProperties", "properties", "items", "$ref", "anyOf", "const", "$defs"})


class SchemaError(Exception):
    """The model cannot be written as a structural schema; the message names the field."""


def structural(model: type[BaseModel]) -> Schema:
    """The openAPIV3Schema of a kind, metadata left to the API server."""
    raw = model.model_json_schema(by_alias=True, mode="validation")
    schema = _Writer(raw.get("$defs", {}), _rules_by_model(model)).write({**raw, _MODEL: model.__name__}, model.__name__)
    schema["properties"]["metadata"] = {"type": "object"}
    for name in ("apiVersion", "kind"):
        schema["properties"][name] = {"type": "string"}
    schema["required"] = [name for name in schema.get("required", []) if name == "spec"]
    return schema


def _rules_by_model(model: type[BaseModel]) -> dict[str, list[dict[str, str]]]:
    out: dict[str, list[dict[str, str]]] = {}
    for found in _models(model, set()):
        if not issubclass(found, Model) or not (found.rules or found.transitions):
            continue
        if found.__name__ in out:
            raise SchemaError(f"two models are called {found.__name__}: rules go by that name")
        both: list[Rule | Transition] = [*found.rules, *found.transitions]
        out[found.__name__] = [_validation(rule) for rule in both]
    return out


def _validation(rule: Rule | Transition) -> dict[str, str]:
    found = {"rule": rule.cel, "message": rule.message}
    return {**found, "fieldPath": f".{rule.field}"} if rule.field else found


def _models(model: type[BaseModel], seen: set[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    if model in seen:
        return
    seen.add(model)
    yield model
    for field in model.model_fields.values():
        for nested in _classes(field.annotation):
            yield from _models(nested, seen)


def _classes(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _classes(argument)


def _without_null(default: Any) -> Any:
    """Absent instead of null, at every depth."""
    if isinstance(default, dict):
        return {key: _without_null(value) for key, value in default.items() if value is not None}
    return default


class _Writer:
    """Walks one JSON schema; `path` names the field in errors."""

    def __init__(self, definitions: dict[str, Schema], rules: dict[str, list[dict[str, str]]]) -> None:
        self._definitions = definitions
        self._rules = rules

    def write(self, raw: Schema, path: str) -> Schema:
        raw = self._resolve(raw, path)
        out: Schema = {key: raw[key] for key in _KEEP if key in raw}
        out |= {key: value for key, value in raw.items() if key.startswith("x-kubernetes-")}
        unknown = raw.keys() - set(_KEEP) - _DROP - out.keys()
        if unknown:
            raise SchemaError(f"{path}: a structural schema has no {', '.join(sorted(unknown))}")
        if "default" in out:
            out["default"] = _without_null(out["default"])
            if out["default"] == []:  # an absent list is an empty list; no need to write it into every object
                del out["default"]
        if "const" in raw:
            out["enum"] = [raw["const"]]
        if raw.get("x-kubernetes-int-or-string"):
            return self._int_or_string(out, path)
        if "type" not in raw and raw.get("x-kubernetes-preserve-unknown-fields"):
            return out | self._map(raw, path)  # a number or a map: each bound holds for values of its own type only
        if message := IN_WORDS.get(out.get("pattern", "")):
            out["x-kubernetes-validations"] = [{"rule": f"self.matches(r'{out['pattern']}')", "message": message}]
        self._check_bounds(out, path)
        self._descend(raw, out, path)
        if rules := self._rules.get(raw.get(_MODEL, "")):
            out["x-kubernetes-validations"] = [*out.get("x-kubernetes-validations", []), *rules]
        return out

    def _resolve(self, raw: Schema, path: str) -> Schema:
        """Inlines `$ref` and unwraps `X | None`; what stands beside them (description, default) wins."""
        if "$ref" in raw:
            beside = {key: value for key, value in raw.items() if key != "$ref"}
            name = raw["$ref"].rsplit("/", 1)[1]
            return self._resolve({**self._definitions[name], _MODEL: name, **beside}, path)
        if "anyOf" not in raw or raw.get("x-kubernetes-int-or-string"):
            return raw
        options = [option for option in raw["anyOf"] if option.get("type") != "null"]
        if len(options) != 1 or len(options) == len(raw["anyOf"]):
            raise SchemaError(f"{path}: a union is not structural; it must be X or absent")
        beside = {key: value for key, value in raw.items() if key != "anyOf" and not (key == "default" and value is None)}
        return self._resolve({**options[0], **beside}, path)

    def _int_or_string(self, out: Schema, path: str) -> Schema:
        if "maxLength" not in out:
            raise SchemaError(f"{path}: int-or-string needs maxLength")
        return {**out, "anyOf": [{"type": "integer"}, {"type": "string"}]}

    def _check_bounds(self, out: Schema, path: str) -> None:
        kind = out.get("type")
        if any(isinstance(bound := out.get(name), float) and not bound.is_integer() for name in ("minimum", "maximum")):
            # Kubernetes 1.35 cuts the bound's fraction off where the value is an integer: 0 passes a minimum of 0.01.
            raise SchemaError(f"{path}: a bound with a fraction is not kept; use whole bounds or rules")
        if kind is None:
            raise SchemaError(f"{path}: no type")
        unbounded = kind == "string" and "maxLength" not in out and "enum" not in out
        if unbounded and path.rsplit(".", 1)[-1] not in ("apiVersion", "kind"):
            raise SchemaError(f"{path}: a string needs maxLength")
        if kind == "array" and "maxItems" not in out:
            raise SchemaError(f"{path}: a list needs maxItems")
        if out.get("x-kubernetes-int-or-string") is None and "default" in out and out["default"] is None:
            raise SchemaError(f"{path}: null cannot be a default; optional means absent")

    def _descend(self, raw: Schema, out: Schema, path: str) -> None:
        schemaless = out.get("x-kubernetes-preserve-unknown-fields")
        if out["type"] == "array":
            out["items"] = self.write(raw["items"], f"{path}[]")
            out |= {name: raw[name] for name in ("additionalProperties",) if name in raw}
        elif "properties" in raw:
            fields = {name: value for name, value in raw["properties"].items() if name != "metadata"}
            out["properties"] = {name: self._property(value, f"{path}.{name}") for name, value in fields.items()}
        elif out["type"] == "object" and not schemaless:
            out |= self._map(raw, path)

    def _map(self, raw: Schema, path: str) -> Schema:
        values = raw.get("additionalProperties")
        if not isinstance(values, dict):
            raise SchemaError(f"{path}: a map needs properties or typed values, or must say that it is schemaless")
        if "maxProperties" not in raw:
            raise SchemaError(f"{path}: a map needs maxProperties")
        return {"additionalProperties": self.write(values, f"{path}.*")}

    def _property(self, raw: Schema, path: str) -> Schema:
        out = self.write(raw, path)
        if not out.get("description") and path.rsplit(".", 1)[-1] not in ("apiVersion", "kind"):
            raise SchemaError(f"{path}: no description")
        return out
