"""Peers: what the other gateways hold, so that each can answer for all. Read from their demand streams. Started by serve/process.py.

Replicas report to every gateway, so only held requests are added. This gateway's own stream is among them and is left out by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import structlog
from pagoda_contracts.names import GRPC_WATCH_DEMAND, STATE_DEAD_MS
from pagoda_contracts.pb.demand_pb2 import Demand, WatchDemandRequest
from pagoda_kube.streams import OnePerAddress, Stream, read_forever

from pagoda_gateway.watch.own_token import OwnToken, metadata

log = structlog.get_logger()

_REDIAL_S: Final = 2 * STATE_DEAD_MS / 1000


class _Peer(NamedTuple):
    """Its name, when its last frame came, and what it holds by service."""

    name: str
    heard_ms: float
    held: dict[str, int]


class Peers:
    """The other gateways. `changed` is called with the services of which another gateway holds more or fewer requests."""

    def __init__(self, names: Iterable[str], identity: str, clock_ms: Callable[[], float], own: OwnToken | None = None) -> None:
        self._identity, self._clock_ms, self._own = identity, clock_ms, own
        self._request = WatchDemandRequest(watcher=f"gateway/{identity}")
        self._peers: dict[str, _Peer] = {}
        self._streams = OnePerAddress(names, self._read, self._forget)
        self.changed: Callable[[str], None] = lambda _service: None

    async def run(self) -> None:
        """Until cancelled."""
        await self._streams.run()

    def held(self, service: str) -> int:
        """Returns how many requests the others hold for a service. One that is silent for 3 s is taken to hold none."""
        heard = self._clock_ms() - STATE_DEAD_MS
        return sum(peer.held.get(service, 0) for peer in self._peers.values() if peer.heard_ms >= heard and peer.name != self._identity)

    def take(self, address: str, frame: Demand) -> None:
        """Records a frame of the gateway at this address."""
        before = self._peers.get(address)
        held = {} if frame.full or before is None else dict(before.held)
        held |= {f"{one.namespace}/{one.name}": one.held for one in frame.services}
        self._peers[address] = _Peer(frame.gateway, self._clock_ms(), held)
        last = before.held if before is not None else {}
        for service in held.keys() | last.keys():
            if held.get(service, 0) != last.get(service, 0):
                self.changed(service)

    def _forget(self, address: str) -> None:
        self._peers.pop(address, None)

    async def _read(self, address: str) -> None:
        stream = Stream(address, GRPC_WATCH_DEMAND, self._request, Demand.FromString, lambda: metadata(self._own), _REDIAL_S)
        await read_forever(
            stream,
            lambda frame: self.take(address, frame),
            lambda why: log.info("demand stream of another gateway broke", gateway=address, why=why),
        )
