"""What clusters say of their devices: products and their memory, labels and machine types of providers, resources and taints of vendors,
drivers (data/platforms.json). Called by placement, which adds what GPU Feature Discovery and a profile say.

A provider or a vendor is a row of the data, never a branch of code. Memory is the datasheet's decimal GB, a few percent below what NVML
reports: what fits here fits there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import resources
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict

from pagoda_sizing.devices import GB, catalogue

# Formats that the daemon makes of bf16 weights on a GPU (daemon, model/quantised.py).
_LEAST_CAPABILITY: Final = {"fp8": (8, 9), "int8": (8, 0), "int4": (8, 0)}
_KEPT: Final = {"float8": "fp8", "int8": "int8"}


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Product(_Frozen):
    """`no_daemon`: why none computes on it (https://github.com/pytorch/pytorch/issues/190385); empty if one does. `capability`: NVIDIA's
    compute capability (https://developer.nvidia.com/cuda-gpus)."""

    product: str
    memory_gb: float
    capability: tuple[int, int]
    no_daemon: str = ""


class Platform(_Frozen):
    """A provider of clusters. `shown_by`: beginnings of labels, of which its nodes have one; `values`: per product, those of `key`."""

    name: str
    shown_by: tuple[str, ...]
    key: str
    partition: str = ""
    values: dict[str, tuple[str, ...]]
    sources: tuple[str, ...]


class Described(_Frozen):
    """Labels that have a product and its memory themselves; `bytes`: what the memory's unit surely has."""

    product: str
    memory: str
    bytes: int
    source: str


class Vendor(_Frozen):
    """Whose devices a resource is; `daemon`: whether there is one for them. `product`: the label that names the device; `driver`: the DRA
    driver that hands out the same devices."""

    name: str
    resource: str
    daemon: bool
    product: str
    driver: str = ""


class Toleration(_Frozen):
    """Of a taint that keeps pods without devices away."""

    key: str
    operator: str
    value: str | None = None
    effect: str


class Platforms(_Frozen):
    """The whole table."""

    products: tuple[_Product, ...]
    platforms: tuple[Platform, ...]
    described: tuple[Described, ...]
    replicas: tuple[str, ...]
    vendors: tuple[Vendor, ...]
    taints: tuple[Toleration, ...]
    drivers: dict[str, str]


class Known(NamedTuple):
    """The GPU of a node by its provider's labels. `label`: the label and its values that such nodes have, as `key=value|value`."""

    product: str
    memory: int
    label: str


@cache
def platforms() -> Platforms:
    """Returns the table."""
    return Platforms.model_validate_json(resources.files("pagoda_sizing").joinpath("data/platforms.json").read_text(encoding="utf-8"))


@cache
def products() -> Mapping[str, int]:
    """Returns the bytes of every product that is known by name, as GPU Feature Discovery names it."""
    return {one.product: int(one.memory_gb * GB) for one in platforms().products}


@cache
def no_daemon(product: str) -> str:
    """Returns why no daemon computes on a product; empty if one does, or if the product is not known."""
    return next((one.no_daemon for one in platforms().products if one.product == product), "")


@cache
def no_format(product: str, quantisation: str) -> str:
    """Returns why the daemon does not make weights of a format on a product; empty if it does, or if one of both is not known."""
    needed = _lacking(product, quantisation)
    return f"{quantisation} weights need {needed}" if needed else ""


@cache
def no_kept(product: str, dtype: str) -> str:
    """Returns the same for keys and values in `engine.kvCache.dtype`."""
    needed = _lacking(product, _KEPT.get(dtype, ""))
    return f"engine.kvCache.dtype {dtype} needs {needed}" if needed else ""


def _lacking(product: str, number_format: str) -> str:
    found = next((one.capability for one in platforms().products if one.product == product), None)
    least = _LEAST_CAPABILITY.get(number_format)
    if found is None or least is None or found >= least:
        return ""
    needed, has = (f"{major}.{minor}" for major, minor in (least, found))
    return f"compute capability {needed}, this device has {has}"


@cache
def slices() -> Mapping[str, int]:
    """Returns the bytes of every MIG profile that some device has; the least, if devices differ."""
    found: dict[str, int] = {}
    for device in catalogue():
        if device.profile is not None:
            found[device.profile] = min(device.memory_bytes, found.get(device.profile, device.memory_bytes))
    return found


def matches(word: str | None, label: str) -> bool:
    """Whether a word is the product label or whole words of it: H100, A100-SXM4 and 80GB are words of NVIDIA-A100-SXM4-80GB, 100 is not."""
    return word is None or f"-{word.lower()}-" in f"-{label.lower()}-"


def unknown_product(word: str) -> str:
    """Returns why a word names no GPU of the catalogue, with the nearest names; empty if it names one."""
    if any(matches(word, product) for product in products()):
        return ""
    near = get_close_matches(word.upper(), _names(), n=3, cutoff=0.0)
    return f"the catalogue has no GPU {word}; near names are {', '.join(_names()[one] for one in near)}"


@cache
def _names() -> Mapping[str, str]:
    """What people call products, by its capitals: H100, A100, A100-SXM4-80GB."""
    short = [product.removeprefix("NVIDIA-").removeprefix("Tesla-") for product in products()]
    models = [next(word for word in name.split("-") if any(map(str.isdigit, word))) for name in short]
    return {name.upper(): name for name in (*models, *short)}


def identify(labels: Mapping[str, str]) -> Known | None:
    """Returns the GPU that a node's provider names; None if no label or machine type is known."""
    for platform in platforms().platforms:
        value = labels.get(platform.key)
        product = _by_value(platform.name).get(value) if value else None
        if product is not None:
            return Known(product, products()[product], label_of(platform, product))
    return next((known for row in platforms().described if (known := _described(row, labels)) is not None), None)


def label_of(platform: Platform, product: str) -> str:
    """Returns the label by which a platform's nodes with a product are found; empty if it sells none."""
    values = platform.values.get(product, ())
    return f"{platform.key}={'|'.join(values)}" if values else ""


def seen(labels: Iterable[str]) -> Platform | None:
    """Returns the platform that the names of nodes' labels show."""
    names = tuple(labels)
    return next((one for one in platforms().platforms if any(name.startswith(one.shown_by) for name in names)), None)


@lru_cache(maxsize=256)  # for each resource of a node at each heartbeat
def vendor_of(resource: str) -> Vendor | None:
    """Returns whose devices a resource or a DRA driver's are, MIG slices included; None if it is none that the table knows."""
    named = (one for one in platforms().vendors if resource and resource in (one.resource, one.driver))
    return next(named, None) or next((one for one in platforms().vendors if _is_part(resource, one)), None)


def driver_for(cuda: str) -> str:
    """Returns the oldest Linux driver that offers a CUDA version; empty if the table does not have it."""
    return platforms().drivers.get(cuda, "")


def _is_part(resource: str, vendor: Vendor) -> bool:
    return resource.startswith((f"{vendor.resource}.", f"{vendor.resource.partition('/')[0]}/mig-"))


@cache
def _by_value(name: str) -> Mapping[str, str]:
    rows = next(one for one in platforms().platforms if one.name == name).values
    return {value: product for product, values in rows.items() for value in values}


def _described(row: Described, labels: Mapping[str, str]) -> Known | None:
    value, memory = labels.get(row.product, ""), labels.get(row.memory, "")
    if not value or not memory.isdecimal():
        return None
    return Known(value.replace("_", "-"), int(memory) * row.bytes, f"{row.product}={value}")
