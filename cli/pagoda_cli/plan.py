"""`pagoda plan`: which device carries this model under this demand; with `-f`, where a service would be placed (`plan_cluster`).

Finds config.json (`plan_model`), asks pagoda_sizing, prints (`plan_text`) or writes an InferenceService (`plan_service`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer
from pagoda_contracts.units import parse_duration
from pagoda_sizing.config import declared_quantisation
from pagoda_sizing.devices import Device, catalogue, find, profiles_of
from pagoda_sizing.families import parse_model
from pagoda_sizing.model import Model
from pagoda_sizing.plan import Ask, plan, priced
from pagoda_sizing.platforms import slices
from pagoda_sizing.served import misshapen, unserved

from pagoda_cli.errors import CliError
from pagoda_cli.kubectl import Access
from pagoda_cli.plan_cluster import Request, place_services
from pagoda_cli.plan_model import Found, find_model
from pagoda_cli.plan_service import Asked, held, recommendation, runs
from pagoda_cli.plan_text import Offer, show

DEFAULT_CONTEXT = 4096


@dataclass(frozen=True)
class Options:
    """The command line as typed, without what `--filename` alone has."""

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
    as_yaml: bool


_NONE = Options([], None, None, None, None, None, None, "bf16", None, [], as_yaml=False)


def command(
    named: Annotated[str | None, typer.Argument(help="hf://ORG/NAME, a model's folder, its config.json, or -.", metavar="[MODEL]")] = None,
    model: Annotated[str | None, typer.Option(help="The same.")] = None,
    filename: Annotated[list[str] | None, typer.Option("--filename", "-f", help="Services to place in a cluster; may repeat.")] = None,
    nodes: Annotated[str | None, typer.Option(help="With -f: what `kubectl get nodes -o json` printed, instead of a cluster.")] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="For services that name none; default: kubectl's own.")] = "",
    kube_context: Annotated[str, typer.Option(help="A context of the kubeconfig.")] = "",
    kubeconfig: Annotated[str, typer.Option(help="A kubeconfig file.")] = "",
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
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Write the InferenceService that is recommended, with the reasons.")] = False,
) -> None:
    """Show the devices that fit a model, cheapest first: how many requests, how fast, for how much; and why others do not fit.
    With -f: where a service would be placed in the cluster now, for how many replicas there is room, and why others have none."""
    wished = (device or [], context, concurrency, prompt, ttft, tpot, quantization, kv_dtype, tensor_parallel, price or [])
    options, access = Options(*wished, as_yaml), Access(namespace, kube_context, kubeconfig)
    if not filename:
        if nodes:
            raise CliError("--nodes needs --filename, which names a service")
        found = find_model(_one(named, model), access)
        if any(access) and not found.uri:
            raise CliError("--namespace, --kube-context and --kubeconfig need --filename, or a MODEL hf://ORG/NAME that was inspected")
        _compare(found, options, as_json=as_json)
    elif options != _NONE:
        raise CliError(
            "with --filename, the services say what is wanted; beside it may stand MODEL, --nodes, --json and options of kubectl"
        )
    else:
        place_services(Request(filename, nodes, _one(named, model) if named or model else None, access), as_json=as_json)


def _compare(found: Found, options: Options, *, as_json: bool) -> None:
    """Prints the devices, or the InferenceService that is recommended."""
    if as_json and options.as_yaml:
        raise CliError("give at most one of --json and --yaml")
    parsed = parse_model(found.config)
    ask = _ask(options, parsed, found.config)
    why = unserved(found.config) or misshapen(parsed)
    devices = tuple(map(as_sold, priced(_devices(options.device), _prices(options.price))))
    stored = "bf16" if why else parsed.stored
    forms = {each.name: held(each, ask.quantisation, stored) for each in devices}
    offers = [Offer(plan(parsed, (each,), replace(ask, quantisation=forms[each.name]))[0], each) for each in devices]
    if options.as_yaml:
        print(recommendation(Asked(found, parsed, ask, why), offers), end="")
        return
    able = [device.name for device in devices if runs(device, forms[device.name])]
    why = why or ("" if able else f"no daemon runs {ask.quantisation} weights on these devices")
    if as_json:
        print(json.dumps(_document(parsed, ask, offers) | {"unserved": why}, indent=2))
    else:
        show(parsed, ask, offers, each_form=bool(options.device))
        if why:
            # The table still answers what another engine needs.
            print(f"No daemon serves this model: {why}")
        elif whole := [name for name, form in forms.items() if form != ask.quantisation]:
            verb = "has" if len(whole) == 1 else "have"
            print(f"Weights are held in bf16 on {', '.join(whole)}, which {verb} no kernels for {ask.quantisation}.")
        elif len(able) < len(devices):
            print(f"Daemons run {ask.quantisation} weights on {', '.join(able)} only.")


def as_sold(device: Device) -> Device:
    """A slice counts with the least memory of the devices that have such a profile: an entry of a service names no product."""
    return replace(device, memory_bytes=slices().get(device.profile, device.memory_bytes)) if device.profile else device


def _one(named: str | None, model: str | None) -> str:
    given = [one for one in (named, model) if one is not None]
    if len(given) != 1:
        raise CliError("give exactly one MODEL: hf://ORG/NAME, a model's folder, its config.json, or - for standard input")
    return given[0]


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


def _document(model: Model, ask: Ask, offers: Sequence[Offer]) -> dict[str, Any]:
    return {
        "model": {
            "kind": model.kind,
            "parameters": model.parameters.total,
            "weight_bytes": model.weight_bytes(ask.quantisation),
            "kv_bytes_per_token": model.kv_bytes_per_token(ask.kv_dtype),
            "quantisation": ask.quantisation,
            "context": ask.context,
        },
        "devices": [offer.row.model_dump(mode="json") | _price(offer) for offer in offers],
    }


def _price(offer: Offer) -> dict[str, Any]:
    kind, read = offer.device.price_kind, offer.device.price_read
    return {"dollars_per_hour": offer.dollars_per_hour, "price_kind": kind or None, "price_read": read or None}
