"""The classes of devices that one entry of `accelerators[]` can mean in a inventory. Pure; called by `place`.

For each class: whether it can ever be used, how many replicas it has room for now, and why it has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

from pagoda_contracts.resources.placement import Accelerator, CpuAccelerator, DraAccelerator, GpuAccelerator, MigAccelerator
from pagoda_contracts.units import parse_duration, parse_quantity
from pagoda_sizing.devices import GB
from pagoda_sizing.platforms import matches, no_daemon, no_format, no_kept
from pagoda_sizing.replica import Judged, Requirement, gib, on_cpu, on_device

from pagoda_placement.expected import Unseen, asked, expected
from pagoda_placement.inventory import DeviceClass, Inventory, Room, claimable, classes
from pagoda_placement.offers import refusal
from pagoda_placement.result import Resolved
from pagoda_placement.terms import Terms
from pagoda_placement.values import parse_profile

_UNBOUNDED: Final = 1 << 20
_DECIMAL: Final = ("k", "M", "G", "T")
_REMEDY: Final = "say it in the ServingProfile's devices, or install GPU Feature Discovery"
# A class of devices that an entry could mean, and why the entry refuses it.
_Wish = tuple[DeviceClass, str]


@dataclass(frozen=True)
class Demand:
    """What options are judged by. If `required` is None, the model's size is not; `unknowable`: why its size can never be known."""

    inventory: Inventory
    terms: Terms
    required: Requirement | None = None
    unknowable: str = ""

    @cached_property
    def known(self) -> tuple[DeviceClass, ...]:
        """What device plugins offer."""
        return classes(self.inventory, self.terms)

    @property
    def unseen(self) -> Unseen:
        """Where nodes may come from."""
        return Unseen(self.inventory, self.terms.devices)


@dataclass(frozen=True)
class Option:
    """One class of devices for an entry. `free` counts replicas; `why` is empty if there is room now. `requests`: of full length, that a
    replica holds; None if that is unknown."""

    resolved: Resolved
    kind: DeviceClass | None
    ever: bool
    free: int
    why: str
    requests: int | None = None

    @property
    def seen(self) -> bool:
        """Whether a node offers such devices, or did within a month; on CPU every node does."""
        return self.kind is None or not self.kind.expected

    @property
    def identity(self) -> dict[str, str]:
        """Equal for options that one revision can run on."""
        return self.resolved.identity


def options(entry: Accelerator, demand: Demand) -> tuple[Option, ...]:
    """Every class that the entry could mean, small ones first; none if no node offers anything of the kind."""
    if entry.cpu is not None:
        return (_on_cpu(entry.cpu, demand.required),)
    if entry.gpu is not None:
        wishes = _gpus(entry.gpu, demand.known)
    elif entry.mig is not None:
        wishes = _slices(entry.mig, demand.known)
    else:
        wishes = _claims(entry.dra, demand) if entry.dra is not None else iter(())
    found = tuple(_option(kind, refused, entry, demand) for kind, refused in wishes)
    return found or _to_come(entry, demand)


def _to_come(entry: Accelerator, demand: Demand) -> tuple[Option, ...]:
    """What a node pool without nodes may have: one option, for all that fits. It has no room yet."""
    judged = [(kind, _judged(kind, demand.required)) for kind in expected(entry, demand.unseen)]
    reasons = [(kind, one.why or demand.unknowable) for kind, one in judged]
    fit = [kind for kind, why in reasons if not why]
    if not fit:
        return tuple(Option(_resolved(entry, kind), kind, ever=False, free=0, why=f"{kind.name}: {why}") for kind, why in reasons)
    labels = tuple(kind.label for kind in fit if kind.label)
    products = tuple(sorted({product for kind in fit for product in _resolved(entry, kind).products}))
    device = " or ".join(dict.fromkeys(kind.name for kind in fit))
    resolved = replace(_resolved(entry, fit[0]), labels=labels, device=device, products=products)
    requests = _least(one.requests for _, one in judged if not one.why)
    return (Option(resolved, fit[0], ever=True, free=0, why=f"{_none(entry, demand)}; {asked(resolved)}", requests=requests),)


def _on_cpu(cpu: CpuAccelerator, required: Requirement | None) -> Option:
    """The model against the entry's own memory. Nodes are not counted, because larger ones may be added for a pending pod."""
    why = on_cpu(required, int(parse_quantity(cpu.memory))).why if required else ""
    return Option(Resolved(), None, ever=not why, free=0 if why else _UNBOUNDED, why=why)


def absent(entry: Accelerator, demand: Demand) -> str:
    """Why an entry has no option at all: what it asks for, and what the nodes offer."""
    if entry.dra is not None:
        return f"no ResourceSlice has a device of class {entry.dra.device_class_name} that matches the selectors"
    return f"{_none(entry, demand)}; {_unknown(entry)}"


def _none(entry: Accelerator, demand: Demand) -> str:
    if entry.gpu is not None:
        wanted = f"a whole GPU {entry.gpu.product}" if entry.gpu.product else "a whole GPU"
    else:
        wanted = f"mig-{entry.mig.profile}" if entry.mig and entry.mig.profile else "a MIG slice"
    known = sorted({kind.name for kind in demand.known})
    return f"no node offers {wanted}; offered: {', '.join(known) or _by_claim(demand)}"


def _by_claim(demand: Demand) -> str:
    """What is offered if no node has a resource: a DRA driver may have the devices."""
    drivers = sorted({one.driver for one in demand.inventory.slices})
    return f"devices of the DRA driver {', '.join(drivers)}, for which an entry must be dra" if drivers else "nothing"


def _unknown(entry: Accelerator) -> str:
    """Why no node pool without nodes is waited for."""
    if entry.gpu is not None and not entry.gpu.product:
        return "set gpu.product, such as L4, if a node pool without nodes has such GPUs"
    if entry.mig is not None and not entry.mig.profile:
        return "set mig.profile, such as 1g.10gb, if a node pool without nodes has such slices"
    return "neither the catalogue nor the ServingProfile's devices know it"


def _gpus(gpu: GpuAccelerator, known: Iterable[DeviceClass]) -> Iterator[_Wish]:
    for kind in known:
        if kind.profile is None and matches(gpu.product, kind.product):
            yield kind, refusal(kind.resource)


def _slices(mig: MigAccelerator, known: Iterable[DeviceClass]) -> Iterator[_Wish]:
    wanted = parse_profile(mig.profile) if mig.profile else None
    least = int(parse_quantity(mig.min_memory)) if mig.min_memory else 0
    for kind in known:
        if kind.profile is not None and wanted in (None, kind.profile):
            enough = least <= _sold(kind.profile.gb, mig.min_memory or "")
            yield kind, "" if enough else f"is sold with {kind.profile.gb} GB, but minMemory is {mig.min_memory}"


def _sold(gb: int, wished: str) -> int:
    """People write the size that a vendor sells, as 40G or as 40Gi: 3g.40gb of an H100 measures 39.5 GiB. So a size is taken in the unit
    of the wish. 42G would be less than 40Gi."""
    return gb * GB if wished.endswith(_DECIMAL) else gb << 30


def _claims(dra: DraAccelerator, demand: Demand) -> Iterator[_Wish]:
    for kind in claimable(demand.inventory, demand.terms, dra.device_class_name, dra.selectors):
        yield kind, refusal(kind.driver)


def _option(kind: DeviceClass, refusal: str, entry: Accelerator, demand: Demand) -> Option:
    resolved, judged = _resolved(entry, kind), _judged(kind, demand.required)
    useful = [room for room in kind.rooms if room.block is None or room.block.passing]
    if why := refusal or judged.why or _unreachable(kind.rooms, useful) or demand.unknowable:
        return Option(resolved, kind, ever=False, free=0, why=f"{kind.name}: {why}")
    free = sum(room.free // ranks(entry) for room in useful)  # a service of an older operator may run on several
    why = "" if free else f"{kind.name}: {_occupied(useful)}"
    return Option(resolved, kind, ever=True, free=free, why=why, requests=judged.requests)


def ranks(accelerator: Accelerator) -> int:
    """Returns the devices of a replica, which are the ranks of its tensor parallelism."""
    counted = accelerator.gpu or accelerator.dra
    return counted.count if counted is not None else 1


def _resolved(entry: Accelerator, kind: DeviceClass) -> Resolved:
    memory = kind.memory
    device = kind.name + (f", {gib(memory)}" if memory else "")
    profile = kind.profile.name if kind.profile else ""
    if entry.dra is not None:
        return Resolved(profile=profile, product=kind.product, device=device, products=(kind.product,))
    products = () if kind.profile else (kind.product,)
    labels = (kind.label,) if kind.label else ()
    return Resolved(resource=kind.resource, profile=profile, labels=labels, device=device, products=products)


def _judged(kind: DeviceClass, required: Requirement | None) -> Judged:
    if kind.shared:
        return Judged("shared by several pods (time-slicing or MPS), so that a replica cannot rely on its memory")
    if why := no_daemon(kind.product):
        return Judged(why)
    engine = required.engine if required else None
    if engine and (why := no_format(kind.product, engine.quantization) or no_kept(kind.product, engine.kv_cache.dtype)):
        return Judged(why)
    memory = kind.memory
    if memory is None:
        named = f"no label says the memory of {kind.product}" if kind.product else "no label names the GPU"
        where = f" of {kind.rooms[0].node.name}" if kind.rooms else ""
        return Judged(f"memory unknown, because {named}{where}; {_REMEDY}")
    return on_device(required, memory, kind.product) if required else Judged()


def _least(counts: Iterable[int | None]) -> int | None:
    return min((count for count in counts if count is not None), default=None)


def _unreachable(rooms: tuple[Room, ...], useful: list[Room]) -> str:
    """Why no node can be used, and how many there are, if none will be usable without an edit."""
    if useful:
        return ""
    reasons = sorted({room.block.why for room in rooms if room.block})
    where = rooms[0].node.name if len(rooms) == 1 else f"{len(rooms)} nodes"
    return f"{where}: {'; '.join(reasons)}"


def _occupied(useful: list[Room]) -> str:
    """Without numbers that change by the second, because each change would be a status write."""
    passing = sorted({f"{room.node.name} is {room.block.why}" for room in useful if room.block})
    if passing and len(passing) == len(useful):
        return "; ".join(passing[:3])
    barred = f"; {'; '.join(passing[:3])}" if passing else ""
    total = sum(room.total for room in useful)
    return (f"all {total} devices are in use" if total > 1 else "the only device is in use") + barred


def merged(found: Iterable[Option]) -> tuple[Option, ...]:
    """Joins options that one pod template can ask for: the same resource, profile and product, on nodes with any label."""
    kept: dict[tuple[str, ...], Option] = {}
    for option in found:
        resolved = option.resolved
        key = (resolved.resource, resolved.profile, resolved.product)
        first = kept.setdefault(key, option)
        if first is not option:
            labels = tuple(sorted({*first.resolved.labels, *resolved.labels}))
            device = ", or ".join(dict.fromkeys([first.resolved.device, resolved.device]))
            products = tuple(sorted({*first.resolved.products, *resolved.products}))
            both = replace(first.resolved, labels=labels, device=device, products=products)
            why, requests = first.why and option.why, _least((first.requests, option.requests))
            kept[key] = replace(first, resolved=both, free=first.free + option.free, why=why, requests=requests)
    return tuple(kept.values())


class Candidate(NamedTuple):
    """An entry and its options."""

    position: int
    entry: Accelerator
    options: tuple[Option, ...]
    absent: str

    @property
    def name(self) -> str:
        """As in the status, such as gpu[0]."""
        return f"{''.join(self.entry.kinds)}[{self.position}]"

    @property
    def able(self) -> tuple[Option, ...]:
        """Options that can ever be used, one per pod template, small first."""
        return merged(option for option in self.options if option.ever)

    @property
    def seen(self) -> bool:
        """Whether nodes offer what it can be used on, or did within a month."""
        return any(option.seen for option in self.able)

    @property
    def wait(self) -> float | None:
        """Seconds to wait for it; None means without end."""
        return parse_duration(self.entry.fallback_after) if self.entry.fallback_after else None
