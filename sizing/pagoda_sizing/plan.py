"""Every device against one model and one demand: verdict, reason, concurrency, predicted times, dollars. Called by `pagoda plan`.

Predictions are `roofline` at `Efficiency.TYPICAL`: good for choosing a device, not for an objective without a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict

from pagoda_sizing import roofline
from pagoda_sizing.cost import dollars_per_million
from pagoda_sizing.devices import Device
from pagoda_sizing.errors import Impossible, positive
from pagoda_sizing.fit import DEGREES, Demand, Fit, check, check_heads, degree_refusal, fit, splits
from pagoda_sizing.model import Model

LARGEST_BATCH: Final = 256
"""Beyond it engines gain little (engine step floors flatten) and queueing decides."""


_ROWS: Final = 64  # a service's maxConcurrency if it is not set


class Verdict(StrEnum):
    """`no` names a bound of memory, `slow` one of time, `unsupported` a format that the device does not run; `later` would fit on several
    devices, over which no daemon spreads a model yet."""

    FITS = "fits"
    LATER = "later"
    NO = "no"
    SLOW = "slow"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True)
class Ask:
    """What the user wants; None leaves it to the device."""

    context: int
    concurrency: int | None = None
    prompt: int | None = None
    """Tokens of the prompt whose TTFT counts; the whole context where None."""
    ttft_s: float | None = None
    tpot_s: float | None = None
    quantisation: str = "bf16"
    kv_dtype: str = "bf16"
    degree: int | None = None

    @property
    def demand(self) -> Demand:
        return Demand(self.context, self.concurrency or 1, self.quantisation, self.kv_dtype, self.concurrency or _ROWS)


class Row(BaseModel):
    """One line of the table, and one object of `--json`."""

    model_config = ConfigDict(frozen=True)

    device: str
    tensor_parallel: int
    verdict: Verdict
    why: str
    weight_bytes: int
    """Per device."""
    reserve_bytes: int
    """What is neither weights nor KV cache."""
    kv_bytes_per_request: int
    max_concurrency: int | None
    """None where memory does not bound it (encoders)."""
    concurrency: int
    """The batch that the predictions are for."""
    ttft_ms: float | None
    tpot_ms: float | None
    tokens_per_s: float | None
    dollars_per_million: float | None


def plan(model: Model, devices: Iterable[Device], ask: Ask) -> tuple[Row, ...]:
    """A row per device, in the order given."""
    refuse_contradictions(model, ask)
    return tuple(_row(model, device, ask) for device in devices)


def refuse_contradictions(model: Model, ask: Ask) -> None:
    """What no device can answer, whatever its size."""
    check(model, ask.demand)
    if ask.degree is not None:
        check_heads(model, ask.degree)
    for name, value in (("ttft", ask.ttft_s), ("tpot", ask.tpot_s), ("prompt", ask.prompt)):
        if value is not None:
            positive(name, value)
    if ask.prompt is not None and ask.prompt > ask.context:
        raise Impossible(f"prompt {ask.prompt} is longer than the context of {ask.context}")
    if ask.tpot_s is not None and not model.decodes:
        raise Impossible(f"tpot {ask.tpot_s * 1000:g} ms: a {model.kind} generates no tokens; set ttft instead")


def _row(model: Model, device: Device, ask: Ask) -> Row:
    if ask.quantisation not in device.formats:
        why = f"{ask.quantisation} weights do not run on it; it runs {', '.join(device.formats)}"
        return _unanswered(fit(model, device, ask.demand), Verdict.UNSUPPORTED, why)
    if ask.degree is not None and (refusal := degree_refusal(device, ask.degree)):
        return _unanswered(fit(model, device, ask.demand), Verdict.NO, refusal)
    degrees = (ask.degree,) if ask.degree else tuple(value for value in DEGREES if splits(model, device, value))
    rows = [_at_degree(model, device, ask, degree) for degree in degrees]
    return _built(next((row for row in rows if row.verdict is Verdict.FITS), rows[-1]))


def _built(row: Row) -> Row:
    """Placement refuses more than one device for a replica."""
    if row.tensor_parallel == 1 or row.verdict is not Verdict.FITS:
        return row
    why = f"a replica computes on one device, because tensor parallelism is not built; it would fit on {row.tensor_parallel}"
    return row.model_copy(update={"verdict": Verdict.LATER, "why": why})


def _at_degree(model: Model, device: Device, ask: Ask, degree: int) -> Row:
    found = fit(model, device, ask.demand, degree)
    if not found.fits:
        ranks = f" on each of {degree}" if degree > 1 else ""
        return _unanswered(found, Verdict.NO, found.why_not + ranks)
    found = _at_its_own_ceiling(model, device, ask, found)
    batch = _batch(model, device, ask, found)
    ttft = _ttft(model, device, ask, degree)
    tpot = _tpot(model, device, ask, batch, degree) if model.decodes else None
    why = _too_slow(ask, ttft, tpot)
    throughput = batch / tpot if tpot else (ask.prompt or ask.context) / ttft
    price = None if device.price_per_hour is None else dollars_per_million(device.price_per_hour * degree, throughput)
    return _described(found, Verdict.SLOW if why else Verdict.FITS, why).model_copy(
        update={
            "max_concurrency": found.max_concurrency if model.decodes else None,
            "concurrency": batch,
            "ttft_ms": ttft * 1000,
            "tpot_ms": None if tpot is None else tpot * 1000,
            "tokens_per_s": throughput,
            "dollars_per_million": price,
        }
    )


def _at_its_own_ceiling(model: Model, device: Device, ask: Ask, found: Fit) -> Fit:
    """A step for more rows takes more memory: of more requests than `_ROWS`, as many as fit beside a step for so many."""
    if ask.concurrency is not None or found.max_concurrency <= _ROWS or not model.decodes:
        return found

    def ceiling(rows: int) -> Fit:
        return fit(model, device, replace(ask.demand, ceiling=rows), found.degree)

    rows = largest(min(found.max_concurrency, LARGEST_BATCH), lambda rows: ceiling(rows).max_concurrency >= rows)
    there = ceiling(rows)
    return there if rows == LARGEST_BATCH else replace(there, max_concurrency=rows)


def _batch(model: Model, device: Device, ask: Ask, found: Fit) -> int:
    """The concurrency asked for; else the most that memory and, where given, the time per token allow."""
    if ask.concurrency is not None or not model.decodes:
        return ask.concurrency or 1
    most = min(found.max_concurrency, LARGEST_BATCH)
    if ask.tpot_s is None:
        return most
    limit = ask.tpot_s
    return largest(most, lambda batch: _tpot(model, device, ask, batch, found.degree) <= limit) or 1


def largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest number from 1 to `most` for which a falling condition holds; 0 where none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _ttft(model: Model, device: Device, ask: Ask, degree: int) -> float:
    work = roofline.prefill_work(model, ask.demand, ask.prompt or ask.context, degree)
    return roofline.seconds(work, device, ask.quantisation, roofline.TYPICAL)


def _tpot(model: Model, device: Device, ask: Ask, batch: int, degree: int) -> float:
    work = roofline.decode_work(model, ask.demand, batch, degree)
    return roofline.seconds(work, device, ask.quantisation, roofline.TYPICAL)


def _too_slow(ask: Ask, ttft: float, tpot: float | None) -> str:
    reasons = [
        f"{name} {1000 * found:.4g} ms is above {1000 * limit:.4g} ms"
        for name, found, limit in (("ttft", ttft, ask.ttft_s), ("tpot", tpot, ask.tpot_s))
        if limit is not None and found is not None and found > limit
    ]
    return "; ".join(reasons)


def _described(found: Fit, verdict: Verdict, why: str) -> Row:
    return Row(
        device=found.device,
        tensor_parallel=found.degree,
        verdict=verdict,
        why=why,
        weight_bytes=found.weight_bytes,
        reserve_bytes=found.reserve_bytes,
        kv_bytes_per_request=found.kv_bytes_per_request,
        max_concurrency=found.max_concurrency,
        concurrency=found.concurrency,
        ttft_ms=None,
        tpot_ms=None,
        tokens_per_s=None,
        dollars_per_million=None,
    )


def _unanswered(found: Fit, verdict: Verdict, why: str) -> Row:
    """A row without predictions; concurrency means something only where memory was the question."""
    row = _described(found, verdict, why)
    return row if verdict is Verdict.NO else row.model_copy(update={"max_concurrency": None})


def priced(devices: Iterable[Device], prices: dict[str, float]) -> tuple[Device, ...]:
    """The devices with the user's prices per hour, a slice's in proportion; a name that is not there is refused."""
    found = tuple(devices)
    unknown = sorted(set(prices) - {device.name for device in found} - {device.whole for device in found})
    if unknown:
        raise Impossible(f"a price must be for a device of this plan ({', '.join(d.name for d in found)}), got {unknown[0]!r}")
    return tuple(_priced(device, prices) for device in found)


def _priced(device: Device, prices: dict[str, float]) -> Device:
    if device.name in prices:
        return _yours(device, _checked(device.name, prices[device.name]))
    if device.whole in prices:
        return _yours(device, _checked(device.whole, prices[device.whole]) * device.share)
    return device


def _yours(device: Device, price: float) -> Device:
    return replace(device, price_per_hour=price, price_kind="yours", price_read="")


def _checked(name: str, price: float) -> float:
    if not 0 <= price < math.inf:
        raise Impossible(f"price for {name} must be 0 or more dollars an hour, got {price}")
    return price
