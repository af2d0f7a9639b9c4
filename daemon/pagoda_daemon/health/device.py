"""The device's health: what was read of it, and the verdict over that. Pure; made by `nvml`, shown by metrics and state frames.

A verdict of FAILED takes the replica out of routing, as a failed deep check does, and the operator starts a successor. So it is for devices
that must be reset or replaced; an Xid counts until this process ends. DEGRADED is shown and changes nothing: such a device computes, and if
it is slow, gateways see that by its steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from pagoda_daemon.health.xids import Blame, xid

# Names of NVML's bits, and what holds the clock down. A limit that was set (power cap, application clocks) is no fault.
THROTTLES: Final = {
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonHwThermalSlowdown": "too hot, by the hardware",
    "nvmlClocksEventReasonSwThermalSlowdown": "too hot, by the driver",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "power brake",
}


class Grade(StrEnum):
    """From well to worst."""

    OK = "ok"
    DEGRADED = "degraded"
    FAILED = "failed"


class DeviceVerdict(NamedTuple):
    """`why` is a sentence for a person; empty if the device is well."""

    grade: Grade = Grade.OK
    why: str = ""


_WELL: Final = DeviceVerdict()


class DeviceIdentity(NamedTuple):
    """`uuid` as NVML writes it: GPU-… or, for a MIG slice, MIG-…. The ids of the GPU instance and the compute instance are None where the
    device is a whole GPU."""

    uuid: str
    name: str = ""
    driver: str = ""
    gpu_instance: int | None = None
    compute_instance: int | None = None

    @property
    def shown(self) -> str:
        """For a person."""
        return f"{self.name or 'GPU'} {self.uuid}"


@dataclass(frozen=True)
class DeviceReading:
    """What NVML says at one time; None where the device or our rights do not tell it. Memory is in bytes and a slice's own, all else is the
    whole GPU's. `uncorrected`: memory errors that ECC could not correct since the driver was loaded, `before`: those of them at the first
    reading. `throttled`: why the clock is held down. `xids`: how often each came since the first reading. `lost`: why NVML cannot read
    the device any more."""

    identity: DeviceIdentity
    memory_used: int | None = None
    memory_total: int | None = None
    celsius: int | None = None
    uncorrected: int | None = None
    before: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    throttled: tuple[str, ...] = ()
    xids: Mapping[int, int] = field(default_factory=dict)
    lost: str = ""


@dataclass
class DeviceHealth:
    """The last reading, when it was made (seconds of the monotonic clock), and its verdict. No reading: NVML reads no device."""

    reading: DeviceReading | None = None
    read_at: float = 0.0
    verdict: DeviceVerdict = _WELL

    @property
    def fault(self) -> str:
        """Why the replica is to take no requests; empty if nothing speaks against it."""
        return self.verdict.why if self.verdict.grade is Grade.FAILED else ""


def judge(reading: DeviceReading) -> DeviceVerdict:
    """The worst that the reading says; of equals the first."""
    for grade, causes in ((Grade.FAILED, _failures(reading)), (Grade.DEGRADED, _doubts(reading))):
        if (why := next(causes, None)) is not None:
            return DeviceVerdict(grade, f"{reading.identity.shown}: {why}")
    return _WELL


def _failures(reading: DeviceReading) -> Iterator[str]:
    yield from _by_xid(reading, Blame.DEVICE)
    if reading.lost:
        yield f"it cannot be read any more ({reading.lost})"
    if reading.remap_failed:
        yield "its memory has more broken rows than spare ones (row remapping failed)"
    # A contained error ends the process that used that memory, which another slice's may be. A whole GPU has no other process.
    known = reading.identity.gpu_instance is None and reading.uncorrected is not None and reading.before is not None
    if known and (found := (reading.uncorrected or 0) - (reading.before or 0)) > 0:
        yield f"its memory had {found} errors that cannot be corrected since this replica started (ECC)"


def _doubts(reading: DeviceReading) -> Iterator[str]:
    yield from _by_xid(reading, Blame.WORN)
    if reading.remap_pending:
        yield "a reset is due, with which a broken row of its memory is replaced (row remapping pending)"
    if reading.uncorrected:
        yield f"the GPU's memory had {reading.uncorrected} errors that cannot be corrected since its driver was loaded (ECC)"
    if reading.throttled:
        yield f"its clock is held down: {', '.join(reading.throttled)}"


def _by_xid(reading: DeviceReading, blame: Blame) -> Iterator[str]:
    return (f"{found.what} (Xid {code})" for code in sorted(reading.xids) if (found := xid(code)).blame is blame)
