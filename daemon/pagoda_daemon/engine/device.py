"""Device: the worker on a thread of its own, so that the loop hears aborts and beats while a step computes.

Used by `engine.loop` only. Jobs run one after the other, so that the next one may wait while one computes and the device never waits for
the loop; the end of each makes `fileno` readable, which the loop polls beside its sockets. An AsyncWorker's steps are only launched here,
each as soon as it is planned, and end in `overlap`.
The same thread loads and computes, because torch's thread count belongs to the thread that sets it.
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from collections.abc import Callable

from pagoda_daemon.core.batch import StepPlan
from pagoda_daemon.engine.outcomes import Loaded, LoadFailed, Outcome, StepFailed, passes_probe
from pagoda_daemon.engine.overlap import Overlap
from pagoda_daemon.runner.worker import AsyncWorker, Worker


class Device:
    """Starts loading when made. `build` runs on the device's thread."""

    def __init__(self, build: Callable[[], Worker]) -> None:
        # The system call without letting go of the interpreter's lock, as os.eventfd_write would: the loop would take it and plan for
        # 200 us before this thread could start the step that is waiting already.
        self._ring = ctypes.PyDLL(None).eventfd_write
        self._ended = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._jobs: queue.SimpleQueue[StepPlan | Callable[[], object] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        # A daemon: a hung device must not keep the process from exiting.
        self._thread = threading.Thread(target=self._run, args=(build,), name="device", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable when an outcome waits."""
        return self._ended

    def start(self, plan: StepPlan) -> None:
        """Compute `plan` after those started before."""
        self._jobs.put(plan)

    def between_steps(self, change: Callable[[], object]) -> None:
        """Do `change` after the jobs started before have ended, on the thread that computes. It must not raise."""
        self._jobs.put(change)

    def outcome(self) -> Outcome | None:
        """The end of the oldest job, once; None while it is under way."""
        try:
            os.eventfd_read(self._ended)
        except BlockingIOError:
            return None
        return self._outcomes.get()

    def stop(self) -> None:
        """End the device's threads after the jobs started."""
        self._jobs.put(None)

    def __del__(self) -> None:
        # Not in `stop`: the thread may still write to it, and the loop still poll it.
        os.close(self._ended)

    def _run(self, build: Callable[[], Worker]) -> None:
        try:
            worker = build()
        except Exception as error:  # noqa: BLE001  any failure to load is the loop's to report
            self._report(LoadFailed(error))
            return
        self._report(Loaded(worker.limits, worker.adapters))
        if isinstance(worker, AsyncWorker):
            self._overlap(worker)
        else:
            self._in_turn(worker)

    def _in_turn(self, worker: Worker) -> None:
        while (job := self._jobs.get()) is not None:
            if isinstance(job, StepPlan):
                self._report(_attempt(worker, job))
            else:
                job()
            del job  # else an idle device keeps what it was given

    def _overlap(self, worker: AsyncWorker) -> None:
        steps = Overlap(worker, self._report, self.between_steps)
        while (job := self._jobs.get()) is not None:
            if isinstance(job, StepPlan):
                steps.launch(job)
            else:
                steps.settle()
                job()
            del job
        steps.stop()

    def _report(self, outcome: Outcome) -> None:
        self._outcomes.put(outcome)
        self._ring(self._ended, 1)


def _attempt(worker: Worker, plan: StepPlan) -> Outcome:
    try:
        return worker.execute(plan)
    except Exception as error:  # noqa: BLE001  whatever a device raises ends this step's requests only
        return StepFailed(error, passes_probe(worker))
