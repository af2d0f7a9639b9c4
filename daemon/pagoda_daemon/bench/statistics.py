"""What a run measured → the figures of `vllm bench serve`, under its names. Pure: no clock, no network. Called by `command`.

Times are seconds of one monotonic clock, figures of latency are milliseconds. TTFT is the time to the first token, TPOT the time per token
after the first, ITL the time between two events that bring text, E2EL the time to the end of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}
"""By their names in flags and keys: how a table calls them."""
GOODPUT_METRICS: Final = ("ttft", "tpot", "e2el")
_PER_REQUEST: Final = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request. `sent` and `stamps` (of each event that brought text) are times; `ended` is that of the last byte. `error` is empty if
    the answer is whole. Tokens are those that the server counted. `status` is HTTP's, 0 without an answer."""

    sent: float
    ended: float
    stamps: tuple[float, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    error: str = ""
    status: int = 0

    @property
    def ttft(self) -> float:
        """An answer of which no event brought text (an end token alone) came when it ended."""
        return (self.stamps[0] if self.stamps else self.ended) - self.sent

    @property
    def latency(self) -> float:
        return self.ended - self.sent

    @property
    def tpot(self) -> float:
        """0 for an answer of one token, as in vLLM's goodput."""
        return (self.latency - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0

    @property
    def itls(self) -> list[float]:
        return [after - before for before, after in zip(self.stamps, self.stamps[1:], strict=False)]


@dataclass(frozen=True)
class Wanted:
    """What is reported: latencies by name, percentiles, and limits in milliseconds that a good request keeps."""

    metrics: Sequence[str] = ("ttft", "tpot", "itl")
    percentiles: Sequence[float] = (99.0,)
    goodput: Mapping[str, float] | None = None


def figures(outcomes: Sequence[Outcome], duration: float, wanted: Wanted) -> dict[str, Any]:
    """The keys of vLLM's result, in its order."""
    whole = [one for one in outcomes if not one.error]
    given, made = sum(one.input_tokens for one in whole), sum(one.output_tokens for one in whole)
    good = _good(whole, wanted.goodput)
    tokens, requests = _peaks(whole)
    found: dict[str, Any] = {
        "duration": duration,
        "completed": len(whole),
        "failed": len(outcomes) - len(whole),
        "total_input_tokens": given,
        "total_output_tokens": made,
        "request_throughput": len(whole) / duration,
        "request_goodput": None if good is None else good / duration,
        "output_throughput": made / duration,
        "total_token_throughput": (given + made) / duration,
        "input_lens": [one.input_tokens for one in outcomes],
        "output_lens": [0 if one.error else one.output_tokens for one in outcomes],
        "ttfts": [one.ttft for one in outcomes],
        "itls": [one.itls for one in outcomes],
        "generated_texts": [one.text for one in outcomes],
        "errors": [one.error for one in outcomes],
        "max_output_tokens_per_s": tokens,
        "max_concurrent_requests": requests,
    }
    for name in METRICS:
        if name in wanted.metrics:
            found |= _latencies(name, _values(name, whole), wanted.percentiles)
    return found


def summary(found: Mapping[str, Any]) -> dict[str, Any]:
    """Without the lists that have an entry for each request."""
    return {name: value for name, value in found.items() if name not in _PER_REQUEST}


def percentile_name(percentile: float) -> str:
    """99 for 99.0, 99.9 as it is."""
    return f"{percentile:g}"


def _values(name: str, whole: Sequence[Outcome]) -> list[float]:
    match name:
        case "ttft":
            return [one.ttft for one in whole]
        case "tpot":
            return [one.tpot for one in whole if one.output_tokens > 1]
        case "itl":
            return [gap for one in whole for gap in one.itls]
        case _:
            return [one.latency for one in whole]


def _latencies(name: str, values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """In milliseconds; 0 where nothing was measured, as in vLLM."""
    times = np.asarray(values or [0.0]) * 1000
    found = {"mean": np.mean(times), "median": np.median(times), "std": np.std(times)}
    found |= {f"p{percentile_name(one)}": np.percentile(times, one) for one in percentiles}
    return {f"{which}_{name}_ms": float(value) for which, value in found.items()}


def _good(whole: Sequence[Outcome], limits: Mapping[str, float] | None) -> int | None:
    if not limits:
        return None
    measured = {"ttft": lambda one: one.ttft, "tpot": lambda one: one.tpot, "e2el": lambda one: one.latency}
    return sum(all(measured[name](one) * 1000 <= limit for name, limit in limits.items()) for one in whole)


def _peaks(whole: Sequence[Outcome]) -> tuple[float, int]:
    """The most tokens that came within one second of the run, and the most requests that were under way within one. The tokens of an
    answer are spread evenly over its events: an event may bring several."""
    if not whole:
        return 0.0, 0
    begun = min(one.sent for one in whole)
    seconds = math.ceil(max(one.ended for one in whole) - begun) + 1
    tokens, requests = np.zeros(seconds), np.zeros(seconds, int)
    for one in whole:
        stamps = one.stamps or (one.ended,)
        for stamp in stamps:
            tokens[int(stamp - begun)] += one.output_tokens / len(stamps)
        requests[int(one.sent - begun) : int(one.ended - begun) + 1] += 1
    return float(tokens.max()), int(requests.max())
