"""A gateway that tells of demand what the test wants: the real `pagoda.v1.Demand` stream, a heartbeat of 250 ms, no requests behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from pagoda_contracts.names import GRPC_DEMAND, GRPC_WATCH_DEMAND
from pagoda_contracts.pb import demand_pb2 as pb
from pagoda_contracts.pb.daemon_pb2 import Phase

_BEAT_S = 0.25
_BLOCKS = 1000


@dataclass
class Traffic:
    """What goes on at one service: `rate` requests per second come and end, so many run, wait and are held; share of the KV in use. By
    revision: requests of the last minute, and the 95th percentile of their time to first token in ms."""

    rate: float = 0.0
    running: int = 0
    waiting: int = 0
    held: int = 0
    kv: float = 0.0
    revisions: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class ScriptedGateway:
    """One service; `pods` names the Ready ones, which all are heard. Those of one gateway share `changed` (`MultiServiceGateway`)."""

    def __init__(self, namespace: str, name: str, pods: Callable[[], list[str]], changed: threading.Condition | None = None) -> None:
        self._key = {"namespace": namespace, "name": name}
        self._pods = pods
        self._changed = changed or threading.Condition()
        self._traffic = Traffic()
        self._count, self._counted_at = 0.0, time.monotonic()
        self._sequence = 0

    def report(self, traffic: Traffic) -> float:
        """From now on; returns when (Unix time)."""
        with self._changed:
            self._add_up()
            self._traffic = traffic
            self._changed.notify_all()
        return time.time()

    def watch(self, _request: pb.WatchDemandRequest, context: grpc.ServicerContext) -> Iterator[pb.Demand]:
        while context.is_active():
            self._sequence += 1
            yield pb.Demand(gateway="scripted", sequence=self._sequence, full=True, services=[self.demand()], peers=1)
            with self._changed:
                self._changed.wait(_BEAT_S)

    def _add_up(self) -> None:
        now = time.monotonic()
        self._count += self._traffic.rate * (now - self._counted_at)
        self._counted_at = now

    def demand(self) -> pb.ServiceDemand:
        """As of now."""
        ready = [pb.EndpointDemand(pod=pod, verdict=pb.VERDICT_FRESH, reason="ready", phase=Phase.PHASE_READY) for pod in self._pods()]
        with self._changed:
            self._add_up()
            now = self._traffic
            return pb.ServiceDemand(
                **self._key,
                held=now.held,
                wake=bool(now.held),
                running=now.running,
                waiting=now.waiting,
                blocks_used=round(_BLOCKS * now.kv),
                blocks_total=_BLOCKS,
                requests_arrived=int(self._count),
                requests_ended=int(self._count),
                endpoints=ready,
                revisions=[
                    pb.RevisionDemand(revision=name, requests=count, ttft_p95_ms=ttft) for name, (count, ttft) in now.revisions.items()
                ],
            )


class MultiServiceGateway:
    """One gateway with many services, which a change of any of them makes speak."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._services: list[ScriptedGateway] = []
        self._sequence = 0

    def add(self, namespace: str, name: str, pods: Callable[[], list[str]]) -> ScriptedGateway:
        self._services.append(ScriptedGateway(namespace, name, pods, self.changed))
        return self._services[-1]

    def watch(self, _request: pb.WatchDemandRequest, context: grpc.ServicerContext) -> Iterator[pb.Demand]:
        while context.is_active():
            self._sequence += 1
            reported = [service.demand() for service in self._services]
            yield pb.Demand(gateway="scripted", sequence=self._sequence, full=True, services=reported, peers=1)
            with self.changed:
                self.changed.wait(_BEAT_S)


@contextmanager
def serving(gateway: ScriptedGateway | MultiServiceGateway) -> Iterator[str]:
    """Its address."""
    method = grpc.unary_stream_rpc_method_handler(
        gateway.watch, request_deserializer=pb.WatchDemandRequest.FromString, response_serializer=pb.Demand.SerializeToString
    )
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(GRPC_DEMAND, {GRPC_WATCH_DEMAND.rpartition("/")[2]: method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait(60)
