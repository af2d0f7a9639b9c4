"""The API server's verdict on an object, without an API server. Pure; `pagoda validate` calls it, one test holds it against the real one.

As strict as `kubectl apply`: unknown fields are refused. What only a cluster knows (names that exist, quota, admission) is not judged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pagoda_contracts.crds.crdgen import KINDS
from pagoda_contracts.crds.schema import IN_WORDS
from pagoda_contracts.names import API_VERSION, GROUP
from pagoda_contracts.resources.meta import RULE_BROKEN, SUBDOMAIN, Model

Path = tuple[str | int, ...]
_MODELS: Final = {kind.kind: kind.model for kind in KINDS}
_MAX_NAME: Final = 253
_MAX_SHOWN: Final = 80


class Problem(NamedTuple):
    """One refusal: where, and what is accepted there."""

    path: Path
    message: str

    @property
    def where(self) -> str:
        """The path as the API server writes it: `spec.accelerators[0].cpu`."""
        return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path).removeprefix(".")


def is_ours(document: Any) -> bool:
    """Whether the object is of our group, hence ours to judge."""
    return isinstance(document, dict) and str(document.get("apiVersion", "")).partition("/")[0] == GROUP


def judge(document: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Every reason for which the API server refuses to create the object; none where it takes it."""
    if document.get("apiVersion") != API_VERSION:
        return (Problem(("apiVersion",), f"must be {API_VERSION}, got {_shown(document.get('apiVersion'))}"),)
    model = _MODELS.get(str(document.get("kind")))
    if model is None:
        return (Problem(("kind",), f"must be one of {', '.join(sorted(_MODELS))}, got {_shown(document.get('kind'))}"),)
    metadata: Any = document.get("metadata")
    named = tuple(_name(metadata))
    return named or _fields(model, _named(document))


def parsed(document: Mapping[str, Any]) -> BaseModel:
    """Returns the object, which `judge` has nothing against, as its model."""
    return _parse(_MODELS[str(document["kind"])], _named(document))


def _named(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**document, "metadata": {**document["metadata"], "name": _whole_name(document["metadata"])}}


def judge_update(new: Mapping[str, Any], old: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Every reason against putting `new` in the place of `old`, an object that was taken."""
    if problems := judge(new):
        return problems
    model = _MODELS[str(new["kind"])]
    return tuple(_moved(_parse(model, new), _parse(model, old), ()))


def _moved(new: BaseModel, old: BaseModel, path: Path) -> list[Problem]:
    found: list[Problem] = []
    if isinstance(new, Model):
        found += [Problem((*path, *_steps(rule.field)), rule.message) for rule in type(new).transitions if not rule.holds(new, old)]
    for name, field in type(new).model_fields.items():
        mine, theirs = getattr(new, name), getattr(old, name)
        if isinstance(mine, BaseModel) and isinstance(theirs, BaseModel):
            found += _moved(mine, theirs, (*path, field.alias or name))
    return found


def _name(metadata: Any) -> list[Problem]:
    if not isinstance(metadata, dict):
        return [Problem(("metadata",), "a map with a name is required")]
    name, prefix = metadata.get("name"), metadata.get("generateName")
    if not name and not prefix:
        return [Problem(("metadata", "name"), "name or generateName is required")]
    if not isinstance(name or prefix, str):
        return [Problem(("metadata", "name"), f"must be text, got {_shown(name or prefix)}")]
    whole = _whole_name(metadata)
    if len(whole) > _MAX_NAME or not re.fullmatch(SUBDOMAIN, whole):
        must = f"must be at most {_MAX_NAME} small letters, digits, '-' and '.', with a letter or digit first and last"
        return [Problem(("metadata", "name"), f"{must}, got {_shown(whole)}")]
    return []


def _whole_name(metadata: Mapping[str, Any]) -> str:
    """The name, or one such as the API server generates."""
    return str(metadata.get("name") or f"{metadata.get('generateName')}xxxxx")


def _fields(model: type[BaseModel], document: Mapping[str, Any]) -> tuple[Problem, ...]:
    try:
        _parse(model, document)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        return tuple(_problem(model, one) for one in errors if not _follows(one, errors))
    except ValueError as error:  # NaN and the like
        return (Problem((), f"not a JSON value: {error}"),)
    return ()


def _parse(model: type[BaseModel], document: Mapping[str, Any]) -> BaseModel:
    text = json.dumps(_as_sent(document), allow_nan=False)
    return model.model_validate_json(text, strict=True, by_alias=True, by_name=False)


def _as_sent(value: Any) -> Any:
    """As the API server reads it: null in a map is absent, 3.0 is 3."""
    if isinstance(value, dict):
        return {key: _as_sent(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_as_sent(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _problem(model: type[BaseModel], error: ErrorDetails) -> Problem:
    path, kind, context = tuple(error["loc"]), error["type"], error.get("ctx", {})
    if kind == RULE_BROKEN:
        return Problem((*path, *_steps(context["field"])), context["message"])
    if kind == "extra_forbidden":
        return Problem(path, f"unknown field; accepted: {', '.join(_known(model, path[:-1]))}")
    if kind == "missing":
        return Problem(path, "is required")
    if kind == "string_pattern_mismatch":
        must = IN_WORDS.get(context["pattern"], f"must be text that matches {context['pattern']}")
        return Problem(path, f"{must}, got {_shown(error['input'])}")
    if kind == "tuple_type":
        first = next(iter(error["input"]), "") if isinstance(error["input"], dict) else ""
        return Problem(path, f"must be a list: begin with `- {f'{first}:' if first else '…'}`, got {_shown(error['input'])}")
    says = error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return Problem(path, says if kind == "value_error" else f"{says}, got {_shown(error['input'])}{_near(error)}")


def _near(error: ErrorDetails) -> str:
    """For the end of a message: the accepted word that the given one is most like."""
    words = re.findall("'([^']*)'", error["ctx"]["expected"]) if error["type"] == "literal_error" else []
    near = get_close_matches(str(error["input"]), words, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _follows(error: ErrorDetails, errors: list[ErrorDetails]) -> bool:
    """A list is called too short only because its entries were refused."""
    here = error["loc"]
    return error["type"] == "too_short" and any(len(one["loc"]) > len(here) and one["loc"][: len(here)] == here for one in errors)


def _steps(field: str) -> Path:
    return tuple(field.split(".")) if field else ()


def _known(model: type[BaseModel], path: Path) -> list[str]:
    """The fields of the object at a path."""
    schema = model.model_json_schema(by_alias=True)
    definitions, at = schema.get("$defs", {}), schema
    for step in path:
        at = _resolved(at, definitions)
        at = at.get("items", {}) if isinstance(step, int) else at.get("properties", {}).get(step, {})
    return sorted(_resolved(at, definitions).get("properties", {}))


def _resolved(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    options = [schema, *schema.get("anyOf", [])]
    reference = next((option["$ref"] for option in options if "$ref" in option), None)
    return definitions[reference.rsplit("/", 1)[1]] if reference else next((o for o in options if "items" in o), schema)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
