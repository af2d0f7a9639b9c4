"""`pagoda cost`: dollars per million tokens of an own device, and the volume from which it beats an API. Asks pagoda_sizing.cost."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated

import typer
from pagoda_sizing.cost import HOURS_PER_MONTH, Monthly, Variants, breakeven_requests, breakeven_tokens, dollars_per_million, goodput
from rich.console import Console

from pagoda_cli.errors import CliError


def command(
    price: Annotated[float | None, typer.Option(help="Dollars an hour for the hardware of the deployment.")] = None,
    monthly: Annotated[float | None, typer.Option(help="Dollars a month for it, instead of --price (a month is 720 h).")] = None,
    ops_hours: Annotated[float, typer.Option(help="Hours of people a month.")] = 0.0,
    ops_rate: Annotated[float, typer.Option(help="Dollars per such hour.")] = 0.0,
    api_price: Annotated[float | None, typer.Option(help="Dollars per million tokens of the API to compare with.")] = None,
    api_request_price: Annotated[float | None, typer.Option(help="Dollars per request of that API.")] = None,
    throughput: Annotated[float | None, typer.Option(help="Tokens per second at full load.")] = None,
    within_slo: Annotated[float, typer.Option(help="Share of tokens that met their objective, 0 to 1.")] = 1.0,
    utilisation: Annotated[float, typer.Option(help="Share of paid time at that load, 0 to 1.")] = 1.0,
    lora: Annotated[int | None, typer.Option(help="Fine-tuned variants: adapters of one deployment, or a deployment each?")] = None,
    lora_share: Annotated[float, typer.Option(help="Throughput with adapters, as a share of that without, 0 to 1.")] = 0.9,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Compare owning with an API: dollars per million tokens, and the break-even in tokens and requests a month.

    With --lora, compare adapters of one model with a deployment for each variant. --utilisation is then what all variants together need of
    one deployment.
    """
    hourly, bill = _bill(price, monthly, ops_hours, ops_rate)
    found: dict[str, float] = {"dollars_per_month": bill.total}
    if throughput is not None:
        useful = goodput(throughput, within_slo)
        found["goodput_tokens_per_s"] = useful
        found["dollars_per_million_tokens"] = dollars_per_million(hourly, useful, utilisation)
        found["dollars_per_million_tokens_with_ops"] = dollars_per_million(bill.total / HOURS_PER_MONTH, useful, utilisation)
    if api_price is not None:
        found["breakeven_tokens_per_month"] = breakeven_tokens(bill, api_price)
    if api_request_price is not None:
        found["breakeven_requests_per_month"] = breakeven_requests(bill, api_request_price)
    if lora is not None:
        found |= _variants(Variants(lora, utilisation, lora_share), bill, throughput)
    if len(found) == 1:
        raise CliError("nothing to compare with: give --throughput, --api-price, --api-request-price or --lora")
    _print(found, as_json=as_json)


def _variants(variants: Variants, bill: Monthly, throughput: float | None) -> dict[str, float]:
    """Both ways to serve the variants, each with its bill."""
    found: dict[str, float] = {}
    for name, count in (("adapters", variants.shared), ("own", variants.own)):
        total = replace(bill, hardware=count * bill.hardware).total  # people work as long either way
        found[f"{name}_deployments"] = count
        found[f"{name}_dollars_per_month"] = total
        if throughput is not None:
            found[f"{name}_dollars_per_million_tokens"] = dollars_per_million(total / HOURS_PER_MONTH, throughput, variants.load)
    return found


def _bill(price: float | None, monthly: float | None, ops_hours: float, ops_rate: float) -> tuple[float, Monthly]:
    if (price is None) == (monthly is None):
        raise CliError("give exactly one of --price (dollars an hour) and --monthly")
    if (ops_hours == 0) != (ops_rate == 0):
        raise CliError(f"--ops-hours {ops_hours:g} and --ops-rate {ops_rate:g}: give both or neither")
    hourly = price if price is not None else (monthly or 0.0) / HOURS_PER_MONTH
    return hourly, Monthly(hourly * HOURS_PER_MONTH if monthly is None else monthly, ops_hours, ops_rate)


LABELS = {
    "dollars_per_month": ("cost a month, ops included", "${:,.2f}"),
    "goodput_tokens_per_s": ("goodput", "{:,.0f} tokens/s"),
    "dollars_per_million_tokens": ("hardware per million tokens", "${:,.3f}"),
    "dollars_per_million_tokens_with_ops": ("with ops per million tokens", "${:,.3f}"),
    "breakeven_tokens_per_month": ("break-even", "{:,.0f} tokens a month"),
    "breakeven_requests_per_month": ("break-even", "{:,.0f} requests a month"),
    "adapters_deployments": ("adapters of one model: deployments", "{:,.0f}"),
    "adapters_dollars_per_month": ("adapters of one model: a month", "${:,.2f}"),
    "adapters_dollars_per_million_tokens": ("adapters of one model: per million tokens", "${:,.3f}"),
    "own_deployments": ("each variant by itself: deployments", "{:,.0f}"),
    "own_dollars_per_month": ("each variant by itself: a month", "${:,.2f}"),
    "own_dollars_per_million_tokens": ("each variant by itself: per million tokens", "${:,.3f}"),
}


def _print(found: dict[str, float], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found, indent=2))
        return
    console = Console(highlight=False)
    for name, value in found.items():
        label, shape = LABELS[name]
        console.print(f"{label}: {shape.format(value)}", soft_wrap=True)
