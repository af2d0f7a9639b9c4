"""What waits on a frozen replica is taken back, if another one can take it and nothing came for it."""

import asyncio
from dataclasses import dataclass

import pytest
from pagoda_contracts.names import STATE_DEAD_MS
from pagoda_gateway.requests.errors import Died
from support.harness.gateway import SERVICE, GatewayHarness


@dataclass
class Life:
    service: str = SERVICE
    heard_ms: float = 5_000.0
    fixed: bool = False


class Harness(GatewayHarness):
    def __init__(self):
        super().__init__()
        self.service()
        self.frozen = self.router.frozen
        self.frame(name="ns/a")
        self.frame(name="ns/b")

    def endpoint(self):
        return next(one for one in self.cache.endpoints(self.cache.service(SERVICE)) if one.name == "ns/a")

    def pass_time(self, ms, *beating):
        """Looks are in time."""
        for _ in range(0, ms, 250):
            self.now_ms += 250
            for name in beating:
                self.frame(name=name)
            self.frozen.look()

    async def wait(self, life):
        async with self.frozen.watch(self.endpoint(), life):
            await asyncio.Event().wait()

    async def outcome(self, life, *beating, ms=STATE_DEAD_MS + 500):
        waiting = asyncio.ensure_future(self.wait(life))
        await asyncio.sleep(0)
        self.frozen.look()
        self.pass_time(ms, *beating)
        for _ in range(5):
            await asyncio.sleep(0)
        if waiting.done():
            return waiting.exception()
        waiting.cancel()
        return None


async def test_it_is_taken_back_after_three_seconds_of_silence():
    assert await Harness().outcome(Life(), "ns/b", ms=STATE_DEAD_MS - 250) is None
    taken = await Harness().outcome(Life(), "ns/b")
    assert isinstance(taken, Died)
    assert taken.reason == "frozen"


@pytest.mark.parametrize(
    ("life", "beating"),
    [
        (Life(), ()),  # no other replica could take it
        (Life(), ("ns/a", "ns/b")),  # its replica beats
        (Life(heard_ms=7_000.0), ("ns/b",)),  # its answer goes on, whatever is wrong with the state
        (Life(fixed=True), ("ns/b",)),  # it cannot go on elsewhere
    ],
)
async def test_it_stays(life, beating):
    assert await Harness().outcome(life, *beating) is None


async def test_a_gateway_that_stood_still_does_not_judge_by_old_frames():
    harness = Harness()
    waiting = asyncio.ensure_future(harness.wait(Life()))
    await asyncio.sleep(0)
    harness.frozen.look()
    harness.now_ms += 60_000
    harness.frame(name="ns/b")
    harness.frozen.look()
    harness.frame(name="ns/a")
    harness.pass_time(500, "ns/a", "ns/b")
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_a_replica_that_discovery_has_dropped_is_not_frozen():
    harness = Harness()
    waiting = asyncio.ensure_future(harness.wait(Life()))
    await asyncio.sleep(0)
    harness.cache.delete_replica("ns/a")
    harness.frozen.look()
    harness.pass_time(STATE_DEAD_MS + 1000, "ns/b")
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
