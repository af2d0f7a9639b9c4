"""Bytes → a typed body of any endpoint: which of a client's fields are served, ignored or refused, at every depth. Pure.

A field is one of six things: served, accepted because it changes no answer, accepted at the value that changes none, internal and refused,
spelt nearly like one of these and refused, or unknown. Clients are newer than their servers, so an unknown field is ignored, and the
answer's header names it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from pagoda_daemon.api.openai import strict
from pagoda_daemon.core.errors import BadRequest, clipped, shown

_HARMLESS: Final = frozenset(
    (
        *("user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier", "prediction"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    )
)
# Ours, vLLM's and SGLang's: what steers the server, and what it would have to fetch or run. Refused at every depth.
_INTERNAL: Final = frozenset(
    (
        *("kv_transfer_params", "prompt_embeds", "chat_template", "request_id"),
        *("custom_logit_processor", "logits_processors", "mm_processor_kwargs", "input_embeds", "image_data", "audio_data", "video_data"),
        *("lora_path", "bootstrap_host", "bootstrap_port", "bootstrap_room", "data_parallel_rank"),
    )
)
# Anthropic's mark of what to cache: every prefix is cached here.
_HARMLESS_INSIDE: Final = frozenset(("cache_control",))
# vLLM's; without them the answer would have another form.
_NOT_BUILT_INSIDE: Final = frozenset(("structural_tag", "whitespace_pattern"))
_MISSPELT: Final = 0.85  # of difflib's ratio: temprature is 0.95 of temperature, max_output_tokens 0.74 of max_tokens
_MAX_NAMED: Final = 16  # of unknown fields in the answer's header
_SANE_NAME: Final = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}")
_EMPTY: Final[tuple[Any, ...]] = (None, [], {}, "")
_GATEWAYS: Final = frozenset(("priority", "cache_salt"))
# Known, not built or not a client's: accepted at a value that leaves the answer as it is.
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "best_of": (None, 1),
    "top_logprobs": (None, 0),
    "echo": (None, False),
    "length_penalty": (None, 1),
    "priority": (None, 0),
    "spaces_between_special_tokens": (None, True),
    "include_reasoning": (None, True),
    "return_token_ids": (None, False),
    "return_tokens_as_token_ids": (None, False),
    "use_beam_search": (None, False),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
}
_NEUTRAL_WHEN_EMPTY: Final = frozenset(
    (
        *("functions", "suffix", "audio", "web_search_options", "reasoning_effort", "verbosity"),
        *("truncate_prompt_tokens", "documents", "cache_salt", "chat_template_kwargs"),
        *("logprob_token_ids", "thinking_token_budget", "repetition_detection", "stream_interval", "vllm_xargs", "session_id"),
    )
)
T = TypeVar("T", bound=msgspec.Struct)


def learn(kind: type[msgspec.Struct]) -> None:
    """Before threads do: msgspec takes a type apart at its first use, and a thread that meets it half done ends the process by SIGSEGV."""
    msgspec.json.Decoder(kind)
    _shape(kind)


def typed(body: bytes, kind: type[T], ignored: list[str], elsewhere: Mapping[str, str] = MappingProxyType({})) -> T:
    """The body of any endpoint, right in its names and types. `ignored` takes the paths of the fields that nobody knows. `elsewhere`: what
    stands in the place of fields that other endpoints have, "" if nothing does."""
    fields = _fields(body)
    _refuse_others(fields, elsewhere)
    return typed_fields(fields, kind, ignored)


def typed_fields(fields: dict[str, Any], kind: type[T], ignored: list[str]) -> T:
    """The same for a caller in this process, which has no body. Unknown fields are taken out of the dictionary."""
    shape = _shape(kind)
    strangers = [name for name in sorted(fields.keys() - shape.names) if _is_unknown(name, fields.pop(name))]
    _check_spelling(strangers, tuple(shape.names))
    fields = {name: _whole_number(value) if name in shape.integers else value for name, value in fields.items()}
    inside = (path for name, value in fields.items() for path in _inside(value, shape.types[name], name))
    ignored += [name for name in dict.fromkeys((*strangers, *inside)) if _SANE_NAME.fullmatch(name)][:_MAX_NAMED]
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError:
        return _typed_again(fields, kind)


def _typed_again(fields: dict[str, Any], kind: type[T]) -> T:
    """With whole numbers in lists of ids too. A million ids are walked only here, after they could not be read as they are."""
    types = _shape(kind).types
    try:
        return msgspec.convert({name: _whole_numbers(value, types[name]) for name, value in fields.items()}, kind)
    except msgspec.ValidationError as error:
        raise BadRequest(*_explained(str(error), kind)) from error


class Foreign(NamedTuple):
    """Fields that are in no type: accepted whatever they say, accepted at these values, and never accepted."""

    harmless: frozenset[str]
    neutral: Mapping[str, tuple[Any, ...]]
    internal: frozenset[str]


def foreign() -> Foreign:
    """For the documents."""
    return Foreign(_HARMLESS, {**_NEUTRAL, **dict.fromkeys(_NEUTRAL_WHEN_EMPTY, _EMPTY)}, _INTERNAL)


class _Shape(NamedTuple):
    """A body's fields: their names, their types, and those that are integers."""

    names: frozenset[str]
    types: Mapping[str, inspect.Type]
    integers: frozenset[str]


@cache
def _shape(kind: type[msgspec.Struct]) -> _Shape:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)  # noqa: S101  for the type checker
    types = {field.encode_name: field.type for field in info.fields}
    integers = frozenset(
        name for name, of in types.items() if {inspect.IntType} == {type(one) for one in _members(of)} - {inspect.NoneType}
    )
    return _Shape(frozenset(types), types, integers)


def _members(of: inspect.Type) -> tuple[inspect.Type, ...]:
    return of.types if isinstance(of, inspect.UnionType) else (of,)


def _whole_number(value: Any) -> Any:
    """16.0 as 16: JSON knows one kind of number, and JavaScript and Lua write whole ones either way."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _whole_numbers(value: Any, of: inspect.Type) -> Any:
    """The same for what is in a list of integers, or in lists of them."""
    items = next((one.item_type for one in _members(of) if isinstance(one, inspect.ListType)), None)
    if not isinstance(value, list) or items is None:
        return value
    if any(isinstance(one, inspect.FloatType) for one in _members(items)):
        return value
    integers = any(isinstance(one, inspect.IntType) for one in _members(items))
    return [_whole_number(one) if integers and isinstance(one, float) else _whole_numbers(one, items) for one in value]


def _fields(body: bytes) -> dict[str, Any]:
    parsed = strict.decode(body)
    if not isinstance(parsed, dict):
        raise BadRequest("the body is not a JSON object")
    return parsed


def _is_unknown(name: str, value: Any) -> bool:
    if name in _HARMLESS:
        return False
    _refuse_internal(name, name)
    if name in _NEUTRAL or name in _NEUTRAL_WHEN_EMPTY:
        accepted = _NEUTRAL.get(name, _EMPTY)
        if not any(_same(value, one) for one in accepted):
            why = "is set by the gateway, in a header" if name in _GATEWAYS else "is not supported yet"
            raise BadRequest(f"{name} {why}; leave it out", name, "unsupported_parameter")
        return False
    return True


def _refuse_others(fields: Mapping[str, Any], elsewhere: Mapping[str, str]) -> None:
    """Fields that would change the answer of another endpoint; such as say nothing are ignored."""
    for name in sorted(elsewhere.keys() & fields.keys()):
        if fields[name] is not None and fields[name] is not False:
            how = f"use {elsewhere[name]}" if elsewhere[name] else "leave it out"
            raise BadRequest(f"{name} is not a parameter of this endpoint; {how}", name, "unknown_parameter")


def _refuse_internal(name: str, path: str) -> None:
    if name in _INTERNAL:
        raise BadRequest(f"{path} is internal and not accepted from outside", path, "unsupported_parameter")


def _refuse_not_built(name: str, value: Any, path: str) -> None:
    if name in _NOT_BUILT_INSIDE and value not in _EMPTY:
        raise BadRequest(f"{path} is not supported yet; leave it out", path, "unsupported_parameter")


def _check_spelling(names: list[str], served: tuple[str, ...]) -> None:
    """None of them is a served field, misspelt: that would change the answer."""
    for name in names[:_MAX_NAMED]:
        if near := difflib.get_close_matches(name[:64], served, 1, _MISSPELT):
            raise BadRequest(f"{shown(name)} is not a parameter of this endpoint, {near[0]!r} is", name[:64], "unknown_parameter")


def _inside(value: Any, of: inspect.Type, path: str) -> Iterator[str]:
    """Paths of the unknown fields of `value`, which is of the type `of`. Free JSON in it (schemas, arguments) is not looked at."""
    if isinstance(value, list):
        items = next((one for one in _members(of) if isinstance(one, inspect.ListType)), None)
        for one in value if items and _has_structs(items.item_type) else ():
            yield from _inside(one, items.item_type, f"{path}[]") if items else ()
    elif isinstance(value, dict) and (struct := _chosen(value, of)) is not None:
        known = {field.encode_name: field.type for field in struct.fields}
        for name, inner in value.items():
            _refuse_internal(name, f"{path}.{name}")
            _refuse_not_built(name, inner, f"{path}.{name}")
            if name in known:
                yield from _inside(inner, known[name], f"{path}.{name}")
            elif name != struct.tag_field and name not in _HARMLESS_INSIDE:
                yield f"{path}.{name}"


def _has_structs(of: inspect.Type) -> bool:
    """A prompt of a million ids need not be walked."""
    return any(isinstance(one, inspect.StructType | inspect.ListType) for one in _members(of))


def _chosen(value: Mapping[str, Any], of: inspect.Type) -> inspect.StructType | None:
    """The struct that `value` is read as."""
    structs = [one for one in _members(of) if isinstance(one, inspect.StructType)]
    tagged = (one for one in structs if one.tag_field is None or value.get(one.tag_field) == one.tag)
    return next(tagged, None)


def _same(value: Any, one: Any) -> bool:
    """Equal, and 0 is not false: `logprobs: 0` asks for something."""
    return value is one if isinstance(value, bool) or isinstance(one, bool) else bool(value == one)


def _explained(text: str, kind: type[msgspec.Struct]) -> tuple[str, str | None]:
    """msgspec's sentence as ours: message and parameter. If one of a few values is wanted, the message lists them."""
    what, _, where = text.partition(" - at `$")
    what = clipped(what)
    if missing := re.search(r"missing required field `(\w+)`", what):
        return f"{missing[1]} is required", missing[1]
    param = where.rstrip("`").removeprefix(".") or None
    if param and what.startswith("Invalid enum value") and (accepted := _accepted(param, kind)):
        what = f"{what}; accepted are {', '.join(accepted)}"
    return f"{param}: {what}" if param else what, param


def _accepted(path: str, kind: type[msgspec.Struct]) -> list[str]:
    """Values of the field at `path`, which is msgspec's: `messages[0].role`. Empty if its type has no such list."""
    at = [inspect.type_info(kind)]
    for step in re.findall(r"\w+|\[", path.replace("[...]", "[").replace("]", "")):
        if not step.isdecimal():
            at = [inner for one in at for inner in _inner(one, step)]
    return list(dict.fromkeys(str(value) for one in at if isinstance(one, inspect.LiteralType) for value in one.values))


def _inner(of: inspect.Type, step: str) -> Iterator[inspect.Type]:
    if isinstance(of, inspect.StructType):
        found = [field.type for field in of.fields if field.encode_name == step]
    elif step != "[":
        found = []
    elif isinstance(of, inspect.DictType):
        found = [of.value_type]
    else:
        found = [of.item_type] if isinstance(of, inspect.CollectionType | inspect.VarTupleType) else []
    return (one for inside in found for one in _members(inside))
