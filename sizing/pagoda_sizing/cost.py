"""What it costs: dollars per million tokens, goodput, utilisation, and from which volume an own GPU beats an API's price.

Called by `plan` and the CLI. Knows no device: prices per hour come in as numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from pagoda_sizing.errors import Impossible, positive

HOURS_PER_MONTH: Final = 720
"""30 days; $6.40 an hour is $4,608 a month."""
MILLION: Final = 1_000_000


def dollars_per_million(price_per_hour: float, tokens_per_s: float, utilisation: float = 1.0) -> float:
    """Dollars per million tokens at a throughput that is reached for a share of the paid time."""
    _not_negative("price per hour", price_per_hour)
    positive("tokens per second", tokens_per_s)
    _share("utilisation", utilisation)
    return price_per_hour / (tokens_per_s * utilisation * 3600) * MILLION


def goodput(tokens_per_s: float, within_slo: float) -> float:
    """Tokens per second of requests that met their objective."""
    positive("tokens per second", tokens_per_s)
    if not 0 <= within_slo <= 1:
        raise Impossible(f"share within objective must be from 0 to 1, got {within_slo}")
    return tokens_per_s * within_slo


def utilisation(served_tokens: float, capacity_tokens_per_s: float, hours: float) -> float:
    """Share of the paid capacity that was used."""
    positive("capacity", capacity_tokens_per_s)
    positive("hours", hours)
    _not_negative("served tokens", served_tokens)
    share = served_tokens / (capacity_tokens_per_s * hours * 3600)
    if share > 1:
        raise Impossible(f"{served_tokens:,.0f} tokens in {hours:g} h are {share:.2f} of the capacity; it must be at most 1")
    return share


@dataclass(frozen=True)
class Monthly:
    """What an own deployment costs a month, whatever it serves."""

    hardware: float
    ops_hours: float = 0.0
    ops_rate: float = 0.0

    @property
    def total(self) -> float:
        for name, value in (("hardware per month", self.hardware), ("ops hours", self.ops_hours), ("ops rate", self.ops_rate)):
            _not_negative(name, value)
        return self.hardware + self.ops_hours * self.ops_rate


def breakeven_requests(monthly: Monthly, api_price_per_request: float) -> int:
    """Requests a month from which owning is no dearer."""
    positive("API price per request", api_price_per_request)
    return math.ceil(monthly.total / api_price_per_request)


def breakeven_tokens(monthly: Monthly, api_price_per_million: float) -> float:
    """Tokens a month from which owning is no dearer."""
    positive("API price per million tokens", api_price_per_million)
    return monthly.total / api_price_per_million * MILLION


@dataclass(frozen=True)
class Variants:
    """Fine-tuned variants of one model, which together need `load` of what one deployment of it gives. `share`: tokens per second of a
    deployment with adapters, as a share of those without."""

    count: int
    load: float
    share: float

    @property
    def shared(self) -> int:
        """Deployments if the variants are adapters of one model."""
        positive("variants", self.count)
        _share("load", self.load)
        _share("share with adapters", self.share)
        return math.ceil(self.load / self.share)

    @property
    def own(self) -> int:
        """Deployments if each variant has its own; the load of a part is at most that of one."""
        positive("variants", self.count)
        return self.count


def _share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise Impossible(f"{name} must be above 0 and at most 1, got {value}")


def _not_negative(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise Impossible(f"{name} must be 0 or more, got {value}")
