"""The work queue: every trigger adds a service's key, and a worker takes it and reconciles. It is level-triggered: a key has no content.

A key is in work at most once; triggers that arrive meanwhile make one more run. Failed keys are requeued with growing delays, all keys by
the resync. `Schedule` decides and knows no clock.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import structlog

from pagoda_operator.api.errors import ClusterError, Conflict, Superseded
from pagoda_operator.api.state import Key
from pagoda_operator.client.requests import TALLY, Tally

RETRY_DELAYS: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
# After a conflict with a faster writer, usually the Deployment's controller, a run at once helps. Of 20 changes per second one in 25 met a
# conflict, and took a second longer without this.
CONFLICT_DELAYS: Final = (0.0, 0.0, 0.5, *RETRY_DELAYS)
# Between two starts of one key: a rollout's burst of pod events is one run, and a fight over a child stays below 4 writes/s.
SPACING: Final = 0.25
# After so many urgent keys in a row the key that has waited longest is taken. Without that, runs that only report waited 17 s behind edits
# that came faster than they could be answered.
URGENT_IN_A_ROW: Final = 3


class Outcome(NamedTuple):
    """When the next run is: after `again` seconds, at the resync (None), or never (`gone`)."""

    again: float | None = None
    gone: bool = False


Reconcile = Callable[[Key], Awaitable[Outcome]]


class Schedule:
    """Which key is due when."""

    def __init__(self, spacing: float = SPACING) -> None:
        self._spacing = spacing
        self._due: dict[Key, float] = {}
        self._started: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        # Since when a run is wanted that has not begun, whatever delays it: a busy worker, the spacing, a backoff. And how long the runs in
        # work had waited.
        self._wanted_since: dict[Key, float] = {}
        self._waited: dict[Key, float] = {}
        # Keys that go before others that are due, and such keys in work: one that fails stays urgent.
        self._urgent: set[Key] = set()
        self._urgent_running: set[Key] = set()
        # How many urgent keys were taken in a row.
        self._urgent_taken = 0

    def add(self, key: Key, due: float, *, urgent: bool = False) -> None:
        """Runs the key at `due` or, if planned, earlier. `urgent`: a person waits for the result."""
        if urgent:
            self._urgent.add(key)
        self._wanted_since[key] = min(due, self._wanted_since.get(key, due))
        self._due[key] = min(due, self._due.get(key, due))

    def take(self, now: float) -> Key | None:
        """The key that has waited longest and is not in work. Urgent keys go first, but not more than URGENT_IN_A_ROW."""
        due = [(due, key) for key, due in self._due.items() if due <= now and key not in self._started]
        urgent = [entry for entry in due if entry[1] in self._urgent] if self._urgent_taken < URGENT_IN_A_ROW else []
        self._urgent_taken = self._urgent_taken + 1 if urgent else 0
        if not due:
            return None
        _, key = min(urgent or due)
        del self._due[key]
        if key in self._urgent:
            self._urgent.discard(key)
            self._urgent_running.add(key)
        self._started[key] = now
        self._waited[key] = now - self._wanted_since.pop(key, now)
        return key

    def queued(self, key: Key) -> float:
        """Seconds that a run now in work was wanted before it began."""
        return self._waited[key]

    def done(self, key: Key, due: float | None) -> None:
        """The key's run succeeded; `due` is its next, None if the service is gone."""
        self._failures.pop(key, None)
        self._finish(key, due)

    def failed(self, key: Key, now: float, *, delays: Sequence[float] = RETRY_DELAYS) -> float:
        """The key's run failed. It comes back after the delay returned, or with the next event."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay = delays[min(count, len(delays) - 1)]
        if key in self._urgent_running:
            self._urgent.add(key)
        self._finish(key, now + delay)
        self._wanted_since[key] = min(now, self._wanted_since[key])
        return delay

    def _finish(self, key: Key, due: float | None) -> None:
        started = self._started.pop(key)
        self._urgent_running.discard(key)
        self._waited.pop(key, None)
        if due is not None:
            self.add(key, due)
        if key in self._due:
            self._due[key] = max(self._due[key], started + self._spacing)

    def next_due(self) -> float | None:
        """When `take` is worth calling again."""
        return min((due for key, due in self._due.items() if key not in self._started), default=None)

    def oldest(self, now: float, opened: float) -> float:
        """Seconds that the slowest key has waited or been in work, since work began."""
        waits = [now - max(due, opened) for due in self._due.values()] + [now - start for start in self._started.values()]
        return max(0.0, max(waits, default=0.0))

    def depth(self, now: float) -> int:
        """Keys that are due or in work."""
        return sum(due <= now for due in self._due.values()) + len(self._started)


class KeyedQueue:
    """A schedule on the event loop's clock. It counts as empty until the first worker begins: a standby collects keys for days."""

    def __init__(self, resync: float, rng: random.Random) -> None:
        self._schedule = Schedule()
        self._resync = resync
        self._rng = rng
        self._opened: float | None = None
        self._changed = asyncio.Event()
        # One worker waits for a key and the others for this lock: an event that wakes all 32 would have each of them search.
        self._taking = asyncio.Lock()

    def add(self, key: Key, *, urgent: bool = False) -> None:
        """A trigger: run the key now; an urgent one before those that are not, but for every fourth run."""
        self._schedule.add(key, _now(), urgent=urgent)
        self._changed.set()

    def oldest(self) -> float:
        """Seconds that the slowest key has waited."""
        return 0.0 if self._opened is None else self._schedule.oldest(_now(), self._opened)

    def depth(self) -> int:
        """Keys that are due or in work."""
        return 0 if self._opened is None else self._schedule.depth(_now())

    async def work(self, reconcile: Reconcile) -> None:
        """One worker; runs until cancelled."""
        if self._opened is None:
            self._opened = _now()
        while True:
            key = await self._take()
            TALLY.set(tally := Tally())
            began = _now()
            outcome = await self._attempt(key, reconcile)
            self._log_run(key, _now() - began, tally)
            self._settle(key, outcome)

    async def _take(self) -> Key:
        async with self._taking:
            while (key := self._schedule.take(_now())) is None:
                self._changed.clear()
                due = self._schedule.next_due()
                try:
                    async with asyncio.timeout_at(due):
                        await self._changed.wait()
                except TimeoutError:
                    continue
            return key

    async def _attempt(self, key: Key, reconcile: Reconcile) -> Outcome | Exception:
        try:
            return await reconcile(key)
        except ClusterError as error:
            return error
        except Superseded:
            raise  # ends the worker, and with it the process
        except Exception as error:  # noqa: BLE001
            # A bug that one service meets must not stop the others.
            structlog.get_logger().exception("reconcile_bug", namespace=key.namespace, name=key.name)
            return error

    def _log_run(self, key: Key, took: float, tally: Tally) -> None:
        """Where the time of a run goes; bench/operator.py sums it for each change."""
        times = {"queued_s": round(self._schedule.queued(key), 4), "took_s": round(took, 4), "waited_s": round(tally.waited, 4)}
        structlog.get_logger().debug("run", **key._asdict(), **times, requests=tally.requests, writes=tally.writes)

    def _settle(self, key: Key, outcome: Outcome | Exception) -> None:
        if isinstance(outcome, Exception):
            delays = CONFLICT_DELAYS if isinstance(outcome, Conflict) else RETRY_DELAYS
            delay = self._schedule.failed(key, _now(), delays=delays)
            log = structlog.get_logger().bind(namespace=key.namespace, name=key.name, delay_s=delay, error=str(outcome))
            (log.warning if delay else log.info)("reconcile_retry")
        else:
            delay = self._resync * self._rng.uniform(0.8, 1.2) if outcome.again is None else outcome.again
            self._schedule.done(key, None if outcome.gone else _now() + delay)
        self._changed.set()


def _now() -> float:
    return asyncio.get_running_loop().time()
