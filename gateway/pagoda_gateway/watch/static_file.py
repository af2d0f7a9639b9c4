"""Services and replicas from a file instead of Kubernetes, for stand-alone use, tests and benchmarks. A change of the file is read at once.

`{"services": [{"name": "ns/name", "served_names": ["m"], "endpoints": [{"http": "127.0.0.1:8000", "grpc": "127.0.0.1:9000"}]}]}`
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import msgspec
import structlog

from pagoda_gateway.watch.cache import EndpointCache
from pagoda_gateway.watch.routing_spec import RoutingSpec
from pagoda_gateway.watch.services import Replica, Service

log = structlog.get_logger()

_READ_EVERY_S: Final = 0.1
_CREATED: Final = "1970-01-01T00:00:00Z"  # the same for all: the order in the file decides, as uid


class StaticEndpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A replica's addresses. `leaving`: it drains; `sick`: why its device is not to be trusted."""

    http: str
    grpc: str
    leaving: bool = False
    sick: str = ""


class StaticService(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A service; the first in the file is the oldest. `routing` is as in an InferenceService."""

    name: str
    served_names: tuple[str, ...]
    endpoints: tuple[StaticEndpoint, ...] = ()
    weights: dict[str, int] = {}
    routing: RoutingSpec = RoutingSpec()


class StaticServices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    services: tuple[StaticService, ...]


def parse(text: bytes) -> tuple[dict[str, Service], dict[str, Replica]]:
    """Returns services and replicas by key. ValueError (msgspec's) names what is wrong."""
    services, replicas = {}, {}
    for order, static in enumerate(msgspec.json.decode(text, type=StaticServices).services):
        weights = tuple(static.weights.items())
        service, routing = Service(static.name, f"{order:08}", _CREATED, static.served_names, weights), static.routing
        named = {f"{static.name}/{endpoint.http}": endpoint for endpoint in static.endpoints}
        faulty = frozenset(name for name, endpoint in named.items() if endpoint.sick)
        service = service._replace(policy=routing.kind(), hold=routing.holds(), overflow=routing.overflows(), faulty=faulty)
        services[static.name] = service
        for name, endpoint in named.items():
            replicas[name] = Replica(name, static.name, "", endpoint.http, endpoint.grpc, endpoint.leaving)
    return services, replicas


class StaticFile:
    """Keeps the cache as the file says."""

    def __init__(self, cache: EndpointCache, path: Path) -> None:
        self._cache, self._path = cache, path
        self._services: dict[str, Service] = {}
        self._replicas: dict[str, Replica] = {}

    async def run(self) -> None:
        """Reads the file now, where a fault ends the process, and after each change, where a fault leaves the last state."""
        seen = self._stamp()
        self._read()
        self._cache.mark_synced("services")
        self._cache.mark_synced("replicas")
        while True:
            await asyncio.sleep(_READ_EVERY_S)
            if (stamp := self._stamp()) == seen:
                continue
            seen = stamp
            try:
                self._read()
            except (OSError, msgspec.DecodeError) as error:
                log.error("fleet file cannot be read; its last state stays in use", file=str(self._path), why=str(error))

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read(self) -> None:
        services, replicas = parse(self._path.read_bytes())
        for key in self._services.keys() - services.keys():
            self._cache.delete_service(key)
        for name in self._replicas.keys() - replicas.keys():
            self._cache.delete_replica(name)
        for service in services.values():
            self._cache.put_service(service)
        for replica in replicas.values():
            self._cache.put_replica(replica)
        self._services, self._replicas = services, replicas
