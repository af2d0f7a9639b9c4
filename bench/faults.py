"""How soon an injected fault is noticed, and how soon every client knows. Prints JSON; `missed` names the faults that missed a goal.

`python -P bench/faults.py [--rounds 3] [--threshold 3]`. Each fault strikes a replica of its own, front and engine process over a device
that computes nothing, with three streams and one whole answer on it. A fault strikes when its log line, or the signal, says so; it is
detected when the replica's log says so, and where that says nothing when the first client is told; a client is told when its answer has
ended. Goals: detected within the threshold and a second (without a threshold: within a second), the last client told within a second more,
and either a process that ends with a code that is not 0 or exactly one request ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

from support.clients.fault_kinds import BODY, FATAL, FROZEN, LOCAL, Fatal, Local, config, full_disk, one_of_many, strike
from support.clients.outcomes import MixedClients, Outcome
from support.servers.replica import Replica, start_replica

GOAL_S: Final = 1.0
STRUCK: Final = "fault_injected"
NOTICED: Final = ("no_progress", "step failed")


@dataclass(frozen=True)
class Run:
    """One fault in one replica. Times are of the monotonic clock; `detected` is None where the replica wrote nothing when it noticed."""

    struck: float
    detected: float | None
    reported: Sequence[Outcome]
    exit_code: int
    ended: float

    @property
    def lost(self) -> list[Outcome]:
        return [client for client in self.reported if client.error]

    def seconds(self) -> dict[str, float]:
        first, last = min(client.ended for client in self.lost), max(client.ended for client in self.lost)
        noticed = first if self.detected is None else self.detected
        times = {"to_detection": noticed - self.struck, "from_there_to_last_told": last - noticed, "to_exit": self.ended - self.struck}
        return {name: round(value, 3) for name, value in times.items()}


def how(client: Outcome) -> str:
    """The error that a client got, as text."""
    if client.error is None:
        return "whole"
    if client.error == "broken":
        return "connection broke off"
    form = "SSE error event" if client.stream and client.status == 200 else f"status {client.status}"
    return f"{form} {client.error}"


def stamped(lines: Sequence[dict[str, Any]], events: Sequence[str], offset: float) -> float | None:
    """When the first of those lines was written; other lines than the daemon's own have no time."""
    times = [line["timestamp"] for line in lines if line["event"] in events and "timestamp" in line]
    return datetime.fromisoformat(times[0]).timestamp() - offset if times else None


async def ended_at(wait: Callable[[], int]) -> tuple[int, float]:
    code = await asyncio.to_thread(wait)
    return code, time.monotonic()


async def run_one(case: Fatal | Local, threshold_s: float, folder: Path) -> Run:
    """A fault of the configuration strikes when its log line says so."""

    async def fatal(replica: Replica, case: Fatal) -> tuple[list[Outcome], float | None]:
        reported, struck = await strike(replica, case)
        return reported, None if case.fault else struck

    async def local(replica: Replica) -> tuple[list[Outcome], float | None]:
        reported = await one_of_many(replica)
        replica.terminate()
        return reported, None

    if isinstance(case, Fatal):
        return await observed(case.faults, threshold_s, folder, lambda replica: fatal(replica, case))
    return await observed((case.fault,), threshold_s, folder, local)


async def observed(
    faults: Sequence[Any], threshold_s: float, folder: Path, act: Callable[[Replica], Awaitable[tuple[list[Outcome], float | None]]]
) -> Run:
    offset = time.time() - time.monotonic()
    with start_replica(config(folder, threshold_s, *faults), stderr=subprocess.STDOUT) as replica:
        ending = asyncio.ensure_future(ended_at(replica.wait))
        reported, struck = await act(replica)
        code, ended = await ending
    struck = stamped(replica.lines, [STRUCK], offset) if struck is None else struck
    assert struck is not None, replica.lines
    return Run(struck, stamped(replica.lines, NOTICED, offset), reported, code, ended)


def judged(case: Fatal | Local, threshold_s: float, runs: Sequence[Run]) -> dict[str, Any]:
    """The worst of each over the rounds."""
    watched = threshold_s if isinstance(case, Fatal) and (case.why or case is FROZEN) else 0.0
    times = [run.seconds() for run in runs]
    worst = {name: max(time[name] for time in times) for name in times[0]}
    over = round(worst["to_detection"] - watched, 3)
    codes = sorted({run.exit_code for run in runs})
    lost = sorted({len(run.lost) for run in runs})
    ended = codes == [1] if isinstance(case, Fatal) else (codes, lost) == ([0], [1])
    return {
        "threshold_s": watched,
        "rounds": times,
        "detection_over_threshold_s": over,
        "from_there_to_last_told_s": worst["from_there_to_last_told"],
        "detected_by": "its log" if runs[0].detected is not None else "the first client told",
        "clients": dict(Counter(how(client) for run in runs for client in run.reported)),
        "requests_ended": lost,
        "exit_codes": codes,
        "goals_met": ended and over <= GOAL_S and worst["from_there_to_last_told"] <= GOAL_S,
    }


async def disk_full(threshold_s: float, folder: Path) -> dict[str, Any]:
    """No requests wait, so no Event is due."""

    def play(process: subprocess.Popen[bytes], reported: list[Outcome]) -> dict[str, Any]:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        clients = dict(Counter(map(how, reported)))
        return {"clients": clients, "requests_ended": [0], "exit_codes": [code], "goals_met": code == 0 and set(clients) == {"whole"}}

    with full_disk(config(folder, threshold_s)) as (process, address):
        reported = await MixedClients(address, {**BODY, "max_tokens": 100}).ended()
        return await asyncio.to_thread(play, process, reported)


async def measure(rounds: int, threshold_s: float, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for case in (*FATAL, FROZEN, *LOCAL):
        found[case.name] = judged(case, threshold_s, [await run_one(case, threshold_s, folder) for _ in range(rounds)])
    found["disk full"] = await disk_full(threshold_s, folder)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threshold", type=float, default=3.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(arguments.rounds, arguments.threshold, Path(folder)))
    missed = [name for name, figures in found.items() if not figures["goals_met"]]
    print(json.dumps({"faults": found, "missed": missed, "load_average": os.getloadavg()[0]}, indent=1))


if __name__ == "__main__":
    main()
