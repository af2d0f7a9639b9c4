"""Whether a replica fits: a service's model on a device, and its request for CPU on a node. Pure.

The operator never leaves the cluster: a model's shape comes from the published models that `sizing` knows by name, or from the ConfigMap
of an inspection (`inspection.py`). The sizes of nodes decide nothing, since larger nodes may come; they only explain why a pod waits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

from pagoda_contracts.launch import EngineConfig
from pagoda_contracts.resources.placement import CpuAccelerator
from pagoda_contracts.resources.service import EngineSpec, InferenceServiceSpec
from pagoda_contracts.units import parse_quantity
from pagoda_sizing.devices import Device
from pagoda_sizing.errors import SizingError
from pagoda_sizing.families import parse_model
from pagoda_sizing.fit import Demand, Fit, default_reserve, fit
from pagoda_sizing.host import Launch, least_memory
from pagoda_sizing.model import Model
from pagoda_sizing.published import published

from pagoda_operator.inventory.nodes import Node
from pagoda_operator.inventory.values import digest

# For a service without maxModelLen: the model's own limit times the concurrency would fit no device (Llama-3.1-8B: 17 GB a request).
ASSUMED_CONTEXT: Final = 4096
_HUB: Final = "hf://"
_WEIGHTS: Final[Mapping[str, str]] = {"none": "bf16"}
# The daemon ignores kvCache.dtype (`ignored_fields` names it): a cache sized for half as many bytes would not fit.
_KV: Final = "bf16"
# The arithmetic has no 4-byte floats: weights that are not quantised, and the cache, are twice those of bfloat16.
_WIDE: Final = "float32"


def source_of(spec: InferenceServiceSpec) -> str:
    """Returns a name for the files of the model: another address or revision is another model."""
    return digest([spec.model.uri, spec.model.revision])


def from_catalogue(uri: str) -> Model | None:
    """Returns a published model by its name on the hub."""
    found = _published().get(uri.removeprefix(_HUB)) if uri.startswith(_HUB) else None
    return parse_model(found) if found else None


@cache
def _published() -> Mapping[str, dict[str, Any]]:
    return {entry.name: entry.config for entry in published()}


def is_report(text: str) -> bool:
    """Whether the text has the form of an inspection's report."""
    try:
        report = json.loads(text)
    except ValueError:
        return False
    return isinstance(report, dict) and isinstance(report.get("config"), dict)


def from_report(text: str) -> Model:
    """Returns the model that an inspection reported; SizingError if the model cannot be sized."""
    return parse_model(json.loads(text)["config"])


@dataclass(frozen=True)
class Requirement:
    """What a replica needs on each of its devices."""

    model: Model
    engine: EngineSpec

    @property
    def context(self) -> int:
        """Tokens of one request."""
        return self.engine.max_model_len or min(self.model.max_context, ASSUMED_CONTEXT)


def why_not(required: Requirement, memory: int, count: int = 1) -> str:
    """Returns why it does not fit on `count` devices of so much memory; empty if it does. For a MIG slice `count` must be 1."""
    try:
        share = required.engine.kv_cache.memory_fraction
        terms = _terms(required, memory if share is None else int(memory * share), count)
    except SizingError as refused:
        return str(refused)
    needed = needed_bytes(required, terms)
    if needed <= terms.memory_bytes:
        return ""
    each = f" on each of {count}" if count > 1 else ""
    return f"needs {gib(needed)} for weights + {_cache(required)}{each}, has {gib(terms.memory_bytes)}"


def why_not_on_cpu(required: Requirement, memory: int) -> str:
    """Returns why a daemon with so much memory cannot start on CPU, by the daemon's own rule: one request must fit, and
    `memoryFraction` is ignored."""
    engine = required.engine
    size = engine.kv_cache.size
    launch = Launch(
        quantisation=_WEIGHTS.get(engine.quantization, engine.quantization),
        item_bytes=4 if engine.dtype == _WIDE else 2,
        context=engine.max_model_len,
        cache_bytes=int(parse_quantity(size)) if size else None,
        concurrency=engine.max_concurrency,
        tokens=EngineConfig().token_budget,
    )
    least = least_memory(required.model, launch)
    if least <= memory:
        return ""
    cache = f"{size} of KV cache" if size else f"1 request at {launch.context_of(required.model):,} tokens"
    return f"needs {tenths(least, up=True)} for weights + {cache}, has {tenths(memory)}"


def needed_bytes(required: Requirement, terms: Fit) -> int:
    """Returns the bytes for weights, cache and reserve on one device."""
    size = required.engine.kv_cache.size
    wide = 2 if required.engine.dtype == _WIDE else 1
    cache_bytes = int(parse_quantity(size)) if size else terms.concurrency * terms.kv_bytes_per_request * wide
    weights = terms.weight_bytes * (wide if required.engine.quantization == "none" else 1)
    return weights + terms.reserve_bytes + cache_bytes


def _terms(required: Requirement, memory: int, count: int) -> Fit:
    engine = required.engine
    demand = Demand(
        context=required.context,
        concurrency=engine.max_concurrency,
        quantisation=_WEIGHTS.get(engine.quantization, engine.quantization),
        kv_dtype=_KV,
        reserve_bytes=default_reserve(memory),
    )
    # `fit` reads only a device's memory; rates are for times and prices.
    return fit(required.model, Device("device", "device", memory, 1.0, {"bf16": 1.0}, 1.0, None, (), (), ""), demand, count)


def _cache(required: Requirement) -> str:
    if required.engine.kv_cache.size:
        return f"{required.engine.kv_cache.size} of KV cache"
    requests = required.engine.max_concurrency
    return f"{requests} request{'s' if requests > 1 else ''} at {required.context:,} tokens"


def gib(count: int) -> str:
    """Returns the size for people."""
    return f"{count / (1 << 30):.1f} GiB"


def tenths(count: int, *, up: bool = False) -> str:
    """Returns the size for people, in tenths of GiB or MiB. Needs are rounded up and sizes down, so that they never read the same."""
    unit, name = (1 << 30, "GiB") if count >= 1 << 29 else (1 << 20, "MiB")
    found = -(-10 * count // unit) if up else 10 * count // unit
    return f"{found / 10:.1f} {name}"


class Size(NamedTuple):
    """A node's allocatable cores and memory."""

    millicores: int
    memory: int


def largest(nodes: Iterable[Node]) -> tuple[Size, ...]:
    """Returns the sizes that no other node exceeds in both: a handful for any number of nodes."""
    found: list[Size] = []
    for size in sorted({Size(node.millicores, node.memory) for node in nodes}, reverse=True):
        if not found or size.memory > found[-1].memory:
            found.append(size)
    return tuple(found)


def too_small(sizes: tuple[Size, ...], cpu: CpuAccelerator) -> str:
    """Returns what no node has for one replica; empty if one node has it all, or if no node reports its size."""
    need = Size(int(parse_quantity(cpu.cores) * 1000), int(parse_quantity(cpu.memory)))
    cores, memory = max((size.millicores for size in sizes), default=0), max((size.memory for size in sizes), default=0)
    if 0 < cores < need.millicores:
        return f"needs {_cores(need.millicores, up=True)} on one node, but the largest node has {_cores(cores)}"
    if 0 < memory < need.memory:
        return f"needs {tenths(need.memory, up=True)} on one node, but the largest node has {tenths(memory)}"
    if cores and memory and not any(size.millicores >= need.millicores and size.memory >= need.memory for size in sizes):
        return f"needs {_cores(need.millicores, up=True)} and {tenths(need.memory, up=True)} on one node, but no node has both"
    return ""


def _cores(millicores: int, *, up: bool = False) -> str:
    """In tenths; needs are rounded up and sizes down, so that they never read the same."""
    found = -(-millicores // 100) if up else millicores // 100
    return f"{found / 10:,.1f}".removesuffix(".0") + (" core" if found == 10 else " cores")
