"""What a request says of the shape of its answer: OpenAI's response_format, vLLM's structured_outputs and its older guided_* fields → one
`Grammar` for the engine. Pure; knows no grammar language, only how large and how deep one may be (docs/structured.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pagoda_daemon.api.openai.sampling import SamplingFields
from pagoda_daemon.api.openai.schemas import INVALID, Fitted, fitted
from pagoda_daemon.core.errors import BadRequest
from pagoda_daemon.core.messages import Grammar
from pagoda_daemon.structured.limits import MAX_BYTES, MAX_DEPTH

SCHEMA_PARAM: Final = "response_format.json_schema.schema"
_ANY_OBJECT: Final = '{"type":"object"}'

Schema = dict[str, Any] | bool


class NamedSchema(msgspec.Struct, frozen=True):
    """OpenAI's wrapping of a schema. The schema is followed to the letter, strict or not."""

    name: str
    schema: Schema
    description: str | None = None
    strict: bool | None = None


class TextFormat(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Any text."""


class ObjectFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class SchemaFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema"):
    """JSON by a schema."""

    json_schema: NamedSchema


ResponseFormat = TextFormat | ObjectFormat | SchemaFormat


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's field; one of its entries."""

    json: str | Schema | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class StructuredFields(SamplingFields, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Fields of both endpoints; at most one of them asks for something."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | Schema | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


def grammar_of(fields: StructuredFields, eos: Sequence[int]) -> Grammar | None:
    """None where any text will do; BadRequest for two wishes, and for one that is too large."""
    wished = {**_of_format(fields.response_format), **_of_outputs(fields.structured_outputs), **_of_guided(fields)}
    if not wished:
        return None
    if len(wished) > 1:
        raise BadRequest(f"{' and '.join(wished)} exclude each other; give one of them", next(iter(wished)), INVALID)
    [(param, grammar)] = wished.items()
    return msgspec.structs.replace(checked(grammar, param), eos=tuple(eos), param=param)


def _of_format(wished: ResponseFormat | None) -> dict[str, Grammar]:
    match wished:
        case ObjectFormat():
            return {"response_format": Grammar("json_schema", _ANY_OBJECT)}
        case SchemaFormat(json_schema=named):
            return {"response_format": of_schema(named.schema, SCHEMA_PARAM)}
        case _:
            return {}


def _of_outputs(wished: StructuredOutputs | None) -> dict[str, Grammar]:
    if wished is None:
        return {}
    found = _of_parts("structured_outputs.", (wished.json, wished.regex, wished.choice, wished.grammar))
    return {**found, "structured_outputs.json_object": Grammar("json_schema", _ANY_OBJECT)} if wished.json_object else found


def _of_guided(fields: StructuredFields) -> dict[str, Grammar]:
    return _of_parts("guided_", (fields.guided_json, fields.guided_regex, fields.guided_choice, fields.guided_grammar))


def _of_parts(prefix: str, parts: tuple[str | Schema | None, str | None, list[str] | None, str | None]) -> dict[str, Grammar]:
    schema, regex, choice, grammar = parts
    found: dict[str, Grammar] = {}
    if schema is not None:
        found[f"{prefix}json"] = of_schema(schema, f"{prefix}json")
    if regex is not None:
        found[f"{prefix}regex"] = Grammar("regex", regex)
    if choice is not None:
        if not choice or not all(choice):
            raise BadRequest(f"{prefix}choice must be a list of at least one text, none of them empty", f"{prefix}choice", INVALID)
        found[f"{prefix}choice"] = Grammar("choice", msgspec.json.encode(choice).decode())
    if grammar is not None:
        found[f"{prefix}grammar"] = Grammar("grammar", grammar)
    return found


def of_schema(schema: str | Schema, param: str) -> Grammar:
    """A schema as an object or as JSON text; BadRequest where it is no schema, or one that cannot be followed."""
    return Grammar("json_schema", msgspec.json.encode(fit(schema, param).schema).decode())


def fit(schema: str | Schema, param: str, home: str = "#") -> Fitted:
    """As `of_schema`, for callers that put it into a larger one, or report where it is loosened."""
    return fitted(schema_text(schema, param), param, home)


def schema_text(schema: str | Schema, param: str) -> str:
    """A schema as JSON; BadRequest where it is none, too large or too deep."""
    if isinstance(schema, str):
        check_size(schema, param)
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadRequest(f"{param} is not JSON: {error}", param, INVALID) from error
        if not isinstance(schema, dict | bool):
            raise BadRequest(f"{param} must be a JSON object, true or false", param, INVALID)
    if (depth := _depth(schema)) > MAX_DEPTH:
        raise BadRequest(f"{param} is nested {depth} levels deep; at most {MAX_DEPTH} are allowed", param, INVALID)
    text = msgspec.json.encode(schema).decode()
    check_size(text, param)
    return text


def loosened_formats(fields: StructuredFields) -> tuple[str, ...]:
    """Places of schemas that allow more than they say."""
    schemas: dict[str, str | Schema | None] = {"guided_json": fields.guided_json}
    if isinstance(fields.response_format, SchemaFormat):
        schemas[SCHEMA_PARAM] = fields.response_format.json_schema.schema
    if fields.structured_outputs is not None:
        schemas["structured_outputs.json"] = fields.structured_outputs.json
    return tuple(place for param, schema in schemas.items() if schema is not None for place in fit(schema, param).loosened)


def checked(grammar: Grammar, param: str) -> Grammar:
    """BadRequest where it is empty, too large, or its brackets are nested too deeply."""
    check_size(grammar.text, param)
    if not grammar.text.strip():
        raise BadRequest(f"{param} is empty", param, INVALID)
    if grammar.kind in ("regex", "grammar") and (depth := _brackets(grammar.text)) > MAX_DEPTH:
        raise BadRequest(f"{param} opens {depth} brackets within each other; at most {MAX_DEPTH} are allowed", param, INVALID)
    return grammar


def check_size(text: str, param: str) -> None:
    """BadRequest where `text` is larger than a grammar may be."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise BadRequest(f"{param} must have at most {MAX_BYTES} bytes, got {size}", param, INVALID)


def check_json(value: Any, param: str) -> None:
    """For JSON that goes on to a chat template: BadRequest where it is too deep, or holds a number that fits no 64 bits."""
    if (depth := _depth(value)) > MAX_DEPTH:
        raise BadRequest(f"{param} is nested {depth} levels deep; at most {MAX_DEPTH} are allowed", param)
    try:
        msgspec.msgpack.encode(value)
    except OverflowError as error:
        raise BadRequest(f"{param} holds a whole number beyond 64 bits", param) from error


def _depth(value: Any) -> int:
    """Levels of objects and arrays, without recursion."""
    level, depth = [value], 0
    while level := [one for one in level if isinstance(one, dict | list) and one]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return depth


def _brackets(text: str) -> int:
    """How deep brackets nest; those that are escaped or in quotes may count too, 64 are far from anything written by hand."""
    depth = deepest = 0
    for character in text:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth = max(0, depth - 1)
    return deepest
