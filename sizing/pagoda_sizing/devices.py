"""The catalogue: GPUs, their MIG profiles and a CPU, each number with the page it was read from (data/devices.json).

Called by placement and by `pagoda plan`. Memory is the datasheet's decimal GB, a few percent below what NVML reports: a plan that fits here
fits there. Slices get their fraction of memory and bandwidth from NVIDIA's table and their share of SMs.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Final

from pydantic import BaseModel, ConfigDict, TypeAdapter

from pagoda_sizing.errors import UnknownDevice

GB: Final = 10**9
TERA: Final = 10**12


class _Slice(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    profile: str
    eighths: int
    sms: int
    of: int


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    product: str
    memory_gb: float
    bandwidth_gb_s: float
    tflops: dict[str, float]
    link_gb_s: float
    price_per_hour: float | None
    price_source: str
    formats: tuple[str, ...]
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
    """Per number format; a format without an entry computes at bf16's rate (weights are widened on the way)."""
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

    def rate(self, number_format: str) -> float:
        """FLOP/s in a number format."""
        return self.flops.get(number_format, self.flops["bf16"])


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
    whole = Device(
        name=entry.name,
        product=entry.product,
        memory_bytes=int(entry.memory_gb * GB),
        bytes_per_s=entry.bandwidth_gb_s * GB,
        flops={key: rate * TERA for key, rate in entry.tflops.items()},
        link_bytes_per_s=entry.link_gb_s * GB,
        price_per_hour=entry.price_per_hour,
        formats=entry.formats,
        sources=entry.sources,
        price_source=entry.price_source,
        whole=entry.name,
    )
    ordered = sorted(entry.mig, key=lambda part: (part.eighths, part.sms))
    return [whole, *(_slice(whole, part) for part in ordered)]


def _slice(whole: Device, part: _Slice) -> Device:
    memory, compute = part.eighths / 8, part.sms / part.of
    share = max(memory, compute)
    return Device(
        name=f"{whole.name}:{part.profile}",
        product=f"{whole.product}-MIG-{part.profile}",
        memory_bytes=whole.memory_bytes * part.eighths // 8,
        bytes_per_s=whole.bytes_per_s * memory,
        flops={key: rate * compute for key, rate in whole.flops.items()},
        link_bytes_per_s=whole.link_bytes_per_s,
        price_per_hour=None if whole.price_per_hour is None else whole.price_per_hour * share,
        formats=whole.formats,
        sources=whole.sources,
        price_source=whole.price_source,
        profile=part.profile,
        whole=whole.name,
        share=share,
    )
