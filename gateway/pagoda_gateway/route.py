"""The straight road of one request: model → service → endpoint (picked or held for) → attempt, again while nothing is lost by it.

Called by http.py; asks fleet.py, picker.py and hold.py; sends by a Forwarder. Time comes in as a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from multidict import CIMultiDict
from pagoda_contracts.route import HELD_PREFIX, NO_ENDPOINT, REPICK_PREFIX, Route, format_route

from pagoda_gateway import picker
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
from pagoda_gateway.fleet import Fleet
from pagoda_gateway.hold import UNSYNCED, Hold, Ticket
from pagoda_gateway.picker import Endpoint, Pick, Verdict

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
    """One request's memory. `tried`: endpoint → sequence of its last frame when it died on us; `full`: those overloaded."""

    model: str = ""
    service: str = ""
    attempt: int = 1
    deaths: int = 0
    held_ms: float = 0.0
    why: str = ""
    endpoint: str = NO_ENDPOINT
    tried: dict[str, int] = field(default_factory=dict)
    full: set[str] = field(default_factory=set)

    def route(self) -> str:
        """The route header's value now."""
        return format_route(Route(self.endpoint, self.why or "unrouted", round(self.held_ms), self.attempt))


class Router:
    """Decides where requests go and when they wait."""

    def __init__(self, fleet: Fleet, hold: Hold, observer: Observer, hold_timeout_s: float, clock_ms: Callable[[], float]) -> None:
        self._fleet, self._hold, self._observer = fleet, hold, observer
        self._hold_timeout_s, self._clock_ms = hold_timeout_s, clock_ms

    def state_changed(self, service: str) -> None:
        """A service's replicas said something new: wake its line if one of them can take requests."""
        known = self._fleet.service(service)
        if self._hold.count(service) and known and picker.any_able(self._fleet.endpoints(known), self._clock_ms()):
            self._hold.wake(service)

    def names_changed(self) -> None:
        """Who answers to a name may have changed."""
        self._hold.wake_all()

    async def serve(self, journey: Journey, attempt: Attempt[A]) -> A:
        """The whole road. Errors carry the route."""
        try:
            while True:
                try:
                    return await self._one_attempt(journey, attempt)
                except AttemptFailed as failure:
                    self._again(journey, failure)
        except GatewayError as error:
            error.route = journey.route()
            raise

    async def _one_attempt(self, journey: Journey, attempt: Attempt[A]) -> A:
        endpoint = await self._acquire(journey)
        self._fleet.begin(endpoint)
        try:
            return await attempt(endpoint.http, journey.route(), fresh=journey.deaths > 0)
        except Refused as refusal:
            self._fleet.refuse(endpoint)
            if isinstance(refusal, Overloaded):
                journey.full.add(endpoint.name)
            raise
        except Died:  # frames came during the attempt: the last one of them is old news too
            journey.tried[endpoint.name] = endpoint.frame.sequence if endpoint.frame else 0
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
        journey.service = service.key
        left = [endpoint for endpoint in self._fleet.endpoints(service) if endpoint.name not in journey.full]
        choice = picker.pick(left, journey.model, journey.tried, self._clock_ms())
        if isinstance(choice, Pick):
            return choice
        if journey.full and choice.reason not in _SOON:
            raise AllOverloaded(f"{len(journey.full)} replicas of {service.key} have too much to do; the nearest other is: {choice.reason}")
        return Wait(service.key, choice.reason)

    async def _held(self, journey: Journey, wait: Wait) -> Pick:
        """Waits in line for a pick. No await stands between looking and waiting, so no wake-up is lost."""
        ticket, began_ms = self._hold.enter(wait.line), self._clock_ms()
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
                f"no replica of {wait.line or 'any service'} took the request in time; the nearest is: {wait.reason}"
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
