"""What a request says of sampling: the fields that both endpoints share, their ranges, and the engine's `Sampling` made of them. Pure.

Ranges are OpenAI's where it has the field, else vLLM's. What depends on the model (ids of its vocabulary, bad words as ids) is checked by
`sampling_of`, the rest by `check_sampling` before anything else sees the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from pagoda_daemon.core.errors import BadRequest, shown
from pagoda_daemon.core.sampling import NUMBERS, OFF, Number, Sampling
from pagoda_daemon.text.tokens import ModelText

MAX_STOPS: Final = 64  # OpenAI's is 4, vLLM's is none
MAX_STOP_CHARS: Final = 256  # a stop string is held back until it cannot match: it bounds what is held
MAX_LOGPROBS: Final = 100  # OpenAI's is 20
MAX_IDS: Final = 1024  # of logit_bias, stop_token_ids: each is touched in every step
MAX_BAD_WORDS: Final = 128
MAX_CHOICES: Final = 128  # prompts times n: OpenAI's most for n, and more prompts than lm-eval sends at once
_MANY: Final = 2**31 - 1
RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "seed": (-(2**63), 2**63 - 1),
    "min_tokens": (0, _MANY),
    "prompt_logprobs": (0, MAX_LOGPROBS),
    "n": (1, MAX_CHOICES),
    "max_tokens": (0, _MANY),
    "max_completion_tokens": (1, _MANY),
    "max_output_tokens": (1, _MANY),
    "top_logprobs": (0, MAX_LOGPROBS),
    "truncate_prompt_tokens": (-1, _MANY),
}
"""Of numbers that are not in `NUMBERS`, both ends included; what depends on other fields is said where it is checked."""


class SamplingFields(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Fields of both endpoints that say how tokens are chosen and when the answer ends. Each of `NUMBERS` has its field."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    top_n_sigma: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool = False

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class Wished(msgspec.Struct, frozen=True):
    """What the endpoints say each in their own way."""

    max_tokens: int
    logprobs: int | None
    prompt_logprobs: int | None


def sampling_of(fields: SamplingFields, wished: Wished, text: ModelText, vocab_size: int) -> Sampling:
    """The model's own defaults where the request is silent; BadRequest names an id that the model does not have."""
    ids = tuple(fields.stop_token_ids or ())
    check_ids("stop_token_ids", ids, vocab_size)
    check_ids("allowed_token_ids", fields.allowed_token_ids or (), vocab_size)
    return Sampling(
        **_numbers(fields, text.defaults),
        max_tokens=wished.max_tokens,
        seed=fields.seed,
        stop_token_ids=ids if fields.ignore_eos else (*text.stop_ids, *ids),
        logit_bias=_bias(fields.logit_bias or {}, vocab_size),
        bad_words=_bad_words(fields.bad_words or (), text),
        allowed_token_ids=tuple(dict.fromkeys(fields.allowed_token_ids)) if fields.allowed_token_ids else None,
        min_tokens=fields.min_tokens or 0,
        logprobs=wished.logprobs,
        prompt_logprobs=wished.prompt_logprobs,
    )


def _numbers(fields: SamplingFields, defaults: Mapping[str, float]) -> dict[str, Any]:
    """Each as the request says it, else the model, else the API. A `top_k` of -1 is vLLM's word for 0."""
    found: dict[str, Any] = {name: _first(getattr(fields, name), defaults.get(name), NUMBERS[name].silent, OFF[name]) for name in NUMBERS}
    return found | {"top_k": max(0, found["top_k"])}


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _bias(given: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    bias = {int(key): value for key, value in given.items()}
    check_ids("logit_bias", bias, vocab_size)
    return bias


def _bad_words(words: Iterable[str], text: ModelText) -> tuple[tuple[int, ...], ...]:
    """Each word as it is and, where that gives other tokens of the same number, behind a space: vLLM's reading."""
    found: list[tuple[int, ...]] = []
    for word in words:
        plain, spaced = text.word_ids(word.lstrip()), text.word_ids(" " + word.lstrip())
        if not plain:
            raise BadRequest(f"bad_words: {shown(word)} has no tokens in this model", "bad_words")
        found.append(plain)
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            found.append(spaced)
    return tuple(found)


def check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    """BadRequest names the first id that the model does not have."""
    wrong = next((one for one in ids if not 0 <= one < vocab_size), None)
    if wrong is not None:
        raise BadRequest(f"{name} holds token id {shown(wrong)}; token ids must be 0 to {vocab_size - 1}", name)


def check_sampling(fields: SamplingFields) -> None:
    """BadRequest names the first field out of its range."""
    check_numbers({name: getattr(fields, name) for name in NUMBERS})
    for name in RANGES.keys() & set(fields.__struct_fields__):
        in_range(name, getattr(fields, name), *RANGES[name])
    _check_bias(fields.logit_bias or {})
    _check_count("stop_token_ids", fields.stop_token_ids or (), MAX_IDS)
    _check_count("bad_words", fields.bad_words or (), MAX_BAD_WORDS)
    _check_strings("bad_words", [word.lstrip() for word in fields.bad_words or ()])
    _check_count("stop", fields.stops, MAX_STOPS)
    _check_strings("stop", fields.stops)


def check_numbers(given: Mapping[str, float | None]) -> None:
    """BadRequest names the first that is out of its range; None is not said."""
    for name, value in given.items():
        if value is not None and (why := NUMBERS[name].refusal(name, value)) is not None:
            raise BadRequest(why, name)


def in_range(name: str, value: float | None, low: float, high: float) -> None:
    """Of a number that `NUMBERS` does not hold."""
    if value is not None and (why := Number(low, high).refusal(name, value)) is not None:
        raise BadRequest(why, name)


def _check_bias(bias: Mapping[str, float]) -> None:
    _check_count("logit_bias", bias, MAX_IDS)
    for key, value in bias.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 12):
            raise BadRequest(f"the keys of logit_bias must be token ids, got {shown(key)}", "logit_bias")
        in_range("logit_bias", value, -100.0, 100.0)


def _check_count(name: str, given: Iterable[object], most: int) -> None:
    if (count := len(tuple(given))) > most:
        raise BadRequest(f"{name} must have at most {most} entries, got {count}", name)


def _check_strings(name: str, given: Iterable[str]) -> None:
    if not all(0 < len(one) <= MAX_STOP_CHARS for one in given):
        raise BadRequest(f"{name}: a string has 1 to {MAX_STOP_CHARS} characters", name)
