"""The one door: every trigger puts a service's key here, `work` takes it out and reconciles. Level-triggered: keys carry no news.

A key is in work at most once; what arrives meanwhile makes one more run. Failed keys come back with growing delays, all keys
by the resync. `Schedule` decides and knows no clock.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import structlog

from pagoda_operator.errors import ClusterError, Unconverged
from pagoda_operator.state import Key

RETRY_DELAYS: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
# Between two starts of one key: a rollout's burst of pod events is one run, and a fight over a child stays below 4 writes/s.
SPACING: Final = 0.25


class Outcome(NamedTuple):
    """What a run asks for: to come back `again` in that many seconds, at the resync (None), or never (`gone`)."""

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
        self._held: dict[Key, float] = {}

    def add(self, key: Key, due: float) -> None:
        """Run the key at `due` or, if planned, earlier; not before a hold ends."""
        earliest = min(due, self._due.get(key, due))
        self._due[key] = max(earliest, self._held.get(key, earliest))

    def take(self, now: float) -> Key | None:
        """The key that has waited longest and is not in work."""
        ready = [(due, key) for key, due in self._due.items() if key not in self._started and due <= now]
        if not ready:
            return None
        key = min(ready)[1]
        del self._due[key]
        self._started[key] = now
        return key

    def done(self, key: Key, due: float | None) -> None:
        """The key's run succeeded; `due` is its next, None where the service is gone."""
        self._failures.pop(key, None)
        self._held.pop(key, None)
        self._finish(key, due)

    def failed(self, key: Key, now: float, *, hold: bool = False) -> float:
        """The key's run failed: it comes back after the delay returned, or, without a hold, with the next event."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay = RETRY_DELAYS[min(count, len(RETRY_DELAYS) - 1)]
        if hold:
            self._held[key] = now + delay
        self._finish(key, now + delay)
        return delay

    def _finish(self, key: Key, due: float | None) -> None:
        started = self._started.pop(key)
        if due is not None:
            self.add(key, due)
        if key in self._due:
            self._due[key] = max(self._due[key], started + self._spacing)

    def next_due(self) -> float | None:
        """When `take` is worth calling again."""
        return min((due for key, due in self._due.items() if key not in self._started), default=None)

    def oldest(self, now: float) -> float:
        """Seconds that the longest-waiting or longest-working key has been at it."""
        waits = [now - due for due in self._due.values()] + [now - start for start in self._started.values()]
        return max(0.0, max(waits, default=0.0))


class KeyedQueue:
    """A schedule on the event loop's clock."""

    def __init__(self, resync: float, rng: random.Random) -> None:
        self._schedule = Schedule()
        self._resync = resync
        self._rng = rng
        self._changed = asyncio.Event()

    def add(self, key: Key) -> None:
        """A trigger: run the key now."""
        self._schedule.add(key, _now())
        self._changed.set()

    def oldest(self) -> float:
        """For the probes: how long the slowest key has waited."""
        return self._schedule.oldest(_now())

    async def work(self, reconcile: Reconcile) -> None:
        """One worker; runs until cancelled."""
        while True:
            key = await self._take()
            self._settle(key, await self._attempt(key, reconcile))

    async def _take(self) -> Key:
        while (key := self._schedule.take(_now())) is None:
            self._changed.clear()
            due = self._schedule.next_due()
            try:
                async with asyncio.timeout_at(due):
                    await self._changed.wait()
            except TimeoutError:
                continue
        self._changed.set()  # another worker may find another key
        return key

    async def _attempt(self, key: Key, reconcile: Reconcile) -> Outcome | Exception:
        try:
            return await reconcile(key)
        except ClusterError as error:
            return error
        except Exception as error:  # noqa: BLE001
            # One service's poison must not stop the others: said loudly, retried slowly.
            structlog.get_logger().exception("reconcile_bug", namespace=key.namespace, name=key.name)
            return error

    def _settle(self, key: Key, outcome: Outcome | Exception) -> None:
        if isinstance(outcome, Exception):
            delay = self._schedule.failed(key, _now(), hold=isinstance(outcome, Unconverged))
            log = structlog.get_logger()
            log.warning("reconcile_retry", namespace=key.namespace, name=key.name, delay_s=delay, error=str(outcome))
        else:
            delay = self._resync * self._rng.uniform(0.8, 1.2) if outcome.again is None else outcome.again
            self._schedule.done(key, None if outcome.gone else _now() + delay)
        self._changed.set()


class Door:
    """Where handlers bring keys: remembers which service uses which profile, so that an edited profile wakes its services."""

    def __init__(self, queue: KeyedQueue) -> None:
        self._queue = queue
        self._profiles: dict[Key, str] = {}

    def service(self, key: Key, profile: str, *, gone: bool) -> None:
        """An event of a service."""
        if gone:
            self._profiles.pop(key, None)
        else:
            self._profiles[key] = profile
        self._queue.add(key)

    def profile(self, name: str) -> None:
        """An event of a profile; the default one is itself kept by a run of its own."""
        self._queue.add(Key("", name))
        for key, used in self._profiles.items():
            if used == name:
                self._queue.add(key)

    def child(self, key: Key) -> None:
        """An event of a Deployment or a pod."""
        self._queue.add(key)


def _now() -> float:
    return asyncio.get_running_loop().time()
