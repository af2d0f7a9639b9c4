"""The families of the device, from its last reading. Pure; called by `exposition`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pagoda_contracts import metrics as names
from pagoda_contracts.metrics import Metric

from pagoda_daemon.health.device import THROTTLES, DeviceHealth, DeviceReading, Grade

_FAMILIES: Final = (
    *(names.DEVICE_INFO, names.DEVICE_STATE, names.DEVICE_MEMORY, names.DEVICE_CELSIUS, names.DEVICE_ECC, names.DEVICE_REMAP),
    *(names.DEVICE_THROTTLED, names.DEVICE_XIDS, names.DEVICE_READ_AGE),
)


def device_values(health: DeviceHealth, now: float) -> dict[Metric, Mapping[Any, float]]:
    """At `now` of the monotonic clock. What the device does not tell has no series."""
    reading = health.reading
    if reading is None:
        return {metric: {} for metric in _FAMILIES}
    identity = reading.identity
    instances = ("" if one is None else str(one) for one in (identity.gpu_instance, identity.compute_instance))
    return {
        names.DEVICE_INFO: {(identity.uuid, identity.name, identity.driver, *instances): 1},
        names.DEVICE_STATE: {(grade.value,): grade is health.verdict.grade for grade in Grade},
        names.DEVICE_MEMORY: _memory(reading),
        names.DEVICE_CELSIUS: _known({(): reading.celsius}),
        names.DEVICE_ECC: _known({(): reading.uncorrected}),
        names.DEVICE_REMAP: _known({("pending",): reading.remap_pending, ("failed",): reading.remap_failed}),
        names.DEVICE_THROTTLED: {(reason,): reason in reading.throttled for reason in THROTTLES.values()},
        names.DEVICE_XIDS: {(str(code),): count for code, count in sorted(reading.xids.items())},
        names.DEVICE_READ_AGE: {(): max(0.0, now - health.read_at)},
    }


def _memory(reading: DeviceReading) -> Mapping[Any, float]:
    used, total = reading.memory_used, reading.memory_total
    return {} if used is None or total is None else {("used",): used, ("free",): total - used}


def _known(found: Mapping[Any, float | None]) -> Mapping[Any, float]:
    return {labels: value for labels, value in found.items() if value is not None}
