"""What a daemon on CPU takes of its container beside weights and KV cache. Called by the operator's placement.

No CUDA context and no graphs, so the reserve of a device is not it: the processes, and a step's activations, logits and sampling, which a
large vocabulary makes the most of. An intermediate width is not known here, and what a step holds for each token of context is left out:
the daemon itself counts a little more (`runner/kv_size.py`).
"""

from __future__ import annotations

from typing import Final

from pagoda_sizing.errors import positive
from pagoda_sizing.model import Model

KV_SHARE: Final = 0.8
"""Of what is left beside weights and a step; the front's buffers and the allocator's holes take the rest."""
STEP_TOKENS: Final = 512
"""The daemon's token budget, where nobody sets another."""
_PROCESSES: Final = 100 << 20  # measured before the first weight: 102.5 MiB
_STEP_FLOOR: Final = 32 << 20
_SAMPLER_BYTES: Final = 96  # per logit of a row
_SCORED_BYTES: Final = 24  # per logit of a slice
_SLICE: Final = 1 << 22  # logits that are scored at a time


def host_reserve(model: Model, concurrency: int, tokens: int = STEP_TOKENS) -> int:
    """Bytes for the processes and a step of so many tokens for so many requests."""
    positive("concurrency", concurrency)
    width = max(4 * model.hidden, 3 * (model.attention.heads + 2 * model.attention.kv_heads) * model.attention.query_dim)
    return _PROCESSES + _STEP_FLOOR + 4 * tokens * width + (_logits(model, concurrency, tokens) if model.decodes else 0)


def _logits(model: Model, concurrency: int, tokens: int) -> int:
    vocabulary, rows = model.parameters.embedding // model.hidden, min(concurrency, tokens)
    sampled, scored = rows * vocabulary * _SAMPLER_BYTES, min(tokens * vocabulary, _SLICE) * _SCORED_BYTES
    return 4 * tokens * vocabulary + max(sampled, scored)


def cache_room(cache_bytes: int) -> int:
    """Bytes that must be left for the daemon to make a cache of so many of them."""
    return int(cache_bytes / KV_SHARE)
