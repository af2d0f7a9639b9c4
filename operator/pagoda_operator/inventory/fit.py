"""Whether a replica fits: the model that a service runs on a device, and what it asks for on CPU on a node. Pure.

The operator never leaves the cluster: a model's shape comes from the published models that `sizing` knows by name, or from the ConfigMap
that an inspection filled (`inspection.py`). By the sizes of nodes nobody decides: whether a pod finds room is the scheduler's to say, and
larger nodes may come.
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

# Where a service sets no maxModelLen: the model's own limit times the concurrency would fit no device (Llama-3.1-8B: 17 GB a request).
ASSUMED_CONTEXT: Final = 4096
_HUB: Final = "hf://"
_WEIGHTS: Final[Mapping[str, str]] = {"none": "bf16"}
# What the daemon does whatever kvCache.dtype says (`ignored_fields` names it): a cache taken for half as large would not fit.
_KV: Final = "bf16"
# The arithmetic knows no 4-byte floats: weights that are not quantised, and the cache, are twice those of bfloat16.
_WIDE: Final = "float32"


@dataclass(frozen=True)
class Shape:
    """A model that can be sized."""

    model: Model
    source: str
    """Where it was read: published, or inspected."""


def source_of(spec: InferenceServiceSpec) -> str:
    """Names the files that a shape was read from: another address or revision is another model."""
    return digest([spec.model.uri, spec.model.revision])


def from_catalogue(uri: str) -> Shape | None:
    """A published model by its name on the hub."""
    found = _published().get(uri.removeprefix(_HUB)) if uri.startswith(_HUB) else None
    return Shape(parse_model(found), "published") if found else None


@cache
def _published() -> Mapping[str, dict[str, Any]]:
    return {entry.name: entry.config for entry in published()}


def is_report(text: str) -> bool:
    """Whether it has an inspection's form."""
    try:
        report = json.loads(text)
    except ValueError:
        return False
    return isinstance(report, dict) and isinstance(report.get("config"), dict)


def from_report(text: str) -> Shape:
    """What an inspection reported; SizingError where the model is none that can be counted."""
    return Shape(parse_model(json.loads(text)["config"]), "inspected")


@dataclass(frozen=True)
class Requirement:
    """What a replica must hold on each of its devices."""

    shape: Shape
    engine: EngineSpec

    @property
    def context(self) -> int:
        """Tokens of one request."""
        limit = self.shape.model.max_context
        return self.engine.max_model_len or min(limit, ASSUMED_CONTEXT)


def why_not(required: Requirement, memory: int, count: int = 1) -> str:
    """Why `count` devices of so much memory cannot hold it; empty where they do.

    A slice never has peers; that is the caller's to know: it asks with count 1.
    """
    try:
        terms = _terms(required, _usable(required.engine, memory), count)
    except SizingError as refused:
        return str(refused)
    needed = needed_bytes(required, terms)
    if needed <= terms.memory_bytes:
        return ""
    each = f" on each of {count}" if count > 1 else ""
    return f"needs {gib(needed)} for weights + {_cache(required)}{each}, has {gib(terms.memory_bytes)}"


def why_not_on_cpu(required: Requirement, memory: int) -> str:
    """Why a daemon that may use so much memory cannot start on CPU. By the daemon's own rule: one request has to fit, not all that there
    may be, and a share of the memory is not heeded."""
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
    least = least_memory(required.shape.model, launch)
    if least <= memory:
        return ""
    cache = f"{size} of KV cache" if size else f"1 request at {launch.context_of(required.shape.model):,} tokens"
    return f"needs {tenths(least, up=True)} for weights + {cache}, has {tenths(memory)}"


def needed_bytes(required: Requirement, terms: Fit) -> int:
    """Weights, cache and reserve of one device."""
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
    return fit(required.shape.model, _device(memory), demand, count)


def _device(memory: int) -> Device:
    """Fit reads a device's memory only; rates are for times and prices."""
    return Device("device", "device", memory, 1.0, {"bf16": 1.0}, 1.0, None, (), (), "")


def _usable(engine: EngineSpec, memory: int) -> int:
    share = engine.kv_cache.memory_fraction
    return memory if share is None else int(memory * share)


def _cache(required: Requirement) -> str:
    if required.engine.kv_cache.size:
        return f"{required.engine.kv_cache.size} of KV cache"
    requests = required.engine.max_concurrency
    return f"{requests} request{'s' if requests > 1 else ''} at {required.context:,} tokens"


def gib(count: int) -> str:
    """For people."""
    return f"{count / (1 << 30):.1f} GiB"


def tenths(count: int, *, up: bool = False) -> str:
    """For people, in tenths of GiB or MiB; what is needed rounded up and what there is down, so that they never read the same."""
    unit, name = (1 << 30, "GiB") if count >= 1 << 29 else (1 << 20, "MiB")
    found = -(-10 * count // unit) if up else 10 * count // unit
    return f"{found / 10:.1f} {name}"


class Size(NamedTuple):
    """What pods may have of a node."""

    millicores: int
    memory: int


def largest(nodes: Iterable[Node]) -> tuple[Size, ...]:
    """Sizes of nodes than which none has more of both: a handful, whatever the nodes."""
    found: list[Size] = []
    for size in sorted({Size(node.millicores, node.memory) for node in nodes}, reverse=True):
        if not found or size.memory > found[-1].memory:
            found.append(size)
    return tuple(found)


def too_small(sizes: tuple[Size, ...], cpu: CpuAccelerator) -> str:
    """What no node has for one replica; empty where one has it all, or where no node says what it has."""
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
    """In tenths; what is needed rounded up and what there is down, so that they never read the same."""
    found = -(-millicores // 100) if up else millicores // 100
    return f"{found / 10:,.1f}".removesuffix(".0") + (" core" if found == 10 else " cores")
