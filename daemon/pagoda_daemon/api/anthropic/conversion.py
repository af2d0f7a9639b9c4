"""A request of the Messages API → the chat request that /v1/chat/completions would serve. Pure, and the only such place.

What has no counterpart in a chat is refused by its name. What stays without effect is added to the names of the ignored fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import msgspec

from pagoda_daemon.api.anthropic.requests import (
    CountTokensRequest,
    MessageBlock,
    MessagesRequest,
    MessageTool,
    MessageToolChoice,
    OutputConfig,
    TextOnly,
    Thinking,
)
from pagoda_daemon.api.openai.messages import Message, TextPart
from pagoda_daemon.api.openai.requests import ChatRequest
from pagoda_daemon.api.openai.structured import NamedSchema, ResponseFormat, SchemaFormat, check_json
from pagoda_daemon.api.openai.tools import CalledFunction, CalledTool, Function, NamedFunction, NamedTool, Tool, ToolChoice
from pagoda_daemon.core.errors import BadRequest, shown

NO_THREADS: Final = "thread_unsupported_request"  # by this word Anthropic's client goes on without a thread
UNKNOWN: Final = "unknown_parameter"
UNSUPPORTED: Final = "unsupported_parameter"
_BUDGET: Final = "thinking.budget_tokens"
ERROR_PREFIX: Final = "Error: "
_REFUSED: Final = ("container", "mcp_servers", "inference_geo", "output_format")
_OF_ROLE: Final = {"user": ("text", "tool_result"), "assistant": ("text", "thinking", "redacted_thinking", "tool_use"), "system": ("text",)}
_INSTEAD: Final = {"stop": "stop_sequences", "max_completion_tokens": "max_tokens", "response_format": "output_config.format"}
# Fields that would change a chat's answer, and what a message has instead.
ELSEWHERE: Final = {name: _INSTEAD.get(name, "") for name in ChatRequest.__struct_fields__ if name not in MessagesRequest.__struct_fields__}
_CHOICES: Final[dict[str, ToolChoice]] = {"auto": "auto", "any": "required", "none": "none"}


class Placed(NamedTuple):
    """A block and its path in the request."""

    where: str
    block: MessageBlock

    def text_of(self, name: str, *, empty: bool = False) -> str:
        """Returns a field that this type of block needs. `empty`: it may be the empty string."""
        value = getattr(self.block, name)
        if not isinstance(value, str) or not (value or empty):
            problem = "is required" if value is None else "must not be empty"
            raise BadRequest(f"{self.where}.{name} {problem} in a block of type {self.block.type}", f"{self.where}.{name}")
        return value


def chat_of(request: MessagesRequest | CountTokensRequest, ignored: list[str]) -> ChatRequest:
    """Returns the chat. `ignored` takes the names of fields that have no effect. The chat has no `max_tokens`: the answer ends with the
    context at the latest, and `limit_of` is applied when the prompt's length is known."""
    _refuse(request)
    ignored += _without_effect(request)
    messages, prefilled = _conversation(request)
    choice, tools = request.tool_choice, [_tool(tool, f"tools[{at}]") for at, tool in enumerate(request.tools or ())]
    output = request.output_config or OutputConfig()
    return ChatRequest(
        model=request.model,
        messages=messages,
        continue_final_message=prefilled,
        tools=tools or None,
        tool_choice=None if choice is None else _choice(choice),
        parallel_tool_calls=False if choice is not None and choice.disable_parallel_tool_use else None,
        chat_template_kwargs=None if request.thinking is None else _variables(request.thinking),
        reasoning_effort=output.effort,
        response_format=_format(output),
        **(_sampling(request) if isinstance(request, MessagesRequest) else {}),
    )


def _sampling(request: MessagesRequest) -> dict[str, Any]:
    if request.max_tokens < 1:
        raise BadRequest(f"max_tokens must be at least 1, got {shown(request.max_tokens)}", "max_tokens")
    fields = {name: getattr(request, name) for name in ("temperature", "top_p", "top_k", "stream")}
    return {**fields, "stop": request.stop_sequences}


def _refuse(request: MessagesRequest | CountTokensRequest) -> None:
    for name in _REFUSED:
        if getattr(request, name) not in (None, [], {}, ""):
            raise BadRequest(f"{name} is not supported; leave it out", name, UNSUPPORTED)
    if request.thread is not None:
        raise BadRequest("thread is not supported: no conversation is stored here; send all of its messages", "thread", NO_THREADS)


def _without_effect(request: MessagesRequest | CountTokensRequest) -> list[str]:
    """What only its maker can read, and a budget that the engine does not know."""
    blocks = (block for turn in request.messages if not isinstance(turn.content, str) for block in turn.content)
    redacted = any(block.type == "redacted_thinking" for block in blocks)
    budget = request.thinking is not None and request.thinking.budget_tokens is not None
    return ["messages[].content[].data"] * redacted + [_BUDGET] * budget


def _conversation(request: MessagesRequest | CountTokensRequest) -> tuple[list[Message], bool]:
    """Returns the messages, and whether the last one is to be continued. Consecutive turns of one role are one turn."""
    turns = [(turn.role, _blocks(turn.content, f"messages[{at}].content")) for at, turn in enumerate(request.messages)]
    if turns and turns[-1] == ("assistant", []):  # an empty beginning of the answer
        turns.pop()
    if not turns:
        raise BadRequest("messages is empty", "messages")
    for at, (_, blocks) in enumerate(turns):
        if not blocks:
            raise BadRequest(f"messages[{at}].content must not be empty", f"messages[{at}].content")
    found = [] if request.system is None else _system(request.system)
    called: set[str] = set()
    for role, several in groupby(turns, key=lambda turn: turn[0]):
        blocks = [block for _, part in several for block in part]
        _check_types(role, blocks)
        found += (
            _user(blocks, called) if role == "user" else [_assistant(blocks, called)] if role == "assistant" else [_plain(role, blocks)]
        )
    prefilled = turns[-1][0] == "assistant"
    if prefilled:
        _check_prefill(turns[-1][1])
    return found, prefilled


def _blocks(content: str | list[MessageBlock], where: str) -> list[Placed]:
    if isinstance(content, str):
        return [Placed(where, MessageBlock("text", text=content))] if content else []
    return [Placed(f"{where}[{at}]", block) for at, block in enumerate(content)]


def _check_types(role: str, blocks: Iterable[Placed]) -> None:
    accepted = _OF_ROLE[role]
    for where, block in blocks:
        if block.type not in accepted:
            said = f"{where}.type {shown(block.type)} is not supported in a message of the role {role}; use {' or '.join(accepted)}"
            raise BadRequest(said, f"{where}.type", UNSUPPORTED)


def _system(system: str | list[TextOnly]) -> list[Message]:
    """An empty prompt is none."""
    text = system if isinstance(system, str) else _joined(system, "system")
    return [Message("system", text)] if text else []


def _joined(parts: Sequence[TextOnly], where: str) -> str:
    for at, part in enumerate(parts):
        if part.type != "text":
            raise BadRequest(f"{where}[{at}].type {shown(part.type)} is not supported; use text", f"{where}[{at}].type", UNSUPPORTED)
        if part.text is None:
            raise BadRequest(f"{where}[{at}].text is required in a block of type text", f"{where}[{at}].text")
    return "\n".join(part.text or "" for part in parts)  # as the parts of a chat's message are joined


def _plain(role: Any, blocks: Sequence[Placed]) -> Message:
    return Message(role, [TextPart("text", placed.text_of("text")) for placed in blocks])


def _user(blocks: Sequence[Placed], called: set[str]) -> list[Message]:
    """Results answer the calls of the turn before, so they come first, each as a message of its own."""
    results = [placed for placed in blocks if placed.block.type == "tool_result"]
    late = next((placed for placed in blocks[: len(results)] if placed.block.type != "tool_result"), None)
    if late is not None:
        raise BadRequest(f"{late.where}: blocks of type tool_result must come before all others of a turn", late.where)
    found = [_result(placed, called) for placed in results]
    return [*found, _plain("user", blocks[len(results) :])] if len(blocks) > len(results) else found


def _result(placed: Placed, called: set[str]) -> Message:
    """A template knows no failed results: a word before the content tells the model."""
    call = placed.text_of("tool_use_id")
    if call not in called:
        said = f"{placed.where}.tool_use_id {shown(call)} is not the id of an earlier tool_use block"
        raise BadRequest(said, f"{placed.where}.tool_use_id")
    content = placed.block.content or ""
    text = content if isinstance(content, str) else _joined(content, f"{placed.where}.content")
    return Message("tool", ERROR_PREFIX + text if placed.block.is_error else text, tool_call_id=call)


def _assistant(blocks: Sequence[Placed], called: set[str]) -> Message:
    of_type: dict[str, list[Placed]] = {name: [] for name in _OF_ROLE["assistant"]}
    for placed in blocks:
        of_type[placed.block.type].append(placed)
    texts = [TextPart("text", placed.text_of("text")) for placed in of_type["text"]]
    thoughts = [placed.text_of("thinking", empty=True) for placed in of_type["thinking"]]
    calls = [_call(placed) for placed in of_type["tool_use"]]
    called.update(call.id for call in calls)
    return Message("assistant", texts or "", tool_calls=calls or None, reasoning="\n".join(filter(None, thoughts)) or None)


def _call(placed: Placed) -> CalledTool:
    given = placed.block.input
    if given is None:
        raise BadRequest(f"{placed.where}.input is required in a block of type tool_use", f"{placed.where}.input")
    check_json(given, f"{placed.where}.input")
    return CalledTool(placed.text_of("id"), CalledFunction(placed.text_of("name"), msgspec.json.encode(given).decode()))


def _check_prefill(blocks: Sequence[Placed]) -> None:
    """The answer continues this turn, so it must end in text."""
    where, last = blocks[-1]
    if last.type != "text":
        raise BadRequest(f"{where}: the last message of the role assistant must end in a block of type text, got {last.type}", where)
    if (last.text or "").endswith((" ", "\t", "\n", "\r")):
        raise BadRequest(f"{where}: the last message of the role assistant must not end in whitespace", where)


def _tool(tool: MessageTool, where: str) -> Tool:
    if tool.type not in (None, "custom"):
        raise BadRequest(f"{where}.type {shown(tool.type)} is not supported; use custom tools", f"{where}.type", UNSUPPORTED)
    if tool.input_schema is None:
        raise BadRequest(f"{where}.input_schema is required", f"{where}.input_schema")
    if tool.defer_loading:
        raise BadRequest(f"{where}.defer_loading is not supported; leave it out", f"{where}.defer_loading", UNSUPPORTED)
    if tool.allowed_callers not in (None, ["direct"]):
        raise BadRequest(f'{where}.allowed_callers must be ["direct"]', f"{where}.allowed_callers", UNSUPPORTED)
    return Tool("function", Function(tool.name, tool.description, tool.input_schema, tool.strict))


def _choice(choice: MessageToolChoice) -> ToolChoice:
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if not choice.name:
        raise BadRequest("tool_choice.name is required with tool_choice.type tool", "tool_choice.name")
    return NamedTool(NamedFunction(choice.name))


def _variables(thinking: Thinking) -> dict[str, Any]:
    """Both names that chat templates have for it."""
    if thinking.type == "enabled" and thinking.budget_tokens is None:
        raise BadRequest(f"{_BUDGET} is required with thinking.type enabled", _BUDGET)
    if thinking.budget_tokens is not None and thinking.budget_tokens < 1:
        raise BadRequest(f"{_BUDGET} must be at least 1, got {shown(thinking.budget_tokens)}", _BUDGET)
    return dict.fromkeys(("enable_thinking", "thinking"), thinking.type != "disabled")


def _format(output: OutputConfig) -> ResponseFormat | None:
    return None if output.format is None else SchemaFormat(NamedSchema("output", output.format.schema))
