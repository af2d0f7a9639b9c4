"""Outcomes: how the device's jobs end. Made by `device` and `overlap`, read by `loop`."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda_daemon.core.batch import StepResult, WorkerLimits
from pagoda_daemon.runner.adapters import AdapterStore
from pagoda_daemon.runner.worker import Worker


@dataclass(frozen=True, slots=True)
class Loaded:
    """The worker is warm."""

    limits: WorkerLimits
    adapters: AdapterStore | None = None


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """There is no worker."""

    error: Exception


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The step raised; `alive` tells whether the worker still passes its probe."""

    error: Exception
    alive: bool


Outcome = Loaded | LoadFailed | StepResult | StepFailed


def passes_probe(worker: Worker) -> bool:
    try:
        worker.probe()
    except Exception:  # noqa: BLE001  the verdict is the answer
        return False
    return True
