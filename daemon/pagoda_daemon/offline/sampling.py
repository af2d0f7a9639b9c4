"""Sampling: what a caller in this process may ask of an answer, and the API's request made of it. Pure; called by `engine`.

The fields are those of the API, so their ranges, defaults and refusals are too. Nothing is defined here a second time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from pagoda_daemon.api.openai import requests
from pagoda_daemon.api.openai.requests import ChatRequest, CompletionRequest
from pagoda_daemon.api.openai.structured import StructuredFields
from pagoda_daemon.api.routes import submitting
from pagoda_daemon.api.routes.generation import Submission
from pagoda_daemon.core.errors import BadRequest
from pagoda_daemon.core.messages import Ready
from pagoda_daemon.text.tokens import ModelText

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]
Ask = Callable[[str, ModelText, Ready], Submission]
"""A request id, the model's text and the engine's limits → one prompt that is ready for the engine. BadRequest where it cannot be."""

_MODEL: Final = "offline"


class Sampling(StructuredFields, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How a prompt is answered. Each field means what it means over HTTP, and so does one that is absent: the model's own default, else
    the API's, which is 16 tokens for a prompt and all that the context holds for a chat. `n` answers; `logprobs` is how many of the best
    tokens come beside each token of the answer."""

    max_tokens: int | None = None
    n: int | None = None
    logprobs: int | None = None
    skip_special_tokens: bool = True
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None


def of_prompt(prompt: Prompt, sampling: Sampling) -> Ask:
    """Text or token ids, continued."""
    return _asked({**_said(sampling), "prompt": prompt if isinstance(prompt, str) else list(prompt)}, CompletionRequest)


def of_score(prompt: Prompt, top: int) -> Ask:
    """Text or token ids, scored and not continued, with the `top` best tokens of each place."""
    said = {"prompt": prompt if isinstance(prompt, str) else list(prompt), "echo": True, "max_tokens": 0, "logprobs": top}
    ask = _asked(said | {"temperature": 0.0}, CompletionRequest)
    return lambda request_id, text, limits: replace(ask(request_id, text, limits), echo=None)  # the caller has the prompt


def of_chat(messages: Messages, sampling: Sampling, shape: Mapping[str, Any]) -> Ask:
    """A conversation, answered. `shape` are the API's other fields that change how it is written."""
    said = _said(sampling)
    if (listed := said.pop("logprobs", None)) is not None:
        said |= {"logprobs": True, "top_logprobs": listed}
    return _asked({**said, **shape, "messages": [dict(message) for message in messages]}, ChatRequest)


def _said(sampling: Sampling) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(sampling)
    return {name: value for name, value in fields.items() if value is not None}


def _asked(fields: dict[str, Any], kind: type[ChatRequest | CompletionRequest]) -> Ask:
    def ask(request_id: str, text: ModelText, limits: Ready) -> Submission:
        ignored: list[str] = []
        _check_characters(fields)
        request = requests.of_fields({"model": _MODEL, "return_token_ids": True, **fields}, kind, ignored)
        if ignored:
            warnings.warn(f"these fields are not known and have no effect: {', '.join(ignored)}", stacklevel=2)
        (job,) = submitting.submissions(request, request_id, text, limits)
        return job

    return ask


def _check_characters(fields: Mapping[str, Any]) -> None:
    """A body over HTTP cannot hold half of a surrogate pair; a string of Python can, and no tokenizer takes it."""
    for name, value in fields.items():
        try:
            if isinstance(value, str) or name == "messages":
                msgspec.json.encode(value)
        except UnicodeEncodeError as error:
            raise BadRequest(f"{name} has a lone surrogate, half of a character; write both halves", name) from error
