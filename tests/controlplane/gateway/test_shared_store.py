"""Several gateways that count in one store: a real Redis, which is lost and comes back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pagoda_gateway.limits.ledger import Ask
from pagoda_gateway.limits.rules import Slot
from pagoda_gateway.requests.limiter import LocalStore
from pagoda_gateway.requests.shared_store import SharedStore, connected
from support.harness.quota_race import Race
from support.servers.redis_server import RedisServer, redis_server

LIMITS = (Slot("q", "concurrency", 100), Slot("q", "tokens", 1000, "720h", 720 * 3_600_000))
PATIENCE_S = 300


class Heard:
    """Whether the store answers, as the metric says."""

    def __init__(self) -> None:
        self.up = False
        self.changed = asyncio.Event()

    def __call__(self, up: bool) -> None:
        self.up = up
        self.changed.set()

    async def until(self, up: bool) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.up is not up:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def gateway(server: RedisServer, name: str) -> AsyncIterator[tuple[SharedStore, Heard]]:
    heard = Heard()
    store = SharedStore(connected(server.url), LocalStore(4, lambda: 0), name, heard)
    work = asyncio.create_task(store.run())
    try:
        yield store, heard
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await store.close()


def ask(name: str, tokens: int) -> Ask:
    return Ask(name, "t", LIMITS, tokens, tokens)


async def used(store: SharedStore) -> list[int]:
    """By a request that nothing admits; settled requests are under way to the store."""
    outcome = await store.reserve(ask("look", 10**9))
    assert not outcome.verdict.granted
    return list(outcome.verdict.used)


async def until_used(store: SharedStore, wanted: list[int]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await used(store) != wanted:
            await asyncio.sleep(0.01)


async def test_two_gateways_share_one_limit_exactly(tmp_path: Path):
    with redis_server(tmp_path) as server:
        async with gateway(server, "a") as (a, _), gateway(server, "b") as (b, _):
            outcomes = await asyncio.gather(*(store.reserve(ask(f"{n}", 100)) for n, store in enumerate([a, b] * 10)))
            assert sum(outcome.verdict.granted for outcome in outcomes) == 10
            mine = [n for n, outcome in enumerate(outcomes) if outcome.verdict.granted and n % 2 == 0]
            assert await a.adjust(ask(str(mine[0]), 40))
            assert not await a.adjust(ask(str(mine[0]), 101)), "there is no room for one token more"
            for n, outcome in enumerate(outcomes):
                if outcome.verdict.granted:
                    (a, b)[n % 2].settle(ask(str(n), 30))
            await until_used(b, [0, 300])


async def test_a_client_that_leaves_while_the_store_is_asked_holds_nothing(tmp_path: Path):
    with redis_server(tmp_path) as server:
        async with gateway(server, "a") as (a, _):
            for n in range(20):
                asking = asyncio.create_task(a.reserve(ask(f"{n}", 10)))
                for _ in range(n % 5):
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            await until_used(a, [0, 0])


async def test_without_the_store_each_takes_its_share_and_the_store_hears_of_it_later(tmp_path: Path):
    with redis_server(tmp_path) as server:
        async with gateway(server, "a") as (a, heard):
            assert (await a.reserve(ask("before", 100))).verdict.granted
            server.kill()
            outcome = await a.reserve(ask("first", 150))
            assert (outcome.verdict.granted, outcome.gateways, outcome.ask.slots[1].limit) == (True, 4, 250)
            assert not heard.up
            assert not (await a.reserve(ask("second", 1))).verdict.granted, "what it used before counts in its share"
            a.settle(ask("first", 120))
            server.again()
            await heard.until(up=True)
            await until_used(a, [0, 120])


def test_gateways_that_race_and_are_killed_never_use_more_than_the_limit(tmp_path: Path):
    """A hundred thousand of them: bench/quota.py."""
    with redis_server(tmp_path) as server:
        outcome = Race(server.url, tmp_path, tries=3000, limit=100_000, kills=3, lease=(3000, 1.0)).run()
    assert outcome["overshoot"] == 0, outcome
    assert outcome["real_tokens"] <= outcome["charged_tokens"] <= outcome["limit"], outcome
    assert outcome["real_tokens"] > outcome["limit"] / 2, "lost and unused reservations are back"
    assert outcome["admitted"] < outcome["tries"], "the limit was reached"
