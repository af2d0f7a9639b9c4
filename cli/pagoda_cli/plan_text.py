"""What `pagoda plan` prints: the devices that fit, cheapest first, and a line for each reason why others do not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from pagoda_sizing.devices import Device
from pagoda_sizing.model import Model
from pagoda_sizing.plan import Ask, Row, Verdict
from rich.console import Console
from rich.table import Table

_USUAL: Final = "on demand"


class Offer(NamedTuple):
    """A row and the device that it is about."""

    row: Row
    device: Device

    @property
    def fits(self) -> bool:
        """Whether it does all that was asked for."""
        return self.row.verdict is Verdict.FITS

    @property
    def dollars_per_hour(self) -> float | None:
        """For all devices of a replica; None if no price is known."""
        return None if self.device.price_per_hour is None else self.device.price_per_hour * self.row.tensor_parallel

    @property
    def order(self) -> tuple[bool, float, float]:
        """Cheapest first, unknown prices last."""
        price, per_token = self.dollars_per_hour, self.row.dollars_per_million
        return price is None, price or 0.0, per_token or 0.0


def fitting(offers: Iterable[Offer], each_form: bool) -> list[Offer]:
    """Returns the offers that fit, cheapest first: of each device its cheapest form, or each form."""
    found = sorted((offer for offer in offers if offer.fits), key=lambda offer: offer.order)
    cheapest: dict[str, Offer] = {}
    for offer in found:
        cheapest.setdefault(offer.device.whole, offer)
    return found if each_form else list(cheapest.values())


def refused(offers: Sequence[Offer], each_form: bool) -> list[Offer]:
    """Returns the offers that do not fit; of a device with slices the whole one, if no form of it fits."""
    served = {offer.device.whole for offer in offers if offer.fits}
    if each_form:
        return [offer for offer in offers if not offer.fits]
    return [offer for offer in offers if offer.device.profile is None and offer.device.whole not in served]


def summary(offers: Sequence[Offer], each_form: bool) -> list[str]:
    """Returns a line for each reason, with its devices and the words of the largest of them."""
    groups: dict[str, list[Offer]] = defaultdict(list)
    for offer in refused(offers, each_form):
        groups[_reason(offer.row)].append(offer)
    return [_line(reason, group) for reason, group in groups.items()]


def _reason(row: Row) -> str:
    if row.verdict is Verdict.UNSUPPORTED:
        return "weights in another format only"
    if row.verdict is Verdict.LATER:
        return "only several of them together"
    if row.verdict is Verdict.SLOW:
        return "too slow"
    if "tensor-parallel" in row.why:
        return "cannot be one of several"
    return "room for fewer requests" if row.max_concurrency else "too little memory"


def _line(reason: str, group: Sequence[Offer]) -> str:
    largest = max(group, key=lambda offer: offer.device.memory_bytes * offer.row.tensor_parallel)
    example = f"{largest.device.name}: {largest.row.why}"
    return f"{reason}: {', '.join(offer.device.name for offer in group)} ({example})" if len(group) > 1 else f"{reason}: {example}"


def prices(offers: Iterable[Offer]) -> str:
    """Returns when the prices were read and of which kind they are; empty if there is none."""
    kinds: dict[str, list[Device]] = defaultdict(list)
    for offer in offers:
        if offer.device.price_kind:
            kinds[offer.device.price_kind].append(offer.device)
    parts = [f"{kind}{_read(devices)}{_names(kind, devices)}" for kind, devices in sorted(kinds.items(), key=lambda one: one[0] != _USUAL)]
    return f"Prices: {'; '.join(parts)}. --price NAME=DOLLARS sets yours." if parts else ""


def _read(devices: Sequence[Device]) -> str:
    days = sorted({device.price_read for device in devices if device.price_read})
    return (f", read {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "")) if days else ""


def _names(kind: str, devices: Sequence[Device]) -> str:
    return "" if kind == _USUAL else f" ({', '.join(device.name for device in devices)})"


def show(model: Model, ask: Ask, offers: Sequence[Offer], each_form: bool) -> None:
    """Prints the plan."""
    console = Console(highlight=False)
    console.print(_head(model, ask), soft_wrap=True)
    shown = fitting(offers, each_form)
    if shown:
        console.print(_predictions(shown))
    for line in (_legend(shown, each_form) if shown else []) + _refusals(offers, each_form):
        console.print(line, soft_wrap=True, markup=False)


def _head(model: Model, ask: Ask) -> str:
    weights, token = model.weight_bytes(ask.quantisation) / 10**9, model.kv_bytes_per_token(ask.kv_dtype)
    return (
        f"{model.kind}, {model.parameters.total:,} parameters, {weights:.2f} GB of {ask.quantisation} weights, "
        f"{token:,} B of {ask.kv_dtype} KV cache per token; context {ask.context:,}"
    )


def _legend(shown: Sequence[Offer], each_form: bool) -> list[str]:
    lines = [
        "$/h: dollars an hour for a replica; $/M: per million tokens at that batch. Rooflines at 70 % of bandwidth and 60 % of compute.",
        prices(shown),
        "" if each_form else "Each device in its cheapest form; --device NAME shows all its MIG profiles.",
    ]
    return [line for line in lines if line]


def _refusals(offers: Sequence[Offer], each_form: bool) -> list[str]:
    lines = summary(offers, each_form)
    whole = f"{len(refused(offers, each_form))} of {_count(offers, each_form)} do not fit:"
    return [whole, *(f"  {line}" for line in lines)] if lines else []


def _count(offers: Sequence[Offer], each_form: bool) -> int:
    return len(offers) if each_form else len({offer.device.whole for offer in offers})


def _predictions(offers: Sequence[Offer]) -> Table:
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("device", no_wrap=True)
    for name in ("tp", "$/h", "max", "batch", "TTFT ms", "TPOT ms", "tok/s", "$/M"):
        table.add_column(name, justify="right", no_wrap=True)
    for offer in offers:
        table.add_row(*_cells(offer))
    return table


def _cells(offer: Offer) -> tuple[str, ...]:
    row = offer.row
    return (
        row.device,
        str(row.tensor_parallel),
        _number(offer.dollars_per_hour, ",.2f"),
        _number(row.max_concurrency, ",.0f"),
        str(row.concurrency),
        _number(row.ttft_ms, ",.1f"),
        _number(row.tpot_ms, ",.2f"),
        _number(row.tokens_per_s, ",.0f"),
        _number(row.dollars_per_million, ",.3f"),
    )


def _number(value: float | None, shape: str) -> str:
    return "-" if value is None else format(value, shape)
