"""The engine of a replica: its limits, its numerics and its KV cache. Used by InferenceService."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from pagoda_contracts.launch import ToolParser, token_budget
from pagoda_contracts.resources.meta import Model, Rule
from pagoda_contracts.units import Duration, Quantity, parse_duration


class KvCacheSpec(Model):
    """The paged KV cache of a replica."""

    size: Quantity | None = Field(
        default=None, description="Bytes for KV blocks, such as 512Mi. If absent, the daemon computes it from the free memory."
    )
    block_size: Literal[16, 32, 64] = Field(default=16, description="Tokens per KV block.")
    memory_fraction: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None,
        description="Share of the device's memory that weights and KV may take, above 0 up to 1. "
        "Not acted on yet by the daemon; placement uses it.",
    )
    dtype: Literal["auto", "bfloat16", "float8", "int8"] = Field(
        default="auto",
        description="Type of keys and values; auto is that of engine.dtype. float8 and int8 take half the memory, and are for devices. "
        "float8 needs compute capability 8.9.",
    )
    prefix_caching: bool = Field(default=True, description="Whether blocks of equal beginnings are shared.")
    cpu_offload: Quantity | None = Field(default=None, description="Host memory for evicted blocks, such as 8Gi. Not acted on yet.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.size) || !has(self.memoryFraction)",
            "kvCache: set at most one of size and memoryFraction",
            lambda k: k.size is None or k.memory_fraction is None,
            "memoryFraction",
        ),
        Rule(
            "!has(self.memoryFraction) || self.memoryFraction > 0.0",
            "kvCache.memoryFraction must be above 0 and at most 1",
            lambda k: k.memory_fraction is None or k.memory_fraction > 0,
            "memoryFraction",
        ),
    )


class EngineSpec(Model):
    """Limits and numerics of a replica's engine."""

    max_model_len: Annotated[int, Field(ge=16, le=1_048_576)] | None = Field(
        default=None, description="Longest prompt plus answer, in tokens; the model's own limit if absent."
    )
    max_concurrency: int = Field(
        default=64, ge=1, le=1024, description="Most requests that decode at the same time in one replica. A full KV cache allows fewer."
    )
    min_concurrency: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None,
        description="Requests of full length that a replica's KV cache must hold at the same time. Devices that hold fewer are rejected. "
        "If absent, 1; with spec.slo, maxConcurrency.",
    )
    token_budget: Annotated[int, Field(ge=16, le=131_072)] | None = Field(
        default=None,
        description="Tokens that are computed per step, at least maxConcurrency: all requests that decode, then parts of prompts. "
        "Placement counts the memory of such a step. If absent, 512 on CPU and 2048 on devices.",
    )
    dtype: Literal["auto", "bfloat16", "float32"] = Field(default="auto", description="Weights and activations; auto is bfloat16.")
    kv_cache: KvCacheSpec = Field(default=KvCacheSpec(), description="The paged KV cache.")
    quantization: Literal["none", "fp8", "int8", "int4", "nvfp4"] = Field(
        default="none",
        description="Type of the weights' matrices. int8 is built for CPU and NVIDIA GPUs, int4 for GPUs, "
        "fp8 for GPUs from Ada and Hopper on. An entry on which a type is not built is rejected.",
    )
    deterministic: bool = Field(
        default=False, description="The same request gets the same answer, whatever other requests are in the batch."
    )
    tool_parser: ToolParser | None = Field(
        default=None, description="How the model writes tool calls. If absent, as its chat template does."
    )
    threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None,
        description="Threads that compute on CPU, at most the cores of each cpu entry, rounded up. If absent, as many as these cores; "
        "on devices, the cores that the container may use.",
    )
    load_timeout: Duration | None = Field(
        default=None,
        description="A replica that loads its model is restarted if the load stands still for this long, 30s to 12h. If absent, 300s.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.minConcurrency) || self.minConcurrency <= self.maxConcurrency",
            "engine.minConcurrency must be at most maxConcurrency",
            lambda e: e.min_concurrency is None or e.min_concurrency <= e.max_concurrency,
            "minConcurrency",
        ),
        Rule(
            "!has(self.loadTimeout) || (duration(self.loadTimeout) >= duration('30s') && duration(self.loadTimeout) <= duration('12h'))",
            "engine.loadTimeout must be 30s to 12h",
            lambda e: e.load_timeout is None or 30 <= parse_duration(e.load_timeout) <= 43_200,
            "loadTimeout",
        ),
    )

    def tokens(self, *, cuda: bool) -> int:
        """Tokens of a step, on a device or on CPU."""
        return token_budget(self.token_budget, cuda=cuda)
