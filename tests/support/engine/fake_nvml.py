"""NVML without a driver: one GPU, whole or with slices, which says what a test sets. Names, constants and errors are the package's own, and
a function that the fake does not have cannot be called."""

from __future__ import annotations

import queue
from ctypes import c_uint
from types import SimpleNamespace
from typing import Any, Final

import pynvml

UUID: Final = "11111111-2222-3333-4444-555555555555"
SLICES: Final = ("aaaaaaaa-0000-0000-0000-000000000001", "aaaaaaaa-0000-0000-0000-000000000002")
WHOLE: Final = 0xFFFFFFFF
_HASTE: Final = 50_000  # milliseconds that pass in a second, while somebody waits for events


class FakeNvml:
    """`slices` 0: the GPU is whole. What is in `unsupported` raises that, and every read does if `lost` is set."""

    NVMLError = pynvml.NVMLError

    def __init__(self, slices: int = 0) -> None:
        self.slices = SLICES[:slices]
        self.uncorrected = 0
        self.remapped = (0, 0, 0, 0)
        self.throttled = 0
        self.unsupported: set[str] = set()
        self.lost: int | None = None
        self.running = 0
        self._events: queue.SimpleQueue[SimpleNamespace] = queue.SimpleQueue()

    def __getattr__(self, name: str) -> Any:
        value = getattr(pynvml, name)
        if callable(value):
            raise AttributeError(f"the fake has no {name}")  # noqa: TRY004
        return value

    def raise_xid(self, code: int, instance: int = WHOLE) -> None:
        """The driver reports it."""
        kind = pynvml.nvmlEventTypeXidCriticalError
        self._events.put(SimpleNamespace(eventType=kind, eventData=code, gpuInstanceId=instance, computeInstanceId=instance))

    def nvmlInit(self) -> None:
        self._say("nvmlInit")
        self.running += 1

    def nvmlShutdown(self) -> None:
        self.running -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        known = [f"GPU-{UUID}", *(f"MIG-{one}" for one in self.slices)]
        if uuid not in known:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return uuid

    def nvmlDeviceIsMigDeviceHandle(self, device: str) -> c_uint:
        return c_uint(device.startswith("MIG-"))

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, migDevice: str) -> str:
        return f"GPU-{UUID}"

    def nvmlDeviceGetMigMode(self, device: str) -> list[int]:
        self._say("nvmlDeviceGetMigMode")
        return [int(bool(self.slices))] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, device: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: str, index: int) -> str:
        # A container sees the slices that it was given, at whichever index.
        if not 2 <= index < 2 + len(self.slices):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return f"MIG-{self.slices[index - 2]}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "NVIDIA H100 80GB HBM3" + " MIG 1g.10gb" * handle.startswith("MIG-")

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlDeviceGetGpuInstanceId(self, device: str) -> int:
        return 9 + self.slices.index(device.removeprefix("MIG-"))

    def nvmlDeviceGetComputeInstanceId(self, device: str) -> int:
        return self.slices.index(device.removeprefix("MIG-")) * 0

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> SimpleNamespace:
        self._say("nvmlDeviceGetMemoryInfo")
        total = 10 if handle.startswith("MIG-") else 80
        return SimpleNamespace(total=total * 2**30, used=3 * 2**30, free=(total - 3) * 2**30)

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        self._say("nvmlDeviceGetTemperature")
        return 41

    def nvmlDeviceGetTotalEccErrors(self, handle: str, errorType: int, counterType: int) -> int:
        self._say("nvmlDeviceGetTotalEccErrors")
        return self.uncorrected

    def nvmlDeviceGetRemappedRows(self, device: str) -> tuple[int, int, int, int]:
        self._say("nvmlDeviceGetRemappedRows")
        return self.remapped

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        self._say("nvmlDeviceGetCurrentClocksEventReasons")
        return self.throttled

    def nvmlEventSetCreate(self) -> object:
        self._say("nvmlEventSetCreate")
        return self._events

    def nvmlDeviceRegisterEvents(self, handle: str, eventTypes: int, eventSet: object) -> None:
        assert handle == f"GPU-{UUID}", "events are the whole GPU's"
        assert eventTypes == pynvml.nvmlEventTypeXidCriticalError

    def nvmlEventSetWait_v2(self, eventSet: object, timeoutms: int) -> SimpleNamespace:
        try:
            return self._events.get(timeout=timeoutms / _HASTE)
        except queue.Empty:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT) from None

    def _say(self, name: str) -> None:
        if name in self.unsupported:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if self.lost is not None:
            raise pynvml.NVMLError(self.lost)
