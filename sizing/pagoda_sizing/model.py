"""What a model weighs: parameters by kind, bytes of weights, bytes of KV cache. The value that fit and roofline work on.

Built by `families.parse_model`. Knows no device and no file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pagoda_sizing.errors import Impossible, positive
from pagoda_sizing.quant import kv_element_bytes, kv_scale_bytes, stored_bytes


@dataclass(frozen=True)
class Parameters:
    """Counted by what happens to them: `dense` and `experts` are matrices that quantise, the rest stays in bf16."""

    embedding: int
    head: int = 0
    """Own output matrix; 0 where it is the embedding itself (tied)."""
    positions: int = 0
    dense: int = 0
    experts: int = 0
    """All routed experts of all layers."""
    small: int = 0
    """Norms, biases, routers."""
    vision: int = 0
    """A vision tower and its projector: loaded, never read by a decode step."""

    @property
    def total(self) -> int:
        return self.embedding + self.head + self.positions + self.dense + self.experts + self.small + self.vision


@dataclass(frozen=True)
class Attention:
    """One layer's attention as the cache and the arithmetic see it."""

    heads: int
    kv_heads: int
    query_dim: int
    """Width of a query or key head."""
    value_dim: int
    latent: int | None = None
    """MLA: elements cached per token and layer (latent plus rotary key), whatever the number of heads."""

    @property
    def cached_elements(self) -> int:
        """Per token and layer, keys and values together."""
        return self.latent if self.latent is not None else self.kv_heads * (self.query_dim + self.value_dim)

    def cached_bytes(self, dtype: str) -> int:
        """The same in bytes, with their scales."""
        scales = 1 if self.latent is not None else 2 * self.kv_heads
        return self.cached_elements * kv_element_bytes(dtype) + scales * kv_scale_bytes(dtype)


@dataclass(frozen=True)
class Experts:
    """How many experts a token visits; routing is taken as uniform."""

    count: int
    per_token: int

    def touched(self, tokens: int) -> float:
        """Share of experts that `tokens` independent tokens visit together, hence of expert bytes that a step reads."""
        return 1.0 - (1.0 - self.per_token / self.count) ** tokens


@dataclass(frozen=True)
class Model:
    """A model, complete for arithmetic."""

    kind: str
    hidden: int
    max_context: int
    parameters: Parameters
    attention: Attention
    windows: tuple[int | None, ...]
    """Per layer: the sliding window in tokens, or None for full attention."""
    experts: Experts | None = None
    mlp_width: int = 0
    """What a token is at its widest in an MLP, of all its experts together; 0 if unknown."""
    decodes: bool = True
    """False for encoders (BERT-like): no KV cache, no decode step."""
    stored: str = "bf16"
    """The format in which a GPU holds the matrices of a quantised checkpoint if no other is asked for."""

    @property
    def layers(self) -> int:
        return len(self.windows)

    def weight_bytes(self, quantisation: str) -> int:
        """Bytes of the checkpoint in memory: matrices with their scales, the rest in bf16."""
        counted = self.parameters
        matrices = counted.dense + counted.experts
        return stored_bytes(matrices, quantisation) + 2 * (counted.total - matrices)

    def kv_bytes_per_token(self, dtype: str = "bf16") -> int:
        """What one more token costs while it is inside every window."""
        if not self.decodes:
            return 0
        return self.layers * self.attention.cached_bytes(dtype)

    def kv_bytes(self, context: int, dtype: str = "bf16") -> int:
        """What a request of `context` tokens holds: a layer with a window never holds more than its window."""
        if context < 0:
            raise Impossible(f"context must be 0 or more, got {context}")
        if not self.decodes:
            return 0
        tokens = sum(context if window is None else min(context, window) for window in self.windows)
        return tokens * self.attention.cached_bytes(dtype)

    def without_gqa(self) -> Model:
        """The same model with a key and value head for every query head: what grouped attention saves."""
        return replace(self, attention=replace(self.attention, kv_heads=self.attention.heads, latent=None))

    def check_context(self, context: int) -> None:
        """Refuse a context that the model was not made for."""
        positive("context", context)
        if context > self.max_context:
            raise Impossible(f"context {context}: this {self.kind} accepts at most {self.max_context} tokens")


def unshared_prefix_bytes(model: Model, prefix: int, users: int, dtype: str = "bf16") -> int:
    """KV bytes of one prefix stored once per user: what prefix sharing saves, less one copy."""
    positive("users", users)
    return users * model.kv_bytes(prefix, dtype)
