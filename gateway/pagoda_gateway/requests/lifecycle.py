"""The life of a request: begun, admitted, held, picked, forwarded, ended. All that is counted of a request is counted here.

InFlight.begin() (in_flight.py) is the outermost context; held() and at() are stages inside it. Each of them restores its gauges however it
is left: by a return, an error or a cancellation. Called by proxy/handlers.py and router.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import structlog
from pagoda_contracts.route import NO_ENDPOINT, REASON_OVERFLOW, REPICK_PREFIX, Route, format_route

from pagoda_gateway.limits.rules import NO_POLICY, Policy
from pagoda_gateway.requests.budget import Budget, Take
from pagoda_gateway.requests.errors import UNREACHABLE, CannotContinue, Died, GatewayError, Overloaded, Refused, UpstreamDied
from pagoda_gateway.requests.hold_queue import ALONE, Claim, HoldQueue, Ticket
from pagoda_gateway.requests.metrics import Metrics
from pagoda_gateway.requests.tally import Tally
from pagoda_gateway.routing.endpoint import Endpoint
from pagoda_gateway.routing.predict import missed_tokens
from pagoda_gateway.routing.request import RoutingRequest
from pagoda_gateway.watch.cache import EndpointCache
from pagoda_gateway.watch.services import Overflow

log = structlog.get_logger()

# From here on an answer says nothing of how long requests take.
_REFUSED: Final = 400
_CLIENT_LEFT: Final = 499
_FAILED: Final = 500
# A replica that answers so time after time is broken. 501 is an answer to the request.
_BROKEN: Final = frozenset({500, 502, 503, 504})
_UNREAD: Final = RoutingRequest("")


@dataclass(slots=True)
class Counters:
    """Everything that counts requests. `demand_changed` gets the key of a service whose requests changed; serve/process.py sets it once."""

    cache: EndpointCache
    queue: HoldQueue
    metrics: Metrics
    tally: Tally
    budget: Budget
    clock_ms: Callable[[], float]
    demand_changed: Callable[[str], None] = lambda _service: None


class Place:
    """A held request's place in a queue. `served`: it found an endpoint."""

    def __init__(self, counters: Counters, ticket: Ticket) -> None:
        self._queue, self._clock_ms, self.ticket, self.served = counters.queue, counters.clock_ms, ticket, False

    async def wait(self, seconds: float) -> None:
        """Returns when something changed for the queue; TimeoutError after `seconds`."""
        await self.ticket.wait(seconds)

    def came(self) -> None:
        """It might find an endpoint, and waits for its turn."""
        self._queue.came(self.ticket, self._clock_ms())

    def looked(self, service: str, *, full: bool) -> None:
        """It found no endpoint, and waits on; in another service's queue, if its name is that one's now. `full`: no endpoint has room."""
        if self.ticket.service != service:
            self.ticket = self._queue.move(self.ticket, service, self._clock_ms())
        else:
            self._queue.looked(self.ticket, self._clock_ms(), full=full)

    def leave(self) -> None:
        """Frees the place."""
        self._queue.leave(self.ticket, self._clock_ms(), served=self.served)


@dataclass(slots=True)
class RequestLife:
    """One request under way. `take_bytes` counts its body. `tried`: endpoint → sequence of its last frame when it died on this request;
    `overloaded`: endpoints that had no room; `point`: its draw while requests are split between revisions; `claim`: its order among held
    requests; `replica`: the name of the replica at `endpoint`; `policy`: what its tenant's quotas allow; `adapter`: the LoRA that its
    `model` stands for at the endpoint; `targets`: where it may overflow; `overflow`: where its service says so, among them.

    Of a stream: `begun`: its client has a part of the answer; `advanced`: this attempt added to it; `fixed`: it cannot go on elsewhere;
    `deaths`: of replicas, in a row, that added nothing; `lives`: how often it went on after a death; `ping` keeps its client's connection
    alive, and `pinged_ms` is when it did last."""

    _counters: Counters
    request_id: str
    take_bytes: Take
    request: RoutingRequest = _UNREAD
    claim: Claim = ALONE
    policy: Policy = NO_POLICY
    service: str = ""
    endpoint: str = NO_ENDPOINT
    replica: str = ""
    revision: str = ""
    adapter: str = ""
    reason: str = ""
    attempt: int = 1
    deaths: int = 0
    held_ms: float = 0.0
    admitted_ms: float = 0.0
    asked_ms: float = 0.0
    heard_ms: float = 0.0
    first_ms: float = 0.0
    begun: bool = False
    fixed: bool = False
    advanced: bool = False
    lives: int = 0
    status: int = _FAILED
    point: float | None = None
    ping: Callable[[str], Awaitable[None]] | None = None
    pinged_ms: float = 0.0
    targets: frozenset[str] = frozenset()
    overflow: Overflow | None = None
    tried: dict[str, int] = field(default_factory=dict)
    overloaded: set[str] = field(default_factory=set)
    _at: Endpoint | None = None
    _holding_from_ms: float | None = None

    def route(self) -> str:
        """Returns the route header's value as of now."""
        waiting_ms = self._counters.clock_ms() - self._holding_from_ms if self._holding_from_ms is not None else 0.0
        return format_route(Route(self.endpoint, self.reason or "unrouted", round(self.held_ms + waiting_ms), self.attempt))

    def admit(self) -> None:
        """The request is read. Its time to first token counts from now on."""
        self.admitted_ms = self.admitted_ms or self._counters.clock_ms()
        self.pinged_ms = self.pinged_ms or self.admitted_ms

    async def keep_alive(self) -> None:
        """The client of a stream has waited for long."""
        if self.ping is not None:
            await self.ping(self.route())
        self.pinged_ms = self._counters.clock_ms()

    def assign(self, service: str) -> None:
        """The request's name belongs to this service, now that it was looked up (again)."""
        if self.service == service:
            return
        counters, now_ms = self._counters, self._counters.clock_ms()
        if self.service:
            counters.tally.ended(self.service, now_ms, failed=None)
        counters.tally.arrived(service, now_ms)
        self.service = service
        counters.demand_changed(service)

    @contextmanager
    def held(self, service: str, most: int | None = None, luck: float = 1.0) -> Iterator[Place]:
        """Holds the request in a service's queue for as long as the context lasts; QueueFull at the limit, or at `most` of this service,
        and LoadShed before that, as `luck` says."""
        counters, began_ms = self._counters, self._counters.clock_ms()
        claim = self.claim._replace(first=self.claim.first or self.attempt > 1)
        place = Place(counters, counters.queue.enter(service, began_ms, claim, most, luck))
        try:
            counters.demand_changed(service)
            self._holding_from_ms = began_ms
            yield place
        finally:
            place.leave()
            self._holding_from_ms = None
            held_ms = counters.clock_ms() - began_ms
            self.held_ms += held_ms
            counters.metrics.held(place.ticket.service, held_ms / 1000)

    @contextmanager
    def at(self, endpoint: Endpoint) -> Iterator[None]:
        """One attempt at an endpoint. Records how the attempt failed, so that the next pick knows."""
        with self._counters.cache.in_flight(endpoint, missed_tokens(endpoint, self.request)):
            self._at = endpoint
            self.revision, self.asked_ms = endpoint.revision, self._counters.clock_ms()
            self.heard_ms, self.advanced = self.asked_ms, False
            self.adapter = endpoint.adapter(self.request.model)
            try:
                yield
            except Refused as refusal:
                self._refused(endpoint, refusal)
                if refusal.reason == UNREACHABLE:
                    self._judged(broken=True)
                raise
            except Died:  # frames came during the attempt: the last one of them is from before the death too
                self.tried[endpoint.name] = endpoint.frame.sequence if endpoint.frame else 0
                self._tried(failed=True, broken=True)
                raise
            except CannotContinue:  # the death was another replica's
                raise
            except UpstreamDied:
                self._tried(failed=True, broken=True)
                raise

    def _refused(self, endpoint: Endpoint, refusal: Refused) -> None:
        overloaded = isinstance(refusal, Overloaded)
        if overloaded and endpoint.must_load(self.request.model):
            self._counters.cache.mark_no_place(endpoint)
        else:
            self._counters.cache.mark_refused(endpoint)
        if overloaded:
            self.overloaded.add(endpoint.name)

    def repicked(self, reason: str) -> None:
        """The attempt failed without loss; the next one begins."""
        self.reason = REPICK_PREFIX + reason
        self.attempt += 1
        self._counters.metrics.repicked(self.service, reason)

    def overflowed(self, target: str, result: str) -> None:
        """The request went to a target, or should have."""
        self._counters.metrics.overflowed(self.service, target, result)

    @property
    def target(self) -> str:
        """Where the answer is from, if it is from outside of the cluster; else ""."""
        return self.overflow.target if self.overflow is not None and self.reason == REASON_OVERFLOW else ""

    @property
    def is_for_adapter(self) -> bool:
        """Whether `model` stands for a LoRA, by the operator's word or a replica's."""
        return self._counters.cache.is_adapter(self.request.model)

    def first_byte(self) -> None:
        """The first byte of a stream has arrived from the replica."""
        tally, now_ms = self._counters.tally, self._counters.clock_ms()
        self.first_ms = now_ms
        tally.first_token(self.service, self.revision, now_ms - self.asked_ms, now_ms)
        tally.waited(self.service, now_ms - self.admitted_ms, now_ms)

    def heard(self) -> None:
        """Bytes have arrived from the replica."""
        self.heard_ms = self._counters.clock_ms()

    def continued(self, *, exact: bool) -> None:
        """A stream goes on at this replica, with the text that the one before it would have given, or perhaps another one."""
        self._counters.metrics.continued(self.service, exact=exact)
        numbers = "the same" if exact else "may differ"
        log.info("a stream goes on at another replica", request_id=self.request_id, route=self.route(), numbers=numbers)

    def answered(self, status: int) -> None:
        """A replica's answer is complete."""
        self.status = status
        if self._at is not None and status < _REFUSED:
            self._counters.cache.took(self._at, self._counters.clock_ms() - self.asked_ms)
        self._tried(failed=status >= _FAILED, broken=status in _BROKEN)

    def end(self, error: BaseException | None) -> None:
        """The request is over. Counts it once, by its answer or by the error that ended it."""
        if error is not None:
            self.status = error.status if isinstance(error, GatewayError) else _CLIENT_LEFT
        counters = self._counters
        counters.metrics.answered(self.service, self.status)
        if self.service:
            failed = None if self.status == _CLIENT_LEFT else self.status >= _FAILED
            counters.tally.ended(self.service, counters.clock_ms(), failed=failed)
            counters.demand_changed(self.service)
        if isinstance(error, UpstreamDied):
            why = str(error.__cause__ or error)
            log.warning("a replica died with a request", request_id=self.request_id, route=self.route(), why=why)

    def _tried(self, *, failed: bool, broken: bool) -> None:
        self._counters.tally.tried(self.service, self.revision, self._counters.clock_ms(), failed=failed)
        self._judged(broken=broken)

    def _judged(self, *, broken: bool) -> None:
        """`broken`: the attempt failed by the replica's fault."""
        counters, endpoint = self._counters, self._at
        now_ms = counters.clock_ms()
        if endpoint is not None and counters.cache.tried(endpoint, now_ms, failed=broken):
            counters.metrics.left_out(endpoint.service)
            seconds = round((endpoint.failures.until_ms - now_ms) / 1000)
            log.warning("a replica fails its requests and is left out", replica=endpoint.name, seconds=seconds, request_id=self.request_id)
