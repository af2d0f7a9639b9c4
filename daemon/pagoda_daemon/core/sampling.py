"""Sampling: how the tokens of one request are chosen. Each number of it is defined here, once, with its range and its place on the device.

The checks of both APIs, the defaults of a model, the table of rows and the rows of a step are derived from `NUMBERS`, always by name.
docs/development.md says how to add a parameter. Knows neither torch nor requests.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pagoda_daemon.core.arrays import Floats, Ints, no_floats, no_ids
from pagoda_daemon.core.errors import shown

_MANY: Final = 2**31 - 1
_LEAST_FLOAT, _LARGEST_FLOAT = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


def random_of(seed: int | None) -> random.Random:
    """What draws the seeds of requests: the same ones after each start if the configuration has a seed."""
    return secrets.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311  asked for


class Number(NamedTuple):
    """What a number may be; the default of its field in `Sampling` is the value at which it changes nothing.

    `above`: `low` itself is refused. `hint` ends the refusal. `silent` is meant over HTTP where neither the request nor the model says
    one, if that is not the default. `of_model`: generation_config.json may say it. `drawn`: the draw needs it for each row, as this type.
    """

    low: float
    high: float
    above: bool = False
    hint: str = ""
    silent: float | None = None
    of_model: bool = False
    drawn: type[np.float32 | np.int32] | None = None

    def refusal(self, name: str, value: float) -> str | None:
        """Why `value` cannot be used. NaN lies in no range; a number of thousands of digits, which JSON may hold, is not printed whole."""
        if self.low <= value <= self.high and not (self.above and value == self.low):
            return None
        accepted = f"above {self.low:g} and at most {self.high:g}" if self.above else f"between {self.low} and {self.high}"
        return f"{name} must be {accepted}, got {shown(value)}" + (f"; {self.hint}" if self.hint else "")


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How tokens are chosen. Validated by the front; `temperature` 0 is greedy; `seed` None draws one.

    `bad_words` are sequences of ids. `logprobs` wants the log-probability of each token and of so many of the best; `prompt_logprobs`
    the same of each prompt token but the first, which no cached prefix can give; `pooling` the prompt's embedding.
    """

    max_tokens: int
    temperature: Annotated[float, Number(0.0, 100.0, silent=1.0, of_model=True, drawn=np.float32)] = 0.0
    top_p: Annotated[float, Number(0.0, 1.0, above=True, hint="for greedy decoding use temperature 0", of_model=True, drawn=np.float32)] = (
        1.0
    )
    top_k: Annotated[int, Number(-1, _MANY, of_model=True, drawn=np.int32)] = 0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    min_p: Annotated[float, Number(0.0, 1.0, of_model=True, drawn=np.float32)] = 0.0
    top_n_sigma: Annotated[float, Number(0.0, _LARGEST_FLOAT, above=True, hint="leave it out to keep all tokens", drawn=np.float32)] = 0.0
    repetition_penalty: Annotated[float, Number(0.01, 100.0, of_model=True)] = 1.0
    frequency_penalty: Annotated[float, Number(-2.0, 2.0)] = 0.0
    presence_penalty: Annotated[float, Number(-2.0, 2.0)] = 0.0
    logit_bias: dict[int, float] = {}
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    pooling: Literal["mean", "last"] | None = None


def _numbers() -> dict[str, tuple[Number, float]]:
    """The fields of `Sampling` that are annotated with one."""
    found = {}
    for one in msgspec.structs.fields(Sampling):
        for said in getattr(one.type, "__metadata__", ()):
            if isinstance(said, Number):
                found[one.name] = (said, one.default)
    return found


NUMBERS: Final[Mapping[str, Number]] = {name: number for name, (number, _) in _numbers().items()}
OFF: Final[Mapping[str, float]] = {name: off for name, (_, off) in _numbers().items()}
"""The value at which a number changes nothing."""

DrawRows = NDArray[np.void]
"""How each sampling row draws: one record of `DRAW` per row, read by name. At temperature 0 a row is greedy."""
DRAW: Final = np.dtype([(name, number.drawn) for name, number in NUMBERS.items() if number.drawn] + [("seed", np.uint64)], align=True)


def draw_of(sampling: Sampling, seed: int) -> DrawRows:
    """One record, of shape []."""
    found = np.zeros((), DRAW)
    for name in NUMBERS.keys() & set(DRAW.names or ()):
        found[name] = _as_drawn(NUMBERS[name], getattr(sampling, name))
    found["seed"] = seed
    return found


def _as_drawn(number: Number, value: float) -> float:
    """What is too near to 0 for the device's type is the least that is more than 0, where 0 would mean something else."""
    return max(value, _LEAST_FLOAT) if number.above and value > 0 else value


@dataclass(frozen=True, slots=True, eq=False)
class Shaping:
    """What changes a request's logits before the draw; fixed for its life. The penalties are vLLM's: repetition counts prompt and
    answer, frequency and presence the answer only. A bad word is banned where the answer ends with all of it but its last token."""

    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    bias_ids: Ints = field(default_factory=no_ids)
    bias: Floats = field(default_factory=no_floats)
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed: Ints | None = None
    min_tokens: int = 0
    stop_ids: Ints = field(default_factory=no_ids)


def shaping_of(sampling: Sampling) -> Shaping | None:
    """The arrays that a worker reads; None where the logits stay as they are."""
    plain = not any(getattr(sampling, name) != OFF[name] for name, number in NUMBERS.items() if number.drawn is None)
    bans = sampling.bad_words or sampling.allowed_token_ids is not None or (sampling.min_tokens and sampling.stop_token_ids)
    if plain and not sampling.logit_bias and not bans:
        return None
    return Shaping(
        repetition=sampling.repetition_penalty,
        frequency=sampling.frequency_penalty,
        presence=sampling.presence_penalty,
        bias_ids=np.fromiter(sampling.logit_bias.keys(), np.int32),
        bias=np.fromiter(sampling.logit_bias.values(), np.float32),
        bad_words=sampling.bad_words,
        allowed=None if sampling.allowed_token_ids is None else np.asarray(sampling.allowed_token_ids, np.int32),
        min_tokens=sampling.min_tokens,
        stop_ids=np.asarray(sampling.stop_token_ids, np.int32),
    )
