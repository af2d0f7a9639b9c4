"""The gateway's CPU per request beyond a bare aiohttp pass-through, for machines on which other programs run. Prints JSON.

`python -P bench/gateway_cpu.py [--rounds 40] [--requests 64]`. Client, simulated replicas, pass-through and gateway share one process and
one event loop. The CPU of the direct way is subtracted. Each figure is the lowest of many short rounds, in turn (A B C, A B C); the median
is beside it. `calls` are Python's and C's function calls per request or chunk, as cProfile counts them: they do not depend on the machine.
Keys, a quota, picker, access log and metrics are on; the log goes to /dev/null.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

HERE: Final = Path(__file__).parent
sys.path[:0] = [str(HERE / "common")]
from gateway_load import Client, Target, connect, judged
from gateway_run import Gateway
from gateway_sides import EVENTS, passing, replicas
from pagoda_gateway.__main__ import configure_log
from pagoda_gateway.serve import process, settings

CONNECTIONS: Final = 4


def free_port() -> int:
    """Returns a port of the kernel's choice."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def printed(coroutine: Any, tasks: list[asyncio.Task[None]], into: Path) -> dict[str, Any]:
    """Starts what prints its addresses, and returns them."""
    with into.open("w+") as out, contextlib.redirect_stdout(out):
        tasks.append(asyncio.create_task(coroutine))
        while not (said := into.read_text()).endswith("\n"):  # noqa: ASYNC110, ASYNC240  a small file in memory
            await asyncio.sleep(0.01)
    line: dict[str, Any] = json.loads(said)
    return line


async def spent(clients: Sequence[Client], request: bytes, kind: str, count: int) -> float:
    """Returns µs of CPU per request, or per chunk, over so many requests."""
    before = time.process_time()

    async def some(client: Client) -> None:
        for _ in range(count // CONNECTIONS):
            judged(await client.ask(request), kind)

    await asyncio.gather(*(some(client) for client in clients))
    each = count // CONNECTIONS * CONNECTIONS * (1 if kind == "whole" else EVENTS + 1)
    return (time.process_time() - before) / each * 1e6


async def called(clients: Sequence[Client], target: Target, kind: str, count: int) -> float:
    """Returns function calls per request or chunk, the client's and the replica's own too."""
    profile = cProfile.Profile()
    profile.enable()
    await spent(clients, target.request(kind), kind, count)
    profile.disable()
    return sum(one.callcount for one in profile.getstats()) / (count * (1 if kind == "whole" else EVENTS + 1))


async def compare(targets: Sequence[Target], chosen: argparse.Namespace) -> dict[str, Any]:
    """Returns µs of each way beyond the direct one, the lowest and the median round."""
    out: dict[str, Any] = {}
    clients = {target.name: [await connect(target) for _ in range(CONNECTIONS)] for target in targets}
    for kind in ("whole", "stream"):
        count = chosen.requests if kind == "whole" else CONNECTIONS
        took: dict[str, list[float]] = {target.name: [] for target in targets}
        for _ in range(chosen.rounds):
            for target in targets:
                took[target.name].append(await spent(clients[target.name], target.request(kind), kind, count))
        calls = {target.name: round(await called(clients[target.name], target, kind, count)) for target in targets}
        lowest = {name: min(found) for name, found in took.items()}
        median = {name: statistics.median(found) for name, found in took.items()}
        beyond = {name: [round(one[name] - one["direct"], 2) for one in (lowest, median)] for name in took if name != "direct"}
        more = [round(ours - theirs, 2) for ours, theirs in zip(beyond["gateway"], beyond["pass-through"], strict=True)]
        out[kind] = {"µs beyond direct: lowest, median": beyond, "gateway more than pass-through": more, "calls": calls}
    return out


async def measure(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Starts all in this loop, and compares."""
    tasks: list[asyncio.Task[None]] = []
    endpoints = (await printed(replicas(4), tasks, folder / "replicas"))["endpoints"]
    passed = (await printed(passing(endpoints[0]["http"]), tasks, folder / "passing"))["http"]
    ours, port = Gateway(folder, endpoints), free_port()
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: ASYNC230
        configure_log()
        ready = settings.load([*ours.options(port), "--access-log", chosen.access_log])
        tasks.append(asyncio.create_task(process._run(ready)))  # noqa: SLF001
        await asyncio.sleep(3)
        host, _, number = endpoints[0]["http"].partition(":")
        targets = [Target("direct", host, int(number)), Target("pass-through", "127.0.0.1", passed)]
        out = await compare([*targets, Target("gateway", "127.0.0.1", port, ours.key)], chosen)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return out | {"load": os.getloadavg()[0]}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--access-log", default="true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pagoda-bench-") as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(measure(chosen, Path(folder))), indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
