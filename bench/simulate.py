"""The core's own cost: the simulator's row-steps per CPU-second, and plan + commit at a steady batch. Prints JSON.

`python -P bench/simulate.py [--requests 6000]`. Poisson arrivals, prompts of 512 and answers of 128 tokens in the mean, 5 % of prompts at
4,096, Llama-3.1-8B on an H100; everything the engine's loop does is counted but the wire: submit, hashing, plan, commit, outputs.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import replace
from importlib import resources
from typing import Any

import numpy as np
from pagoda_daemon.core.batch import StepPlan, StepResult, WorkerLimits
from pagoda_daemon.core.messages import Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.scheduler.admission import Arrival, submit
from pagoda_daemon.scheduler.commit import commit
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.plan import plan
from pagoda_daemon.scheduler.state import State
from pagoda_daemon.simulated.device.pace import Pace
from pagoda_daemon.simulated.device.virtual import Metronome
from pagoda_daemon.simulated.replay.report import Objective, report
from pagoda_daemon.simulated.replay.run import Simulation
from pagoda_daemon.simulated.replay.trace import drawn
from pagoda_sizing.devices import find
from pagoda_sizing.families import parse_model


def llama() -> dict[str, Any]:
    """The catalogue's config of Llama-3.1-8B."""
    known = json.loads(resources.files("pagoda_sizing").joinpath("data/models.json").read_text())
    config: dict[str, Any] = next(entry["config"] for entry in known if entry["name"] == "meta-llama/Llama-3.1-8B")
    return config


class Meter:
    """CPU time and row-steps of the steps with at least `rows` rows: all that happens between two plans."""

    def __init__(self, rows: int) -> None:
        self.rows, self.cpu_s, self.row_steps, self.steps = rows, 0.0, 0, 0
        self._last: tuple[float, int] | None = None

    def __call__(self, _: State, step: StepPlan) -> None:
        now = time.process_time()
        if self._last is not None:
            self.cpu_s += now - self._last[0]
            self.row_steps += self._last[1]
            self.steps += 1
        self._last = (now, int(step.rows.size)) if step.rows.size >= self.rows else None


def load(requests: int, rows: int) -> dict[str, Any]:
    """A saturated replica; what counts are the steps with 256 rows or more."""
    config = llama()
    pace = Pace(parse_model(config), find("h100"), config["vocab_size"])
    worker = Metronome(pace.limits(16, 8192), pace.milliseconds)
    # No job is refused: each one must be computed.
    limits = replace(Limits.of(worker.limits, rows, 2048), queue_tokens=1 << 40, committed_blocks=1 << 40)
    meter = Meter(256)
    outcome = Simulation(drawn(requests, 65.0, seed=1), worker, limits, watch=meter).run()
    found = report(outcome, Objective(1000.0, 100.0))
    return {
        "row_steps_per_cpu_s": round(meter.row_steps / meter.cpu_s),
        "rows_mean": round(meter.row_steps / meter.steps, 1),
        "us_per_step": round(meter.cpu_s / meter.steps * 1e6, 1),
        "steps": meter.steps,
        "virtual_s": round(found.seconds, 1),
        "ends": found.ends,
        "preemptions": found.preemptions,
    }


def steady(rows: int, steps: int = 2000) -> dict[str, Any]:
    """plan + commit of `rows` decodes, in microseconds of CPU."""
    state = State(Limits.of(WorkerLimits(rows * 160, 16, 32_000, 2560), rows, 4096))
    tokens = np.full(rows, 7, np.int32)
    for row in range(rows):
        submit(state, Submit(str(row), tuple(range(row, row + 128)), Sampling(steps + 300)), Arrival(0.0, 1))
    spent, now = 0.0, 0.0
    for number in range(steps + 64):
        if number == 64:
            spent = time.process_time()
        step = plan(state, now)
        if step is None:
            raise SystemExit("the batch ended before the bench")
        sampled = step.rows[step.sample]
        now += 1.0
        commit(state, StepResult(sampled, tokens[: sampled.size]), now)
    return {"rows": rows, "us_per_step": round((time.process_time() - spent) / steps * 1e6, 1)}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--rows", type=int, default=320)
    arguments = parser.parse_args()
    found = {
        "steady": [steady(rows) for rows in (1, 32, 256)],
        "simulation": load(arguments.requests, arguments.rows),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
