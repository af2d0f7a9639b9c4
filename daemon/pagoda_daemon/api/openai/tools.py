"""Tools in a request: their types, what is accepted of them, and how a conversation with calls in it is given to a chat template. Pure.

How a model writes a call is `tool_formats`'s business, how it is read `tool_parser`'s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from pagoda_daemon.api.openai.schemas import Fitted
from pagoda_daemon.api.openai.structured import StructuredFields, check_json, fit, grammar_of, loosened_formats, schema_text
from pagoda_daemon.nouns.errors import BadRequest, shown

MAX_TOOLS: Final = 128
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_SHAPING: Final = frozenset(("type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"))


class Function(msgspec.Struct, frozen=True):
    """What may be called; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    """OpenAI's wrapping of a function."""

    type: Literal["function"]
    function: Function


class NamedFunction(msgspec.Struct, frozen=True):
    """A function by its name."""

    name: str


class NamedTool(msgspec.Struct, frozen=True):
    """`tool_choice` for exactly this function."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class CalledFunction(msgspec.Struct, frozen=True):
    """A call that the model made earlier; `arguments` is JSON text."""

    name: str
    arguments: str


class CalledTool(msgspec.Struct, frozen=True):
    """OpenAI's wrapping of a call, as clients hand it back."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class Toolbox(msgspec.Struct, frozen=True):
    """The tools that an answer may or must use. `must`: it is nothing but calls; `named`: of the only tool, once. `first` is the index of
    the first one in the request."""

    tools: tuple[Tool, ...]
    must: bool = False
    named: bool = False
    parallel: bool = True
    first: int = 0

    @property
    def single(self) -> bool:
        """At most one call."""
        return self.named or not self.parallel

    def for_template(self) -> list[dict[str, Any]]:
        """As templates read them: what the client wrote, no more."""
        return [{"type": "function", "function": _plain(tool.function)} for tool in self.tools]

    def arguments(self, at: int, home: str = "#") -> Fitted:
        """The schema of a call's arguments, for the grammar library. A function without parameters takes an empty object only."""
        given = self.tools[at].function.parameters
        if given is None:
            return Fitted({"type": "object", "additionalProperties": False}, ())
        shaped = given if given.keys() & _SHAPING else {"type": "object", **given}
        return fit(shaped, f"tools[{self.first + at}].function.parameters", home)

    def loosened(self) -> tuple[str, ...]:
        """Places of parameters that allow more than they say."""
        return tuple(place for at in range(len(self.tools)) for place in self.arguments(at).loosened)


def toolbox(tools: Sequence[Tool] | None, choice: ToolChoice | None, *, parallel: bool | None) -> Toolbox | None:
    """None where no tool may be used; BadRequest names what is wrong."""
    _check_tools(tools or ())
    if not tools:
        if choice not in (None, "none", "auto"):
            raise BadRequest("tool_choice asks for a call, and there are no tools", "tool_choice")
        return None
    if choice == "none":
        return None
    if isinstance(choice, NamedTool):
        names = [tool.function.name for tool in tools]
        if choice.function.name not in names:
            raise BadRequest(
                f"tool_choice names {shown(choice.function.name)}, the names of tools are {shown(', '.join(names))}", "tool_choice"
            )
        at = names.index(choice.function.name)
        return Toolbox((tools[at],), must=True, named=True, first=at)
    return Toolbox(tuple(tools), must=choice == "required", parallel=parallel is not False)


def loosened(fields: StructuredFields, box: Toolbox | None) -> tuple[str, ...]:
    """Places of the schemas that bind the answer and allow more than they say: those of required calls, else of format and tools."""
    if box is not None and (box.must or grammar_of(fields, ()) is not None):
        return box.loosened() if box.must else loosened_formats(fields) + box.loosened()
    return loosened_formats(fields)


def _check_tools(tools: Sequence[Tool]) -> None:
    if len(tools) > MAX_TOOLS:
        raise BadRequest(f"tools must have at most {MAX_TOOLS} entries, got {len(tools)}", "tools")
    seen: set[str] = set()
    for at, tool in enumerate(tools):
        name, where = tool.function.name, f"tools[{at}].function"
        if not _NAME.fullmatch(name) or name in seen:
            raise BadRequest(f"{where}.name must be 1 to 128 of A-Z a-z 0-9 _ . -, each name once, got {shown(name)}", f"{where}.name")
        seen.add(name)
        check_json(tool.function.parameters, f"{where}.parameters")
        schema_text(tool.function.parameters or {}, f"{where}.parameters")


def _plain(function: Function) -> dict[str, Any]:
    fields = {name: getattr(function, name) for name in ("name", "description", "parameters", "strict")}
    return {name: value for name, value in fields.items() if value is not None}


def calls_for_template(calls: Sequence[CalledTool], param: str) -> list[dict[str, Any]]:
    """Templates write arguments themselves: they want them as an object."""
    return [
        {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": _arguments(call, f"{param}[{at}]")}}
        for at, call in enumerate(calls)
    ]


def _arguments(call: CalledTool, param: str) -> dict[str, Any]:
    return arguments_of(call.function.arguments, f"{param}.function.arguments")


def arguments_of(text: str, where: str) -> dict[str, Any]:
    """The arguments of a call as an object; BadRequest where they are none, or none that a template can show."""
    try:
        parsed = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise BadRequest(f"{where} is not JSON: {error}", where) from error
    if not isinstance(parsed, dict):
        raise BadRequest(f"{where} must be a JSON object", where)
    check_json(parsed, where)
    return parsed
