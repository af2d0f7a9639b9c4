"""Tools and `tool_choice` of a response → those of a chat, whose checks and grammars they share. Pure; called by `conversion`."""

from __future__ import annotations

from pagoda_daemon.api.openai.tools import Allowed, AllowedTools, Function, NamedFunction, NamedTool, Tool, ToolChoice
from pagoda_daemon.api.responses.requests import UNSUPPORTED, AllowedTool, ChosenTools, FunctionTool, ResponsesRequest
from pagoda_daemon.core.errors import BadRequest, shown


def tools_of(request: ResponsesRequest) -> list[Tool] | None:
    """BadRequest names the first one that is no function."""
    return [_function(tool, f"tools[{at}]") for at, tool in enumerate(request.tools or ())] or None


def choice_of(request: ResponsesRequest) -> ToolChoice | None:
    """BadRequest names a choice that is not served."""
    chosen = request.tool_choice
    if not isinstance(chosen, ChosenTools):
        return chosen
    if chosen.type == "function":
        return NamedTool(NamedFunction(_name(chosen.name, "tool_choice")))
    if chosen.type == "allowed_tools":
        named = [_allowed(one, f"tool_choice.tools[{at}]") for at, one in enumerate(chosen.tools or ())]
        return AllowedTools(Allowed(chosen.mode or "auto", named))
    said = f"tool_choice.type {shown(chosen.type)} is not supported; accepted: function, allowed_tools"
    raise BadRequest(said, "tool_choice.type", UNSUPPORTED)


def _allowed(one: AllowedTool, where: str) -> NamedTool:
    _check_type(one.type, where)
    return NamedTool(NamedFunction(_name(one.name, where)))


def _function(tool: FunctionTool, where: str) -> Tool:
    _check_type(tool.type, where)
    return Tool("function", Function(_name(tool.name, where), tool.description, tool.parameters, tool.strict))


def _check_type(kind: str, where: str) -> None:
    if kind != "function":
        raise BadRequest(f"{where}.type {shown(kind)} is not supported; accepted: function", f"{where}.type", UNSUPPORTED)


def _name(name: str | None, where: str) -> str:
    if name is None:
        raise BadRequest(f"{where}.name is required", f"{where}.name")
    return name
