"""Body → typed request, in one place, before anything else sees it. Pure.

A field is one of six things: served, accepted because it changes no answer, accepted at the value that changes none, internal and refused,
spelt nearly like one of these and refused, or unknown: clients are newer than their servers, so that is accepted, and the answer's header
names it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from pagoda_daemon.api.openai import strict
from pagoda_daemon.api.openai.messages import Message, check_messages, turns
from pagoda_daemon.api.openai.sampling import MAX_CHOICES, MAX_LOGPROBS, check_sampling, in_range
from pagoda_daemon.api.openai.structured import StructuredFields, grammar_of
from pagoda_daemon.api.openai.tools import Tool, Toolbox, ToolChoice, toolbox
from pagoda_daemon.nouns.errors import BadRequest, clipped, shown
from pagoda_daemon.text.tokens import ChatShape

MAX_BODY: Final = 16 * 2**20
BODY_S: Final = 60.0  # for all of it: the largest at 280 KB/s
COMPLETION_MAX_TOKENS: Final = 16  # OpenAI's default for /v1/completions

_HARMLESS: Final = frozenset(
    (
        *("user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier", "prediction"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    )
)
# Ours, vLLM's and SGLang's: what steers the server, and what it would have to fetch or run.
_INTERNAL: Final = frozenset(
    (
        *("kv_transfer_params", "prompt_embeds", "chat_template", "chat_template_kwargs", "cache_salt", "request_id"),
        *("custom_logit_processor", "logits_processors", "mm_processor_kwargs", "input_embeds", "image_data", "audio_data", "video_data"),
        *("lora_path", "bootstrap_host", "bootstrap_port", "bootstrap_room", "data_parallel_rank"),
    )
)
_MISSPELT: Final = 0.85  # of difflib's ratio: temprature is 0.95 of temperature, max_output_tokens 0.74 of max_tokens
_MAX_UNKNOWN: Final = 16
_SANE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_EMPTY: Final[tuple[Any, ...]] = (None, [], {}, "")
# Known, not built: accepted at a value that leaves the answer as it is.
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "best_of": (None, 1),
    "top_logprobs": (None, 0),
    "echo": (None, False),
    "length_penalty": (None, 1),
    "priority": (None, 0),
    "spaces_between_special_tokens": (None, True),
    "return_token_ids": (None, False),
    "return_tokens_as_token_ids": (None, False),
    "use_beam_search": (None, False),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
}
_NEUTRAL_WHEN_EMPTY: Final = frozenset(
    (
        *("functions", "suffix", "audio", "web_search_options", "reasoning_effort", "verbosity"),
        *("truncate_prompt_tokens", "documents"),
        *("logprob_token_ids", "thinking_token_budget", "repetition_detection", "stream_interval", "vllm_xargs", "session_id"),
    )
)


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a stream carries besides text."""

    include_usage: bool = False
    include_obfuscation: bool = False


class _Common(StructuredFields, kw_only=True, frozen=True, forbid_unknown_fields=True):
    model: str
    n: int | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include_timing: bool | None = None
    skip_special_tokens: bool = True
    add_special_tokens: bool | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def limit_field(self) -> str | None:
        """Which field says how many tokens may be generated; None where none does."""
        return next((name for name in ("max_completion_tokens", "max_tokens") if getattr(self, name, None) is not None), None)


class ChatRequest(_Common, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def box(self) -> Toolbox | None:
        """The tools that the answer may use."""
        return toolbox(self.tools, self.tool_choice, parallel=self.parallel_tool_calls)

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

    @property
    def shape(self) -> ChatShape:
        return shape_of(self.add_generation_prompt, self.continue_final_message, self.add_special_tokens)

    def turns(self) -> list[dict[str, Any]]:
        return turns(self.messages)


class CompletionRequest(_Common, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """POST /v1/completions; prompts as text or as token ids. With `echo`, `max_tokens` 0 only scores them."""

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

    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """Each as text or as ids."""
        return prompts_of(self.prompt, "prompt")


def prompts_of(given: str | list[int | str | list[int]], param: str) -> tuple[str | tuple[int, ...], ...]:
    """A string, several, ids, or several lists of them; BadRequest where they are mixed in one list."""
    if isinstance(given, str):
        return (given,)
    if ids := tuple(item for item in given if isinstance(item, int)):
        if len(ids) == len(given):
            return (ids,)
        raise BadRequest(f"{param}: a list holds strings, token ids, or lists of token ids; this one mixes them", param)
    return tuple(item if isinstance(item, str) else tuple(item) for item in given if not isinstance(item, int))


GenerationRequest = ChatRequest | CompletionRequest
T = TypeVar("T", bound=msgspec.Struct)


def parse(body: bytes, kind: type[GenerationRequest], unknown: list[str]) -> GenerationRequest:
    """The typed request; BadRequest names the first field that is wrong."""
    request = typed(body, kind, unknown)
    _check(request)
    return request


def learn(kind: type[msgspec.Struct]) -> None:
    """Before threads do: msgspec takes a type apart at its first use, and a thread that meets it half done ends the process by SIGSEGV."""
    msgspec.json.Decoder(kind)


def typed(body: bytes, kind: type[T], unknown: list[str]) -> T:
    """Of any endpoint: right in its names and types. `unknown` takes the names of the fields that nobody knows."""
    fields = _fields(body)
    found = [name for name in sorted(fields.keys() - set(kind.__struct_fields__)) if _is_unknown(name, fields.pop(name))]
    _check_unknown(found, kind.__struct_fields__)
    unknown += found
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise BadRequest(*_explained(str(error))) from error


class Foreign(NamedTuple):
    """Fields that are in no type: accepted whatever they say, accepted at these values, and never accepted."""

    harmless: frozenset[str]
    neutral: Mapping[str, tuple[Any, ...]]
    internal: frozenset[str]


def foreign() -> Foreign:
    """For the documents."""
    return Foreign(_HARMLESS, {**_NEUTRAL, **dict.fromkeys(_NEUTRAL_WHEN_EMPTY, _EMPTY)}, _INTERNAL)


def _fields(body: bytes) -> dict[str, Any]:
    parsed = strict.decode(body)
    if not isinstance(parsed, dict):
        raise BadRequest("the body is not a JSON object")
    return parsed


def _is_unknown(name: str, value: Any) -> bool:
    if name in _HARMLESS:
        return False
    if name in _INTERNAL:
        raise BadRequest(f"{name} is internal and not accepted from outside", name, "unsupported_parameter")
    if name in _NEUTRAL or name in _NEUTRAL_WHEN_EMPTY:
        accepted = _NEUTRAL.get(name, _EMPTY)
        if not any(_same(value, one) for one in accepted):
            raise BadRequest(f"{name} is not supported yet; leave it out", name, "unsupported_parameter")
        return False
    return True


def _check_unknown(names: list[str], served: tuple[str, ...]) -> None:
    """A few, with sane names, none of which is one that is served, misspelt: that would change the answer."""
    if len(names) > _MAX_UNKNOWN:
        raise BadRequest(f"{len(names)} fields are unknown here; at most {_MAX_UNKNOWN} are allowed", names[0][:64], "unknown_parameter")
    for name in names:
        if not _SANE_NAME.fullmatch(name):
            raise BadRequest(f"{shown(name)} is not a parameter of this endpoint", name[:64], "unknown_parameter")
        if near := difflib.get_close_matches(name, served, 1, _MISSPELT):
            raise BadRequest(f"{name!r} is not a parameter of this endpoint, {near[0]!r} is", name, "unknown_parameter")


def _same(value: Any, one: Any) -> bool:
    """Equal, and 0 is not false: `logprobs: 0` asks for something."""
    return value is one if isinstance(value, bool) or isinstance(one, bool) else bool(value == one)


def _explained(text: str) -> tuple[str, str | None]:
    """msgspec's sentence as ours: message and parameter."""
    what, _, where = text.partition(" - at `$")
    what = clipped(what)
    if missing := re.search(r"missing required field `(\w+)`", what):
        return f"{missing[1]} is required", missing[1]
    if unknown := re.search(r"unknown field `(\w+)`", what):
        what = f"unknown field {unknown[1]}"
    param = where.rstrip("`").removeprefix(".") or None
    return f"{param}: {what}" if param else what, param


def shape_of(answer_follows: bool | None, continue_last: bool, special: bool | None) -> ChatShape:
    """BadRequest where the last message is to be both ended and continued."""
    if answer_follows and continue_last:
        raise BadRequest("continue_final_message and add_generation_prompt exclude each other", "continue_final_message")
    return ChatShape(answer_follows is not False and not continue_last, continue_last, bool(special))


def _check(request: GenerationRequest) -> None:
    check_sampling(request)
    if request.max_tokens == 0 and not request.echoes:
        raise BadRequest("max_tokens must be at least 1, got 0; with echo, 0 only scores the prompt", "max_tokens")
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options is accepted only with stream: true", "stream_options")
    if request.include_timing and request.stream and not request.include_usage:
        raise BadRequest("include_timing is accepted in a stream only with stream_options.include_usage", "include_timing")
    if request.prompt_logprobs is not None and request.stream:
        raise BadRequest("prompt_logprobs is accepted only without stream", "prompt_logprobs")
    if isinstance(request, ChatRequest):
        if request.top_logprobs and not request.logprobs:
            raise BadRequest("top_logprobs is accepted only with logprobs: true", "top_logprobs")
        check_messages(request.messages)
        _ = request.shape
        if request.box is not None and grammar_of(request, ()) is not None:
            raise BadRequest("tools and a format of the answer exclude each other, unless tool_choice is none", "tools")
    else:
        in_range("logprobs", request.logprobs, 0, MAX_LOGPROBS)
        _check_prompts(request)
    if request.limit is not None and (request.min_tokens or 0) > request.limit:
        most = f"{request.limit_field or 'max_tokens'} ({request.limit})"
        raise BadRequest(f"min_tokens must be at most {most}, got {shown(request.min_tokens)}", "min_tokens")


def _check_prompts(request: CompletionRequest) -> None:
    prompts = request.prompts()
    if not prompts:
        raise BadRequest("prompt is empty", "prompt")
    if (choices := len(prompts) * (request.n or 1)) > MAX_CHOICES:
        said = f"{len(prompts)} prompts with n {request.n or 1} are {choices} choices; at most {MAX_CHOICES} are allowed"
        raise BadRequest(said, "prompt")
