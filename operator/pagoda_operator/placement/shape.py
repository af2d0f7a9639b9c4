"""What is known of the model that a service runs: its shape for the arithmetic, and whether it fits a device. Pure.

The operator never leaves the cluster: a shape comes from the published models that `sizing` knows by name, or from the ConfigMap that an
inspection filled (`inspection.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pagoda_contracts.resources.service import EngineSpec, InferenceServiceSpec
from pagoda_contracts.units import parse_quantity
from pagoda_sizing.devices import Device
from pagoda_sizing.errors import SizingError
from pagoda_sizing.families import parse_model
from pagoda_sizing.fit import Demand, Fit, default_reserve, fit
from pagoda_sizing.host import cache_room, host_reserve
from pagoda_sizing.model import Model
from pagoda_sizing.published import published

from pagoda_operator.manifests.revision import digest

# Where a service sets no maxModelLen: the model's own limit times the concurrency would fit no device (Llama-3.1-8B: 17 GB a request).
ASSUMED_CONTEXT: Final = 4096
_HUB: Final = "hf://"
_WEIGHTS: Final[Mapping[str, str]] = {"none": "bf16"}
# What the daemon does whatever kvCache.dtype says (`unheeded` names it): a cache taken for half as large would not fit.
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
        told = json.loads(text)
    except ValueError:
        return False
    return isinstance(told, dict) and isinstance(told.get("config"), dict)


def from_report(text: str) -> Shape:
    """What an inspection told; SizingError where the model is none that can be counted."""
    return Shape(parse_model(json.loads(text)["config"]), "inspected")


@dataclass(frozen=True)
class Asked:
    """What a replica must hold on each of its devices."""

    shape: Shape
    engine: EngineSpec

    @property
    def context(self) -> int:
        """Tokens of one request."""
        limit = self.shape.model.max_context
        return self.engine.max_model_len or min(limit, ASSUMED_CONTEXT)


def why_not(asked: Asked, memory: int, count: int = 1) -> str:
    """Why `count` devices of so much memory cannot hold it; empty where they do.

    A slice never has peers; that is the caller's to know: it asks with count 1.
    """
    memory = _usable(asked.engine, memory)
    try:
        told = _terms(asked, memory, default_reserve(memory), count)
    except SizingError as refused:
        return str(refused)
    return _short(asked, told, _weights(asked, told) + told.reserve_bytes + _cache_bytes(asked, told))


def why_not_on_cores(asked: Asked, memory: int) -> str:
    """The same of a container with so much memory. A cache of a given size is made as it is; any other gets a share of what is left."""
    memory = _usable(asked.engine, memory)
    try:
        told = _terms(asked, memory, host_reserve(asked.shape.model, asked.engine.max_concurrency))
    except SizingError as refused:
        return str(refused)
    cache = _cache_bytes(asked, told)
    room = cache if asked.engine.kv_cache.size else cache_room(cache)
    return _short(asked, told, _weights(asked, told) + told.reserve_bytes + room)


def _short(asked: Asked, told: Fit, needed: int) -> str:
    if needed <= told.memory_bytes:
        return ""
    each = f" on each of {told.degree}" if told.degree > 1 else ""
    return f"needs {gib(needed)} for weights + {_cache(asked)}{each}, has {gib(told.memory_bytes)}"


def _weights(asked: Asked, told: Fit) -> int:
    return told.weight_bytes * (_width(asked) if asked.engine.quantization == "none" else 1)


def _cache_bytes(asked: Asked, told: Fit) -> int:
    size = asked.engine.kv_cache.size
    return int(parse_quantity(size)) if size else told.concurrency * told.kv_bytes_per_request * _width(asked)


def _width(asked: Asked) -> int:
    return 2 if asked.engine.dtype == _WIDE else 1


def _terms(asked: Asked, memory: int, reserve: int, count: int = 1) -> Fit:
    engine = asked.engine
    demand = Demand(
        context=asked.context,
        concurrency=engine.max_concurrency,
        quantisation=_WEIGHTS.get(engine.quantization, engine.quantization),
        kv_dtype=_KV,
        reserve_bytes=reserve,
    )
    return fit(asked.shape.model, _device(memory), demand, count)


def _device(memory: int) -> Device:
    """Fit reads a device's memory only; rates are for times and prices."""
    return Device("device", "device", memory, 1.0, {"bf16": 1.0}, 1.0, None, (), (), "")


def _usable(engine: EngineSpec, memory: int) -> int:
    share = engine.kv_cache.memory_fraction
    return memory if share is None else int(memory * share)


def _cache(asked: Asked) -> str:
    if asked.engine.kv_cache.size:
        return f"{asked.engine.kv_cache.size} of KV cache"
    requests = asked.engine.max_concurrency
    return f"{requests} request{'s' if requests > 1 else ''} at {asked.context:,} tokens"


def gib(count: int) -> str:
    """For people."""
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 29 else f"{count / (1 << 20):.1f} MiB"
