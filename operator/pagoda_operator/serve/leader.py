"""Keeps the operator's Lease: one process works, the others watch. Called by process.py; election.py decides.

The Lease is renewed on a loop of its own (OwnLoop in process.py), so that no plan delays it. A process whose planning loop hangs for a
minute gives it up. A leader that cannot renew ends its process at once and without clean-up: by that loop, by a thread if the loop is
blocked or the process was stopped, and by `guard` before every write. That does not stop a request that is already on its way: writes name
the version they were planned on, and orders to replicas the `epoch`.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

import structlog
from pagoda_contracts.names import LEASE_OPERATOR

from pagoda_operator.api.errors import ClusterError
from pagoda_operator.api.state import LEASES, Json
from pagoda_operator.client.cluster import KubeCluster
from pagoda_operator.serve.election import Create, Quit, Record, Renew, Step, Take, Terms, View, Wait, cause, decide, leads, seen, won

_WATCHDOG: Final = 0.25
# The API server gives up a request after a minute. A leader that dies makes its last write five seconds before another can lead.
_LATE_S: Final = 60.0
# The loop that plans beats so often. A leader whose loop has not for a minute ends, so that another process can plan.
_BEAT: Final = 1.0
_STUCK: Final = 60.0
# A process whose loop has not for so long does not begin to lead.
_SILENT: Final = 5.0
# The duration of a Lease that was given back after all writes of its holder were answered.
_ANSWERED_S: Final = 1


def _end(why: str) -> None:
    """Ends the process without clean-up or flush, since another process leads by now, or soon. The reader of our log may be gone or
    blocked, which must not delay the end."""
    try:
        line = json.dumps({"event": "leadership_lost", "level": "error", "why": why})
        stderr = sys.stderr.fileno()
        if select.select([], [stderr], [], 0.0)[1]:
            os.write(stderr, f"{line}\n".encode())
    finally:
        os._exit(1)


async def _here(what: Coroutine[Any, Any, None]) -> None:
    await what


class Means(NamedTuple):
    """What a contender uses: how to end its process, a steady clock, the terms, how to run requests on the store's loop, and how many
    seconds that loop has to give the Lease back."""

    end: Callable[[str], None] = _end
    clock: Callable[[], float] = time.monotonic
    terms: Terms = Terms()
    apart: Callable[[Coroutine[Any, Any, None]], Awaitable[None]] = _here
    release_s: float = 5.0


_MEANS: Final = Means()


class Lease:
    """One contender. `run`, `release` and `acquired` belong to the loop that plans; all else may be called on any thread."""

    def __init__(self, store: KubeCluster, namespace: str, identity: str, means: Means = _MEANS) -> None:
        self._store = store
        self._namespace = namespace
        self._end, self._clock, self._terms, self._apart, self._release_s = means
        # Written on the Lease's loop alone, and replaced as a whole: other threads read it.
        self._view = View(identity)
        self._acquired_at = ""
        # Why this process leads.
        self.cause = ""
        self._settled_at = 0.0
        self._left = threading.Event()
        self._renewing: asyncio.Task[None] | None = None
        # When the loop that plans beat last; None before it began.
        self._last_beat: float | None = None
        self.acquired = asyncio.Event()
        self._on_acquired: Callable[[], object] = self.acquired.set

    @property
    def epoch(self) -> int:
        """Grows with each change of the leader; replicas refuse orders of an older one. 0 before the first election."""
        return self._view.epoch

    def leads(self) -> bool:
        """Whether this process may act."""
        return leads(self._view, self._clock(), self._terms)

    def settled(self) -> bool:
        """Whether no write of an earlier leader can arrive any more."""
        return self.leads() and self._clock() >= self._settled_at

    def age(self) -> float | None:
        """Seconds since the last renewal began; None while another process leads."""
        renewed = self._view.renewed
        return None if renewed is None else self._clock() - renewed

    def guard(self) -> None:
        """Called before every write: a process that was stopped for a minute must not continue."""
        if not self.leads():
            self._end("a write without the Lease")

    async def run(self) -> None:
        """Competes for the Lease, then renews it, until cancelled."""
        threading.Thread(target=self._watch, name="lease-age", daemon=True).start()
        self._on_acquired = partial(asyncio.get_running_loop().call_soon_threadsafe, self.acquired.set)
        self._last_beat = self._clock()
        renewing = asyncio.ensure_future(self._apart(self._renew()))
        try:
            while not renewing.done():
                self._last_beat = self._clock()
                await asyncio.wait([renewing], timeout=_BEAT)
            renewing.result()
        finally:
            renewing.cancel()

    async def release(self, *, answered: bool = True) -> None:
        """Gives the Lease back, once nothing writes any more, so that a successor need not wait for its end. `answered`: nor for our last
        writes. If its loop or the API server hangs, the Lease expires."""
        try:
            async with asyncio.timeout(self._release_s):
                await self._apart(self._give_back(answered=answered))
        except TimeoutError:
            structlog.get_logger().warning("lease_not_released", error=f"no answer within {self._release_s:.0f} s")

    async def _renew(self) -> None:
        self._renewing = asyncio.current_task()
        while True:  # noqa: ASYNC110 (silence has no event)
            await asyncio.sleep(await self._round())

    async def _give_back(self, *, answered: bool) -> None:
        if self._renewing is not None:  # a renewal under way would change the version that is given back
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        view = self._view
        self._left.set()
        answered = answered and self.settled()  # else our own predecessor's last writes may come yet
        if view.record is None or not self.leads():
            return
        self._view = View(view.record.holder, view.record, view.since)
        try:
            await self._write(view.record, "", view.record.transitions, _ANSWERED_S if answered else int(_LATE_S))
        except ClusterError as error:
            structlog.get_logger().warning("lease_not_released", error=str(error))

    async def _round(self) -> float:
        """Reads the Lease if necessary and does one step; returns the seconds to the next."""
        since_beat = float("inf") if self._last_beat is None else self._clock() - self._last_beat
        if self.leads() and since_beat >= _STUCK:
            self._end(f"the loop that plans hangs for {since_beat:.0f} s")
        try:
            if self._view.renewed is None or self._view.record is None:
                await self._read()
            step = decide(self._view, self._clock(), self._terms)
            if isinstance(step, Create | Take) and not self.leads() and since_beat >= _SILENT:
                structlog.get_logger().warning("lease_left_to_others", why="the loop that plans hangs")
                return self._terms.retry
            if isinstance(step, Wait):
                return step.seconds
            if isinstance(step, Create | Take):
                self.cause = cause(step, self._view.identity)
            await self._carry_out(step)
            return self._terms.retry
        except ClusterError as error:
            structlog.get_logger().warning("lease_unreachable", error=str(error))
            return await self._after_failure()

    async def _after_failure(self) -> float:
        """After a failed write it is unknown what was written, so the Lease is read before the next step."""
        try:
            await self._read()
        except ClusterError:
            return self._terms.retry / 2
        step = decide(self._view, self._clock(), self._terms)
        if isinstance(step, Quit):
            self._end(step.why)
        return 0.0 if isinstance(step, Renew | Create) and self.leads() else self._terms.retry

    async def _read(self) -> None:
        body = await self._store.get(LEASES, self._namespace, LEASE_OPERATOR)
        self._view = seen(self._view, _record(body) if body else None, self._clock())

    async def _carry_out(self, step: Step) -> None:
        begun, identity = self._clock(), self._view.identity
        match step:
            case Quit(why):
                self._end(why)
            case Create(transitions):
                self._won(await self._write(None, identity, transitions), begun, 0.0 if transitions == 1 else _LATE_S)
            case Take(record, transitions):
                given_back = not record.holder and record.duration <= _ANSWERED_S
                self._won(await self._write(record, identity, transitions), begun, 0.0 if given_back else _LATE_S)
            case Renew(record):
                self._won(await self._write(record, identity, record.transitions), begun)

    def _won(self, record: Record, begun: float, late: float = 0.0) -> None:
        fresh = self._view.renewed is None
        if fresh:
            self._settled_at = begun + late  # before the view says that it leads, since other threads ask
        self._view = won(self._view, record, begun)
        if fresh:
            structlog.get_logger().info("leading", epoch=self.epoch, identity=self._view.identity, cause=self.cause)
            self._on_acquired()

    async def _write(self, old: Record | None, holder: str, transitions: int, duration: int | None = None) -> Record:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # for people; no contender compares it
        if self._view.renewed is None:
            self._acquired_at = now
        spec = {
            "holderIdentity": holder,
            "leaseTransitions": transitions,
            "renewTime": now,
            "acquireTime": self._acquired_at,
            "leaseDurationSeconds": int(self._terms.duration) if duration is None else duration,
        }
        meta = {"name": LEASE_OPERATOR, "namespace": self._namespace}
        manifest = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": meta, "spec": spec}
        if old is None:
            return _record(await self._store.create(LEASES, manifest, LEASE_OPERATOR))
        manifest["metadata"] = meta | {"resourceVersion": old.version}
        return _record(await self._store.replace(LEASES, manifest, LEASE_OPERATOR))

    def _watch(self) -> None:
        """Runs on a thread of its own, since a blocked event loop does not renew and must not write."""
        while not self._left.wait(_WATCHDOG):
            if (age := self.age()) is not None and age >= self._terms.deadline:
                self._end(f"the Lease was not renewed for {age:.0f} s")


class Alone:
    """In place of a Lease if this process is the only one, by its command line."""

    # Replicas that know a leader refuse epoch 0, so that a process on a laptop cannot drain replicas by accident.
    epoch = 0
    cause = ""

    def __init__(self) -> None:
        self.acquired = asyncio.Event()
        self.acquired.set()

    def leads(self) -> bool:
        """Always."""
        return True

    def settled(self) -> bool:
        """No other process led before."""
        return True

    def age(self) -> float | None:
        """Nothing is renewed."""
        return None

    def guard(self) -> None:
        """Every write is allowed."""

    async def run(self) -> None:
        """Waits until cancelled."""
        await asyncio.Event().wait()

    async def release(self, *, answered: bool = True) -> None:
        """Nothing to give back."""


Leadership = Lease | Alone


def _record(body: Json) -> Record:
    spec = body.get("spec") or {}
    version = str(body["metadata"]["resourceVersion"])
    duration = float(spec.get("leaseDurationSeconds") or 0)
    return Record(version, spec.get("holderIdentity") or "", int(spec.get("leaseTransitions") or 0), duration)
