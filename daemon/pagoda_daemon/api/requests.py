"""Body → typed request, in one place, before anything else sees it. Pure.

A field is one of five things: served, accepted because it changes no answer, accepted at the value that changes none, internal and
refused, unknown and refused. Nothing is ignored that would have changed the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from pagoda_daemon.api.sampling import MAX_LOGPROBS, SamplingFields, check_sampling, in_range
from pagoda_daemon.errors import BadRequest

MAX_BODY: Final = 16 * 2**20
COMPLETION_MAX_TOKENS: Final = 16  # OpenAI's default for /v1/completions

_HARMLESS: Final = frozenset(
    (
        *("user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier", "prediction"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    )
)
_INTERNAL: Final = frozenset(("kv_transfer_params", "prompt_embeds", "chat_template", "chat_template_kwargs", "cache_salt", "request_id"))
_EMPTY: Final[tuple[Any, ...]] = (None, [], {}, "")
# Known, not built: accepted at a value that leaves the answer as it is.
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "top_logprobs": (None, 0),
    "echo": (None, False),
    "length_penalty": (None, 1),
    "priority": (None, 0),
    "skip_special_tokens": (None, True),
    "add_special_tokens": (None,),
    "add_generation_prompt": (None, True),
    "continue_final_message": (None, False),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "none", "auto"),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
}
_NEUTRAL_WHEN_EMPTY: Final = frozenset(
    (
        *("tools", "functions", "suffix", "audio", "web_search_options", "reasoning_effort", "verbosity"),
        *("structured_outputs", "truncate_prompt_tokens", "documents"),
    )
)


class TextPart(msgspec.Struct, frozen=True):
    """One part of a message; only text is served."""

    type: str
    text: str = ""


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None
    # What a client hands back with our own earlier answer.
    refusal: None = None
    audio: None = None
    annotations: list[Any] | None = None
    tool_calls: None = None
    function_call: None = None


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a stream carries besides text."""

    include_usage: bool = False
    include_obfuscation: bool = False


class _Common(SamplingFields, kw_only=True, frozen=True, forbid_unknown_fields=True):
    model: str
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(_Common, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    @property
    def listed(self) -> int | None:
        """How many of the best tokens are listed beside each chosen one; None where no log-probability is wanted."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def echoes(self) -> bool:
        return False

    @property
    def limit(self) -> int | None:
        """Tokens wished for; None means all that the context still holds."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    def turns(self) -> list[dict[str, str]]:
        """Messages as templates read them, parts joined by a line break."""
        return [{"role": message.role, "content": _content(message)} for message in self.messages]


class CompletionRequest(_Common, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """POST /v1/completions; one prompt, as text or as token ids. With `echo`, `max_tokens` 0 only scores it."""

    prompt: str | list[int | str | list[int]]
    logprobs: int | None = None
    echo: bool | None = None

    @property
    def listed(self) -> int | None:
        """How many of the best tokens are listed beside each chosen one; None where no log-probability is wanted."""
        return self.logprobs

    @property
    def echoes(self) -> bool:
        return bool(self.echo)

    @property
    def limit(self) -> int:
        return COMPLETION_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    def single(self) -> str | tuple[int, ...]:
        """The prompt; BadRequest for several."""
        if isinstance(self.prompt, str):
            return self.prompt
        prompt = self.prompt
        if len(prompt) == 1 and not isinstance(prompt[0], int):
            return prompt[0] if isinstance(prompt[0], str) else tuple(prompt[0])
        ids = tuple(item for item in prompt if isinstance(item, int))
        if len(ids) != len(prompt):
            raise BadRequest("prompt: accepted is one string or one list of token ids, alone or as the only entry of a list", "prompt")
        return ids


GenerationRequest = ChatRequest | CompletionRequest


def parse(body: bytes, kind: type[GenerationRequest]) -> GenerationRequest:
    """The typed request; BadRequest names the first field that is wrong."""
    fields = _fields(body)
    for name in sorted(fields.keys() - set(kind.__struct_fields__)):
        _check_foreign(name, fields.pop(name))
    try:
        request: GenerationRequest = msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise BadRequest(*_explained(str(error))) from error
    _check(request)
    return request


def _fields(body: bytes) -> dict[str, Any]:
    try:
        parsed = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise BadRequest("the body is nested too deeply") from error
    if not isinstance(parsed, dict):
        raise BadRequest("the body is not a JSON object")
    return parsed


def _check_foreign(name: str, value: Any) -> None:
    if name in _HARMLESS:
        return
    if name in _INTERNAL:
        raise BadRequest(f"{name} is internal and not accepted from outside", name, "unsupported_parameter")
    if name in _NEUTRAL or name in _NEUTRAL_WHEN_EMPTY:
        accepted = _NEUTRAL.get(name, _EMPTY)
        if not any(_same(value, one) for one in accepted):
            raise BadRequest(f"{name} is not supported yet; leave it out", name, "unsupported_parameter")
        return
    raise BadRequest(f"{name[:64]!r} is not a parameter of this endpoint", name[:64], "unknown_parameter")


def _same(value: Any, one: Any) -> bool:
    """Equal, and 0 is not false: `logprobs: 0` asks for something."""
    return value is one if isinstance(value, bool) or isinstance(one, bool) else bool(value == one)


def _explained(text: str) -> tuple[str, str | None]:
    """msgspec's sentence as ours: message and parameter."""
    what, _, where = text.partition(" - at `$")
    if missing := re.search(r"missing required field `(\w+)`", what):
        return f"{missing[1]} is required", missing[1]
    if unknown := re.search(r"unknown field `(\w+)`", what):
        what = f"unknown field {unknown[1]}"
    param = where.rstrip("`").removeprefix(".") or None
    return f"{param}: {what}" if param else what, param


def _content(message: Message) -> str:
    return message.content if isinstance(message.content, str) else "\n".join(part.text for part in message.content)


def _check(request: GenerationRequest) -> None:
    check_sampling(request)
    in_range("max_tokens", request.max_tokens, 0 if request.echoes else 1, 2**31 - 1)
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options is accepted only with stream: true", "stream_options")
    if request.prompt_logprobs is not None and request.stream:
        raise BadRequest("prompt_logprobs is accepted only without stream", "prompt_logprobs")
    if isinstance(request, ChatRequest):
        in_range("max_completion_tokens", request.max_completion_tokens, 1, 2**31 - 1)
        in_range("top_logprobs", request.top_logprobs, 0, MAX_LOGPROBS)
        if request.top_logprobs and not request.logprobs:
            raise BadRequest("top_logprobs is accepted only with logprobs: true", "top_logprobs")
        _check_messages(request.messages)
    else:
        in_range("logprobs", request.logprobs, 0, MAX_LOGPROBS)
    if request.limit is not None and (request.min_tokens or 0) > request.limit:
        raise BadRequest(f"min_tokens is {request.min_tokens!s:.32}, accepted are at most max_tokens, {request.limit}", "min_tokens")


def _check_messages(messages: list[Message]) -> None:
    if not messages:
        raise BadRequest("messages is empty", "messages")
    for at, message in enumerate(messages):
        for part in message.content if isinstance(message.content, list) else ():
            if part.type != "text":
                raise BadRequest(f"content parts of type {part.type[:32]!r} are not supported, accepted is text", f"messages[{at}].content")
