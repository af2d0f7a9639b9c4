"""Reads replicas' own states where no gateway is installed, and reports them to `signals` as a gateway would. Started by process.py.

`states` is pure. Nobody holds requests then or counts those that failed: no request starts a service at zero, a canary passes by time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog
from pagoda_contracts.names import GRPC_WATCH_STATE, PORT_DAEMON_GRPC, STATE_DEAD_MS, STEP_STUCK_MS, STEP_STUCK_TIMES
from pagoda_contracts.pb import demand_pb2 as pb
from pagoda_contracts.pb.daemon_pb2 import Phase, State, WatchStateRequest
from pagoda_kube.streams import Stream, read_forever

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import Key
from pagoda_operator.client.daemons import Metadata, OwnToken, target
from pagoda_operator.client.signals import Signals

log = structlog.get_logger()

_SOURCE: Final = "replicas"
_REPORT_S: Final = 1.0
_INTERVAL_MS: Final = 500
_REDIAL_S: Final = 2 * STATE_DEAD_MS / 1000


@dataclass(slots=True)
class Replica:
    """One pod, its last frame, and when that came, in seconds. `admitted` and `ended` are the requests since its first frame here."""

    pod: Pod
    state: State | None = None
    at: float = 0.0
    admitted: int = 0
    ended: int = 0

    def hear(self, state: State, now: float) -> None:
        """A frame. One that counts less than the last is of a new process."""
        last = self.state or state
        anew = state.requests_admitted < last.requests_admitted
        self.admitted += state.requests_admitted - (0 if anew else last.requests_admitted)
        self.ended += state.requests_ended - (0 if anew else last.requests_ended)
        self.state, self.at = state, now


@dataclass(slots=True)
class _Service:
    """Its replicas by uid, and the requests of those that are gone."""

    replicas: dict[str, Replica] = field(default_factory=dict)
    admitted: int = 0
    ended: int = 0


def states(key: Key, replicas: Iterable[Replica], now: float) -> pb.ServiceDemand:
    """What a gateway without requests would report of these replicas."""
    known = tuple(replicas)
    fresh = [one.state for one in known if one.state is not None and _silent_ms(one, now) <= STATE_DEAD_MS]
    return pb.ServiceDemand(
        namespace=key.namespace,
        name=key.name,
        running=sum(state.running for state in fresh),
        waiting=sum(state.waiting for state in fresh),
        blocks_used=sum(state.blocks_used for state in fresh),
        blocks_total=sum(state.blocks_total for state in fresh),
        ttft_p95_ms=max((state.ttft_p95_ms for state in fresh), default=0),
        requests_arrived=sum(one.admitted for one in known),
        requests_ended=sum(one.ended for one in known),
        endpoints=[_endpoint(one, now) for one in known],
    )


def _endpoint(replica: Replica, now: float) -> pb.EndpointDemand:
    pod, state = replica.pod, replica.state
    if state is None:
        return pb.EndpointDemand(pod=pod.name, revision=pod.revision, reason="unheard")
    fault = _fault(replica, state, now)
    return pb.EndpointDemand(
        pod=pod.name,
        revision=state.revision or pod.revision,
        verdict=pb.VERDICT_DEAD if fault else pb.VERDICT_FRESH,
        reason=fault or Phase.Name(state.phase).removeprefix("PHASE_").lower(),
        in_flight=state.in_flight,
        draining=_drains(replica, state),
        phase=state.phase,
        state_age_ms=int(_silent_ms(replica, now)),
        deep_check_failed=state.deep_check_failed,
        device_fault=state.device_fault,
        warm_ms=state.warm_ms,
    )


def _fault(replica: Replica, state: State, now: float) -> str:
    """Why it takes no requests though it should, in a gateway's words; empty if nothing speaks against it."""
    silent_ms = _silent_ms(replica, now)
    if silent_ms > STATE_DEAD_MS:
        return "silent"
    if state.phase != Phase.PHASE_READY or _drains(replica, state):
        return ""
    if state.engine_heartbeat_age_ms + silent_ms > STATE_DEAD_MS:
        return "stuck"
    if state.step_age_ms > max(STEP_STUCK_MS, STEP_STUCK_TIMES * state.predicted_step_ms):
        return "overdue"
    return "deep-check" if state.deep_check_failed else ""


def _drains(replica: Replica, state: State) -> bool:
    return replica.pod.deleting or replica.pod.drain_deadline_ms is not None or state.phase == Phase.PHASE_DRAINING


def _silent_ms(replica: Replica, now: float) -> float:
    return max(0.0, now - replica.at) * 1000


class Replicas:
    """One stream per replica of the services that this process reconciles."""

    def __init__(
        self, signals: Signals, clock: Callable[[], float], identity: str, own: OwnToken | None = None, port: int = PORT_DAEMON_GRPC
    ) -> None:
        self._signals, self._clock, self._own, self._port = signals, clock, own, port
        self._request = WatchStateRequest(watcher=f"operator/{identity}", interval_ms=_INTERVAL_MS, no_prefixes=True)
        self._services: dict[Key, _Service] = {}
        self._streams: dict[str, asyncio.Task[None]] = {}

    def follow(self, key: Key, pods: Iterable[Pod]) -> None:
        """The pods that a service has now. What has no address yet, or has ended, has no state."""
        here = {pod.uid: pod for pod in pods if pod.address and not pod.finished}
        service = self._services.setdefault(key, _Service())
        for uid in service.replicas.keys() - here.keys():
            self._end(service, uid)
        for uid, pod in here.items():
            if uid in service.replicas and service.replicas[uid].pod.address == pod.address:
                service.replicas[uid].pod = pod
                continue
            self._end(service, uid)
            service.replicas[uid] = replica = Replica(pod)
            self._streams[uid] = asyncio.create_task(self._read(replica), name=f"state {pod.name}")

    def forget(self, key: Key) -> None:
        """The service is gone."""
        if (service := self._services.pop(key, None)) is not None:
            for uid in tuple(service.replicas):
                self._end(service, uid)

    async def run(self) -> None:
        """Reports once a second, until cancelled. Begins before the first run of a service."""
        self._signals.begin()
        try:
            while True:
                self._signals.hear(_SOURCE, self.report())
                await asyncio.sleep(_REPORT_S)
        finally:
            for task in self._streams.values():
                task.cancel()
            await asyncio.gather(*self._streams.values(), return_exceptions=True)

    def report(self) -> pb.Demand:
        """All services, as a full frame of a gateway."""
        return pb.Demand(gateway=_SOURCE, full=True, services=[self._of(key, service) for key, service in self._services.items()])

    def _of(self, key: Key, service: _Service) -> pb.ServiceDemand:
        message = states(key, service.replicas.values(), self._clock())
        message.requests_arrived += service.admitted
        message.requests_ended += service.ended
        return message

    def _end(self, service: _Service, uid: str) -> None:
        """Of a replica that is gone, all requests have ended."""
        if (replica := service.replicas.pop(uid, None)) is None:
            return
        self._streams.pop(uid).cancel()
        service.admitted += replica.admitted
        service.ended += max(replica.admitted, replica.ended)

    async def _read(self, replica: Replica) -> None:
        stream = Stream(target(replica.pod, self._port), GRPC_WATCH_STATE, self._request, State.FromString, self._metadata, _REDIAL_S)
        await read_forever(
            stream,
            lambda state: replica.hear(state, self._clock()),
            lambda why: log.info("state_stream_broke", pod=replica.pod.name, why=why),
        )

    def _metadata(self) -> Metadata:
        return self._own.metadata() if self._own is not None else ()
