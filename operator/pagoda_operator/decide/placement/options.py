"""What one entry of `accelerators[]` can come down to in a fleet: each class of devices with its verdict. Pure; called by `place`.

A verdict says whether the class can ever do, how many replicas it has room for now, and why not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pagoda_contracts.names import DEVICE_CLASS_MIG
from pagoda_contracts.resources.placement import Accelerator, CpuAccelerator, DraAccelerator, GpuAccelerator, MigAccelerator
from pagoda_contracts.units import parse_duration, parse_quantity
from pagoda_sizing.devices import catalogue

from pagoda_operator.api.placement import Resolved
from pagoda_operator.inventory.fit import Requirement, gib, why_not, why_not_on_cpu
from pagoda_operator.inventory.fleet import DeviceClass, Fleet, Room, Terms, claimable, classes
from pagoda_operator.inventory.values import matches, parse_profile

UNBOUNDED: Final = 1 << 20
# Of the GB in a profile's name, where no label says what a slice has: NVIDIA's own tables are between 0.93 and 1.06 of it.
_NAMED_SHARE: Final = 0.93


class Demand(NamedTuple):
    """What options are judged by. `required` is None while the model's shape is not known: size is then not judged."""

    fleet: Fleet
    terms: Terms
    required: Requirement | None
    known: tuple[DeviceClass, ...]
    """What device plugins offer."""


@dataclass(frozen=True)
class Option:
    """One way to have an entry. `free` counts replicas; `why` is empty where there is room now."""

    resolved: Resolved
    kind: DeviceClass | None
    ever: bool
    free: int
    why: str


class _Wish(NamedTuple):
    """A class of devices that an entry asks for."""

    kind: DeviceClass
    needs: int
    refusal: str = ""


def demanded(fleet: Fleet, terms: Terms, required: Requirement | None) -> Demand:
    """With the classes there are, once for all entries."""
    return Demand(fleet, terms, required, classes(fleet, terms))


def options(entry: Accelerator, demand: Demand) -> tuple[Option, ...]:
    """Every class that the entry could mean, small ones first; none where no node offers anything of the kind."""
    if entry.cpu is not None:
        return (_on_cpu(entry.cpu, demand.required),)
    return tuple(_option(wish, entry, demand) for wish in _wishes(entry, demand))


def _on_cpu(cpu: CpuAccelerator, required: Requirement | None) -> Option:
    """The model against its own memory. Of nodes nothing is said beforehand: larger ones may come, and for a pod that waits they do."""
    why = why_not_on_cpu(required, int(parse_quantity(cpu.memory))) if required else ""
    return Option(Resolved(), None, ever=not why, free=0 if why else UNBOUNDED, why=why)


def absent(entry: Accelerator, demand: Demand) -> str:
    """Why there is no option at all: what is required for, and what there is instead."""
    known = sorted({kind.name for kind in demand.known})
    if entry.dra is not None:
        return f"no ResourceSlice has a device of class {entry.dra.device_class_name} that matches the selectors"
    return f"no node offers {_named(entry)}; offered: {', '.join(known) or 'nothing'}"


def _named(entry: Accelerator) -> str:
    if entry.gpu is not None:
        return f"a whole GPU {entry.gpu.product}" if entry.gpu.product else "a whole GPU"
    profile = entry.mig.profile if entry.mig else None
    return f"mig-{profile}" if profile else "a MIG slice"


def _wishes(entry: Accelerator, demand: Demand) -> Iterator[_Wish]:
    if entry.gpu is not None:
        return _gpus(entry.gpu, demand.known)
    if entry.mig is not None:
        return _slices(entry.mig, demand.known)
    if entry.dra is not None:
        return _claims(entry.dra, demand)
    return iter(())


def _gpus(gpu: GpuAccelerator, known: Iterable[DeviceClass]) -> Iterator[_Wish]:
    for kind in known:
        if kind.profile is None and matches(gpu.product, kind.product):
            yield _Wish(kind, gpu.count)


def _slices(mig: MigAccelerator, known: Iterable[DeviceClass]) -> Iterator[_Wish]:
    wanted = parse_profile(mig.profile) if mig.profile else None
    least = int(parse_quantity(mig.min_memory)) if mig.min_memory else 0
    for kind in known:
        if kind.profile is None or (wanted is not None and kind.profile != wanted):
            continue
        memory = memory_of(kind)
        short = memory is not None and memory < least
        yield _Wish(kind, 1, f"has {gib(memory)}, but minMemory is {gib(least)}" if short and memory is not None else "")


def _claims(dra: DraAccelerator, demand: Demand) -> Iterator[_Wish]:
    for kind in claimable(demand.fleet, demand.terms, dra.device_class_name, dra.selectors):
        sliced = kind.profile is not None or dra.device_class_name == DEVICE_CLASS_MIG
        never = (
            f"asks for {dra.count} slices per replica, but tensor parallelism cannot span MIG slices" if sliced and dra.count > 1 else ""
        )
        yield _Wish(kind, dra.count, never)


def memory_of(kind: DeviceClass) -> int | None:
    """One device's bytes: by its label, else by the profile's name, else by the catalogue; None where nobody knows."""
    if kind.memory is not None:
        return kind.memory
    if kind.profile is not None:
        return int(kind.profile.gb * 10**9 * _NAMED_SHARE)
    known = (device.memory_bytes for device in catalogue() if device.profile is None and device.product == kind.product)
    return next(known, None)


def _option(wish: _Wish, entry: Accelerator, demand: Demand) -> Option:
    kind, count = wish.kind, wish.needs
    resolved = _resolved(entry, kind, count)
    useful = [room for room in kind.rooms if room.block is None or room.block.passing]
    why = wish.refusal or _unfit(kind, count, demand.required) or _unreachable(kind.rooms, useful) or _too_few(useful, count)
    if why:
        return Option(resolved, kind, ever=False, free=0, why=_with_name(kind, why))
    free = sum(room.free // count for room in useful)
    return Option(resolved, kind, ever=True, free=free, why="" if free else _with_name(kind, _occupied(useful, count)))


def _with_name(kind: DeviceClass, why: str) -> str:
    return f"{kind.name}: {why}"


def _resolved(entry: Accelerator, kind: DeviceClass, count: int) -> Resolved:
    many = f"{count} x " if count > 1 else ""
    memory = memory_of(kind)
    device = f"{many}{kind.name}" + (f", {gib(memory)}" if memory else "")
    profile = kind.profile.name if kind.profile else ""
    if entry.dra is not None:
        return Resolved(profile=profile, product=kind.product, device=device)
    return Resolved(resource=kind.resource, profile=profile, labels=(kind.label,) if kind.label else (), device=device)


def _unfit(kind: DeviceClass, count: int, required: Requirement | None) -> str:
    if kind.shared:
        return "shared by several pods (time-slicing or MPS), so that a replica cannot rely on its memory"
    memory = memory_of(kind)
    if memory is None:
        return "memory unknown, because GPU Feature Discovery has not labelled the node"
    return why_not(required, memory, count) if required else ""


def _unreachable(rooms: tuple[Room, ...], useful: list[Room]) -> str:
    """Every node is barred for good: by what, and how many."""
    if useful:
        return ""
    reasons = sorted({room.block.why for room in rooms if room.block})
    where = rooms[0].node.name if len(rooms) == 1 else f"{len(rooms)} nodes"
    return f"{where}: {'; '.join(reasons)}"


def _too_few(useful: list[Room], count: int) -> str:
    most = max((room.total for room in useful), default=0)
    return f"needs {count} devices on one node, but the largest node has {most}" if most < count else ""


def _occupied(useful: list[Room], count: int) -> str:
    """Without numbers of the moment: each would be a write."""
    passing = sorted({f"{room.node.name} is {room.block.why}" for room in useful if room.block})
    barred = f"; {'; '.join(passing[:3])}" if passing else ""
    if passing and len(passing) == len(useful):
        return "; ".join(passing[:3])
    total = sum(room.total for room in useful)
    if count > 1:
        return f"no node has {count} of the {total} devices free{barred}"
    return (f"all {total} devices are in use" if total > 1 else "the only device is in use") + barred


def merged(found: Iterable[Option]) -> tuple[Option, ...]:
    """Options that one pod template can ask for are one: same resource and profile, on whichever of their nodes."""
    kept: dict[tuple[str, ...], Option] = {}
    for option in found:
        resolved = option.resolved
        key = (resolved.resource, resolved.profile, resolved.product)
        if key not in kept:
            kept[key] = option
            continue
        first = kept[key]
        labels = tuple(sorted({*first.resolved.labels, *resolved.labels}))
        device = ", or ".join(dict.fromkeys([first.resolved.device, resolved.device]))
        both = replace(first.resolved, labels=labels, device=device)
        kept[key] = replace(first, resolved=both, free=first.free + option.free, why=first.why and option.why)
    return tuple(kept.values())


class Candidate(NamedTuple):
    """An entry with all that it could come down to."""

    position: int
    entry: Accelerator
    options: tuple[Option, ...]
    absent: str

    @property
    def name(self) -> str:
        """As the status calls it, such as gpu[0]."""
        return f"{''.join(self.entry.kinds)}[{self.position}]"

    @property
    def able(self) -> tuple[Option, ...]:
        """What can ever do, one per pod template, small first."""
        return merged(option for option in self.options if option.ever)

    @property
    def wait(self) -> float | None:
        """Seconds to wait for it; None for ever."""
        return parse_duration(self.entry.fallback_after) if self.entry.fallback_after else None
