"""The straight road of one request: model → service → endpoint (picked or held for) → attempt, again while nothing is lost by it.

Called by http.py; asks fleet.py, picker.py and hold.py; sends by a Forwarder. Time comes in as a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from multidict import CIMultiDict
from pagoda_contracts.route import HELD_PREFIX, NO_ENDPOINT, REPICK_PREFIX, Route, format_route

from pagoda_gateway import picker, shares
from pagoda_gateway.errors import (
    AllOverloaded,
    AttemptFailed,
    Died,
    GatewayError,
    HoldTimeout,
    ModelNotFound,
    Overloaded,
    Refused,
    UpstreamDied,
)
from pagoda_gateway.fleet import Fleet, Service
from pagoda_gateway.hold import UNSYNCED, Hold, Ticket
from pagoda_gateway.picker import Endpoint, NoPick, Pick, Verdict
from pagoda_gateway.tally import Tally

# A request whose connection dies is sent once more, on a fresh connection: a request that kills replicas kills two at most.
_MAX_DEATHS = 1

# Verdicts that the next frame, half a second away, may lift: worth a wait even where others are overloaded.
_SOON = (Verdict.TRIED, Verdict.REFUSED)

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)


class Call(NamedTuple):
    """A request as it goes on: `headers` are filtered already, `body` is the client's, byte by byte."""

    path: str
    headers: CIMultiDict[str]
    body: bytes


class Attempt(Protocol[A_co]):
    """Sends a call to "ip:port" with the route header's value; `fresh`: on no pooled connection. Raises AttemptFailed
    only while no byte of an answer has reached the client."""

    async def __call__(self, http: str, route: str, *, fresh: bool) -> A_co: ...


class Observer(Protocol):
    """What the metrics want to know."""

    def repicked(self, service: str, reason: str) -> None: ...
    def held(self, service: str, seconds: float) -> None: ...


class Wait(NamedTuple):
    """No endpoint: stand in this line, for this reason."""

    line: str
    reason: str


@dataclass(slots=True)
class Journey:
    """One request's memory. `tried`: endpoint → sequence of its last frame when it died on us; `full`: those overloaded. `point`: its draw
    where requests are split between revisions. `began_ms`, `asked_ms`: when it came, and when its last replica was asked."""

    model: str = ""
    service: str = ""
    attempt: int = 1
    deaths: int = 0
    held_ms: float = 0.0
    why: str = ""
    endpoint: str = NO_ENDPOINT
    revision: str = ""
    point: float | None = None
    began_ms: float = 0.0
    asked_ms: float = 0.0
    tried: dict[str, int] = field(default_factory=dict)
    full: set[str] = field(default_factory=set)

    def route(self) -> str:
        """The route header's value now."""
        return format_route(Route(self.endpoint, self.why or "unrouted", round(self.held_ms), self.attempt))


class Router:
    """Decides where requests go and when they wait. `demand_changed` is set once, by serve.py: who tells of demand wants to know."""

    def __init__(
        self,
        fleet: Fleet,
        hold: Hold,
        observer: Observer,
        hold_timeout_s: float,
        clock_ms: Callable[[], float],
        tally: Tally | None = None,
    ) -> None:
        self._fleet, self._hold, self._observer = fleet, hold, observer
        self._hold_timeout_s, self._clock_ms = hold_timeout_s, clock_ms
        self._tally = tally or Tally()
        self._splits = 0
        self.demand_changed: Callable[[str], None] = lambda _service: None

    def state_changed(self, service: str) -> None:
        """A service's replicas said something new: wake its line if one of them can take requests."""
        if not self._hold.count(service):
            return
        self.demand_changed(service)
        known = self._fleet.service(service)
        if known and picker.any_able(self._fleet.endpoints(known), self._clock_ms()):
            self._hold.wake(service)

    def names_changed(self) -> None:
        """Who answers to a name may have changed."""
        self._hold.wake_all()

    async def serve(self, journey: Journey, attempt: Attempt[A]) -> A:
        """The whole road. Errors carry the route."""
        journey.began_ms = self._clock_ms()
        try:
            while True:
                try:
                    return await self._one_attempt(journey, attempt)
                except AttemptFailed as failure:
                    self._again(journey, failure)
        except GatewayError as error:
            error.route = journey.route()
            raise

    def first_token(self, journey: Journey) -> None:
        """The first byte of a stream is on its way to the client."""
        now_ms = self._clock_ms()
        self._tally.first_token(journey.service, journey.revision, now_ms - journey.asked_ms, now_ms)
        self._tally.waited(journey.service, now_ms - journey.began_ms, now_ms)

    def answered(self, journey: Journey, *, failed: bool) -> None:
        """A replica's answer is complete, or broke."""
        self._tally.tried(journey.service, journey.revision, self._clock_ms(), failed=failed)

    def ended(self, journey: Journey, *, failed: bool | None) -> None:
        """The request is over. `failed` None: the client left."""
        if journey.service:
            self._tally.ended(journey.service, self._clock_ms(), failed=failed)
            self.demand_changed(journey.service)

    async def _one_attempt(self, journey: Journey, attempt: Attempt[A]) -> A:
        endpoint = await self._acquire(journey)
        self._fleet.begin(endpoint)
        journey.revision, journey.asked_ms = endpoint.revision, self._clock_ms()
        try:
            return await attempt(endpoint.http, journey.route(), fresh=journey.deaths > 0)
        except Refused as refusal:
            self._fleet.refuse(endpoint)
            if isinstance(refusal, Overloaded):
                journey.full.add(endpoint.name)
            raise
        except Died:  # frames came during the attempt: the last one of them is old news too
            journey.tried[endpoint.name] = endpoint.frame.sequence if endpoint.frame else 0
            self.answered(journey, failed=True)
            raise
        finally:
            self._fleet.end(endpoint)

    def _again(self, journey: Journey, failure: AttemptFailed) -> None:
        if isinstance(failure, Died):
            journey.deaths += 1
            if journey.deaths > _MAX_DEATHS:
                raise UpstreamDied(f"the replica's connection ended before an answer, {journey.deaths} times: {failure}") from failure
        journey.why = REPICK_PREFIX + failure.reason
        journey.attempt += 1
        self._observer.repicked(journey.service, failure.reason)

    async def _acquire(self, journey: Journey) -> Endpoint:
        choice = self._choose(journey)
        if isinstance(choice, Wait):
            journey.why = journey.why or HELD_PREFIX + choice.reason
            choice = await self._held(journey, choice)
        journey.endpoint = choice.endpoint.http
        journey.why = journey.why or choice.reason
        return choice.endpoint

    def _choose(self, journey: Journey) -> Pick | Wait:
        service = self._fleet.resolve(journey.model)
        if service is None:
            if not self._fleet.synced:
                return Wait(UNSYNCED, "unsynced")
            raise ModelNotFound(f"no service answers to the model {journey.model[:128]!r}: GET /v1/models lists those that are served")
        self._attribute(journey, service.key)
        left = [endpoint for endpoint in self._fleet.endpoints(service) if endpoint.name not in journey.full]
        choice = self._pick(journey, service, left)
        if isinstance(choice, Pick):
            return choice
        if journey.full and choice.reason not in _SOON:
            told = f"All {len(journey.full)} ready replicas of {service.key} are overloaded"
            raise AllOverloaded(f"{told}; the next candidate is {choice.reason}.")
        return Wait(service.key, choice.reason)

    def _attribute(self, journey: Journey, service: str) -> None:
        """Whose request it is, now that its name is looked up (again)."""
        if journey.service == service:
            return
        now_ms = self._clock_ms()
        if journey.service:
            self._tally.ended(journey.service, now_ms, failed=None)
        self._tally.arrived(service, now_ms)
        journey.service = service
        self.demand_changed(service)

    def _pick(self, journey: Journey, service: Service, left: list[Endpoint]) -> Pick | NoPick:
        """By share of the revisions where the operator splits, the next revision where one has nobody able; else from all."""
        now_ms = self._clock_ms()
        if service.weights:
            if journey.point is None:
                self._splits += 1
                journey.point = shares.draw(self._splits)
            for revision in shares.order(service.weights, journey.point):
                mine = [endpoint for endpoint in left if endpoint.revision == revision]
                if isinstance(choice := picker.pick(mine, journey.model, journey.tried, now_ms), Pick):
                    return choice
        return picker.pick(left, journey.model, journey.tried, now_ms)

    async def _held(self, journey: Journey, wait: Wait) -> Pick:
        """Waits in line for a pick. No await stands between looking and waiting, so no wake-up is lost."""
        began_ms = self._clock_ms()
        ticket = self._hold.enter(wait.line, began_ms)
        self.demand_changed(wait.line)
        deadline_ms = began_ms + self._hold_timeout_s * 1000 - journey.held_ms
        try:
            while True:
                await ticket.wait((deadline_ms - self._clock_ms()) / 1000)
                choice = self._choose(journey)
                if isinstance(choice, Pick):
                    return choice
                wait = choice
                ticket = self._in_line(ticket, wait.line)
        except TimeoutError as error:
            raise HoldTimeout(
                f"No replica of {wait.line or 'any service'} accepted the request in time; the next candidate is {wait.reason}."
            ) from error
        finally:
            self._hold.leave(ticket)
            held_ms = self._clock_ms() - began_ms
            journey.held_ms += held_ms
            self._observer.held(wait.line, held_ms / 1000)

    def _in_line(self, ticket: Ticket, line: str) -> Ticket:
        """The same place, or the end of another line if the name moved to another service."""
        if ticket.service == line:
            return ticket
        return self._hold.move(ticket, line)
