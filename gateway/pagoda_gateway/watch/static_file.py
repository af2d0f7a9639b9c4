"""A fleet from a file instead of Kubernetes, read again whenever the file changes: stand-alone use, tests, benches.

`{"services": [{"name": "ns/name", "served_names": ["m"], "endpoints": [{"http": "127.0.0.1:8000", "grpc": "127.0.0.1:9000"}]}]}`
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import msgspec
import structlog

from pagoda_gateway.watch.fleet import Fleet, Member, Service

log = structlog.get_logger()

_LOOK_EVERY_S: Final = 0.1
_CREATED: Final = "1970-01-01T00:00:00Z"  # all alike: order in the file, as uid, decides


class StaticEndpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A replica's addresses."""

    http: str
    grpc: str
    leaving: bool = False
    revision: str = ""
    sick: str = ""


class StaticService(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A service; the first in the file is the oldest."""

    name: str
    served_names: tuple[str, ...]
    endpoints: tuple[StaticEndpoint, ...] = ()
    weights: dict[str, int] = {}


class StaticFleet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    services: tuple[StaticService, ...]


def parse(text: bytes) -> tuple[dict[str, Service], dict[str, Member]]:
    """Services and members by key; ValueError (msgspec's) names what is wrong."""
    services, members = {}, {}
    for order, static in enumerate(msgspec.json.decode(text, type=StaticFleet).services):
        weights = tuple(static.weights.items())
        services[static.name] = Service(static.name, f"{order:08}", _CREATED, static.served_names, weights)
        for endpoint in static.endpoints:
            name = f"{static.name}/{endpoint.http}"
            addresses = endpoint.http, endpoint.grpc
            members[name] = Member(name, static.name, "", *addresses, endpoint.leaving, endpoint.revision, endpoint.sick)
    return services, members


class FleetFile:
    """Keeps a fleet as the file says."""

    def __init__(self, fleet: Fleet, path: Path) -> None:
        self._fleet, self._path = fleet, path
        self._services: dict[str, Service] = {}
        self._members: dict[str, Member] = {}

    async def run(self) -> None:
        """Reads the file now (a fault ends the process) and after each change (a fault keeps what was)."""
        seen = self._stamp()
        self._read()
        self._fleet.mark_synced("services")
        self._fleet.mark_synced("members")
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if (stamp := self._stamp()) == seen:
                continue
            seen = stamp
            try:
                self._read()
            except (OSError, msgspec.DecodeError) as error:
                log.error("the fleet file is unreadable, its last state stays", file=str(self._path), why=str(error))

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read(self) -> None:
        services, members = parse(self._path.read_bytes())
        for key in self._services.keys() - services.keys():
            self._fleet.drop_service(key)
        for name in self._members.keys() - members.keys():
            self._fleet.drop_member(name)
        for service in services.values():
            self._fleet.put_service(service)
        for member in members.values():
            self._fleet.put_member(member)
        self._services, self._members = services, members
