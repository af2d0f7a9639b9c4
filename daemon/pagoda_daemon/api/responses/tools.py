"""Tools and `tool_choice` of a response → those of a chat, whose checks and grammars they share. Pure; called by `conversion`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pagoda_daemon.api.openai.tools import Function, NamedFunction, NamedTool, Tool, ToolChoice, toolbox
from pagoda_daemon.api.responses.requests import UNSUPPORTED, AllowedTool, ChosenTools, FunctionTool, ResponsesRequest
from pagoda_daemon.nouns.errors import BadRequest, shown


class Offered(NamedTuple):
    """What the model is offered. `kept`: which of the request's tools these are."""

    tools: list[Tool] | None
    choice: ToolChoice | None
    kept: tuple[int, ...]


def offered(request: ResponsesRequest) -> Offered:
    """BadRequest names the first tool, or choice, that is not served."""
    tools = [_function(tool, f"tools[{at}]") for at, tool in enumerate(request.tools or ())]
    chosen = request.tool_choice
    everything = tuple(range(len(tools)))
    if not isinstance(chosen, ChosenTools):
        return Offered(tools or None, chosen, everything)
    if chosen.type == "function":
        return Offered(tools or None, NamedTool("function", NamedFunction(_name(chosen.name, "tool_choice"))), everything)
    if chosen.type == "allowed_tools":
        return _allowed(tools, chosen)
    said = f"tool_choice.type {shown(chosen.type)} is not supported; accepted: function, allowed_tools"
    raise BadRequest(said, "tool_choice.type", UNSUPPORTED)


def _allowed(tools: Sequence[Tool], chosen: ChosenTools) -> Offered:
    """Only the allowed ones are shown to the model, so that it cannot call another one."""
    toolbox(tools, None, parallel=None)  # all of them are checked, by their places in the request
    wanted = [_allowed_name(one, f"tool_choice.tools[{at}]") for at, one in enumerate(chosen.tools or ())]
    names = [tool.function.name for tool in tools]
    if not wanted:
        raise BadRequest('tool_choice.tools is empty; name a tool, or use tool_choice "none"', "tool_choice.tools")
    if stranger := next((name for name in wanted if name not in names), None):
        raise BadRequest(f"tool_choice allows {shown(stranger)}, the names of tools are {shown(', '.join(names))}", "tool_choice.tools")
    kept = tuple(at for at, name in enumerate(names) if name in wanted)
    return Offered([tools[at] for at in kept], chosen.mode or "auto", kept)


def _allowed_name(one: AllowedTool, where: str) -> str:
    if one.type != "function":
        raise BadRequest(f"{where}.type {shown(one.type)} is not supported; accepted: function", f"{where}.type", UNSUPPORTED)
    return _name(one.name, where)


def _function(tool: FunctionTool, where: str) -> Tool:
    if tool.type != "function":
        raise BadRequest(f"{where}.type {shown(tool.type)} is not supported; accepted: function", f"{where}.type", UNSUPPORTED)
    return Tool("function", Function(_name(tool.name, where), tool.description, tool.parameters, tool.strict))


def _name(name: str | None, where: str) -> str:
    if name is None:
        raise BadRequest(f"{where}.name is required", f"{where}.name")
    return name
