"""The body of POST /v1/responses: its types, and what is refused by name because there is no store or because it is not built. Pure.

`inputs` makes messages of its items, `conversion` the chat that is answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from pagoda_daemon.api.openai import fields
from pagoda_daemon.api.openai.requests import ChatRequest, ReasoningEffort
from pagoda_daemon.api.openai.sampling import SamplingFields, check_sampling
from pagoda_daemon.api.openai.structured import ObjectFormat, Schema, TextFormat
from pagoda_daemon.core.errors import BadRequest, shown

UNSUPPORTED: Final = "unsupported_parameter"
LOGPROBS: Final = "message.output_text.logprobs"
ENCRYPTED: Final = "reasoning.encrypted_content"
_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512  # of metadata, OpenAI's numbers
_MAX_TOOLS: Final = 2**20  # bytes that no prompt holds, and that a stream repeats three times; 100 tools of agents have 0.2 MB
_MAX_NAME: Final = 512  # of what is echoed and means nothing here
NO_STORE: Final = "this replica keeps no responses; send the whole conversation in input"


class InputPart(msgspec.Struct, frozen=True):
    """One part of a message, of a function's output, or of what the model thought; only text is served."""

    type: str
    text: str = ""
    refusal: str = ""
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class InputItem(msgspec.Struct, frozen=True):
    """One item of the input. `type` says which fields it has; without one it is a message."""

    type: str | None = None
    role: str | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    encrypted_content: str | None = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class FunctionTool(msgspec.Struct, frozen=True):
    """A function that may be called; `parameters` is a JSON schema. Tools of other types are refused by their name."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class AllowedTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool by its type and name."""

    type: str
    name: str | None = None


class ChosenTools(msgspec.Struct, frozen=True, omit_defaults=True):
    """`tool_choice` for one function (`name`), or for some of the tools (`mode`, `tools`)."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[AllowedTool] | None = None


class JsonSchemaFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema"):
    """JSON by a schema, which is followed to the letter, strict or not."""

    name: str
    schema: Schema
    description: str | None = None
    strict: bool | None = None


class TextSettings(msgspec.Struct, frozen=True):
    """The form of the answer's text."""

    format: TextFormat | ObjectFormat | JsonSchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningSettings(msgspec.Struct, frozen=True):
    """How much the model is to think. A summary of it is never written: the thinking itself is in the answer."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseStreamOptions(msgspec.Struct, frozen=True):
    """Of a stream. Nothing is obfuscated."""

    include_obfuscation: bool | None = None


class ResponsesRequest(SamplingFields, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """POST /v1/responses. Beside OpenAI's fields it has the sampling fields of a chat, as vLLM's has."""

    model: str
    input: str | list[InputItem]
    instructions: str | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTools | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    max_tool_calls: int | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())


_RENAMED: Final[Mapping[str, str]] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "guided_json": "text.format",
    "reasoning_effort": "reasoning.effort",
    "logprobs": f"include with {LOGPROBS!r}",
}
_OF_CHATS: Final = frozenset(ChatRequest.__struct_fields__) - frozenset(ResponsesRequest.__struct_fields__)
# What only a chat has, or calls otherwise: to ignore it would change the answer.
ELSEWHERE: Final[Mapping[str, str]] = {**dict.fromkeys(_OF_CHATS, "/v1/chat/completions"), **_RENAMED}


def parse(body: bytes, ignored: list[str]) -> ResponsesRequest:
    """The typed request; BadRequest names the first field that is wrong or that needs what is not here."""
    request = fields.typed(body, ResponsesRequest, ignored, ELSEWHERE)
    _refuse_stored(request)
    _refuse_unbuilt(request)
    check_sampling(request)
    _check_include(request)
    _check_echoed(request)
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options is accepted only with stream: true", "stream_options")
    ignored += _without_effect(request)
    return request


def _refuse_stored(request: ResponsesRequest) -> None:
    """What names something that an earlier request would have left here."""
    if request.previous_response_id is not None:
        given = shown(request.previous_response_id)
        raise BadRequest(f"previous_response_id {given} was not found: {NO_STORE}", "previous_response_id", "previous_response_not_found")
    for name in ("conversation", "prompt"):
        if getattr(request, name) is not None:
            raise BadRequest(f"{name} is not supported: {NO_STORE}", name, UNSUPPORTED)
    if request.background:
        raise BadRequest("background must be false: this replica keeps no response to ask for later", "background", UNSUPPORTED)


def _refuse_unbuilt(request: ResponsesRequest) -> None:
    """What would change the answer, and is not built."""
    for name in ("context_management", "moderation"):
        if getattr(request, name):
            raise BadRequest(f"{name} is not supported yet; leave it out", name, UNSUPPORTED)
    if request.truncation == "auto":
        raise BadRequest('truncation must be "disabled": an input that does not fit is refused, not cut', "truncation", UNSUPPORTED)
    if request.text is not None and request.text.verbosity not in (None, "medium"):
        given = shown(request.text.verbosity)
        raise BadRequest(f'text.verbosity must be "medium" or absent, got {given}; it is not supported yet', "text.verbosity", UNSUPPORTED)


def _check_include(request: ResponsesRequest) -> None:
    for at, name in enumerate(request.include or ()):
        if name not in (LOGPROBS, ENCRYPTED):
            raise BadRequest(f"include[{at}] must be {LOGPROBS!r} or {ENCRYPTED!r}, got {shown(name)}", f"include[{at}]", UNSUPPORTED)
    if request.top_logprobs and not request.wants_logprobs:
        raise BadRequest(f"top_logprobs is accepted only with include: [{LOGPROBS!r}]", "top_logprobs")


def _check_echoed(request: ResponsesRequest) -> None:
    """The answer repeats these up to three times."""
    for name in ("user", "prompt_cache_key", "safety_identifier"):
        if len(given := getattr(request, name) or "") > _MAX_NAME:
            raise BadRequest(f"{name} must have at most {_MAX_NAME} characters, got {len(given)}", name)
    pairs = request.metadata or {}
    if len(pairs) > _MAX_PAIRS or any(len(key) > _MAX_KEY or len(value) > _MAX_VALUE for key, value in pairs.items()):
        most = f"{_MAX_PAIRS} pairs, keys of {_MAX_KEY} and values of {_MAX_VALUE} characters"
        raise BadRequest(f"metadata must have at most {most}, got {len(pairs)} pairs", "metadata")
    if request.tool_choice == "none":
        _check_unused(request.tools or ())


def _check_unused(tools: Iterable[FunctionTool]) -> None:
    """Tools that the model may call are in the prompt, so the context bounds them. These are only repeated."""
    size = 0
    for tool in tools:
        size += len(msgspec.json.encode(tool))
        if size > _MAX_TOOLS:
            raise BadRequest(f'tools must have at most {_MAX_TOOLS} bytes with tool_choice "none"', "tools")


def _without_effect(request: ResponsesRequest) -> list[str]:
    """Fields that are accepted because clients always send them, and that change nothing: the header names them."""
    reasoning = request.reasoning or ReasoningSettings()
    options = request.stream_options or ResponseStreamOptions()
    found = {
        f"include.{ENCRYPTED}": ENCRYPTED in (request.include or ()),
        "reasoning.summary": reasoning.summary or reasoning.generate_summary,
        "stream_options.include_obfuscation": options.include_obfuscation,
        "input[].encrypted_content": not isinstance(request.input, str) and any(item.encrypted_content for item in request.input),
    }
    return [name for name, said in found.items() if said]
