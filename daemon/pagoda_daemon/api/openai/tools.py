"""Tools in a request: their types, what is accepted of them, and how a conversation with calls in it is given to a chat template. Pure.

How a model writes a call, and how it is read, is the business of `answers`; how calls are enforced is that of `tool_grammars`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from pagoda_daemon.api.openai.schemas import Fitted
from pagoda_daemon.api.openai.structured import StructuredFields, check_json, fit, grammar_of, loosened_formats, schema_text
from pagoda_daemon.core.errors import BadRequest, shown

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


class NamedTool(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    """`tool_choice` for exactly this function."""

    function: NamedFunction


class Allowed(msgspec.Struct, frozen=True):
    """Some of the request's tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class AllowedTools(msgspec.Struct, frozen=True, tag_field="type", tag="allowed_tools"):
    """`tool_choice` for some functions. The model reads all tools and may call these."""

    allowed_tools: Allowed


ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedTools


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
    """The tools that an answer may or must use. `must`: it is nothing but calls; `named`: of the only tool, once. `places` are their
    indexes in the request, if some are left out. `offered`: what the model reads, if it may not call all of that."""

    tools: tuple[Tool, ...]
    must: bool = False
    named: bool = False
    parallel: bool = True
    places: tuple[int, ...] = ()
    offered: tuple[Tool, ...] = ()

    @property
    def single(self) -> bool:
        """At most one call."""
        return self.named or not self.parallel

    @property
    def strict(self) -> str | None:
        """The field that binds calls which the model chooses itself; None if nothing does."""
        if self.offered:
            return "tool_choice.allowed_tools"
        found = (at for at, tool in enumerate(self.tools) if tool.function.strict)
        return next((f"tools[{self.place(at)}].function.strict" for at in found), None)

    def place(self, at: int) -> int:
        """The index in the request."""
        return self.places[at] if self.places else at

    def for_template(self) -> list[dict[str, Any]]:
        """As templates read them: what the client wrote, no more."""
        return [{"type": "function", "function": _plain(tool.function)} for tool in self.offered or self.tools]

    def arguments(self, at: int, home: str = "#") -> Fitted:
        """The schema of a call's arguments, for the grammar library. A function without parameters takes an empty object only."""
        given = self.tools[at].function.parameters
        if given is None:
            return Fitted({"type": "object", "additionalProperties": False}, ())
        shaped = given if given.keys() & _SHAPING else {"type": "object", **given}
        return fit(shaped, f"tools[{self.place(at)}].function.parameters", home)

    def loosened(self, *, strict: bool = False) -> tuple[str, ...]:
        """Places of parameters that allow more than they say; of strict tools alone, or of all."""
        binding = (at for at, tool in enumerate(self.tools) if tool.function.strict or not strict)
        return tuple(place for at in binding for place in self.arguments(at).loosened)


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
        (at,) = _places(tools, [choice], "tool_choice")
        return Toolbox((tools[at],), must=True, named=True, places=(at,))
    if isinstance(choice, AllowedTools):
        allowed = choice.allowed_tools
        places = _places(tools, allowed.tools, "tool_choice.allowed_tools.tools")
        chosen = tuple(tools[at] for at in places)
        return Toolbox(chosen, must=allowed.mode == "required", parallel=parallel is not False, places=places, offered=tuple(tools))
    return Toolbox(tuple(tools), must=choice == "required", parallel=parallel is not False)


def _places(tools: Sequence[Tool], named: Sequence[NamedTool], param: str) -> tuple[int, ...]:
    """Where in the request the tools are that a choice names."""
    names = [tool.function.name for tool in tools]
    wanted = list(dict.fromkeys(one.function.name for one in named))
    if not wanted:
        raise BadRequest(f"{param} must name at least one of the tools", param)
    wrong = next((name for name in wanted if name not in names), None)
    if wrong is not None:
        raise BadRequest(f"{param} names {shown(wrong)}, the names of tools are {shown(', '.join(names))}", param)
    return tuple(sorted(names.index(name) for name in wanted))


def loosened(fields: StructuredFields, box: Toolbox | None) -> tuple[str, ...]:
    """Places of the schemas that bind the answer and allow more than they say: those of required calls, else of format and tools."""
    if box is not None and (box.must or grammar_of(fields, ()) is not None):
        return box.loosened() if box.must else loosened_formats(fields) + box.loosened()
    return loosened_formats(fields) + (box.loosened(strict=True) if box is not None else ())


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
