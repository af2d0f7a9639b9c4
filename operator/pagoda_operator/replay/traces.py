"""traces: demand to replay, as recorded (JSON lines) or generated from a seed. Read by `replay.command`; knows no policy.

Generators and seeds are older than any policy they judge, and are not changed for one.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Final

from pagoda_operator.api.errors import TraceRefused

MINUTE: Final = 60.0
HOUR: Final = 3600.0

_PROMPT_TOKENS: Final = (6.0, 0.8)  # of a log-normal: a median of 403 tokens, 5 % above 1,500
_ANSWER_TOKENS: Final = (5.3, 0.6)  # a median of 200, 5 % above 540
_LONGEST: Final = 8192


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when, in seconds from the trace's beginning, and how many tokens it brings and gets."""

    at: float
    prompt: int
    answer: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Demand over time: requests per second at each moment, and how long a new replica takes to serve."""

    rate: Callable[[float], float]
    peak: float
    seconds: float
    seed: int
    start_s: float = 90.0


def _diurnal(t: float) -> float:
    """Four days of four hours each, as a day has: 2 requests per second by night, 14 at noon."""
    return 8.0 - 6.0 * math.cos(2 * math.pi * t / (4 * HOUR))


def _burst(t: float) -> float:
    """4 per second, and every 20 minutes 16 for two minutes."""
    return 16.0 if t % (20 * MINUTE) >= 18 * MINUTE else 4.0


def _ramp(t: float) -> float:
    """From 1 to 20 per second in two hours, and back in one."""
    return 1.0 + 19.0 * (t / (2 * HOUR) if t < 2 * HOUR else max(0.0, 3 * HOUR - t) / HOUR)


def _flash_crowd(t: float) -> float:
    """3 per second; after an hour 24 within a minute, which wear off with a half-life of 12 minutes."""
    since = t - HOUR
    if since < 0:
        return 3.0
    return 3.0 + 21.0 * (since / MINUTE if since < MINUTE else 0.5 ** ((since - MINUTE) / (12 * MINUTE)))


def _slow_start(t: float) -> float:
    """Steps of 4 per second every 25 minutes, where a replica takes 6 minutes to start."""
    return 4.0 * min(5, 1 + int(t // (25 * MINUTE)))


SHAPES: Final = {
    "diurnal": Shape(_diurnal, 14.0, 16 * HOUR, seed=1101),
    "burst": Shape(_burst, 16.0, 3 * HOUR, seed=1102),
    "ramp": Shape(_ramp, 20.0, 3.5 * HOUR, seed=1103),
    "flash-crowd": Shape(_flash_crowd, 24.0, 3 * HOUR, seed=1104),
    "slow-start": Shape(_slow_start, 20.0, 2.5 * HOUR, seed=1105, start_s=360.0),
}


def generate(shape: Shape) -> Iterator[Arrival]:
    """An inhomogeneous Poisson process by thinning (Lewis and Shedler, 1979), the same for the same seed."""
    luck = random.Random(shape.seed)  # noqa: S311  demand is no secret
    at = 0.0
    while (at := at + luck.expovariate(shape.peak)) < shape.seconds:
        if luck.random() * shape.peak < shape.rate(at):
            yield Arrival(at, _tokens(luck, *_PROMPT_TOKENS), _tokens(luck, *_ANSWER_TOKENS))


def _tokens(luck: random.Random, middle: float, spread: float) -> int:
    return min(_LONGEST, max(1, round(luck.lognormvariate(middle, spread))))


def write(arrivals: Iterable[Arrival]) -> Iterator[str]:
    """JSON lines."""
    for arrival in arrivals:
        yield json.dumps(asdict(arrival))


def read(lines: Iterable[str]) -> Iterator[Arrival]:
    """What `write` wrote, or whoever records demand in this form; TraceRefused names the line. Times must not go backwards."""
    before = 0.0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        arrival = _parse(line, number)
        if arrival.at < before:
            raise TraceRefused(f"line {number}: at {arrival.at} comes after {before}; times must be in order")
        before = arrival.at
        yield arrival


def _parse(line: str, number: int) -> Arrival:
    try:
        entry = json.loads(line)
        arrival = Arrival(float(entry["at"]), int(entry["prompt"]), int(entry["answer"]))
    except (ValueError, KeyError, TypeError) as error:
        raise TraceRefused(f"line {number}: {error!r}; it must be an object with at (seconds), prompt and answer (tokens)") from error
    if not (math.isfinite(arrival.at) and arrival.at >= 0 and arrival.prompt >= 1 and arrival.answer >= 1):
        raise TraceRefused(f"line {number}: {arrival}; it must have at >= 0, prompt >= 1, answer >= 1")
    return arrival
