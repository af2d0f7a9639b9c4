"""Limiter: admits a request under its tenant's quotas, corrects its reservation as its replica counts tokens, and settles it at the end.

Called by proxy/handlers.py around router.py. The deciding half is in limits/; a Store counts for this gateway alone or for all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol
from uuid import uuid4

from pagoda_contracts.names import (
    HEADER_DEFAULT_MAX_TOKENS,
    HEADER_MAX_CONTEXT,
    HEADER_PRIORITY,
    HEADER_REPORT_USAGE,
    HEADER_RESERVED_TOKENS,
    HEADER_WEIGHT,
)
from pagoda_contracts.usage import Used

from pagoda_gateway.limits import wording
from pagoda_gateway.limits.bounds import UNBOUNDED, Bounds, TooLong, Wish, bounds
from pagoda_gateway.limits.ledger import Ask, Ledger, Verdict, WindowCount
from pagoda_gateway.limits.registry import Registry
from pagoda_gateway.limits.rules import NO_POLICY, Policy, Slot, slots
from pagoda_gateway.requests.errors import BadRequest, NotSynced, OverQuota
from pagoda_gateway.requests.names import Names

# A claim grows by doubling, so that a stream of any length costs few calls of the store.
_LEAST_CLAIM: Final = 64
_NEVER_MS: Final = 1 << 60


class Outcome(NamedTuple):
    """What a store said. `ask` has the limits as they were applied; `gateways`: among how many the quota is divided."""

    ask: Ask
    verdict: Verdict
    gateways: int


class Store(Protocol):
    """Counts requests and tokens of tenants. None of it raises: a store that cannot be reached has a way without it."""

    async def reserve(self, ask: Ask) -> Outcome: ...
    async def adjust(self, ask: Ask) -> bool: ...
    def settle(self, ask: Ask) -> None: ...
    def windows(self) -> list[WindowCount]: ...
    async def run(self) -> None: ...


class LocalStore:
    """This gateway's own counts. It takes its share of each limit, so that all gateways together stay within it."""

    def __init__(self, gateways: int, clock_ms: Callable[[], int]) -> None:
        self.gateways, self._clock_ms, self._ledger = gateways, clock_ms, Ledger(_NEVER_MS)

    async def reserve(self, ask: Ask) -> Outcome:
        """Admits within the share."""
        return self.reserve_now(ask)

    def reserve_now(self, ask: Ask, *, force: bool = False) -> Outcome:
        """The same. `force`: it was admitted elsewhere, and counts here too."""
        shared = ask._replace(slots=tuple(slot.share(self.gateways) for slot in ask.slots))
        return Outcome(shared, self._ledger.reserve(shared, "", self._clock_ms(), force=force), self.gateways)

    async def adjust(self, ask: Ask) -> bool:
        """Changes what a request reserves; False if there is no room for more."""
        return self._ledger.adjust(ask, "", self._clock_ms())

    def settle(self, ask: Ask) -> None:
        """Ends a request."""
        self._ledger.settle(ask, "", self._clock_ms())

    def windows(self) -> list[WindowCount]:
        """Returns what this gateway counted in windows that are not over."""
        return self._ledger.windows(self._clock_ms())

    async def run(self) -> None:
        """Has nothing to do beside requests."""


class Asked(NamedTuple):
    """A request that wants to be admitted. `wish` reads its body, which is needless without a quota."""

    tenant: str
    model: str
    wish: Callable[[], Wish]
    style: wording.Style = "openai"


@dataclass(slots=True)
class Account:
    """One request under quotas. `used`: what its replica counted last; `sent`: a replica may have computed something for it; `status`: of
    its answer, 0 without one; `headers`: for its client."""

    policy: Policy = NO_POLICY
    bounds: Bounds = UNBOUNDED
    used: Used | None = None
    sent: bool = False
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    _store: Store | None = None
    _ask: Ask | None = None

    def terms(self) -> dict[str, str]:
        """Returns what is sent to the replica, as headers."""
        limits = {
            HEADER_RESERVED_TOKENS: self._ask.tokens if self._ask is not None and _counts_tokens(self._ask.slots) else None,
            HEADER_MAX_CONTEXT: self.bounds.context,
            HEADER_DEFAULT_MAX_TOKENS: self.bounds.default,
            HEADER_WEIGHT: self.policy.weight if self.policy.weight != 1 else None,
            HEADER_PRIORITY: self.policy.priority or None,
        }
        return {HEADER_REPORT_USAGE: "true"} | {name: str(value) for name, value in limits.items() if value is not None}

    async def note(self, used: Used) -> None:
        """The replica has counted. Returns when what it counted may be passed on."""
        first, self.used = self.used is None, used
        ask = self._ask
        if ask is None or self._store is None or not (first or used.total > ask.claim):
            return
        tokens = min(ask.tokens, used.prompt + self.bounds.output) if first else ask.tokens
        self._ask = ask._replace(tokens=tokens, claim=used.prompt + max(_LEAST_CLAIM, 2 * used.answer))
        await self._store.adjust(self._ask)

    async def grow(self, tokens: int) -> None:
        """The replica says that the request needs so many tokens; OverQuota if they cannot be reserved."""
        if self._ask is None or self._store is None:
            return
        grown = self._ask._replace(tokens=tokens)
        if not await self._store.adjust(grown):
            why = f"the request needs {tokens} tokens, and the tenant's quota has no room for them now"
            raise OverQuota(wording.Refusal("tokens", "", why, 1), {})
        self._ask = grown

    def end(self) -> None:
        """Charges what was used. Without a count of the replica all that was reserved is charged, unless nothing can have been computed."""
        if self._ask is not None and self._store is not None:
            self._store.settle(self._ask._replace(tokens=self._final(self._ask.tokens)))

    def _final(self, reserved: int) -> int:
        if not self.sent:
            return 0
        if self.used is not None:
            return self.used.total
        refused = HTTPStatus.BAD_REQUEST <= self.status < HTTPStatus.INTERNAL_SERVER_ERROR and self.status != HTTPStatus.REQUEST_TIMEOUT
        return 0 if refused else reserved


class Limiter:
    """`refused` counts a refusal by quota and kind. `names`: which names are hidden from a tenant."""

    def __init__(self, registry: Registry, store: Store, refused: Callable[[str, str], None], names: Names) -> None:
        self._registry, self._store, self._refused, self._names = registry, store, refused, names

    def policy(self, tenant: str) -> Policy:
        """Returns what holds for a tenant; NotSynced before all quotas were read."""
        if not self._registry.synced:
            raise NotSynced("the gateway has not read the tenants' quotas yet")
        return self._registry.policy(tenant)

    @asynccontextmanager
    async def admitted(self, asked: Asked) -> AsyncIterator[Account]:
        """Holds the reservation of a request for as long as the context lasts; OverQuota if there is no room for it."""
        account = await self._admit(asked, self.policy(asked.tenant))
        try:
            yield account
        finally:
            account.end()

    async def _admit(self, asked: Asked, policy: Policy) -> Account:
        if not policy.rules:
            return Account()
        if (rule := policy.refusing(asked.model)) is not None:
            self._refused(rule.name, "model")
            raise self._names.not_found(asked.model, policy)
        self._refuse_hidden(asked.model, policy)
        limits = slots(policy.rules)
        wish = asked.wish()
        bound = bounds(policy, wish, counts_tokens=_counts_tokens(limits))
        if isinstance(bound, TooLong):
            raise BadRequest(bound.message, bound.field)
        if not limits:
            return Account(policy, bound)
        ask = Ask(uuid4().hex, asked.tenant, limits, bound.tokens, wish.prompt + _LEAST_CLAIM)
        outcome = await self._store.reserve(ask)
        headers = wording.headers(outcome.ask.slots, outcome.verdict, asked.style)
        if not outcome.verdict.granted:
            refusal = wording.refusal(outcome.ask, outcome.verdict, outcome.gateways)
            self._refused(refusal.quota, refusal.kind)
            raise OverQuota(refusal, headers)
        return Account(policy, bound, headers=headers, _store=self._store, _ask=outcome.ask)

    def _refuse_hidden(self, model: str, policy: Policy) -> None:
        """A name that nobody has ends here too, so that no bound, window or header tells it from a hidden one. Before discovery has listed
        all services both go on, and are held alike."""
        if self._names.synced and (rule := self._names.hidden(model, policy)) is not None:
            self._refused(rule.name, "model")
            raise self._names.not_found(model, policy)


def _counts_tokens(limits: tuple[Slot, ...]) -> bool:
    return any(slot.kind == "tokens" for slot in limits)
