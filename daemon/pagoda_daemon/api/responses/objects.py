"""What a client reads of a response: the object and its items. Types only; `events` carries them in streams, `writer` makes them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from pagoda_daemon.api.openai.logprobs import ChatToken
from pagoda_daemon.api.responses.requests import ChosenTools, FunctionTool, ReasoningSettings, TextSettings

Status = Literal["in_progress", "completed", "incomplete"]
FailureCode = Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    """Text of the answer. `logprobs` are empty unless they were asked for."""

    text: str
    annotations: list[Any] = []
    logprobs: list[ChatToken] = []


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    """What the model thought."""

    text: str


class OutputMessage(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """What the model says."""

    id: str
    status: Status
    content: list[OutputText] = []
    role: Literal["assistant"] = "assistant"


class FunctionCallItem(msgspec.Struct, frozen=True, tag_field="type", tag="function_call"):
    """A call of one of the request's tools. The answer to it names its `call_id`."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: Status


class ReasoningItem(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning"):
    """What the model thought before it went on. A summary is never written."""

    id: str
    status: Status
    content: list[ReasoningText] = []
    summary: list[Any] = []


OutputItem = OutputMessage | FunctionCallItem | ReasoningItem


class InputDetails(msgspec.Struct, frozen=True):
    """Of the input's tokens: how many were known already. To write them into the cache costs nothing extra here."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    """Of the output's tokens: how many were thinking."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True):
    """Tokens of one response."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails = InputDetails()
    output_tokens_details: OutputDetails = OutputDetails()


class ResponseFailure(msgspec.Struct, frozen=True):
    """Why a response failed, by one of OpenAI's codes."""

    code: FailureCode
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What of a request its response repeats, with the values that were used. Nothing is ever stored."""

    model: str
    instructions: str | None = None
    tools: list[FunctionTool] = []
    tool_choice: Literal["none", "auto", "required"] | ChosenTools = "auto"
    parallel_tool_calls: bool = True
    text: TextSettings = TextSettings()
    reasoning: ReasoningSettings = ReasoningSettings()
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    temperature: float
    top_p: float
    top_logprobs: int = 0
    metadata: dict[str, str] = {}
    user: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    truncation: Literal["disabled"] = "disabled"
    service_tier: Literal["default"] = "default"
    background: Literal[False] = False
    store: Literal[False] = False
    previous_response_id: None = None


class Response(Settings, frozen=True, kw_only=True):
    """POST /v1/responses, and what the first and the last events of its stream carry."""

    id: str
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    output: list[OutputItem] = []
    usage: ResponseUsage | None = None
    completed_at: int | UnsetType = UNSET
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    object: Literal["response"] = "response"
