"""Reads replicas' state: one WatchState stream per replica that has an address, its frames into the cache. Started by serve/process.py.

A stream that breaks or falls silent is opened again with jittered backoff. routing/verdict.py judges what silence means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import structlog
from pagoda_contracts.names import GRPC_WATCH_STATE, STATE_DEAD_MS
from pagoda_contracts.pb.daemon_pb2 import ADAPTER_PHASE_LOADED, ADAPTER_PHASE_ON_DISK, Phase, State, WatchStateRequest
from pagoda_kube.streams import Stream, read_forever

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
# Twice as long as the silence that ends routing: then the connection itself counts as dead.
_REDIAL_S: Final = 2 * STATE_DEAD_MS / 1000


class StateSink(Protocol):
    """Takes the frames."""

    def update_state(self, name: str, frame: Frame, sent_at_ms: float, now_ms: float, prefixes: PrefixChange) -> None: ...
    def stream_lost(self, name: str) -> None: ...


def parse_state(state: State) -> Frame:
    """Returns a message as routing knows it. A phase of a newer version takes no requests."""
    loaded = frozenset(adapter.name for adapter in state.adapters if adapter.phase == ADAPTER_PHASE_LOADED)
    here = loaded.union(adapter.name for adapter in state.adapters if adapter.phase == ADAPTER_PHASE_ON_DISK)
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
        device_fault=state.device_fault,
        revision=state.revision,
        phase_number=state.phase,
        in_flight=state.in_flight,
        waiting_tokens=state.waiting_tokens,
        blocks_used=state.blocks_used,
        blocks_total=state.blocks_total,
        warm_ms=state.warm_ms,
        ttft_p95_ms=state.ttft_p95_ms,
        prefill_tokens=state.prefill_tokens,
        max_concurrency=state.max_concurrency,
        block_size=state.block_size,
        step_base_us=state.step_base_us,
        step_token_us=state.step_token_us,
        step_row_us=state.step_row_us,
        adapters=here,
        loaded=loaded,
        coming=frozenset(adapter.name for adapter in state.adapters) - here,
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
        stream = Stream(replica.grpc, GRPC_WATCH_STATE, self._request, State.FromString, lambda: metadata(self._own), _REDIAL_S)
        await read_forever(stream, lambda state: self._take(replica.name, state), lambda why: self._lost(replica.name, why))

    def _take(self, name: str, state: State) -> None:
        prefixes = PrefixChange(state.prefix_reset, state.prefixes_resident, state.prefixes_evicted)
        self._sink.update_state(name, parse_state(state), state.sent_at_ms, self._clock_ms(), prefixes)

    def _lost(self, name: str, why: str) -> None:
        log.info("state stream of a replica broke", replica=name, why=why)
        self._sink.stream_lost(name)
