"""The route of one request: model → service → endpoint (picked, or held until one can be) → attempt; again while nothing is lost by it.

Called by proxy/handlers.py. It asks watch/cache.py and routing/, and counts nothing itself: lifecycle.py does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from pagoda_contracts.route import HELD_FULL, HELD_IN_TURN, HELD_PREFIX

from pagoda_gateway.requests.errors import (
    AllOverloaded,
    AttemptFailed,
    Died,
    GatewayError,
    HoldTimeout,
    QueueFull,
    ServiceStalled,
    UpstreamDied,
)
from pagoda_gateway.requests.frozen import Frozen
from pagoda_gateway.requests.hold_queue import UNSYNCED
from pagoda_gateway.requests.lifecycle import Counters, Place, RequestLife
from pagoda_gateway.requests.names import Names
from pagoda_gateway.requests.terms import HoldRules, Terms
from pagoda_gateway.routing.endpoint import Endpoint
from pagoda_gateway.routing.outliers import without_outliers
from pagoda_gateway.routing.pick import NoPick, Pick, Split, any_routable, pick, pick_by_revision
from pagoda_gateway.routing.revisions import draw
from pagoda_gateway.routing.room import has_room
from pagoda_gateway.routing.scorers import LEAST_LOAD, SCORERS
from pagoda_gateway.routing.verdict import SOUND, Verdict
from pagoda_gateway.watch.services import Hold, Service

# A request whose connection dies is sent again once, on a fresh connection: one that kills replicas kills two. A stream whose answer has
# begun may lose two in a row: where replicas die one after the other, all that the first one had loses the second one too, before a token.
_RETRIES: Final = 1
_RETRIES_OF_BEGUN: Final = 2
# A stream may go on so often. One that kills replicas at the same token every time is ended by the rule above.
_MAX_LIVES: Final = 8

# Clients ignore a longer Retry-After.
_MAX_RETRY_S: Final = 120

# The next frame, half a second away, may lift these verdicts: worth a wait even if other endpoints are overloaded.
_BRIEF: Final = (Verdict.TRIED, Verdict.REFUSED)


class Answer(Protocol):
    """What a replica gave."""

    @property
    def status(self) -> int: ...


A = TypeVar("A", bound=Answer)
A_co = TypeVar("A_co", bound=Answer, covariant=True)


class Attempt(Protocol[A_co]):
    """Sends a call to "ip:port" with the route header's value; `fresh`: not on a pooled connection. Raises AttemptFailed only while no
    byte of an answer has reached the client, or where the next attempt goes on after the last one."""

    async def __call__(self, address: str, route: str, *, fresh: bool) -> A_co: ...


class Wait(NamedTuple):
    """No endpoint: wait in this service's queue, for this reason."""

    service: str
    reason: str


class Router:
    """Decides where requests go and when they wait. `wall_ms` is the time since 1970."""

    def __init__(self, counters: Counters, rules: HoldRules, wall_ms: Callable[[], float]) -> None:
        self._counters, self._rules, self._wall_ms, self._terms = counters, rules, wall_ms, Terms()
        self._cache, self._queue, self._clock_ms = counters.cache, counters.queue, counters.clock_ms
        self._draws = 0
        self.names = Names(counters.cache, counters.clock_ms)
        self.frozen = Frozen(counters.cache, counters.clock_ms)

    def state_changed(self, service: str) -> None:
        """A service's endpoints changed: wakes its queue if one of them can take requests."""
        if not self._queue.count(service):
            return
        self._counters.demand_changed(service)
        if any_routable(self._endpoints(service), self._clock_ms()):
            self._queue.wake(service, self._clock_ms())

    def _endpoints(self, service: str) -> Sequence[Endpoint]:
        known = self._cache.service(service)
        return self._cache.endpoints(known) if known is not None else ()

    def names_changed(self) -> None:
        """Names may belong to other services now, or services may be stalled: wakes all queues."""
        self.names.changed()
        self._queue.wake_all(self._clock_ms())

    def why_not(self, service: str) -> str:
        """Returns why a service cannot serve until a person acts; "" if it can, also after a wait."""
        known = self._cache.service(service)
        if known is None or not known.stalled or any_routable(self._cache.endpoints(known), self._clock_ms()):
            return ""
        return known.stalled

    async def serve(self, life: RequestLife, attempt: Attempt[A]) -> A:
        """Returns the answer to `life.request`. Errors carry the route."""
        life.admit()
        try:
            while True:
                try:
                    return await self._attempt(life, attempt)
                except AttemptFailed as failure:
                    _count_death(life, failure)
                    life.repicked(failure.reason)
        except GatewayError as error:
            error.route = life.route()
            if isinstance(error, QueueFull | HoldTimeout) and (seconds := self._starts_in_s(life.service)):
                error.retry_after = min(_MAX_RETRY_S, seconds)
            raise

    def _starts_in_s(self, service: str) -> int:
        """Returns in how many seconds a replica that starts should be ready, 0 if that is not known."""
        known = self._cache.service(service)
        return max(0, math.ceil((known.ready_at_ms - self._wall_ms()) / 1000)) if known is not None and known.ready_at_ms else 0

    async def choose(self, life: RequestLife, terms: Terms) -> Endpoint:
        """Returns where somebody else sends `life.request`, once: nothing can be held for long then, or sent again."""
        life.admit()
        try:
            return await self._acquire(life, terms)
        except GatewayError as error:
            error.route = life.route()
            raise

    async def _attempt(self, life: RequestLife, attempt: Attempt[A]) -> A:
        endpoint = await self._acquire(life, self._terms)
        with life.at(endpoint):
            async with self.frozen.watch(endpoint, life):
                answer = await attempt(endpoint.address, life.route(), fresh=life.deaths > 0)
            life.answered(answer.status)
            return answer

    async def _acquire(self, life: RequestLife, terms: Terms) -> Endpoint:
        choice = self._choose(life, terms)
        if isinstance(choice, Pick) and self._queue.count(life.service):
            choice = Wait(life.service, HELD_IN_TURN)  # others wait already
        if isinstance(choice, Wait):
            life.reason = life.reason or HELD_PREFIX + choice.reason
            choice = await self._hold(life, choice, terms)
        life.endpoint, life.replica = choice.endpoint.address, choice.endpoint.name
        life.reason = life.reason or choice.reason
        return choice.endpoint

    def _choose(self, life: RequestLife, terms: Terms) -> Pick | Wait:
        began_ms = self._clock_ms()
        choice = self._look(life, terms)
        if isinstance(choice, Pick):
            self._counters.metrics.chosen((self._clock_ms() - began_ms) / 1000)
        return choice

    def _look(self, life: RequestLife, terms: Terms) -> Pick | Wait:
        hidden = self.names.hidden(life.request.model, life.policy) is not None
        service = None if hidden else self._cache.resolve(life.request.model)
        if service is None and not self._cache.synced:
            return Wait(UNSYNCED, "unsynced")
        if service is None:
            raise self.names.not_found(life.request.model, life.policy)
        life.assign(service.key)
        overflows = service.overflow is not None and service.overflow.target in life.targets and not life.begun
        life.overflow = service.overflow if overflows else None
        known = self._cache.endpoints(service)
        left = [endpoint for endpoint in known if endpoint.name not in life.overloaded and terms.allow(endpoint.address)]
        choice = self._pick(life, service, left)
        if isinstance(choice, Pick):
            return choice if has_room(choice.endpoint, self._rules.gateways) else self._with_room(life, service, left)
        if life.overloaded and choice.reason not in _BRIEF:
            raise AllOverloaded(
                f"all {len(life.overloaded)} ready replicas of {service.key} are overloaded; the next candidate is: {choice.reason}"
            )
        if service.stalled and choice.reason not in SOUND:
            raise ServiceStalled(f"no replica of {service.key} serves, and only a person can change that: {service.stalled}")
        return Wait(service.key, choice.reason)

    def _with_room(self, life: RequestLife, service: Service, endpoints: list[Endpoint]) -> Pick | Wait:
        choice = self._pick(life, service, [endpoint for endpoint in endpoints if has_room(endpoint, self._rules.gateways)])
        return choice if isinstance(choice, Pick) else Wait(service.key, HELD_FULL)

    def _pick(self, life: RequestLife, service: Service, endpoints: Sequence[Endpoint]) -> Pick | NoPick:
        """One that is left out is picked before the request has to wait."""
        kept = without_outliers(endpoints, self._clock_ms())
        choice = self._pick_among(life, service, kept)
        return choice if isinstance(choice, Pick) or kept is endpoints else self._pick_among(life, service, endpoints)

    def _pick_among(self, life: RequestLife, service: Service, endpoints: Sequence[Endpoint]) -> Pick | NoPick:
        now_ms, scorers = self._clock_ms(), LEAST_LOAD if service.policy == "LeastLoad" else SCORERS
        if life.begun:  # another revision may have another model, or other numbers
            same = [endpoint for endpoint in endpoints if endpoint.revision == life.revision]
            if isinstance(choice := pick(same, life.request, life.tried, now_ms, scorers), Pick):
                return choice
        if not service.weights:
            return pick(endpoints, life.request, life.tried, now_ms, scorers)
        if life.point is None:
            life.point = self._draw()
        return pick_by_revision(endpoints, Split(service.weights, life.point), life.request, life.tried, now_ms, scorers)

    def _rules_of(self, life: RequestLife, key: str) -> tuple[Hold, float]:
        """Returns how a service holds requests, and for how long this one. HoldTimeout if it can go elsewhere and many wait already."""
        service = self._cache.service(key)
        hold = service.hold if service is not None else Hold()
        timeout_s = self._rules.timeout_s if hold.timeout_s is None else hold.timeout_s
        if service is None or life.overflow is None:
            return hold, timeout_s
        held = self._queue.count(key)
        if held >= life.overflow.queue_depth * max(1, len(self._cache.endpoints(service))):
            raise HoldTimeout(f"{held} requests are held for {key} already")
        return hold, min(timeout_s, life.overflow.after_s)

    def _draw(self) -> float:
        self._draws += 1
        return draw(self._draws)

    async def _hold(self, life: RequestLife, wait: Wait, terms: Terms) -> Pick:
        """Waits in a queue for a pick. No await stands between looking and waiting, so no wake-up is lost."""
        began_ms = self._clock_ms() - life.held_ms
        hold, timeout_s = self._rules_of(life, wait.service)
        with life.held(wait.service, hold.requests, self._draw()) as place:
            if wait.reason == HELD_IN_TURN:
                place.came()
            while True:
                try:
                    await self._woken(life, place, began_ms + min(timeout_s, terms.hold_s) * 1000)
                except TimeoutError as error:
                    service = f"replica of {wait.service}" if wait.service else "replica of any service"
                    raise HoldTimeout(f"no {service} took the request in time; the next candidate is: {wait.reason}") from error
                choice = self._choose(life, terms)
                if isinstance(choice, Pick):
                    place.served = True
                    return choice
                if choice.service != wait.service:
                    _, timeout_s = self._rules_of(life, choice.service)
                wait = choice
                place.looked(wait.service, full=wait.reason == HELD_FULL and self._full(wait.service))

    def _full(self, service: str) -> bool:
        """Whether no replica has room for anybody, rather than none of those that one request may use."""
        found = self._endpoints(service)
        return not any_routable((one for one in found if has_room(one, self._rules.gateways)), self._clock_ms())

    async def _woken(self, life: RequestLife, place: Place, deadline_ms: float) -> None:
        """Returns when the request may look again; TimeoutError at the deadline. In between, the client of a stream gets comments."""
        while True:
            ping_ms = life.pinged_ms + self._rules.ping_after_s * 1000 if life.ping is not None else math.inf
            try:
                await place.wait((min(ping_ms, deadline_ms) - self._clock_ms()) / 1000)
            except TimeoutError:
                if ping_ms >= deadline_ms:
                    raise
                await life.keep_alive()
            else:
                return


def _count_death(life: RequestLife, failure: AttemptFailed) -> None:
    if not isinstance(failure, Died):
        return
    life.deaths = 1 if life.advanced else life.deaths + 1
    life.lives += life.begun
    if life.deaths > (_RETRIES_OF_BEGUN if life.begun else _RETRIES):
        said = "any more of the answer" if life.begun else "an answer"
        raise UpstreamDied(f"the replica's connection ended before {said}, {life.deaths} times: {failure}") from failure
    if life.lives > _MAX_LIVES:
        raise UpstreamDied(f"replicas died with this answer under way {life.lives} times: {failure}") from failure
