"""EndpointCache: the gateway's view of services and their names, of endpoints and their live state, and of its own requests there.

Written by cluster.py or static_file.py, by state_streams.py and by requests/lifecycle.py. It decides nothing and opens no socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Literal

from pagoda_contracts.name_owners import NOTHING_RESERVED, Reserved, ServedName, resolve
from pagoda_contracts.names import STATE_DEAD_MS

from pagoda_gateway.routing import outliers, share
from pagoda_gateway.routing.endpoint import NO_CHANGE, READY, Endpoint, Frame, PrefixChange
from pagoda_gateway.watch.services import Replica, Service

# The estimate of (our clock − sender's clock) may rise by this per frame, at most ~2 ms/s: enough for any drift of two crystals
# (100 ppm is 0.1 ms/s), too little to excuse frames that begin to come late.
_OFFSET_LEAK_MS: Final = 0.2
# Of the last request in the mean of how long requests take.
_TOOK_WEIGHT: Final = 0.05


def _begins_to_serve(endpoint: Endpoint, frame: Frame, now_ms: float) -> bool:
    """Whether it serves from now on, because it became ready or because it was silent."""
    before = endpoint.frame
    served = before is not None and before.phase == READY and now_ms - endpoint.frame_made_ms <= STATE_DEAD_MS
    return frame.phase == READY and not served


class EndpointCache:
    """Services, endpoints and their state. serve/process.py sets the four callbacks once. `reserved`: names that only some namespaces may
    have."""

    def __init__(self, reserved: Reserved = NOTHING_RESERVED) -> None:
        self._reserved = reserved
        self._services: dict[str, Service] = {}
        self._owners: dict[str, ServedName] = {}
        self._replicas: dict[str, Replica] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self._by_service: dict[str, dict[str, Endpoint]] = {}
        self._offsets: dict[str, float] = {}
        self._unsynced: set[str] = {"services", "replicas"}
        self._picks = 0
        self.on_state_change: Callable[[str], None] = lambda _service: None
        self.on_names_change: Callable[[], None] = lambda: None
        self.on_replica_added: Callable[[Replica], None] = lambda _replica: None
        self.on_replica_removed: Callable[[str], None] = lambda _name: None

    # Discovery

    @property
    def synced(self) -> bool:
        """Whether discovery has listed everything once. Before that "not found" means nothing."""
        return not self._unsynced

    def mark_synced(self, kind: Literal["services", "replicas"]) -> None:
        """Records that the first list of one kind is complete."""
        self._unsynced.discard(kind)
        self.on_names_change()

    def put_service(self, service: Service) -> None:
        """Adds or replaces a service."""
        if self._services.get(service.key) != service:
            self._services[service.key] = service
            for endpoint in self._by_service.get(service.key, {}).values():
                endpoint.faulty = endpoint.name in service.faulty
            self._resolve_names()

    def delete_service(self, key: str) -> None:
        """Removes a service."""
        if self._services.pop(key, None) is not None:
            self._resolve_names()

    def _resolve_names(self) -> None:
        services = self._services.values()
        wanted = (ServedName(name, s.created, s.uid, s.key, name in s.owned, s.served) for s in services for name in s.served_names)
        adapters = (ServedName(name, s.created, s.uid, s.key, True, s.served) for s in services for name in s.adapters)
        self._owners = resolve((*wanted, *adapters), self._reserved)
        self.on_names_change()

    def put_replica(self, replica: Replica) -> None:
        """Adds or updates a replica. One with a new address is another replica."""
        known = self._replicas.get(replica.name)
        if known is not None and known._replace(draining=replica.draining) != replica:
            self.delete_replica(replica.name)
            known = None
        self._replicas[replica.name] = replica
        if known is None:
            endpoint = Endpoint(replica.name, replica.service, replica.http, replica.service_uid)
            self._endpoints[replica.name] = endpoint
            self._by_service.setdefault(replica.service, {})[replica.name] = endpoint
            self.on_replica_added(replica)
        endpoint, service = self._endpoints[replica.name], self._services.get(replica.service)
        endpoint.draining, endpoint.faulty = replica.draining, service is not None and replica.name in service.faulty
        self.on_state_change(replica.service)

    def delete_replica(self, name: str) -> None:
        """Removes a replica. Requests under way there end by themselves."""
        replica = self._replicas.pop(name, None)
        if replica is None:
            return
        del self._endpoints[name]
        siblings = self._by_service[replica.service]
        del siblings[name]
        if not siblings:
            del self._by_service[replica.service]
        self._offsets.pop(name, None)
        self.on_replica_removed(name)

    # Live state

    def update_state(self, name: str, frame: Frame, sent_at_ms: float, now_ms: float, prefixes: PrefixChange = NO_CHANGE) -> None:
        """Records a frame, and what it says of cached prompts. Its age counts by the sender's clock, which is ours less the smallest delay
        seen: a frame that waited in a queue is an old frame."""
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            return
        delay = now_ms - sent_at_ms
        offset = min(self._offsets.get(name, delay) + _OFFSET_LEAK_MS, delay)
        self._offsets[name] = offset
        if _begins_to_serve(endpoint, frame, now_ms):
            share.join(endpoint, self._by_service[endpoint.service].values())
            endpoint.failures = outliers.back(endpoint.failures, now_ms)
        endpoint.frame_made_ms = sent_at_ms + offset
        endpoint.frame, endpoint.in_flight_at_frame, endpoint.sent_tokens = frame, endpoint.in_flight, 0
        endpoint.connected, endpoint.refused, endpoint.no_place = True, False, False
        if prefixes.reset:
            endpoint.resident.clear()
        endpoint.resident.difference_update(prefixes.lost)
        endpoint.resident.update(prefixes.gained)
        self.on_state_change(endpoint.service)

    def stream_lost(self, name: str) -> None:
        """Records that the state stream broke: the endpoint is suspect at once. The next stream's clock may be another process's."""
        self._offsets.pop(name, None)
        endpoint = self._endpoints.get(name)
        if endpoint is not None:
            endpoint.connected = False

    # The gateway's own requests

    @contextmanager
    def in_flight(self, endpoint: Endpoint, tokens: int = 0) -> Iterator[None]:
        """Counts one request at an endpoint for as long as the context lasts. The endpoint has to compute `tokens` of its prompt first. The
        end makes room for a request that is held."""
        self._picks += 1
        endpoint.last_pick = self._picks
        endpoint.in_flight += 1
        endpoint.sent_tokens += tokens
        share.count(endpoint, self._by_service.get(endpoint.service, {}).values())
        try:
            yield
        finally:
            endpoint.in_flight -= 1
            self.on_state_change(endpoint.service)

    def took(self, endpoint: Endpoint, took_ms: float) -> None:
        """Records how long a request took there."""
        endpoint.took_ms += (took_ms - endpoint.took_ms) * (_TOOK_WEIGHT if endpoint.took_ms else 1)

    def tried(self, endpoint: Endpoint, now_ms: float, *, failed: bool) -> bool:
        """Records how a request ended there. Returns whether the endpoint is left out from now on."""
        before = endpoint.failures
        endpoint.failures = outliers.failed(before, now_ms) if failed else outliers.answered(before)
        return endpoint.failures.times > before.times

    def mark_refused(self, endpoint: Endpoint) -> None:
        """Records a refusal: no request goes there before its next frame."""
        endpoint.refused = True

    def mark_no_place(self, endpoint: Endpoint) -> None:
        """Records a refusal that may be the adapter's: no request that has to load one goes there before its next frame."""
        endpoint.no_place = True

    # Queries

    def resolve(self, model: str) -> Service | None:
        """Returns the service that has this name."""
        owner = self._owners.get(model)
        return self._services[owner.owner] if owner else None

    def endpoints(self, service: Service) -> list[Endpoint]:
        """Returns a service's endpoints without those of an older object of the same name, which may serve another model."""
        known = self._by_service.get(service.key, {})
        return [endpoint for endpoint in known.values() if endpoint.service_uid in ("", service.uid)]

    def address(self, name: str) -> str:
        """Returns the address of the endpoint with this name; "" if there is none."""
        endpoint = self._endpoints.get(name)
        return endpoint.address if endpoint is not None else ""

    def is_adapter(self, model: str) -> bool:
        """Whether the name stands for a LoRA of its service, by the operator's word or a replica's."""
        service = self.resolve(model)
        if service is None:
            return False
        return model in service.adapters or any(endpoint.will_have(model) for endpoint in self.endpoints(service))

    def parent(self, model: str) -> str:
        """Returns the name of the model that an adapter belongs to; "" if the name is not a LoraAdapter's."""
        service = self.resolve(model)
        return service.served_names[0] if service is not None and model in service.adapters else ""

    def service(self, key: str) -> Service | None:
        """Returns a service by its key."""
        return self._services.get(key)

    def services(self) -> list[Service]:
        """Returns all services."""
        return list(self._services.values())

    def models(self) -> list[ServedName]:
        """Returns all names that a service has, sorted."""
        return sorted(self._owners.values())
