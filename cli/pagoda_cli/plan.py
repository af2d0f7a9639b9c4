"""`pagoda plan`: which device carries this model under this demand. Reads config.json, asks pagoda_sizing, prints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pagoda_contracts.units import parse_duration
from pagoda_sizing.config import declared_quantisation, parse_json
from pagoda_sizing.devices import Device, catalogue, find, profiles_of
from pagoda_sizing.errors import BadConfig
from pagoda_sizing.families import parse_model
from pagoda_sizing.model import Model
from pagoda_sizing.plan import Ask, Row, plan, priced
from pagoda_sizing.served import misshapen, unserved
from rich.console import Console
from rich.table import Table

from pagoda_cli.errors import CliError

DEFAULT_CONTEXT = 4096
LARGEST_CONFIG = 1 << 20


@dataclass(frozen=True)
class Options:
    """The command line as typed."""

    model: Path
    device: list[str]
    context: int | None
    concurrency: int | None
    prompt: int | None
    ttft: str | None
    tpot: str | None
    quantisation: str | None
    kv_dtype: str
    tensor_parallel: int | None
    price: list[str]


def command(
    model: Annotated[Path, typer.Option(help="A model's folder, or its config.json.")],
    device: Annotated[list[str] | None, typer.Option(help="h100, or h100:3g.40gb; may repeat. Default: all.")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens of a request, prompt and answer; 4096 or the model's limit.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests at the same time. Default: as many as fit.")] = None,
    prompt: Annotated[int | None, typer.Option(help="Tokens of the prompt that --ttft is for. Default: the context.")] = None,
    ttft: Annotated[str | None, typer.Option(help="Longest time to the first token, such as 500ms.")] = None,
    tpot: Annotated[str | None, typer.Option(help="Longest time per further token, such as 50ms.")] = None,
    quantization: Annotated[str | None, typer.Option(help="bf16, fp8, int8, int4, nvfp4. Default: what config.json declares.")] = None,
    kv_dtype: Annotated[str, typer.Option(help="bf16, fp8 or int8.")] = "bf16",
    tensor_parallel: Annotated[int | None, typer.Option("--tp", help="Devices per replica. Default: the fewest that are enough.")] = None,
    price: Annotated[list[str] | None, typer.Option(help="DEVICE=DOLLARS an hour; may repeat.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Show every device and MIG profile: does the model fit, why not, how many at a time, how fast, for how much."""
    options = Options(model, device or [], context, concurrency, prompt, ttft, tpot, quantization, kv_dtype, tensor_parallel, price or [])
    raw = _read(options.model)
    parsed = parse_model(raw)
    ask = _ask(options, parsed, raw)
    rows = plan(parsed, priced(_devices(options.device), _prices(options.price)), ask)
    why = _unserved(raw, parsed, ask)
    if as_json:
        print(json.dumps(_document(parsed, ask, rows) | {"unserved": why}, indent=2))
    else:
        _show(parsed, ask, rows)
        if why:
            print(f"No daemon serves this model: {why}")


def _unserved(raw: dict[str, Any], model: Model, ask: Ask) -> str:
    """Why every device would refuse it, whatever the table says; the table still answers what another engine needs."""
    format_ = "" if ask.quantisation == "bf16" else f"no daemon has {ask.quantisation} weights on a device"
    return unserved(raw) or misshapen(model) or format_


def _read(path: Path) -> dict[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    try:
        if file.stat().st_size > LARGEST_CONFIG:
            raise CliError(f"{file}: a config.json must be at most 1 MiB")
        return parse_json(file.read_text(encoding="utf-8"), str(file))
    except BadConfig as error:
        raise CliError(f"{error}; --model takes a model's folder or its config.json") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise CliError(f"{file}: {reason}; --model takes a model's folder or its config.json") from error


def _ask(options: Options, model: Model, raw: dict[str, Any]) -> Ask:
    return Ask(
        context=min(DEFAULT_CONTEXT, model.max_context) if options.context is None else options.context,
        concurrency=options.concurrency,
        prompt=options.prompt,
        ttft_s=_seconds("--ttft", options.ttft),
        tpot_s=_seconds("--tpot", options.tpot),
        quantisation=options.quantisation or declared_quantisation(raw),
        kv_dtype=options.kv_dtype,
        degree=options.tensor_parallel,
    )


def _seconds(option: str, text: str | None) -> float | None:
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise CliError(f"{option}: {error}") from error


def _devices(names: list[str]) -> tuple[Device, ...]:
    """A device named whole brings its MIG profiles along."""
    if not names:
        return catalogue()
    chosen = [found for name in names for found in (find(name), *(() if ":" in name else profiles_of(name)))]
    return tuple({device.name: device for device in chosen}.values())


def _prices(entries: list[str]) -> dict[str, float]:
    found = {}
    for entry in entries:
        name, _, amount = entry.partition("=")
        try:
            found[name.strip().lower()] = float(amount)
        except ValueError as error:
            raise CliError(f"--price must be DEVICE=DOLLARS, such as h100=2.50, got {entry!r}") from error
    return found


def _document(model: Model, ask: Ask, rows: tuple[Row, ...]) -> dict[str, Any]:
    return {
        "model": {
            "kind": model.kind,
            "parameters": model.parameters.total,
            "weight_bytes": model.weight_bytes(ask.quantisation),
            "kv_bytes_per_token": model.kv_bytes_per_token(ask.kv_dtype),
            "quantisation": ask.quantisation,
            "context": ask.context,
        },
        "devices": [row.model_dump(mode="json") for row in rows],
    }


def _show(model: Model, ask: Ask, rows: tuple[Row, ...]) -> None:
    console = Console(highlight=False)
    weights, token = model.weight_bytes(ask.quantisation) / 10**9, model.kv_bytes_per_token(ask.kv_dtype)
    console.print(
        f"{model.kind}, {model.parameters.total:,} parameters, {weights:.2f} GB of {ask.quantisation} weights, "
        f"{token:,} B of {ask.kv_dtype} KV cache per token; context {ask.context:,}",
        soft_wrap=True,
    )
    answered = [row for row in rows if row.ttft_ms is not None]
    if answered:
        console.print(_predictions(answered))
        console.print("Rooflines at 70 % of bandwidth and 60 % of compute; $/M: dollars per million tokens at that batch.", soft_wrap=True)
    refused = [row for row in rows if row.why]
    if refused:
        console.print(_reasons(refused))


def _predictions(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("device", no_wrap=True)
    for name in ("tp", "verdict", "max", "batch", "TTFT ms", "TPOT ms", "tok/s", "$/M"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _reasons(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("device", "tp", "verdict"):
        table.add_column(name, no_wrap=True)
    table.add_column("why not", overflow="fold")
    for row in rows:
        table.add_row(row.device, str(row.tensor_parallel), row.verdict.value, row.why)
    return table


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.device,
        str(row.tensor_parallel),
        row.verdict.value,
        _number(row.max_concurrency, ",.0f"),
        str(row.concurrency),
        _number(row.ttft_ms, ",.1f"),
        _number(row.tpot_ms, ",.2f"),
        _number(row.tokens_per_s, ",.0f"),
        _number(row.dollars_per_million, ",.3f"),
    )


def _number(value: float | None, shape: str) -> str:
    return "-" if value is None else format(value, shape)
