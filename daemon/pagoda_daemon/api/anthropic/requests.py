"""The bodies of /v1/messages and /v1/messages/count_tokens: their types. Pure. `conversion` makes chat requests of them.

A block has a type as text and the fields of all types: so a refusal names the block by its place, which a union of types would not.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class CacheControl(msgspec.Struct, frozen=True):
    """A mark of what to cache. Each prompt is cached here, with or without it."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextOnly(msgspec.Struct, frozen=True):
    """One part of what a tool returned, or of a system prompt. Only text is served."""

    type: str
    text: str | None = None
    cache_control: CacheControl | None = None
    citations: Any = None


class MessageBlock(msgspec.Struct, frozen=True):
    """One part of a message: `text`, `tool_use` (`id`, `name`, `input`), `tool_result` (`tool_use_id`, `content`, `is_error`), `thinking`
    (`thinking`, `signature`) or `redacted_thinking` (`data`)."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[TextOnly] | None = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    cache_control: CacheControl | None = None
    citations: Any = None
    caller: Any = None


class MessageTurn(msgspec.Struct, frozen=True):
    """One turn of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[MessageBlock]


class MessageTool(msgspec.Struct, frozen=True):
    """What may be called; `input_schema` is a JSON schema."""

    name: str
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    eager_input_streaming: bool | None = None


class MessageToolChoice(msgspec.Struct, frozen=True):
    """Whether the answer may, must or must not call tools, and which one."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True):
    """Whether the model thinks before it answers. `budget_tokens` is not enforced."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class JsonFormat(msgspec.Struct, frozen=True):
    """An answer that is JSON by a schema."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    """How the answer looks, and how much effort it is worth."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class _Conversation(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    model: str
    messages: list[MessageTurn]
    system: str | list[TextOnly] | None = None
    tools: list[MessageTool] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    container: Any = None
    mcp_servers: Any = None
    inference_geo: Any = None
    output_format: Any = None
    thread: Any = None


class CountTokensRequest(_Conversation, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """POST /v1/messages/count_tokens: what changes a prompt, by the names that it has in a message."""


class MessagesRequest(_Conversation, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """POST /v1/messages. `container`, `mcp_servers`, `inference_geo`, `output_format` and `thread` are refused."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
