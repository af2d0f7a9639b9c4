"""AsyncDevice: a fake device that computes by itself, whose steps end when the test lets them, and which notes what came in which order."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass

from pagoda_daemon.core.batch import StepPlan, StepResult, WorkerLimits
from pagoda_daemon.simulated.device.worker import SimulatedWorker

PATIENCE_S = 60.0


class DeviceSaysNo(RuntimeError):
    """With the number of the step, or of the probe."""


@dataclass(frozen=True)
class Held:
    """The step `number`, until it may end."""

    device: AsyncDevice
    plan: StepPlan
    number: int

    def result(self) -> StepResult:
        return self.device.end(self.plan, self.number)


class AsyncDevice(SimulatedWorker):
    """Gives the simulated worker's streams. Steps, and probes, are numbered from 0; those named in `bad_launches`, `bad_ends` and
    `bad_probes` raise. In `order` stand ("launch" | "end" | "probe", number) and what `note` was told; `overlapped` counts the launches
    while a step before was on its way."""

    def __init__(
        self, limits: WorkerLimits, bad_launches: Collection[int] = (), bad_ends: Collection[int] = (), bad_probes: Collection[int] = ()
    ) -> None:
        super().__init__(limits)
        self.bad_launches, self.bad_ends, self.bad_probes = bad_launches, bad_ends, bad_probes
        self.order: list[tuple[str, int]] = []
        self.threads: dict[str, set[threading.Thread]] = {}
        self.overlapped = self.launched = self.ended = self.most_under_way = 0
        self._probes = self._permitted = 0
        self._changed = threading.Condition()

    def launch(self, plan: StepPlan) -> Held:
        with self._changed:
            number = self.launched
            self.overlapped += self.ended < number
            self.note("launch", number)
            self.launched += 1
            self.ended += number in self.bad_launches
            self.most_under_way = max(self.most_under_way, self.launched - self.ended)
            self._changed.notify_all()
        if number in self.bad_launches:
            raise DeviceSaysNo(number)
        return Held(self, plan, number)

    def end(self, plan: StepPlan, number: int) -> StepResult:
        with self._changed:
            assert self._changed.wait_for(lambda: number < self._permitted, PATIENCE_S)
            self.note("end", number)
            self.ended += 1
        if number in self.bad_ends:
            raise DeviceSaysNo(number)
        return self.execute(plan)

    def probe(self) -> None:
        number, self._probes = self._probes, self._probes + 1
        self.note("probe", number)
        if number in self.bad_probes:
            raise DeviceSaysNo(number)

    def note(self, what: str, number: int) -> None:
        self.threads.setdefault(what, set()).add(threading.current_thread())
        self.order.append((what, number))

    def let_end(self, steps: int) -> None:
        """The first so many steps may end."""
        with self._changed:
            self._permitted = max(steps, self._permitted)
            self._changed.notify_all()

    def await_launches(self, steps: int) -> None:
        """Until so many steps were launched, though none need have ended."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.launched >= steps, PATIENCE_S), f"step {self.launched} was not launched"
