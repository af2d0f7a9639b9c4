"""The input of a response → the messages of a chat. Pure; called by `conversion`.

The model's turn may come as several items: what it thought, what it said, what it called. They become one message of the assistant again,
until something answers it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, cast

import msgspec

from pagoda_daemon.api.openai.messages import Message
from pagoda_daemon.api.openai.tools import CalledFunction, CalledTool, arguments_of
from pagoda_daemon.api.responses.requests import NO_STORE, UNSUPPORTED, InputItem, InputPart
from pagoda_daemon.core.errors import BadRequest, shown

Role = Literal["system", "developer", "user", "assistant"]
_ROLES: Final = ("system", "developer", "user", "assistant")
_SAID: Final = ("input_text", "output_text", "refusal")
_THOUGHT: Final = ("reasoning_text", "summary_text")


class Turn(msgspec.Struct):
    """What the assistant did before something answers it."""

    thoughts: list[str] = msgspec.field(default_factory=list)  # texts are joined once: 80,000 items took 20 s one by one
    said: list[str] = msgspec.field(default_factory=list)
    calls: list[CalledTool] = msgspec.field(default_factory=list)

    @property
    def over(self) -> bool:
        """Whatever is said now is the next message. What follows calls is not: the answers to them are still to come."""
        return bool(self.said) and not self.calls

    def message(self) -> Message:
        content = "".join(self.said) if self.said or not self.calls else None
        return Message("assistant", content, tool_calls=self.calls or None, reasoning="".join(self.thoughts) or None)


class Conversation:
    """The messages so far, and the assistant's turn if it is under way."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._turn: Turn | None = None
        self._called: set[str] = set()

    def add(self, item: InputItem, where: str) -> None:
        kind = item.type or "message"
        read = _KINDS.get(kind)
        if read is None:
            why = f": {NO_STORE}" if kind == "item_reference" else f"; accepted: {', '.join(_KINDS)}"
            raise BadRequest(f"{where}.type {shown(kind)} is not supported{why}", f"{where}.type", UNSUPPORTED)
        read(self, item, where)

    def end(self) -> None:
        """The assistant's turn is over."""
        if self._turn is not None:
            self.messages.append(self._turn.message())
            self._turn = None

    def message(self, item: InputItem, where: str) -> None:
        if item.role not in _ROLES:
            given = shown(item.role) if item.role is not None else "none"
            raise BadRequest(f"{where}.role must be one of {', '.join(_ROLES)}, got {given}", f"{where}.role")
        content = _text(item.content, _SAID, f"{where}.content")
        if item.role == "assistant":
            self._begun().said.append(content)
        else:
            self._put(Message(cast("Role", item.role), content))

    def reasoning(self, item: InputItem, where: str) -> None:
        """What it thought, else the summary of it. An encrypted one is another server's, and says nothing here."""
        given = item.content or item.summary or []
        self._begun().thoughts.append(_text(given, _THOUGHT, f"{where}.{'content' if item.content else 'summary'}"))

    def call(self, item: InputItem, where: str) -> None:
        call_id, name = _given(item.call_id, f"{where}.call_id"), _given(item.name, f"{where}.name")
        arguments = _given(item.arguments, f"{where}.arguments", empty=True)
        arguments_of(arguments, f"{where}.arguments")
        self._turn = self._turn or Turn()
        self._turn.calls.append(CalledTool(call_id, CalledFunction(name, arguments)))
        self._called.add(call_id)

    def output(self, item: InputItem, where: str) -> None:
        call_id = _given(item.call_id, f"{where}.call_id")
        if call_id not in self._called:
            raise BadRequest(f"{where}.call_id {shown(call_id)} answers no function_call of this input", f"{where}.call_id")
        self._put(Message("tool", _text(item.output, _SAID, f"{where}.output"), tool_call_id=call_id))

    def _put(self, message: Message) -> None:
        self.end()
        self.messages.append(message)

    def _begun(self) -> Turn:
        if self._turn is None or self._turn.over:
            self.end()
            self._turn = Turn()
        return self._turn


_KINDS: Final[Mapping[str, Callable[[Conversation, InputItem, str], None]]] = {
    "message": Conversation.message,
    "function_call": Conversation.call,
    "function_call_output": Conversation.output,
    "reasoning": Conversation.reasoning,
}


def conversation(given: str | Sequence[InputItem]) -> list[Message]:
    """The whole input; BadRequest names the first item that is not served."""
    found = Conversation()
    items = [InputItem(role="user", content=given)] if isinstance(given, str) else given
    if not items:
        raise BadRequest("input is empty", "input")
    for at, item in enumerate(items):
        found.add(item, f"input[{at}]")
    found.end()
    return found.messages


def _text(given: str | Sequence[InputPart] | None, accepted: tuple[str, ...], where: str) -> str:
    """Parts joined as those of a chat."""
    if given is None:
        raise BadRequest(f"{where} is required", where)
    return given if isinstance(given, str) else "\n".join(_part(part, accepted, f"{where}[{at}]") for at, part in enumerate(given))


def _part(part: InputPart, accepted: tuple[str, ...], where: str) -> str:
    if part.type not in accepted:
        said = f"{where}.type {shown(part.type)} is not supported; accepted: {', '.join(accepted)}"
        raise BadRequest(said, f"{where}.type", UNSUPPORTED)
    return part.refusal if part.type == "refusal" else part.text


def _given(value: str | None, where: str, *, empty: bool = False) -> str:
    if value or (empty and value is not None):
        return value
    raise BadRequest(f"{where} is required", where)
