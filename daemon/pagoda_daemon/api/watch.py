"""WatchState: pushes this replica's state over gRPC, on change (at most every 100 ms) and every 500 ms anyway.

Watched by gateways. Plain for now; authentication comes with the control calls. `frame` is pure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from pagoda_contracts.names import GRPC_DAEMON, GRPC_WATCH_STATE, STATE_FLOOR_MS, STATE_HEARTBEAT_MS
from pagoda_contracts.pb.daemon_pb2 import State, WatchStateRequest

from pagoda_daemon.health import Replica

log = structlog.get_logger()


@dataclass(frozen=True)
class Identity:
    """What never changes in a replica's frames."""

    served_names: tuple[str, ...]
    revision: str
    version: str


def frame(replica: Replica, identity: Identity, sequence: int, now: float) -> State:
    """The state at `now` (monotonic seconds)."""
    stats, limits = replica.stats, replica.limits
    return State(
        sequence=sequence,
        sent_at_ms=int(now * 1000),
        phase=replica.phase,
        version=identity.version,
        served_names=identity.served_names,
        revision=identity.revision,
        running=stats.running,
        waiting=stats.waiting,
        waiting_tokens=stats.waiting_tokens,
        in_flight=replica.in_flight,
        max_concurrency=limits.max_concurrency if limits else 0,
        blocks_used=stats.blocks_used,
        blocks_free=stats.blocks_free,
        blocks_total=stats.blocks_total,
        block_size=limits.block_size if limits else 0,
        engine_heartbeat_age_ms=_age_ms(replica.engine_beat, now),
        step_age_ms=_age_ms(replica.step_started, now) if replica.step_started else 0,
        predicted_step_ms=replica.predicted_step_ms,
        load_progress=replica.load_progress,
    )


def _age_ms(then: float, now: float) -> int:
    return max(0, round((now - then) * 1000))


class _Watcher:
    """One stream: its wake-up, and the last phase it was sent."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.sent_phase: int | None = None


class StateFeed:
    """All watchers of this replica."""

    def __init__(self, replica: Replica, identity: Identity) -> None:
        self._replica = replica
        self._identity = identity
        self._watchers: set[_Watcher] = set()
        self._sent = asyncio.Event()
        replica.listeners.append(self._wake)

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.changed.set()

    async def frames(self, request: WatchStateRequest, _context: Any) -> AsyncIterator[State]:
        """The gRPC method. A frame at once, then as the module says."""
        watcher = _Watcher()
        self._watchers.add(watcher)
        log.info("watcher_joined", watcher=request.watcher[:128])
        try:
            sequence = 0
            while True:
                sequence += 1
                watcher.changed.clear()
                state = frame(self._replica, self._identity, sequence, time.monotonic())
                yield state
                watcher.sent_phase = state.phase
                self._sent.set()
                await asyncio.sleep(STATE_FLOOR_MS / 1000)
                await _wait(watcher.changed, (STATE_HEARTBEAT_MS - STATE_FLOOR_MS) / 1000)
        finally:
            self._watchers.discard(watcher)
            self._sent.set()
            log.info("watcher_left", watcher=request.watcher[:128])

    async def all_saw(self, phase: int) -> None:
        """Returns when every watcher that is still here has been sent this phase."""
        while any(watcher.sent_phase != phase for watcher in self._watchers):
            self._sent.clear()
            await self._sent.wait()

    def handler(self) -> grpc.GenericRpcHandler:
        method = grpc.unary_stream_rpc_method_handler(
            self.frames, request_deserializer=WatchStateRequest.FromString, response_serializer=State.SerializeToString
        )
        return grpc.method_handlers_generic_handler(GRPC_DAEMON, {GRPC_WATCH_STATE.rsplit("/", 1)[1]: method})


async def _wait(event: asyncio.Event, at_most_s: float) -> None:
    try:
        async with asyncio.timeout(at_most_s):
            await event.wait()
    except TimeoutError:
        return
