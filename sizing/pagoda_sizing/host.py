"""What a daemon takes of its host: the least memory in which it starts, what of it is no KV cache, and what it takes beside devices.
Called by `fit` and `replica`.

The daemon's own inequality (`runner/kv_size.py`), as far as a shape tells its terms: never more than what the daemon asks for, so
that nothing is refused beforehand that would start. What its processes take is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pagoda_sizing.errors import positive
from pagoda_sizing.model import Model
from pagoda_sizing.quant import weight_format

LEAST_CONTEXT: Final = 2048
"""The least context of a daemon for which none is set."""
KV_SHARE: Final = (4, 5)
"""Of what is left beside weights and a step, if the cache has no configured size."""
DEVICE_CONTEXT: Final = 1 << 29
"""What CUDA's context and libraries take of a device before the daemon asks for memory. Assumed, not measured."""
DAEMON_LEAST: Final = 384 << 20
"""What a daemon's processes take before they read a model. With the PyTorch of the lock, 392 of 450 MiB were taken when the daemon compared
its need; in 350 MiB the kernel killed the engine."""
HOST_CONTEXT: Final = 256 << 20
"""What CUDA's context and libraries take of the host's memory, in pages that the kernel cannot drop. Assumed, not measured: PyTorch's issue
113326 has 114 MiB for the first tensor on a device, and up to 1.7 GiB; cuBLAS, Triton and captured graphs come on top."""
STAGED: Final = (8 << 20) + 6 * (4 << 16)
"""Of a daemon on a device: what weights are read through on their way, and the pinned buffers of steps. The files' pages do not count, as
the kernel can drop them."""
FETCH_LEAST: Final = 28 << 20
"""What the fetch sidecar takes before it fetches: 28.2 MiB that are not files."""
_DEVICE_MILLICORES: Final = 1000
_DEVICE_MEMORY: Final = 4 << 30
_SLICE_MILLICORES: Final = 500
_SLICE_MEMORY: Final = 2 << 30
_SCRATCH: Final = 1 << 30  # /tmp, logs, compiled kernels
_STEP_FLOOR: Final = 32 << 20
_SAMPLER_BYTES: Final = 96  # per logit of a row
_SCORED_BYTES: Final = 24  # per logit of a slice
_SLICE: Final = 1 << 22  # logits that are scored at a time
# The daemon takes a window that config.json does not name at all for this one, one that is null for none; a Model does not tell them apart.
_WINDOW: Final = 4096
_WINDOW_WHERE_ABSENT: Final = ("mistral", "qwen2", "qwen3", "qwen3_moe")


@dataclass(frozen=True)
class Launch:
    """What a daemon is started with. `context`, `cache_bytes`: None if they are not set; `tokens`: most of a step."""

    quantisation: str = "bf16"
    item_bytes: int = 2
    context: int | None = None
    cache_bytes: int | None = None
    concurrency: int = 1
    tokens: int = 512

    def context_of(self, model: Model) -> int:
        """Tokens of the one request that must fit."""
        return self.context or (1 if self.cache_bytes is not None else min(model.max_context, LEAST_CONTEXT))


@dataclass(frozen=True)
class Host:
    """Millicores, and bytes of memory and of scratch disk."""

    millicores: int
    memory: int
    disk: int


def beside_devices(devices: int, *, sliced: bool, fetched: int) -> Host:
    """What a replica on devices takes of its node. `sliced`: on a part of a GPU; `fetched`: bytes of the model if they lie on scratch disk.

    One process per device runs the engine, which keeps a core busy, and holds PyTorch, CUDA's libraries and its context. Small, because
    the smallest machines with a GPU have 4 cores and 15 GiB, and an A100 machine with 12 cores has 7 slices.
    """
    positive("devices", devices)
    millicores, memory = (_SLICE_MILLICORES, _SLICE_MEMORY) if sliced else (_DEVICE_MILLICORES, _DEVICE_MEMORY)
    return Host(devices * millicores, devices * memory, _SCRATCH + fetched)


def process_memory(*, cuda: bool) -> int:
    """Bytes of its host that a daemon takes at least besides weights, steps and the cache. On a device these are the device's."""
    return DAEMON_LEAST + (HOST_CONTEXT + STAGED if cuda else 0)


def least_memory(model: Model, launch: Launch, requests: int = 1) -> int:
    """Bytes: weights, a step, and the cache of so many requests or of the given size."""
    positive("concurrency", launch.concurrency)
    fixed = _weights(model, launch) + step_bytes(model, launch)
    return fixed + with_cache(requests * request_bytes(model, launch), launch.cache_bytes)


def with_cache(needed: int, given: int | None) -> int:
    """Bytes beside weights and a step, so that a cache of the needed size is among them; a cache of a given size takes no more."""
    share, whole = KV_SHARE
    return -(-needed * whole // share) if given is None else given


def cache_in(left: int, given: int | None) -> int:
    """Bytes of the cache, if so many are left beside weights and a step; 0 if the given size is more."""
    share, whole = KV_SHARE
    return max(0, left) * share // whole if given is None else given if given <= left else 0


def _weights(model: Model, launch: Launch) -> int:
    """Matrices alone: of norms and biases families differ. A quantised head may be the embedding, which else stays as it is."""
    counted = model.parameters
    matrices = counted.dense + counted.experts
    if launch.quantisation == "bf16":
        return launch.item_bytes * (matrices + counted.embedding + counted.head)
    read = launch.item_bytes * counted.embedding if counted.head else 0
    return (matrices + (counted.head or counted.embedding)) * weight_format(launch.quantisation).bits // 8 + read


def step_bytes(model: Model, launch: Launch) -> int:
    """What a step takes at most, whatever the cache holds."""
    attention, tokens, item = model.attention, launch.tokens, launch.item_bytes
    widest = max((attention.heads + 2 * attention.kv_heads) * attention.query_dim, model.mlp_width)
    activations = 4 * tokens * (4 * model.hidden + 3 * widest)
    vocabulary, rows = model.parameters.embedding // model.hidden, min(launch.concurrency, tokens)
    logits = item * tokens * vocabulary + max(rows * vocabulary * _SAMPLER_BYTES, min(tokens * vocabulary, _SLICE) * _SCORED_BYTES)
    per_token = tokens * (item + 2) + 2 * attention.query_dim * item * (1 + attention.kv_heads)
    return _STEP_FLOOR + activations + logits + per_token * launch.context_of(model)


def request_bytes(model: Model, launch: Launch) -> int:
    """The cache of one request. The daemon's is one for all layers: it forgets only what lies outside every layer's window."""
    context, windows = launch.context_of(model), [window for window in model.windows if window is not None]
    if not windows and model.kind in _WINDOW_WHERE_ABSENT:
        windows = [_WINDOW] * model.layers
    if len(windows) == model.layers:
        context = min(context, max(windows) + max(launch.tokens, launch.concurrency))
    return context * model.kv_bytes_per_token() * launch.item_bytes // 2
