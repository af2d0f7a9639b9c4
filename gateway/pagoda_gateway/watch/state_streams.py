"""Reads replicas' state: one WatchState stream per replica that has an address, its frames into the cache. Started by serve/process.py.

A stream that breaks or falls silent is opened again with jittered backoff. routing/verdict.py judges what silence means.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

import grpc
import grpc.aio
import structlog
from pagoda_contracts.names import GRPC_WATCH_STATE, STATE_DEAD_MS
from pagoda_contracts.pb.daemon_pb2 import Phase, State, WatchStateRequest

from pagoda_gateway.routing.endpoint import Frame, PrefixChange
from pagoda_gateway.routing.verdict import Verdict
from pagoda_gateway.watch.own_token import OwnToken, metadata
from pagoda_gateway.watch.services import Replica

log = structlog.get_logger()

_PHASES: Final = {
    Phase.PHASE_STARTING: Verdict.STARTING,
    Phase.PHASE_LOADING: Verdict.LOADING,
    Phase.PHASE_WARMING: Verdict.WARMING,
    Phase.PHASE_READY: Verdict.READY,
    Phase.PHASE_DRAINING: Verdict.DRAINING,
    Phase.PHASE_STOPPED: Verdict.STOPPED,
    Phase.PHASE_DEGRADED: Verdict.DEGRADED,
}
# gRPC reconnects fast, because a starting pod refuses for a while. Each channel has connections of its own, and no proxy.
_CHANNEL: Final = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]
# Twice as long as the silence that ends routing: then the connection itself counts as dead.
_REDIAL_S: Final = 2 * STATE_DEAD_MS / 1000
_BACKOFF_S: Final = (0.05, 2.0)


class StateSink(Protocol):
    """Takes the frames."""

    def update_state(self, name: str, frame: Frame, sent_at_ms: float, now_ms: float, prefixes: PrefixChange) -> None: ...
    def stream_lost(self, name: str) -> None: ...


def parse_state(state: State) -> Frame:
    """Returns a message as routing knows it. A phase of a newer version takes no requests."""
    return Frame(
        sequence=state.sequence,
        phase=_PHASES.get(state.phase, Verdict.STARTING),
        running=state.running,
        waiting=state.waiting,
        engine_age_ms=state.engine_heartbeat_age_ms,
        served_names=frozenset(state.served_names),
        step_age_ms=state.step_age_ms,
        predicted_step_ms=state.predicted_step_ms,
        deep_check_failed=state.deep_check_failed,
        revision=state.revision,
        phase_number=state.phase,
        in_flight=state.in_flight,
        waiting_tokens=state.waiting_tokens,
        blocks_used=state.blocks_used,
        blocks_total=state.blocks_total,
        ttft_p95_ms=state.ttft_p95_ms,
    )


class StateStreams:
    """One task per replica."""

    def __init__(self, sink: StateSink, identity: str, clock_ms: Callable[[], float], own: OwnToken | None = None) -> None:
        self._sink, self._clock_ms, self._own = sink, clock_ms, own
        self._request = WatchStateRequest(watcher=f"gateway/{identity}")
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def open(self, replica: Replica) -> None:
        """Opens a replica's stream."""
        self._tasks[replica.name] = asyncio.create_task(self._read(replica), name=f"state {replica.name}")

    def end(self, name: str) -> None:
        """Ends a replica's stream."""
        task = self._tasks.pop(name)
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Ends all streams and returns when they have ended."""
        for name in list(self._tasks):
            self.end(name)
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _read(self, replica: Replica) -> None:
        pause = _BACKOFF_S[0]
        async with grpc.aio.insecure_channel(replica.grpc, options=_CHANNEL) as channel:
            watch = channel.unary_stream(
                GRPC_WATCH_STATE, request_serializer=WatchStateRequest.SerializeToString, response_deserializer=State.FromString
            )
            while True:
                try:
                    async for state in _until_silent(watch(self._request, wait_for_ready=True, metadata=metadata(self._own))):
                        prefixes = PrefixChange(state.prefix_reset, state.prefixes_resident, state.prefixes_evicted)
                        self._sink.update_state(replica.name, parse_state(state), state.sent_at_ms, self._clock_ms(), prefixes)
                        pause = _BACKOFF_S[0]
                except (grpc.aio.AioRpcError, TimeoutError) as error:
                    log.info("state stream of a replica broke", replica=replica.name, why=_reason(error))
                except Exception:  # without this the task would end and the replica's stream would never be opened again
                    log.exception("state stream of a replica failed by an error of the gateway", replica=replica.name)
                self._sink.stream_lost(replica.name)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
                pause = min(2 * pause, _BACKOFF_S[1])


async def _until_silent(call: grpc.aio.UnaryStreamCall[WatchStateRequest, State]) -> AsyncIterator[State]:
    """Yields frames as they come; TimeoutError after too long a silence. The call is cancelled in any case."""
    try:
        while True:
            async with asyncio.timeout(_REDIAL_S):
                state = await call.read()
            if state is grpc.aio.EOF:
                return
            yield state
    finally:
        call.cancel()


def _reason(error: grpc.aio.AioRpcError | TimeoutError) -> str:
    return f"{error.code().name}: {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else f"silent for {_REDIAL_S:g} s"
