"""Whether a replica of a service fits, on a device or on CPU, and how many requests it then holds: the verdict of placement and of
`pagoda validate`. `pagoda plan` asks `fit` the same.

A model and one request must fit, as the daemon itself demands. `maxConcurrency` is a ceiling. `minConcurrency` or `slo` makes it a demand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

from pagoda_contracts.names import CONTAINER_DAEMON, CONTAINER_FETCH
from pagoda_contracts.resources.engine import EngineSpec
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_contracts.units import parse_quantity

from pagoda_sizing.devices import Device
from pagoda_sizing.errors import SizingError
from pagoda_sizing.fit import Demand, fit
from pagoda_sizing.host import FETCH_LEAST, HOST_CONTEXT, Launch, least_memory, process_memory
from pagoda_sizing.model import Model
from pagoda_sizing.platforms import no_format
from pagoda_sizing.published import published
from pagoda_sizing.stored import conflict

_HUB: Final = "hf://"
_NONE: Final = "none"
_WHOLE: Final = "bf16"
_KV: Final[Mapping[str, str]] = {"float8": "fp8", "int8": "int8"}
FUSED_HEADS: Final = (16, 32, 64, 128, 256)
"""Widths of heads that the daemon's kernels for GPUs know. Numbers of 8 or 4 bits are computed by these alone."""
# The arithmetic has no 4-byte floats: weights that are not quantised, and the cache, are twice those of bfloat16.
_WIDE: Final = "float32"


def config_of(uri: str) -> dict[str, Any] | None:
    """Returns the config.json of a published model, by its name on the hub."""
    return _published().get(uri.removeprefix(_HUB)) if uri.startswith(_HUB) else None


@cache
def _published() -> Mapping[str, dict[str, Any]]:
    return {entry.name: entry.config for entry in published()}


class Judged(NamedTuple):
    """Why a replica does not fit, empty if it does, and how many requests of full length its KV cache holds; None if that is unknown."""

    why: str = ""
    requests: int | None = None


@dataclass(frozen=True)
class Requirement:
    """What a replica needs. `promised`: the service promises latencies."""

    model: Model
    engine: EngineSpec
    promised: bool = False

    @classmethod
    def of(cls, model: Model, spec: InferenceServiceSpec) -> Requirement:
        """What a service's replicas need."""
        return cls(model, spec.engine, spec.slo is not None and bool(spec.slo.ttft or spec.slo.itl))

    @property
    def demanded(self) -> int:
        """Requests that must fit at the same time."""
        return self.engine.min_concurrency or (self.engine.max_concurrency if self.promised else 1)

    def launch(self, *, cuda: bool, product: str = "") -> Launch:
        """What the daemon is started with, on a device (`product`: its name, if it is known) or on CPU."""
        engine, size = self.engine, self.engine.kv_cache.size
        return Launch(
            quantisation=(self._held(product) if cuda else _WHOLE) if engine.quantization == _NONE else engine.quantization,
            item_bytes=4 if engine.dtype == _WIDE else 2,
            context=engine.max_model_len,
            cache_bytes=int(parse_quantity(size)) if size else None,
            concurrency=engine.max_concurrency,
            tokens=engine.tokens(cuda=cuda),
        )

    def _held(self, product: str) -> str:
        """What a device holds matrices in if no format is asked for: bf16 where it has no kernels for the stored one."""
        engine, form = self.engine, self.model.stored
        fused = engine.dtype != _WIDE and not engine.deterministic and self.model.attention.query_dim in FUSED_HEADS
        return form if fused and not no_format(product, form) else _WHOLE

    @property
    def context(self) -> int:
        """Tokens of one request."""
        return self.launch(cuda=False).context_of(self.model)


def on_device(required: Requirement, memory: int, product: str = "") -> Judged:
    """The verdict on a device with so much memory. `product`: its name, if it is known."""
    share, launch = required.engine.kv_cache.memory_fraction, required.launch(cuda=True, product=product)
    memory = memory if share is None else int(memory * share)
    if why := _not_computed(required):
        return Judged(why)
    size = launch.item_bytes, launch.cache_bytes, launch.tokens
    demand = Demand(
        required.context, required.demanded, launch.quantisation, _KV.get(required.engine.kv_cache.dtype, "bf16"), launch.concurrency, *size
    )
    try:
        # `fit` reads only a device's memory; rates are for times and prices.
        found = fit(required.model, Device("device", "device", memory, 1.0, {"bf16": 1.0}, 1.0, None, (), (), ""), demand)
    except SizingError as refused:
        return Judged(str(refused))
    # Without maxModelLen, the daemon's context is as long as the whole cache: one request of full length.
    whole, least = launch.cache_bytes is not None and launch.context is None, required.engine.min_concurrency or 1
    if whole and least > 1:
        return Judged(f"kvCache.size {required.engine.kv_cache.size} without maxModelLen holds 1 of {least} requests of full length")
    if found.fits:
        return Judged(requests=None if whole else min(found.max_concurrency, launch.concurrency))
    if found.needed_bytes <= memory:
        return Judged(f"kvCache.size {required.engine.kv_cache.size} holds {found.max_concurrency} of {_requests(required)}")
    return Judged(f"needs {gib(found.needed_bytes)} for weights + {_cache(required)}, has {gib(memory)}")


def _not_computed(required: Requirement) -> str:
    """Why no daemon computes a model with numbers of few bits on a device; empty if one does, or if all have 16."""
    engine, heads = required.engine, required.model.attention.query_dim
    asked = engine.quantization != _NONE
    if required.model.experts is not None and asked:
        return f"quantization {engine.quantization} is not built for experts"
    if asked and (why := conflict(required.model.stored, engine.quantization)):
        return why
    if heads in FUSED_HEADS:
        return ""
    if asked:
        return f"quantization {engine.quantization} is not built for heads of {heads}"
    return f"kvCache.dtype {engine.kv_cache.dtype} is not built for heads of {heads}" if engine.kv_cache.dtype in _KV else ""


def on_cpu(required: Requirement, memory: int) -> Judged:
    """The verdict on CPU, where `memoryFraction` is ignored. The number of requests is not told: only the least memory is known."""
    least = least_memory(required.model, required.launch(cuda=False), required.demanded)
    if least <= memory:
        return Judged()
    return Judged(f"needs {tenths(least, up=True)} for weights + {_cache(required)}, has {tenths(memory)}")


def too_little(container: str, limit: float, *, cuda: bool = False, held: int = 0) -> str:
    """Returns why a container cannot run within a memory limit; empty if it may. `cuda`: its model is on a device. `held`: bytes of the
    model's files that the fetch sidecar writes into memory."""
    own = {CONTAINER_DAEMON: process_memory(cuda=cuda), CONTAINER_FETCH: FETCH_LEAST + held}
    least = own.get(container, 0)
    if limit >= least or math.isnan(limit):
        return ""
    what = "without a model"
    if container == CONTAINER_FETCH and held:
        what = f"with the model's files, {tenths(held, up=True)}, in memory"
    elif cuda and container == CONTAINER_DAEMON:
        what = f"besides the device: PyTorch, buffers and CUDA's context, for which {tenths(HOST_CONTEXT)} are assumed"
    return f"container {container} takes {tenths(least, up=True)} {what}"


def _cache(required: Requirement) -> str:
    size, tokens = required.engine.kv_cache.size, required.engine.token_budget
    step = f"a step of {tokens:,} tokens + " if tokens else ""
    return step + (f"{size} of KV cache" if size else _requests(required))


def _requests(required: Requirement) -> str:
    count = required.demanded
    return f"{count} request{'s' if count > 1 else ''} at {required.context:,} tokens"


def gib(count: int) -> str:
    """Returns the size for people."""
    return f"{count / (1 << 30):.1f} GiB"


def tenths(count: int, *, up: bool = False) -> str:
    """Returns the size for people, in tenths of GiB or MiB. Needs are rounded up and sizes down, so that they never read the same."""
    unit, name = (1 << 30, "GiB") if count >= 1 << 29 else (1 << 20, "MiB")
    found = -(-10 * count // unit) if up else 10 * count // unit
    return f"{found / 10:.1f} {name}"
