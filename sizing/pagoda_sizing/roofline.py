"""How long it takes at least: the time to read bytes or to compute, whichever is longer. Called by `plan` and the simulator.

Serial roofline: max(weights / bandwidth, FLOPs / rate) + KV / bandwidth, as attention is bandwidth-bound at any batch (arXiv 2503.08311).
No launch overhead, no queueing: floors, brought near reality by `Efficiency`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pagoda_sizing.devices import Device
from pagoda_sizing.errors import positive
from pagoda_sizing.fit import Demand, kv_bytes_per_rank
from pagoda_sizing.model import Model
from pagoda_sizing.quant import stored_bytes, weight_format


@dataclass(frozen=True)
class Efficiency:
    """Shares of the nominal rates that good engines attain: 70 % of bandwidth (vLLM, Llama-3.1-8B, H100, batch 1: 6.44 ms against a
    floor of 4.48 ms) and 60 % of compute (TensorRT-LLM saturated on H200: 56 to 65 % of this same roofline)."""

    bandwidth: float = 0.70
    compute: float = 0.60


NOMINAL: Final = Efficiency(1.0, 1.0)
TYPICAL: Final = Efficiency()


@dataclass(frozen=True)
class Work:
    """One step's bytes and FLOPs on one device."""

    weight_bytes: float
    flops: float
    kv_bytes: float = 0.0
    link_bytes: float = 0.0


def step_seconds(work: Work, bytes_per_s: float, flops_per_s: float, link_bytes_per_s: float = float("inf")) -> float:
    """The roofline of one step."""
    positive("bandwidth", bytes_per_s)
    positive("FLOP/s", flops_per_s)
    linear = max(work.weight_bytes / bytes_per_s, work.flops / flops_per_s)
    return linear + work.kv_bytes / bytes_per_s + work.link_bytes / link_bytes_per_s


def decode_work(model: Model, demand: Demand, batch: int, degree: int = 1) -> Work:
    """One token for each of `batch` requests at `demand.context`."""
    positive("batch", batch)
    return Work(
        weight_bytes=_read_bytes(model, demand.quantisation, batch) / degree,
        flops=2.0 * batch * _active_parameters(model) / degree,
        kv_bytes=float(batch * kv_bytes_per_rank(model, demand, degree)),
        link_bytes=_all_reduced(model, batch, degree),
    )


def prefill_work(model: Model, demand: Demand, prompt: int, degree: int = 1) -> Work:
    """A whole prompt; the head computes one row only."""
    positive("prompt", prompt)
    head = _head(model)
    linear = 2.0 * prompt * (_active_parameters(model) - head) + 2.0 * head
    return Work(
        weight_bytes=_read_bytes(model, demand.quantisation, prompt) / degree,
        flops=(linear + _attention_flops(model, prompt)) / degree,
        link_bytes=_all_reduced(model, prompt, degree),
    )


@dataclass(frozen=True)
class Step:
    """A step of a continuous batch: `tokens` computed, `sampled` of them answered by the head; `read` tokens of KV looked back at, each
    row's once; `pairs` of query and key where prompts are computed."""

    tokens: int
    sampled: int
    read: int
    pairs: int


def mixed_work(model: Model, demand: Demand, step: Step, degree: int = 1) -> Work:
    """Decodes and chunks of prompts in one step. Windows are the caller's to apply to `read` and `pairs`."""
    head = _head(model)
    linear = 2.0 * step.tokens * (_active_parameters(model) - head) + 2.0 * step.sampled * head
    per_pair = 2.0 * model.attention.heads * (model.attention.query_dim + model.attention.value_dim) * model.layers
    per_token = (
        model.kv_bytes_per_token(demand.kv_dtype)
        * kv_bytes_per_rank(model, demand, degree)
        / model.kv_bytes(demand.context, demand.kv_dtype)
    )
    return Work(
        weight_bytes=_read_bytes(model, demand.quantisation, step.tokens) / degree,
        flops=(linear + per_pair * step.pairs) / degree,
        kv_bytes=step.read * per_token,
        link_bytes=_all_reduced(model, step.tokens, degree),
    )


def seconds(work: Work, device: Device, quantisation: str, efficiency: Efficiency = NOMINAL) -> float:
    """A step's time on a device at the rate of its weight format."""
    rate = device.rate(weight_format(quantisation).rate)
    return step_seconds(
        work, device.bytes_per_s * efficiency.bandwidth, rate * efficiency.compute, device.link_bytes_per_s * efficiency.bandwidth
    )


def _active_parameters(model: Model) -> float:
    """Those that one token multiplies with; the input embedding is a look-up, except where it is the head too."""
    counted = model.parameters
    share = model.experts.per_token / model.experts.count if model.experts else 1.0
    return counted.dense + counted.experts * share + counted.small + _head(model)


def _head(model: Model) -> int:
    """The output matrix: its own, the embedding where tied, none in an encoder."""
    return model.parameters.head or (model.parameters.embedding if model.decodes else 0)


def _read_bytes(model: Model, quantisation: str, tokens: int) -> float:
    """Weights that a step over `tokens` tokens reads: experts as far as any token visits them."""
    counted = model.parameters
    touched = model.experts.touched(tokens) if model.experts else 1.0
    experts = stored_bytes(counted.experts, quantisation) * touched
    return stored_bytes(counted.dense, quantisation) + experts + 2.0 * (counted.small + _head(model))


def _attention_flops(model: Model, prompt: int) -> float:
    """Scores and weighted values over the pairs that the mask leaves: half of all where causal, at most a window per row."""
    per_pair = 2.0 * model.attention.heads * (model.attention.query_dim + model.attention.value_dim)
    return per_pair * sum(_pairs(prompt, window, causal=model.decodes) for window in model.windows)


def _pairs(prompt: int, window: int | None, *, causal: bool) -> float:
    if not causal:
        return float(prompt) ** 2
    seen = prompt if window is None else min(prompt, window)
    return seen * (seen + 1) / 2 + (prompt - seen) * seen


def _all_reduced(model: Model, tokens: int, degree: int) -> float:
    """Bytes over a rank's link: two ring all-reduces of bf16 activations per layer, 2 (n - 1) / n of the message each."""
    message = 2 * tokens * model.hidden
    return 2.0 * model.layers * 2.0 * (degree - 1) / degree * message
