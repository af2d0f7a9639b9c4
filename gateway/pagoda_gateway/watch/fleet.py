"""What the gateway knows now: services and their names, replicas (both from watch.py), their live state (from streams.py), and the
ledger of its own requests (from route.py). The one place that is written; it decides nothing and opens no socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from pagoda_contracts.claims import Claim, resolve

from pagoda_gateway.routing.picker import Endpoint, Frame

# The estimate of (our clock − sender's clock) may rise by this per frame, at most ~2 ms/s: enough for any drift of two crystals
# (100 ppm is 0.1 ms/s), too little to excuse frames that begin to come late.
_OFFSET_LEAK_MS = 0.2


class Service(NamedTuple):
    """An InferenceService as routing sees it. `key` "namespace/name", `created` its creationTimestamp, `weights` (revision, percent) while
    the operator splits requests between revisions, `held` the names that it has already."""

    key: str
    uid: str
    created: str
    served_names: tuple[str, ...]
    weights: tuple[tuple[str, int], ...] = ()
    held: tuple[str, ...] = ()


class Member(NamedTuple):
    """A replica as discovery sees it: it has addresses. `service_uid`, `revision` "" where unknown; `leaving`: told to go, or going;
    `sick`: why its device is not to be trusted."""

    name: str
    service: str
    service_uid: str
    http: str
    grpc: str
    leaving: bool
    revision: str = ""
    sick: str = ""


class Fleet:
    """Services, endpoints and their state. The four callbacks are set once, by serve.py."""

    def __init__(self) -> None:
        self._services: dict[str, Service] = {}
        self._claims: dict[str, Claim] = {}
        self._members: dict[str, Member] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self._by_service: dict[str, dict[str, Endpoint]] = {}
        self._offsets: dict[str, float] = {}
        self._awaited: set[str] = {"services", "members"}
        self._turn = 0
        self.on_state: Callable[[str], None] = lambda _service: None
        self.on_names: Callable[[], None] = lambda: None
        self.on_join: Callable[[Member], None] = lambda _member: None
        self.on_part: Callable[[str], None] = lambda _name: None

    # Discovery

    @property
    def synced(self) -> bool:
        """Has discovery looked at everything once? Before that "not found" means nothing."""
        return not self._awaited

    def mark_synced(self, what: Literal["services", "members"]) -> None:
        """The first look at one kind is complete."""
        self._awaited.discard(what)
        self.on_names()

    def put_service(self, service: Service) -> None:
        """A service appeared or changed."""
        if self._services.get(service.key) != service:
            self._services[service.key] = service
            self._reclaim()

    def drop_service(self, key: str) -> None:
        """A service is gone."""
        if self._services.pop(key, None) is not None:
            self._reclaim()

    def _reclaim(self) -> None:
        claims = (Claim(name, s.created, s.uid, s.key, name in s.held) for s in self._services.values() for name in s.served_names)
        self._claims = resolve(claims)
        self.on_names()

    def put_member(self, member: Member) -> None:
        """A replica appeared or changed. One with a new address is another replica."""
        known = self._members.get(member.name)
        if known is not None and known._replace(leaving=member.leaving, sick=member.sick) != member:
            self.drop_member(member.name)
            known = None
        self._members[member.name] = member
        if known is None:
            endpoint = Endpoint(member.name, member.service, member.http, member.service_uid, member_revision=member.revision)
            self._endpoints[member.name] = endpoint
            self._by_service.setdefault(member.service, {})[member.name] = endpoint
            self.on_join(member)
        endpoint = self._endpoints[member.name]
        endpoint.leaving, endpoint.sick = member.leaving, member.sick
        self.on_state(member.service)

    def drop_member(self, name: str) -> None:
        """A replica is gone. Requests under way there end by themselves."""
        member = self._members.pop(name, None)
        if member is None:
            return
        del self._endpoints[name]
        line = self._by_service[member.service]
        del line[name]
        if not line:
            del self._by_service[member.service]
        self._offsets.pop(name, None)
        self.on_part(name)

    # Live state

    def hear(self, name: str, frame: Frame, sent_at_ms: float, now_ms: float) -> None:
        """A frame arrived. Its age is judged by the sender's clock: ours less the smallest delay seen, so a queued frame is an old one."""
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            return
        seen = now_ms - sent_at_ms
        offset = min(self._offsets.get(name, seen) + _OFFSET_LEAK_MS, seen)
        self._offsets[name] = offset
        endpoint.made_at_ms = sent_at_ms + offset
        endpoint.frame, endpoint.own_at_frame = frame, endpoint.own
        endpoint.connected, endpoint.refused = True, False
        self.on_state(endpoint.service)

    def lost(self, name: str) -> None:
        """The state stream broke: suspect at once; the next stream's clock may be another process's."""
        self._offsets.pop(name, None)
        endpoint = self._endpoints.get(name)
        if endpoint is not None:
            endpoint.connected = False

    # The ledger of our own requests

    def begin(self, endpoint: Endpoint) -> None:
        """A request goes there."""
        self._turn += 1
        endpoint.last_turn = self._turn
        endpoint.own += 1

    def end(self, endpoint: Endpoint) -> None:
        """It ended, however it did."""
        endpoint.own -= 1

    def refuse(self, endpoint: Endpoint) -> None:
        """It turned a request away: nothing more goes there before its next frame."""
        endpoint.refused = True

    # Questions

    def resolve(self, model: str) -> Service | None:
        """The service that answers to this name."""
        claim = self._claims.get(model)
        return self._services[claim.owner] if claim else None

    def endpoints(self, service: Service) -> list[Endpoint]:
        """Its replicas; not those of an older object of the same name, which may serve another model."""
        line = self._by_service.get(service.key, {})
        return [endpoint for endpoint in line.values() if endpoint.service_uid in ("", service.uid)]

    def service(self, key: str) -> Service | None:
        """By key."""
        return self._services.get(key)

    def services(self) -> list[Service]:
        """All of them."""
        return list(self._services.values())

    def claims(self) -> list[Claim]:
        """All names that are answered to, sorted."""
        return sorted(self._claims.values())
