"""WatchState: pushes this replica's state over gRPC, on change (at most every 100 ms) and every 500 ms anyway.

Watched by gateways, and by the operator where there is none. `frame` is pure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
from pagoda_contracts.names import GRPC_WATCH_STATE, STATE_FLOOR_MS, STATE_HEARTBEAT_MS
from pagoda_contracts.pb.daemon_pb2 import AdapterState, State, WatchStateRequest

from pagoda_daemon.api.access.caller import Principal
from pagoda_daemon.api.grpc.server import Context, Method
from pagoda_daemon.core.errors import Overloaded
from pagoda_daemon.health.prefixes import News, Reader
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.metrics import Counts

log = structlog.get_logger()

_READ_S: Final = 0.2  # for a frame to arrive, and for a request that was sent before it
MAX_WATCHERS = 256  # gateways and the operator; each costs up to ten frames a second


@dataclass(frozen=True)
class Identity:
    """What never changes in a replica's frames."""

    served_names: tuple[str, ...]
    revision: str
    version: str


@dataclass(frozen=True)
class Pace:
    """How fast it answers: seconds to the first token, 95th percentile of the last minute, and tokens per second."""

    ttft_p95_s: float = 0.0
    tokens_per_second: float = 0.0


def frame(replica: Replica, identity: Identity, sequence: int, now: float, pace: Pace = Pace()) -> State:  # noqa: B008  frozen
    """The state at `now` (monotonic seconds), without news of prefixes."""
    stats, limits = replica.stats, replica.limits
    base, token, _ = replica.cost_us
    return State(
        sequence=sequence,
        sent_at_ms=int(now * 1000),
        phase=replica.phase,
        version=identity.version,
        served_names=identity.served_names,
        revision=identity.revision,
        running=stats.running,
        waiting=stats.waiting + stats.compiling + replica.waking,
        waiting_tokens=stats.waiting_tokens,
        prefill_tokens=stats.prefill_tokens,
        in_flight=replica.in_flight,
        requests_admitted=replica.admitted,
        requests_ended=replica.admitted - replica.in_flight,
        preparing=replica.preparations.waiting + replica.preparations.running,
        max_concurrency=limits.max_concurrency if limits else 0,
        blocks_used=stats.blocks_used,
        blocks_free=stats.blocks_free,
        blocks_total=stats.blocks_total,
        block_size=limits.block_size if limits else 0,
        blocks_cached=stats.blocks_cached,
        engine_heartbeat_age_ms=_age_ms(replica.engine_beat, now),
        step_age_ms=_age_ms(replica.step_started, now) if replica.step_started else 0,
        predicted_step_ms=replica.predicted_step_ms,
        load_progress=replica.load_progress,
        deep_check_age_ms=_age_ms(replica.deep.good_at, now) if replica.deep.good_at else 0,
        deep_check_failed=replica.deep.failed,
        device_fault=replica.device.fault,
        drain_deadline_unix_ms=replica.drain.until.unix_ms,
        epoch=replica.drain.epoch,
        ttft_p95_ms=round(pace.ttft_p95_s * 1000),
        tokens_per_second=pace.tokens_per_second,
        step_base_us=base,
        step_token_us=token,
        step_row_us=row_us(replica),
        warm_ms=round(replica.warm_s * 1000),
    )


def row_us(replica: Replica) -> float:
    """What one more row adds to a step: what looking back at a context as long as the running ones' mean costs."""
    stats, limits = replica.stats, replica.limits
    if limits is None or not stats.running:
        return 0.0
    return replica.cost_us[2] * stats.blocks_used * limits.block_size / stats.running


def with_news(state: State, news: News) -> State:
    """The same frame, with what changed of prefixes."""
    state.prefix_reset = news.reset
    state.prefixes_resident.extend(news.resident)
    state.prefixes_evicted.extend(news.evicted)
    return state


def _age_ms(then: float, now: float) -> int:
    return max(0, round((now - then) * 1000))


class Adapters(Protocol):
    """What a frame says of adapters."""

    @property
    def generation(self) -> int: ...

    def states(self) -> Iterable[AdapterState]: ...


class _Watcher:
    """One stream: its wake-up, the last phase it was sent, and its place in the book of prefixes."""

    def __init__(self, reader: Reader | None) -> None:
        self.changed = asyncio.Event()
        self.sent_phase: int | None = None
        self.reader = reader


class StateFeed:
    """All watchers of this replica. `counts` is given when it is made: after the feed."""

    def __init__(self, replica: Replica, identity: Identity, adapters: Adapters | None = None) -> None:
        self._replica = replica
        self._identity = identity
        self._adapters = adapters
        self._watchers: set[_Watcher] = set()
        self._sent = asyncio.Event()
        self.counts: Counts | None = None
        replica.listeners.append(self._wake)

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.changed.set()

    async def frames(self, caller: Principal, request: WatchStateRequest, _context: Context) -> AsyncGenerator[State]:
        """The gRPC method. A frame at once, then as the module says."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise Overloaded(f"{MAX_WATCHERS} callers watch already")
        watcher = _Watcher(None if request.no_prefixes else self._replica.prefixes.open())
        least_ms = min(max(STATE_FLOOR_MS, request.interval_ms), STATE_HEARTBEAT_MS)
        self._watchers.add(watcher)
        log.info("watcher_joined", watcher=request.watcher[:128], role=caller.role)
        try:
            sequence = 0
            while True:
                sequence += 1
                watcher.changed.clear()
                state = self._frame(sequence, time.monotonic())
                yield with_news(state, watcher.reader.take()) if watcher.reader is not None else state
                watcher.sent_phase = state.phase
                self._sent.set()
                await asyncio.sleep(least_ms / 1000)
                if watcher.reader is None or not watcher.reader.behind:
                    await _wait(watcher.changed, (STATE_HEARTBEAT_MS - least_ms) / 1000)
        finally:
            if watcher.reader is not None:
                self._replica.prefixes.close(watcher.reader)
            self._watchers.discard(watcher)
            self._sent.set()
            log.info("watcher_left", watcher=request.watcher[:128])

    def _frame(self, sequence: int, now: float) -> State:
        pace = Pace(self.counts.ttft_p95(now), self.counts.tokens_per_second(now)) if self.counts else Pace()
        state = frame(self._replica, self._identity, sequence, now, pace)
        if self._adapters is not None:
            state.adapters.extend(self._adapters.states())
            state.adapters_generation = self._adapters.generation
        return state

    async def all_saw(self, phase: int) -> None:
        """Returns when every watcher that is still here has been sent this phase."""
        while any(watcher.sent_phase != phase for watcher in self._watchers):
            self._sent.clear()
            await self._sent.wait()

    async def announce(self, phase: int) -> None:
        """Returns when every watcher was sent this phase and had the time to act on it."""
        if self._watchers:
            await self.all_saw(phase)
            await asyncio.sleep(_READ_S)

    def method(self) -> Method:
        return Method(GRPC_WATCH_STATE, WatchStateRequest, stream=self.frames)


async def _wait(event: asyncio.Event, at_most_s: float) -> None:
    try:
        async with asyncio.timeout(at_most_s):
            await event.wait()
    except TimeoutError:
        return
