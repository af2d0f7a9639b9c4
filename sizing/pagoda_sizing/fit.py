"""Does it fit: weights plus KV cache plus a reserve against memory; how many requests; which MIG profile; which tensor parallelism.

Called by `replica` for placement, and by `plan`. One inequality decides everything: weights + reserve + n x KV <= memory. It is the
daemon's own (`runner/kv_size.py`), as far as a shape tells its terms.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pagoda_contracts.launch import token_budget

from pagoda_sizing.devices import CPU, Device, profiles_of
from pagoda_sizing.errors import Impossible, positive
from pagoda_sizing.host import DEVICE_CONTEXT, Launch, cache_in, step_bytes, with_cache
from pagoda_sizing.model import Model
from pagoda_sizing.quant import weight_format

DEGREES: Final = (1, 2, 4, 8)
"""Ranks that one machine offers."""


@dataclass(frozen=True)
class Demand:
    """What a replica must hold."""

    context: int
    """Tokens of one request, prompt and answer together."""
    concurrency: int = 1
    quantisation: str = "bf16"
    kv_dtype: str = "bf16"
    ceiling: int | None = None
    """Most requests at the same time; a step is made for so many. None: `concurrency`."""
    item_bytes: int = 2
    """Of weights that are not quantised, and of the cache in kv_dtype bf16."""
    cache_bytes: int | None = None
    """A size that was given for the whole cache."""
    tokens: int | None = None
    """Of a step. None: as many as suit the device."""

    def launch(self, device: Device) -> Launch:
        """What the daemon is started with."""
        rows, tokens = max(self.concurrency, self.ceiling or 0), token_budget(self.tokens, cuda=device.name != CPU)
        return Launch(self.quantisation, self.item_bytes, self.context, self.cache_bytes, rows, tokens)


@dataclass(frozen=True)
class Fit:
    """The inequality's terms, all per device."""

    device: str
    degree: int
    memory_bytes: int
    weight_bytes: int
    reserve_bytes: int
    """What is neither weights nor KV cache."""
    kv_bytes_per_request: int
    max_concurrency: int
    concurrency: int
    needed_bytes: int
    """The least memory in which the demand fits."""

    @property
    def fits(self) -> bool:
        return self.max_concurrency >= self.concurrency

    @property
    def why_not(self) -> str:
        """One sentence; empty where it fits."""
        if self.fits:
            return ""
        free = self.memory_bytes - self.weight_bytes - self.reserve_bytes
        if free < 0:
            return f"weights and reserve, {_gb(self.weight_bytes + self.reserve_bytes)}, exceed {_gb(self.memory_bytes)}"
        wanted = _gb(self.concurrency * self.kv_bytes_per_request)
        return f"KV cache for {self.concurrency} needs {wanted}, {_gb(free)} is free: at most {self.max_concurrency}"


def max_concurrency(memory_bytes: int, weight_bytes: int, reserve_bytes: int, kv_bytes_per_request: int) -> int:
    """Requests that fit beside the weights; 0 where not even the weights do."""
    positive("KV bytes per request", kv_bytes_per_request)
    return max(0, (memory_bytes - weight_bytes - reserve_bytes) // kv_bytes_per_request)


def fit(model: Model, device: Device, demand: Demand, degree: int = 1) -> Fit:
    """The terms on one device, or on each of `degree` equal ones."""
    check(model, demand)
    check_degree(model, device, degree)
    wide = demand.item_bytes // 2
    weights = -(-model.weight_bytes(demand.quantisation) * (wide if demand.quantisation == "bf16" else 1) // degree)
    fixed = weights + DEVICE_CONTEXT + step_bytes(model, demand.launch(device))
    free, per_request = device.memory_bytes - fixed, kv_bytes_per_rank(model, demand, degree) * (wide if demand.kv_dtype == "bf16" else 1)
    cache = cache_in(free, demand.cache_bytes)
    return Fit(
        device=device.name,
        degree=degree,
        memory_bytes=device.memory_bytes,
        weight_bytes=weights,
        reserve_bytes=device.memory_bytes - weights - cache if free >= 0 else fixed - weights,
        kv_bytes_per_request=per_request,
        max_concurrency=_requests(free, cache, per_request, demand.concurrency),
        concurrency=demand.concurrency,
        needed_bytes=fixed + with_cache(demand.concurrency * per_request, demand.cache_bytes),
    )


def kv_bytes_per_rank(model: Model, demand: Demand, degree: int) -> int:
    """Key and value heads are split while there are any to split; a latent (MLA) is on every rank."""
    whole = model.kv_bytes(demand.context, demand.kv_dtype)
    split = 1 if model.attention.latent is not None else min(degree, model.attention.kv_heads)
    return -(-whole // split)


def smallest_profile(model: Model, device_name: str, demand: Demand) -> Fit | None:
    """The smallest MIG profile of a device that holds the demand, by memory, then by SMs."""
    return next((found for slice_ in profiles_of(device_name) if (found := fit(model, slice_, demand)).fits), None)


def smallest_degree(model: Model, device: Device, demand: Demand, degrees: Iterable[int] = DEGREES) -> Fit | None:
    """The lowest tensor-parallel degree that holds the demand."""
    tried = (fit(model, device, demand, degree) for degree in degrees if splits(model, device, degree))
    return next((found for found in tried if found.fits), None)


def splits(model: Model, device: Device, degree: int) -> bool:
    """Whether `degree` of this device can hold the model together."""
    return not degree_refusal(device, degree) and splits_heads(model, degree)


def check_degree(model: Model, device: Device, degree: int) -> None:
    """Refuse a degree that cannot be split so."""
    check_heads(model, degree)
    if refusal := degree_refusal(device, degree):
        raise Impossible(refusal)


def check_heads(model: Model, degree: int) -> None:
    """Refuse a degree that this model's heads do not split into, on any device."""
    positive("tensor-parallel degree", degree)
    if not splits_heads(model, degree):
        accepted = ", ".join(str(value) for value in DEGREES if splits_heads(model, value))
        raise Impossible(f"tensor-parallel degree {degree}: {model.attention.heads} heads cannot be split so; it must be one of {accepted}")


def degree_refusal(device: Device, degree: int) -> str:
    """Why a device cannot be one of several; empty where it can. A slice has no peers: MIG switches peer-to-peer off."""
    if degree == 1 or device.profile is None:
        return ""
    return f"tensor-parallel degree {degree} on {device.name}: accepted on a MIG slice is 1"


def splits_heads(model: Model, degree: int) -> bool:
    """Query heads are split whole, KV heads evenly or copied evenly."""
    heads, kv_heads = model.attention.heads, model.attention.kv_heads
    return heads % degree == 0 and (kv_heads % degree == 0 or degree % kv_heads == 0)


def check(model: Model, demand: Demand) -> None:
    """Refuse a demand that no device could answer."""
    positive("concurrency", demand.concurrency)
    model.check_context(demand.context)
    weight_format(demand.quantisation)


def _requests(free: int, cache: int, per_request: int, wanted: int) -> int:
    """An encoder keeps nothing between steps: memory does not bound its concurrency."""
    if free < 0:
        return 0
    return cache // per_request if per_request else wanted


def _gb(count: int) -> str:
    return f"{count / 10**9:.1f} GB"
