"""SharedStore: all gateways count in one Redis or Valkey, so that limits hold exactly. Made by serve/process.py.

limits/script.py is what the store does. If the store does not answer, each gateway goes on with its share of the limits, as without it.
Every reservation is counted here too, so that what this gateway has used of a window counts in its share. What it admits meanwhile
is charged to the store as soon as the store answers again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from pagoda_gateway.limits.ledger import Ask, Verdict, WindowCount
from pagoda_gateway.limits.script import SCRIPT, Verb, arguments, key, verdict
from pagoda_gateway.requests.limiter import LocalStore, Outcome

log = structlog.get_logger()

# A request waits this long for the store at most: once, because then the store counts as away.
_ANSWER_S: Final = 1.0
_PROBE_S: Final = 1.0
_BATCH: Final = 64
_LOST: Final = (RedisError, OSError, TimeoutError)


class Lease(NamedTuple):
    """How long reservations of a silent gateway count, and how often a gateway is heard."""

    lasts_ms: int = 30_000
    renew_s: float = 10.0


class _Order(NamedTuple):
    """What the store is to do when it answers."""

    verb: Verb
    ask: Ask


def connected(url: str, answer_s: float = _ANSWER_S) -> Redis:
    """Returns the client. A call that found its pooled connection closed is repeated once: the script bears that. ValueError if the URL is
    not one of Redis'."""
    return Redis.from_url(url, socket_timeout=answer_s, socket_connect_timeout=answer_s, retry=Retry(NoBackoff(), 1))


_LEASE: Final = Lease()


class SharedStore:
    """`gateway` names this process and no other one, also not an earlier one of the same pod. `notify` hears whether the store answers."""

    def __init__(self, client: Redis, local: LocalStore, gateway: str, notify: Callable[[bool], None], lease: Lease = _LEASE) -> None:
        self._client, self._local, self._gateway, self._notify, self._lease = client, local, gateway, notify, lease
        self._shared: dict[str, Ask] = {}  # admitted by the store
        self._alone: dict[str, Ask] = {}  # admitted without it
        self._orders: asyncio.Queue[_Order] = asyncio.Queue()
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._taken: list[_Order] = []  # they are on their way; a batch that was cut is repeated
        self._sha = ""
        self._found()

    async def reserve(self, ask: Ask) -> Outcome:
        """Admits a request if the limits have room for it; by the store's counts, or by this gateway's share."""
        if self._up.is_set():
            call = asyncio.create_task(self._call("reserve", ask))
            try:
                found = await asyncio.shield(call)
            except asyncio.CancelledError:  # the client left; the store hears of it when it has answered
                call.add_done_callback(lambda _: self._order("settle", ask._replace(tokens=0)))
                raise
            except _LOST as error:
                self._lost(error)
                self._order("settle", ask._replace(tokens=0))  # the store may have admitted it
            else:
                if found.granted:
                    self._local.reserve_now(ask, force=True)
                    self._shared[ask.id] = ask
                return Outcome(ask, found, 1)
        outcome = self._local.reserve_now(ask)
        if outcome.verdict.granted:
            self._alone[ask.id] = ask
        return outcome

    async def adjust(self, ask: Ask) -> bool:
        """Changes what a request reserves and claims; False if there is no room for more."""
        if ask.id in self._shared and self._up.is_set():
            try:
                if not (await self._call("adjust", ask)).granted:
                    return False
            except _LOST as error:
                self._lost(error)
        return await self._local.adjust(ask) or ask.id in self._shared

    def settle(self, ask: Ask) -> None:
        """Ends a request. The store hears of it as soon as it answers."""
        self._local.settle(ask)
        if self._shared.pop(ask.id, None) is not None:
            self._order("settle", ask)
        elif (whole := self._alone.pop(ask.id, None)) is not None:
            self._order("force", whole._replace(tokens=ask.tokens, claim=ask.tokens))
            self._order("settle", ask)

    def windows(self) -> list[WindowCount]:
        """Returns what this gateway admitted, not what all did: whoever asks every gateway has the sum."""
        return self._local.windows()

    async def run(self) -> None:
        """Settles, renews the lease and looks for a lost store, until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for work in (self._settle(), self._renew(), self._probe()):
                group.create_task(work)

    async def close(self) -> None:
        """Hands in what was settled last and closes the connections."""
        orders = [*self._taken, *(self._orders.get_nowait() for _ in range(self._orders.qsize()))]
        if orders and self._up.is_set():
            try:
                await self._batch(orders)
            except _LOST as error:
                log.warning("quotas: the store did not take the last requests; their claims are charged", why=str(error))
        await self._client.aclose()

    def _order(self, verb: Verb, ask: Ask) -> None:
        self._orders.put_nowait(_Order(verb, ask))

    async def _settle(self) -> None:
        while _goes_on():
            self._taken = self._taken or [await self._orders.get()]
            while len(self._taken) < _BATCH and not self._orders.empty():
                self._taken.append(self._orders.get_nowait())
            await self._up.wait()
            try:
                await self._batch(self._taken)
            except _LOST as error:
                self._lost(error)
            else:
                self._taken = []

    async def _renew(self) -> None:
        while _goes_on():
            await asyncio.sleep(self._lease.renew_s)
            tenants = {ask.tenant for ask in self._shared.values()}
            if not tenants or not self._up.is_set():
                continue
            try:
                await self._batch([_Order("renew", Ask("", tenant, (), 0, 0)) for tenant in tenants])
            except _LOST as error:
                self._lost(error)

    async def _probe(self) -> None:
        while _goes_on():
            await self._down.wait()
            await asyncio.sleep(_PROBE_S)
            try:
                await self._load()
            except _LOST:
                continue
            self._found()
            log.info("quotas: the store answers again")

    def _found(self) -> None:
        self._down.clear()
        self._up.set()
        self._notify(True)

    def _lost(self, error: Exception) -> None:
        if self._up.is_set():
            why = f"{type(error).__name__}: {error}"
            log.warning("quotas: the store does not answer; each gateway takes its share of the limits", why=why)
        self._up.clear()
        self._down.set()
        self._notify(False)

    async def _load(self) -> None:
        self._sha = str(await self._client.script_load(SCRIPT))

    async def _call(self, verb: Verb, ask: Ask) -> Verdict:
        client: Any = self._client
        words = arguments(verb, ask, self._gateway, self._lease.lasts_ms)
        try:
            if not self._sha:
                await self._load()
            return verdict(await client.evalsha(self._sha, 1, key(ask.tenant), *words))
        except NoScriptError:  # the store was restarted
            await self._load()
            return verdict(await client.evalsha(self._sha, 1, key(ask.tenant), *words))

    async def _batch(self, orders: Sequence[_Order]) -> None:
        """All orders in their sequence, by one write. Each of them may be repeated."""
        if not self._sha:
            await self._load()
        try:
            await self._pipeline(orders)
        except NoScriptError:
            await self._load()
            await self._pipeline(orders)

    async def _pipeline(self, orders: Sequence[_Order]) -> None:
        pipeline: Any = self._client.pipeline(transaction=False)
        for verb, ask in orders:
            pipeline.evalsha(self._sha, 1, key(ask.tenant), *arguments(verb, ask, self._gateway, self._lease.lasts_ms))
        await pipeline.execute()


def _goes_on() -> bool:
    """Whether the task was not cancelled. The client swallows a cancellation that meets it while it reads an answer (redis-py 8.1)."""
    task = asyncio.current_task()
    return task is not None and not task.cancelling()
