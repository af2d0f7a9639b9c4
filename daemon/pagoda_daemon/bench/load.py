"""The load: requests at their times, whatever became of the ones before. Called by `command`.

If the client itself is late, that is not the server's fault: a run says how late requests were sent.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Final, NamedTuple

import aiohttp

from pagoda_daemon.bench.client import Target, ask
from pagoda_daemon.bench.datasets import Sample
from pagoda_daemon.bench.statistics import Outcome
from pagoda_daemon.core.errors import NotStarted

_LONGEST_S: Final = 6 * 3600.0
_AGAIN_S: Final = 1.0
_MAY_PASS: Final = (408, 429)  # every other 4xx is about the request, which stays the same


class Run(NamedTuple):
    """What became of each request, how long all took, and by how much the latest one was sent after its time. With `max_concurrency` a
    request waits for its place: that is the load that was asked for, and not counted."""

    outcomes: list[Outcome]
    duration: float
    latest: float


class Load(NamedTuple):
    """Requests and when they are sent, in seconds from the start."""

    samples: Sequence[Sample]
    times: Sequence[float]
    max_concurrency: int | None = None


def session() -> aiohttp.ClientSession:
    """No bound on connections, which would be a bound on the load, and no proxy of the environment."""
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=_LONGEST_S), trust_env=False)


async def wait_ready(opened: aiohttp.ClientSession, target: Target, sample: Sample, patience_s: float) -> None:
    """Until the endpoint answers this request; NotStarted says why it does not. A refusal that waiting cannot change ends at once."""
    deadline, announced = time.monotonic() + patience_s, False
    while (outcome := await ask(opened, target, target.body_of(sample), sample)).error:
        if _for_good(outcome.status):
            raise NotStarted(f"{target.url} refuses the first request: {outcome.error}")
        if time.monotonic() + _AGAIN_S > deadline:
            raise NotStarted(f"{target.url} does not answer: {outcome.error}")
        if not announced:
            sys.stderr.write(f"waiting for {target.url} for up to {patience_s:g} s: {outcome.error}\n")
            announced = True
        await asyncio.sleep(_AGAIN_S)


def _for_good(status: int) -> bool:
    return 400 <= status < 500 and status not in _MAY_PASS


async def run(opened: aiohttp.ClientSession, target: Target, load: Load, done: Callable[[], None]) -> Run:
    """All requests, to the end of the last answer."""
    places = asyncio.Semaphore(load.max_concurrency) if load.max_concurrency else nullcontext()
    bodies = [target.body_of(sample) for sample in load.samples]
    begun = time.perf_counter()
    late = 0.0

    async def one(at: int) -> Outcome:
        async with places:
            outcome = await ask(opened, target, bodies[at], load.samples[at])
        done()
        return outcome

    tasks = []
    for at, due in enumerate(load.times):
        if (left := begun + due - time.perf_counter()) > 0:
            await asyncio.sleep(left)
        late = max(late, time.perf_counter() - begun - due)
        tasks.append(asyncio.ensure_future(one(at)))
    outcomes = await asyncio.gather(*tasks)
    return Run(outcomes, time.perf_counter() - begun, late)
