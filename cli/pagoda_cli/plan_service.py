"""The InferenceService that `pagoda plan --yaml` recommends: the cheapest device that fits and is served, with the reasons. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pagoda_contracts.crds.validation import judge
from pagoda_contracts.crds.yamltext import dump_yaml
from pagoda_contracts.names import API_VERSION, MAX_SERVICE_NAME
from pagoda_sizing.devices import CPU, Device
from pagoda_sizing.model import Model
from pagoda_sizing.plan import Ask, Verdict
from pagoda_sizing.platforms import no_format, no_kept, products
from pagoda_sizing.stored import conflict

from pagoda_cli.errors import CliError
from pagoda_cli.plan_model import Found
from pagoda_cli.plan_text import Offer, fitting

_CORES: Final = 32  # of the catalogue's CPU
_OTHERS: Final = 3
_WIDTH: Final = 120
_KEPT: Final = {"fp8": "float8", "int8": "int8"}
"""What sizing calls a type of keys and values → what a service does."""


@dataclass(frozen=True)
class Asked:
    """What the recommendation is for. `unserved`: why no daemon serves the model; empty if one may."""

    found: Found
    model: Model
    ask: Ask
    unserved: str


def recommendation(asked: Asked, offers: Sequence[Offer]) -> str:
    """Returns the InferenceService as YAML; CliError says why there is none."""
    if asked.unserved:
        raise CliError(f"--yaml: no daemon serves this model: {asked.unserved}")
    candidates = fitting(offers, each_form=True)
    served = [offer for offer in candidates if not _unusable(offer, asked.ask, asked.model.stored)]
    if not served:
        raise CliError(f"--yaml: no device {_none(candidates, offers, asked)}")
    chosen, document = served[0], _document(asked, served[0])
    if problems := judge(document):
        raise CliError(f"--yaml: {problems[0].where}: {problems[0].message}")
    return _commented(dump_yaml(document), _reasons(asked, chosen), _head(chosen, served[1:]))


def _unusable(offer: Offer, ask: Ask, stored: str) -> str:
    """Why Pagoda cannot use a device that fits; empty if it can."""
    if not _has_daemon(offer):
        return "there is no daemon for it"
    if offer.device.name != CPU and ask.quantisation != "bf16" and (wrong := conflict(stored, ask.quantisation)):
        return wrong
    if not runs(offer.device, held(offer.device, ask.quantisation, stored)):
        return f"the daemon does not run {ask.quantisation} weights on it"
    return "" if keeps(offer.device, ask.kv_dtype) else f"the daemon does not keep keys and values as {ask.kv_dtype} on it"


def held(device: Device, quantisation: str, stored: str) -> str:
    """What a daemon holds weights in on a device: bf16 if they are stored in a format for which it has no kernels."""
    known = device.name == CPU or device.product.partition("-MIG-")[0] in products()
    return "bf16" if known and quantisation == stored and not runs(device, quantisation) else quantisation


def runs(device: Device, quantisation: str) -> bool:
    """Whether a daemon runs weights of this format on a device."""
    if quantisation == "bf16" or device.name == CPU:
        return quantisation in ("bf16", "int8")
    product = device.product.partition("-MIG-")[0]
    return quantisation in ("fp8", "int8", "int4") and product in products() and not no_format(product, quantisation)


def keeps(device: Device, kv_dtype: str) -> bool:
    """Whether a daemon keeps keys and values in this format on a device."""
    return kv_dtype == "bf16" or (device.name != CPU and not no_kept(device.product.partition("-MIG-")[0], _KEPT[kv_dtype]))


def _none(candidates: Sequence[Offer], offers: Sequence[Offer], asked: Asked) -> str:
    if candidates:
        nearest = next((offer for offer in candidates if _has_daemon(offer)), candidates[0])
        return f"that fits can be used: {nearest.device.name}: {_unusable(nearest, asked.ask, asked.model.stored)}"
    later = sorted((offer for offer in offers if offer.row.verdict is Verdict.LATER and _has_daemon(offer)), key=lambda offer: offer.order)
    return f"fits: {later[0].device.name}: {later[0].row.why}" if later else "fits; pagoda plan without --yaml says why"


def _has_daemon(offer: Offer) -> bool:
    return offer.device.name == CPU or offer.device.product.partition("-MIG-")[0] in products()


def service_name(text: str) -> str:
    """Returns a name for a service, from any text."""
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    named = words if words[:1].isalpha() else f"model-{words}"
    return named[:MAX_SERVICE_NAME].strip("-")


def _document(asked: Asked, offer: Offer) -> dict[str, Any]:
    name, ask = service_name(asked.found.name), asked.ask
    as_it_is = ask.quantisation == asked.model.stored and offer.device.name != CPU  # a CPU holds bf16 of whatever is stored
    quantised = {} if ask.quantisation == "bf16" or as_it_is else {"quantization": ask.quantisation}
    kept = {} if ask.kv_dtype == "bf16" else {"kvCache": {"dtype": _KEPT[ask.kv_dtype]}}
    promised = {"ttft": ask.ttft_s, "itl": ask.tpot_s}
    slo = {key: f"{round(1000 * seconds)}ms" for key, seconds in promised.items() if seconds is not None}
    spec: dict[str, Any] = {
        "model": {"uri": asked.found.uri or f"pvc://{name}"},
        "accelerators": [_accelerator(offer)],
        "engine": {"maxModelLen": ask.context, "maxConcurrency": offer.row.concurrency, **quantised, **kept},
        **({"slo": slo} if slo else {}),
    }
    return {"apiVersion": API_VERSION, "kind": "InferenceService", "metadata": {"name": name}, "spec": spec}


def _accelerator(offer: Offer) -> dict[str, Any]:
    device = offer.device
    if device.name == CPU:
        return {"cpu": {"cores": f"{_CORES}", "memory": f"{device.memory_bytes // 10**9}G"}}
    # Words of the label are enough, and some clusters leave the vendor out.
    word = device.product.removeprefix("NVIDIA-")
    return {"mig": {"profile": device.profile}} if device.profile else {"gpu": {"product": word}}


def _head(chosen: Offer, others: Sequence[Offer]) -> list[str]:
    row = chosen.row
    per_token = f", then {row.tpot_ms:.1f} ms per token" if row.tpot_ms is not None else ""
    lines = [
        "Written by pagoda plan: the cheapest device that fits the model and that Pagoda serves.",
        f"Predicted: {row.ttft_ms:,.0f} ms to the first token{per_token}, {row.tokens_per_s:,.0f} tokens/s at {row.concurrency} requests.",
        "Predictions rank devices. They replace no measurement.",
    ]
    more = ", ".join(f"{offer.device.name}{_dollars(offer)}" for offer in others[:_OTHERS])
    return [*lines, f"These fit, too: {more}."] if more else lines


def _dollars(offer: Offer) -> str:
    return "" if offer.dollars_per_hour is None else f" (${offer.dollars_per_hour:.2f} an hour)"


def _reasons(asked: Asked, offer: Offer) -> dict[str, list[str]]:
    """By the field that they are about."""
    return {
        "uri": _source(asked),
        "accelerators": [_memory(offer), _price(offer)],
        "maxModelLen": [f"Tokens of one request, prompt and answer. The model can have {asked.model.max_context:,}."],
        "maxConcurrency": [_concurrency(offer, asked.ask)],
    }


def _source(asked: Asked) -> list[str]:
    if not asked.found.uri:
        return ["Put the model's files on this claim, or give the address where they are."]
    fetched = _gb(asked.model.weight_bytes("bf16"))
    return [
        f"Each pod fetches the model to its scratch disk, {fetched} in bf16. model.cache.pvc names a claim that keeps it.",
        "A gated model needs credentials and model.credential.",
    ]


def _memory(offer: Offer) -> str:
    row, device = offer.row, offer.device
    beside = f"{_gb(row.weight_bytes)} of weights, {_gb(row.reserve_bytes)} of reserve"
    return (
        f"{device.name}: {beside} and {row.concurrency} x {_gb(row.kv_bytes_per_request)} of KV cache fit into {_gb(device.memory_bytes)}."
    )


def _price(offer: Offer) -> str:
    device = offer.device
    if offer.dollars_per_hour is None:
        return f"No price is known; pagoda plan --price {device.whole}=DOLLARS compares it."
    read = f", read {device.price_read}" if device.price_read else ""
    return f"${offer.dollars_per_hour:.2f} an hour ({device.price_kind}{read})."


def _concurrency(offer: Offer, ask: Ask) -> str:
    if ask.concurrency is not None:
        return "As many requests at the same time as were asked for."
    fewer = (offer.row.max_concurrency or 0) > offer.row.concurrency
    limit = "The time per token allows fewer." if ask.tpot_s is not None else "More at a time gain little."
    return f"Memory holds {offer.row.max_concurrency} requests of full length." + (f" {limit}" if fewer else "")


def _gb(count: int) -> str:
    return f"{count / 10**9:.2f} GB"


def _commented(text: str, reasons: Mapping[str, list[str]], head: Sequence[str]) -> str:
    """Each reason stands above its field."""
    lines = [line for sentence in head for line in _comment(sentence, "")]
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        sentences = reasons.get(line.strip().partition(":")[0], [])
        lines += [*(comment for sentence in sentences for comment in _comment(sentence, indent)), line]
    return "\n".join(lines) + "\n"


def _comment(sentence: str, indent: str) -> list[str]:
    return textwrap.wrap(sentence, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
