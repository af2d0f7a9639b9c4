"""Whether the model fits, how many KV blocks there are and how long a context may be. Pure; called by the model worker before it allocates.

One inequality, that of `pagoda_sizing.fit`: weights + what a step takes + KV <= memory. Where it does not hold, the refusal says what
would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from pagoda_contracts.launch import EngineConfig
from pagoda_sizing.plan import largest

from pagoda_daemon.core.batch import peak_blocks
from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.model.config import ModelSpec
from pagoda_daemon.runner.host import Memory
from pagoda_daemon.runner.logprobs import SLICE

LEAST_CONTEXT: Final = 2048
"""A context that was not configured may be cut to the memory there is, but not below this: a service must not refuse every prompt."""
STEP_FLOOR: Final = 32 * 2**20  # allocator, code pages of the first step, index tensors
_SAMPLER_BYTES: Final = 96  # per logit, measured 91: noise in int64 and fp64, a sort's values and indices
_SCORED_BYTES: Final = 24  # per logit of a slice, measured 20
_SHARE_OF_CONTAINER: Final = 0.8  # of what is left; the front's buffers and the allocator's holes take the rest
_SHARE_OF_MACHINE: Final = 0.5  # without a limit others live there too
_LARGER: Final = {"container": "a memory limit", "machine": "a machine", "device": "a device"}
_GIB: Final = 2**30
EIGHT_BITS: Final = ("float8", "int8")
"""`engine.kvDtype` that the GPU's fused ops alone can read."""


@dataclass(frozen=True, slots=True)
class KvShape:
    """The resolved pool."""

    blocks: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model takes: its weights, a step whatever the context, and per token of the longest context. `window`: that of every layer
    taken together, None where one sees everything."""

    weight_bytes: int
    step_bytes: int
    context_bytes: int
    token_bytes: int
    max_positions: int
    window: int | None = None

    def fixed(self, context: int) -> int:
        """Everything but KV."""
        return self.weight_bytes + self.step_bytes + self.context_bytes * context


def needs(spec: ModelSpec, engine: EngineConfig, weight_bytes: int, item: int, logit: int | None = None, *, gathers: bool = True) -> Needs:
    """`item` is the bytes of one weight, `logit` those of one logit where they differ. Counts what `model.decoder` has alive at its widest
    point, norms and products in fp32. `gathers`: keys and values are copied to be attended; a paged kernel reads them where they are."""
    tokens = engine.token_budget
    width = spec.experts.per_token * (spec.hidden + spec.experts.intermediate) if spec.experts else spec.intermediate
    attended = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
    activations = 4 * tokens * (4 * spec.hidden + 3 * max(attended, width))
    # Where a prompt is scored, every token has logits.
    logits = tokens * spec.vocab_size * (logit or item) + sampling_bytes(spec, engine)
    mask = tokens * (item + 2)
    gathered = 2 * spec.head_dim * item * spec.kv_heads
    rope_tables = 2 * spec.head_dim * item
    return Needs(
        weight_bytes=weight_bytes,
        step_bytes=STEP_FLOOR + activations + logits,
        context_bytes=rope_tables + (mask + gathered if gathers else 0),
        token_bytes=spec.kv_token_bytes(1 if engine.kv_dtype in EIGHT_BITS else item),
        max_positions=spec.max_positions,
        window=spec.sliding_window,
    )


def sampling_bytes(spec: ModelSpec, engine: EngineConfig) -> int:
    """What sampling has alive beside the logits. Log-probabilities of a prompt are made in slices, before or after sampling's copies."""
    tokens, rows = engine.token_budget, engine.max_concurrency
    return max(rows * spec.vocab_size * _SAMPLER_BYTES, min(tokens * spec.vocab_size, SLICE) * _SCORED_BYTES)


def kv_shape(engine: EngineConfig, model: Needs, memory: Memory) -> KvShape:
    """A context that was asked for must fit whole; one that was not is cut to what the memory holds."""
    memory = _granted(engine, memory)
    asked, wanted = engine.max_model_len, engine.max_model_len or model.max_positions
    if wanted > model.max_positions:
        raise ConfigRejected(f"maxModelLen {wanted} exceeds the model's max_position_embeddings {model.max_positions}")
    holds = _holds(engine, model, memory)
    context = wanted if asked is not None else largest(wanted, holds)
    least = wanted if asked is not None else 1 if engine.kv_bytes is not None else min(wanted, LEAST_CONTEXT)
    if context < least or not holds(context):
        raise ConfigRejected(_refusal(engine, model, memory, least))
    full_rows = engine.max_concurrency * _peak_blocks(engine, model, context)
    return KvShape(min(full_rows, _pool(engine, model, memory, context) // (model.token_bytes * engine.block_size)), context)


def _granted(engine: EngineConfig, memory: Memory) -> Memory:
    """The share of all memory that was asked for; less where others have taken more than the rest."""
    share = engine.kv_memory_fraction
    if share is None:
        return memory
    if not 0 < share <= 1:
        raise ConfigRejected(f"kvMemoryFraction must be above 0 and at most 1, got {share}")
    total = int(memory.total * share)
    return replace(memory, total=total, left=min(memory.left, total))


def _holds(engine: EngineConfig, model: Needs, memory: Memory) -> Callable[[int], bool]:
    """Whether one request of so many tokens fits."""
    return lambda context: _kv_bytes(engine, model, context) <= _pool(engine, model, memory, context)


def _kv_bytes(engine: EngineConfig, model: Needs, context: int) -> int:
    """KV of one request, in whole blocks."""
    return _peak_blocks(engine, model, context) * engine.block_size * model.token_bytes


def _peak_blocks(engine: EngineConfig, model: Needs, context: int) -> int:
    """As the core counts them: what left the window is given back after each step."""
    return peak_blocks(context, engine.block_size, model.window, max(engine.token_budget, engine.max_concurrency))


def _pool(engine: EngineConfig, model: Needs, memory: Memory, context: int) -> int:
    """Bytes for KV, beside everything else; `kv_bytes` that do not fit there are none."""
    left = memory.left - model.fixed(context)
    if engine.kv_bytes is not None:
        return engine.kv_bytes if engine.kv_bytes <= left else 0
    return max(0, int(left * _share(engine, memory)))


def _share(engine: EngineConfig, memory: Memory) -> float:
    if engine.kv_memory_fraction is not None:  # the rest was left to others on purpose
        return 1.0
    return _SHARE_OF_CONTAINER if memory.limited else _SHARE_OF_MACHINE


def _refusal(engine: EngineConfig, model: Needs, memory: Memory, least: int) -> str:
    kv, step = _kv_bytes(engine, model, least), model.fixed(least) - model.weight_bytes
    asked = f"; kvBytes is {engine.kv_bytes}" if engine.kv_bytes is not None else ""
    taken = f", {_size(memory.total - memory.left)} of it taken" if memory.total > memory.left else ""
    return (
        f"needs {_size(model.weight_bytes)} of weights + {_size(step)} for a step + {_size(kv)} of KV for 1 request of {least} tokens "
        f"({model.token_bytes} bytes a token){asked}; this {memory.place} may use {_size(memory.total)}{taken}; "
        f"fits: {', or '.join(_fitting(engine, model, memory, least))}"
    )


def _fitting(engine: EngineConfig, model: Needs, memory: Memory, least: int) -> list[str]:
    """One change each that would make it start."""
    found = []
    context = largest(least, _holds(engine, model, memory)) // engine.block_size * engine.block_size
    if context >= max(1, min(least, LEAST_CONTEXT) // 8):
        found.append(f"maxModelLen {context}")
    if engine.dtype == "float32" and _holds(engine, _halved(model), memory)(least):
        found.append("dtype bfloat16")
    kv, room = _kv_bytes(engine, model, least), memory.left - model.fixed(least)
    if engine.kv_bytes is not None and kv <= room:
        return [*found, f"kvBytes from {kv} to {room}"]
    pool = int(kv / _share(engine, memory)) + 1 if engine.kv_bytes is None else max(kv, engine.kv_bytes)
    raised = f"kvBytes {kv} and " if engine.kv_bytes is not None and kv > engine.kv_bytes else ""
    limit = _size(memory.total - memory.left + model.fixed(least) + pool)
    found.append(f"{raised}{_LARGER[memory.place]} of {limit}")
    return found


def _halved(model: Needs) -> Needs:
    return replace(model, weight_bytes=model.weight_bytes // 2, token_bytes=model.token_bytes // 2)


def _size(count: int) -> str:
    """Rounded up, so that what is said to fit does."""
    unit, name = (_GIB, "GiB") if count >= _GIB // 2 else (2**20, "MiB")
    tenths = -(-10 * count // unit)
    return f"{tenths / 10:.1f} {name}"
