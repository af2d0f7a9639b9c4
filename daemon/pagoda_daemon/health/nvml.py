"""DeviceWatch: reads the device's health through NVML, on a thread of its own, and hands it to the front's loop.

Started by `api/front/front.py`; it begins when the engine says which device it computes on. Only the device is read: no step waits for it,
and where the driver hangs, only this thread does. NVML comes with the driver; its Python names (`pynvml`, package nvidia-ml-py) are an
optional import. Without either, or on another device than NVIDIA's, there is nothing to read, and one line of the log says so.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import structlog

from pagoda_daemon.health.device import THROTTLES, DeviceIdentity, DeviceReading, DeviceVerdict, Grade, judge
from pagoda_daemon.health.replica import Replica

log = structlog.get_logger()

_EVERY_S: Final = 10.0
_LOOK_MS: Final = 1_000  # an Xid is heard at once; this bounds how long the thread outlives its front
_BURST_S: Final = 0.1  # Xids come in bursts: the device is not read for each
_MOST_EVENTS: Final = 1_000
_ALL_INSTANCES: Final = 0xFFFFFFFF  # of an event that is not one slice's


def load_nvml() -> Any:
    """The module; ImportError where it is not installed."""
    import pynvml  # type: ignore[import-untyped]

    return pynvml


class DeviceReader:
    """One device, from construction to `close`; `nvml` is pynvml. Raises `nvml.NVMLError` where there is no driver or no such device."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        """`uuid`: as torch writes it, without a prefix."""
        self._nvml = nvml
        nvml.nvmlInit()
        self._part, self._whole = _handles(nvml, uuid)
        self._identity = self._identified()
        self._xids: Counter[int] = Counter()
        self._events = self._subscribed()
        self._last = DeviceReading(self._identity, before=self._uncorrected())

    def read(self) -> DeviceReading:
        """All of it, now."""
        nvml = self._nvml
        try:
            memory = self._ask("nvmlDeviceGetMemoryInfo", self._part)
            remapped = self._ask("nvmlDeviceGetRemappedRows", self._whole)
            self._last = replace(
                self._last,
                memory_used=None if memory is None else int(memory.used),
                memory_total=None if memory is None else int(memory.total),
                celsius=self._ask("nvmlDeviceGetTemperature", self._whole, nvml.NVML_TEMPERATURE_GPU),
                uncorrected=self._uncorrected(),
                remap_pending=None if remapped is None else bool(remapped[2]),
                remap_failed=None if remapped is None else bool(remapped[3]),
                throttled=self._throttled(),
                lost="",
            )
        except nvml.NVMLError as error:
            self._last = replace(self._last, lost=str(error))
        self._last = replace(self._last, xids=dict(self._xids))
        return self._last

    @property
    def hears(self) -> bool:
        """Whether Xids are told at all."""
        return self._events is not None

    def heard(self, within_ms: int) -> bool:
        """Waits for Xids, at most so long, and notes those that came; False if none is new."""
        before = self._xids.total()
        event = self._event(within_ms)
        for _ in range(_MOST_EVENTS):
            if event is None:
                break
            if event.eventType == self._nvml.nvmlEventTypeXidCriticalError and self._is_ours(event):
                self._xids[int(event.eventData)] += 1
            event = self._event(0)
        return self._xids.total() > before

    def close(self) -> None:
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _identified(self) -> DeviceIdentity:
        is_slice = self._part is not self._whole
        return DeviceIdentity(
            str(self._ask("nvmlDeviceGetUUID", self._part) or ""),
            str(self._ask("nvmlDeviceGetName", self._part) or ""),
            str(self._ask("nvmlSystemGetDriverVersion") or ""),
            self._ask("nvmlDeviceGetGpuInstanceId", self._part) if is_slice else None,
            self._ask("nvmlDeviceGetComputeInstanceId", self._part) if is_slice else None,
        )

    def _subscribed(self) -> Any:
        """The set of events; None where the device or our rights have none."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(self._whole, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as error:
            log.info("device_events_off", why=str(error))
            return None
        return events

    def _event(self, within_ms: int) -> Any:
        """None if none came."""
        nvml = self._nvml
        if self._events is None:
            return None
        try:
            return nvml.nvmlEventSetWait_v2(self._events, within_ms)
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_TIMEOUT:
                log.info("device_events_off", why=str(error))
                self._events = None
            return None

    def _is_ours(self, event: Any) -> bool:
        instance = event.gpuInstanceId
        return self._identity.gpu_instance is None or instance in (_ALL_INSTANCES, self._identity.gpu_instance)

    def _uncorrected(self) -> int | None:
        nvml = self._nvml
        kinds = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        found = self._ask("nvmlDeviceGetTotalEccErrors", self._whole, *kinds)
        return None if found is None else int(found)

    def _throttled(self) -> tuple[str, ...]:
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", self._whole) or 0
        return tuple(what for name, what in THROTTLES.items() if bits & getattr(self._nvml, name))

    def _ask(self, name: str, *arguments: Any) -> Any:
        """None where the device does not say it. NVMLError if it cannot be read any more."""
        nvml = self._nvml
        try:
            return getattr(nvml, name)(*arguments)
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED):
                raise
            return None


def _handles(nvml: Any, uuid: str) -> tuple[Any, Any]:
    """What this process computes on, and the GPU that it is or is part of. Where the uuid is the GPU's though it is partitioned, the first
    slice that is visible here: a container sees its own, and CUDA takes the first."""
    part = _by_uuid(nvml, uuid)
    if nvml.nvmlDeviceIsMigDeviceHandle(part):
        return part, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
    return next(_slices(nvml, part), part), part


def _by_uuid(nvml: Any, uuid: str) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")


def _slices(nvml: Any, whole: Any) -> Iterator[Any]:
    with suppress(nvml.NVMLError):  # one that cannot be partitioned
        if nvml.nvmlDeviceGetMigMode(whole)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(whole)):
            with suppress(nvml.NVMLError):
                yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, index)


class DeviceWatch:
    """One for each front, made in its loop; `close` ends it. `nvml` gives pynvml, or raises ImportError."""

    def __init__(self, replica: Replica, nvml: Callable[[], Any] = load_nvml, every_s: float = _EVERY_S) -> None:
        self._replica, self._nvml, self._every_s = replica, nvml, every_s
        self._loop = asyncio.get_running_loop()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        replica.listeners.append(self._look)
        self._look()

    def close(self) -> None:
        """Asks the thread to end; it is not waited for, since the driver may hang."""
        self._closed.set()

    def _look(self) -> None:
        limits = self._replica.limits
        if self._thread is None and limits is not None and limits.device:
            self._thread = threading.Thread(target=self._run, args=(limits.device,), name="device-health", daemon=True)
            self._thread.start()

    def _run(self, uuid: str) -> None:
        try:
            reader = DeviceReader(self._nvml(), uuid)
        except Exception as error:  # noqa: BLE001  no module, no driver, no such device: nothing can be read, and all else goes on
            log.warning("device_health_off", device=uuid, why=f"{type(error).__name__}: {error}")
            return
        try:
            while not self._closed.is_set():
                self._report(reader.read())
                self._wait(reader)
        except Exception:
            log.exception("device_health_broken")  # our own bug: the replica serves on, and the age of the last reading shows it
        reader.close()

    def _wait(self, reader: DeviceReader) -> None:
        """Until the next reading is due, or an Xid came."""
        due = time.monotonic() + self._every_s
        while not self._closed.is_set() and (left_s := due - time.monotonic()) > 0:
            if not reader.hears:
                self._closed.wait(left_s)
            elif reader.heard(min(_LOOK_MS, 1 + int(1000 * left_s))):
                self._closed.wait(_BURST_S)
                return

    def _report(self, reading: DeviceReading) -> None:
        with suppress(RuntimeError):  # the loop is closed: the end has come
            self._loop.call_soon_threadsafe(self._take, reading, judge(reading), time.monotonic())

    def _take(self, reading: DeviceReading, verdict: DeviceVerdict, now: float) -> None:
        health = self._replica.device
        if health.reading is None:
            log.info("device", **reading.identity._asdict(), memory_total=reading.memory_total)
        known, health.reading, health.read_at, health.verdict = health.verdict, reading, now, verdict
        if verdict != known:
            level = {Grade.OK: 20, Grade.DEGRADED: 30, Grade.FAILED: 40}[verdict.grade]
            log.log(level, "device_health", grade=verdict.grade, why=verdict.why, xids=reading.xids)
            self._replica.changed()
