"""The bodies of `/v1/chat/completions` and `/v1/completions`: their types, and what must hold between fields. Pure; `fields` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from pagoda_contracts.notes import MAX_ANSWERED

from pagoda_daemon.api.openai.fields import typed, typed_fields
from pagoda_daemon.api.openai.messages import Message, check_messages, turns
from pagoda_daemon.api.openai.sampling import MAX_CHOICES, MAX_LOGPROBS, check_sampling, in_range
from pagoda_daemon.api.openai.structured import StructuredFields
from pagoda_daemon.api.openai.tools import Tool, Toolbox, ToolChoice, loosened, toolbox
from pagoda_daemon.core.errors import BadRequest, shown
from pagoda_daemon.text.tokens import ChatShape

MAX_BODY: Final = 16 * 2**20
BODY_S: Final = 60.0  # for all of it: the largest at 280 KB/s
COMPLETION_MAX_TOKENS: Final = 16  # OpenAI's default for /v1/completions
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
# Qwen3, GLM and Granite read the first, DeepSeek the second, GPT-OSS the third.
_TEMPLATE_VARIABLES: Final[Mapping[str, type]] = {"enable_thinking": bool, "thinking": bool, "reasoning_effort": str}
_MAX_VARIABLE: Final = 64


def most_bytes(answered: int) -> int:
    """How large a body may be that has `answered` bytes behind it of what another replica said."""
    return MAX_BODY + max(0, min(answered, MAX_ANSWERED))


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries besides text. With `continuous_usage_stats` every chunk has the usage so far, if `include_usage` is set too."""

    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: bool = False


class _Common(StructuredFields, kw_only=True, frozen=True, forbid_unknown_fields=True):
    model: str
    n: int | None = None
    max_tokens: int | None = None
    prompt_logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include_timing: bool | None = None
    skip_special_tokens: bool = True
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    return_token_ids: bool | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        return self.stream_options is not None and self.include_usage and self.stream_options.continuous_usage_stats

    @property
    def generated(self) -> int:
        """Answers that are generated of each prompt."""
        return self.n or 1

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
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: ReasoningEffort | None = None

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
        shape = shape_of(self.add_generation_prompt, self.continue_final_message, self.add_special_tokens)
        return shape._replace(variables=template_variables(self.chat_template_kwargs, self.reasoning_effort))

    def turns(self) -> list[dict[str, Any]]:
        return turns(self.messages)


class CompletionRequest(_Common, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """POST /v1/completions; prompts as text or as token ids. With `echo`, `max_tokens` 0 only scores them."""

    prompt: str | list[int | str | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None

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

    @property
    def generated(self) -> int:
        """Answers that are generated of each prompt; with `best_of` more than are returned."""
        return self.best_of or self.n or 1

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


def parse(body: bytes, kind: type[GenerationRequest], unknown: list[str]) -> GenerationRequest:
    """The typed request; BadRequest names the first field that is wrong."""
    request = typed(body, kind, unknown)
    check(request, unknown)
    return request


def of_fields(fields: dict[str, Any], kind: type[GenerationRequest], unknown: list[str]) -> GenerationRequest:
    """The same for a caller in this process, which has no body."""
    request = typed_fields(fields, kind, unknown)
    check(request, unknown)
    return request


def check(request: GenerationRequest, unknown: list[str]) -> None:
    """What must hold between fields; `unknown` takes the places of schemas that are loosened."""
    _check(request)
    unknown += loosened(request, request.box if isinstance(request, ChatRequest) else None)


def shape_of(answer_follows: bool | None, continue_last: bool, special: bool | None) -> ChatShape:
    """BadRequest where the last message is to be both ended and continued."""
    if answer_follows and continue_last:
        raise BadRequest("continue_final_message and add_generation_prompt exclude each other", "continue_final_message")
    return ChatShape(answer_follows is not False and not continue_last, continue_last, bool(special))


def template_variables(given: Mapping[str, Any] | None, effort: ReasoningEffort | None) -> tuple[tuple[str, bool | str], ...]:
    """What a request may say to the model's chat template, sorted by name. BadRequest names a variable that no client may set: a template
    is a program, and its other variables are the server's."""
    found: dict[str, bool | str] = {"reasoning_effort": effort} if effort is not None else {}
    for name, value in (given or {}).items():
        where = f"chat_template_kwargs.{name[:64]}"
        kind = _TEMPLATE_VARIABLES.get(name)
        if kind is None:
            raise BadRequest(f"{where} is not supported; accepted: {', '.join(_TEMPLATE_VARIABLES)}", where, "unsupported_parameter")
        if not isinstance(value, kind) or not isinstance(value, bool | str):
            raise BadRequest(f"{where} must be a {'boolean' if kind is bool else 'string of at most 64 characters'}", where)
        if isinstance(value, str) and len(value) > _MAX_VARIABLE:
            raise BadRequest(f"{where} must have at most {_MAX_VARIABLE} characters, got {len(value)}", where)
        found[name] = value
    return tuple(sorted(found.items()))


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
        _ = request.box
    else:
        in_range("logprobs", request.logprobs, 0, MAX_LOGPROBS)
        _check_best(request)
        _check_prompts(request)
        _check_suffix(request)
    if request.limit is not None and (request.min_tokens or 0) > request.limit:
        most = f"{request.limit_field or 'max_tokens'} ({request.limit})"
        raise BadRequest(f"min_tokens must be at most {most}, got {shown(request.min_tokens)}", "min_tokens")


def _check_prompts(request: CompletionRequest) -> None:
    prompts = request.prompts()
    if not prompts:
        raise BadRequest("prompt is empty", "prompt")
    if (choices := len(prompts) * request.generated) > MAX_CHOICES:
        asked = f"{len(prompts)} prompts with {'best_of' if request.best_of else 'n'} {request.generated}"
        raise BadRequest(f"{asked} are {choices} choices; at most {MAX_CHOICES} are allowed", "prompt")


def _check_suffix(request: CompletionRequest) -> None:
    if request.suffix and request.echoes:
        raise BadRequest("suffix and echo exclude each other", "suffix")


def _check_best(request: CompletionRequest) -> None:
    if request.best_of is None:
        return
    in_range("best_of", request.best_of, request.n or 1, MAX_CHOICES)
    if request.best_of > (request.n or 1) and request.stream:
        raise BadRequest("best_of above n is accepted only without stream: the best answer is known at the end", "best_of")
    if request.best_of > (request.n or 1) and not request.limit:
        raise BadRequest("best_of above n needs max_tokens of at least 1", "best_of")
