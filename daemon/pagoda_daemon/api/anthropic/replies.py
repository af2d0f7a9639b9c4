"""What a client of the Messages API reads: a message, its blocks, and the events of its stream. Types only; `dialect` makes them."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text for the reader."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """What the model thought. Nothing is signed here, so the signature is empty."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of one of the request's tools; `input` is an object."""

    id: str
    name: str
    input: msgspec.Raw


Block = TextBlock | ThinkingBlock | ToolUseBlock


class MessageOutputDetails(msgspec.Struct, frozen=True):
    """Of the answer's tokens: how many are thinking."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct, frozen=True):
    """Tokens of one request. The prompt's are the first three together: those that were found in the cache are in
    `cache_read_input_tokens` only. Each prompt is cached without a price, so none are counted as written."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    output_tokens_details: MessageOutputDetails
    cache_creation_input_tokens: int = 0


class MessageReply(msgspec.Struct, frozen=True):
    """POST /v1/messages. In a stream's first event `content` is empty and `stop_reason` is null."""

    id: str
    model: str
    content: tuple[Block, ...]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class CountTokensReply(msgspec.Struct, frozen=True):
    """POST /v1/messages/count_tokens."""

    input_tokens: int


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    """The first event."""

    message: MessageReply


class BlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins, and is empty yet."""

    index: int
    content_block: Block


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """More thinking."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """The last delta of thinking."""

    signature: str = ""


class InputJsonDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """More of the JSON text of a call's input."""

    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """More of a block."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """A block is complete."""

    index: int


class Ending(msgspec.Struct, frozen=True):
    """Why the answer ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The end of the answer, with the usage of all of it."""

    delta: Ending
    usage: MessageUsage


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event."""


MESSAGE_EVENTS: Final = (MessageStart, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop)


def event(payload: msgspec.Struct) -> bytes:
    """Returns one SSE frame. Clients choose by its first line."""
    data = msgspec.json.encode(payload)
    name = str(payload.__struct_config__.tag or "error").encode()
    return b"event: " + name + b"\ndata: " + data + b"\n\n"
