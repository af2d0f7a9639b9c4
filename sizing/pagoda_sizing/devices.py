"""The catalogue: GPUs, their MIG profiles and a CPU, each number with the page it was read from (data/devices.json).

Called by placement and by `pagoda plan`. Memory is the datasheet's decimal GB, a few percent below what NVML reports: a plan that fits here
fits there. A slice has its share of that or what `nvidia-smi mig -lgip` shows, whichever is less: eighths of an H200 are up to 2.6 % less
than its datasheet divided by eight. Products are named as by GPU Feature Discovery.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from importlib import resources
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

from pagoda_sizing.errors import UnknownDevice

GB: Final = 10**9
GIB: Final = 1 << 30
TERA: Final = 10**12
CPU: Final = "cpu"
"""The one device that is none."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Price(_Frozen):
    dollars: float
    kind: Literal["on demand", "committed", "list"]
    read: date
    source: str


class _Slice(_Frozen):
    profile: str
    eighths: int
    gib: float | None
    sms: int


class _Entry(_Frozen):
    name: str
    product: str
    memory_gb: float
    bandwidth_gb_s: float
    tflops: dict[str, float]
    link_gb_s: float
    price: _Price | None
    formats: tuple[str, ...]
    sms: int | None
    mig: tuple[_Slice, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Device:
    """What a replica, or one rank of it, runs on. Rates are nominal and dense; `roofline.Efficiency` says what is attained."""

    name: str
    product: str
    memory_bytes: int
    bytes_per_s: float
    flops: dict[str, float]
    """Per number format; a format without an entry computes at the rate of 16 bits (weights are widened on the way)."""
    link_bytes_per_s: float
    """One direction, to its peers: NVLink, Infinity Fabric, PCIe or a network."""
    price_per_hour: float | None
    formats: tuple[str, ...]
    """Weight formats that engines run on it."""
    sources: tuple[str, ...]
    price_source: str
    profile: str | None = None
    """MIG profile; None for the whole device."""
    whole: str = ""
    """Name of the device that this is, or is a slice of."""
    share: float = 1.0
    """Of the whole device's price: the larger of its shares of memory and SMs, as the rest of the other cannot be sold."""
    sms: int | None = None
    """None if it has no MIG profiles, whose shares they are for."""
    price_kind: str = ""
    """on demand, committed, list; yours if the user gave the price, empty if none is known."""
    price_read: str = ""
    """The day when the price's page was read, as 2026-11-09."""

    def rate(self, number_format: str) -> float:
        """FLOP/s in a number format; of one without a rate, that of 16 bits. A device whose fp16 is listed has no bf16: PyTorch computes it
        in fp32, more slowly."""
        return self.flops.get(number_format) or self.flops.get("fp16") or self.flops["bf16"]


@cache
def catalogue() -> tuple[Device, ...]:
    """Every device, each followed by its MIG profiles from small to large."""
    return tuple(device for entry in _entries() for device in _with_slices(entry))


def profiles_of(name: str) -> tuple[Device, ...]:
    """The MIG profiles of a device, smallest first; empty where it has none."""
    whole = find(name)
    return tuple(device for device in catalogue() if device.whole == whole.name and device.profile)


def find(name: str) -> Device:
    """`h100`, or `h100:3g.40gb` for a slice."""
    known = {device.name: device for device in catalogue()}
    wanted = name.strip().lower()
    if wanted in known:
        return known[wanted]
    parent, _, profile = wanted.partition(":")
    if profile and parent in known:
        slices = [device.profile for device in known.values() if device.whole == parent and device.profile]
        raise UnknownDevice(f"{parent} has no MIG profile {profile!r}; it has {', '.join(map(str, slices)) or 'none'}")
    whole = ", ".join(device.name for device in known.values() if device.profile is None)
    raise UnknownDevice(f"device must be one of {whole}, or NAME:PROFILE for a MIG slice, got {name!r}")


def _entries() -> list[_Entry]:
    text = resources.files("pagoda_sizing").joinpath("data/devices.json").read_text(encoding="utf-8")
    return TypeAdapter(list[_Entry]).validate_json(text)


def _with_slices(entry: _Entry) -> list[Device]:
    price = entry.price
    whole = Device(
        name=entry.name,
        product=entry.product,
        memory_bytes=int(entry.memory_gb * GB),
        bytes_per_s=entry.bandwidth_gb_s * GB,
        flops={key: rate * TERA for key, rate in entry.tflops.items()},
        link_bytes_per_s=entry.link_gb_s * GB,
        price_per_hour=price.dollars if price else None,
        formats=entry.formats,
        sources=entry.sources,
        price_source=price.source if price else f"none found: pass --price {entry.name}=DOLLARS",
        whole=entry.name,
        sms=entry.sms,
        price_kind=price.kind if price else "",
        price_read=price.read.isoformat() if price else "",
    )
    ordered = sorted(entry.mig, key=lambda part: (part.eighths, part.sms))
    return [whole, *(_slice(whole, part) for part in ordered)]


def _slice(whole: Device, part: _Slice) -> Device:
    memory, compute = part.eighths / 8, part.sms / (whole.sms or part.sms)
    share = max(memory, compute)
    equal = whole.memory_bytes * part.eighths // 8
    return replace(
        whole,
        name=f"{whole.name}:{part.profile}",
        product=f"{whole.product}-MIG-{part.profile}",
        memory_bytes=equal if part.gib is None else min(equal, int(part.gib * GIB)),
        bytes_per_s=whole.bytes_per_s * memory,
        flops={key: rate * compute for key, rate in whole.flops.items()},
        price_per_hour=None if whole.price_per_hour is None else whole.price_per_hour * share,
        profile=part.profile,
        share=share,
        sms=part.sms,
    )
