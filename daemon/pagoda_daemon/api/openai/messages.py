"""Conversations in a request: the types of their messages, what is accepted of them, and how a chat template reads them. Pure."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pagoda_daemon.api.openai.tools import CalledTool, calls_for_template
from pagoda_daemon.core.errors import BadRequest, shown


class TextPart(msgspec.Struct, frozen=True):
    """One part of a message; only text is served."""

    type: str
    text: str = ""


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation. An assistant's may be nothing but calls; a tool's says which call it answers. What an assistant thought
    is `reasoning`, or by its older name `reasoning_content`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    # What a client hands back with an earlier answer.
    refusal: str | None = None
    audio: None = None
    annotations: list[Any] | None = None
    function_call: None = None


def turns(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as templates read them, parts joined by a line break."""
    return [_turn(message, f"messages[{at}]") for at, message in enumerate(messages)]


def _turn(message: Message, where: str) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if thought := message.reasoning or message.reasoning_content:
        turn = {"thinking": thought, **turn, "reasoning": thought, "reasoning_content": thought}  # templates read one of the three
    if message.tool_calls:
        turn["tool_calls"] = calls_for_template(message.tool_calls, f"{where}.tool_calls")
    if message.role == "tool":
        turn["tool_call_id"] = message.tool_call_id
        turn |= {"name": message.name} if message.name else {}
    return turn


def _content(message: Message) -> str:
    given = message.content or ""
    return given if isinstance(given, str) else "\n".join(part.text for part in given)


def check_messages(messages: list[Message]) -> None:
    """BadRequest names the first part that is not served."""
    if not messages:
        raise BadRequest("messages is empty", "messages")
    for at, message in enumerate(messages):
        _check_calls(message, f"messages[{at}]")
        for part in message.content if isinstance(message.content, list) else ():
            if part.type != "text":
                raise BadRequest(
                    f"content parts of type {shown(part.type)} are not supported; use text",
                    f"messages[{at}].content",
                    "unsupported_parameter",
                )


def _check_calls(message: Message, where: str) -> None:
    if message.content is None and not message.tool_calls:
        raise BadRequest(f"{where}.content is required", f"{where}.content")
    if message.tool_calls and message.role != "assistant":
        raise BadRequest(f"{where}.tool_calls: only the assistant calls tools", f"{where}.tool_calls")
    if (message.tool_call_id is None) is (message.role == "tool"):
        raise BadRequest(f"{where}.tool_call_id: messages of the role tool have one, and no others", f"{where}.tool_call_id")
