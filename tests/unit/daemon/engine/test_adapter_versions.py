"""Adapters come, go and change under requests in random order: each answer is that of the version it began with, computed alone.

The catalogue of the front, the slots of the engine and the scheduler are the real ones. The device is simulated. Its tokens depend on the
adapter, and so do the keys and values that it leaves behind: a wrong slot or a shared block gives another answer.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pagoda_contracts.launch import AdapterModule, AdaptersConfig
from pagoda_daemon.api.access.catalogue import Catalogue
from pagoda_daemon.api.access.versions import Version
from pagoda_daemon.core.batch import WorkerLimits
from pagoda_daemon.core.errors import AdapterRejected, RequestFailed
from pagoda_daemon.core.messages import AdapterLoaded, LoadAdapter, ReleaseAdapter
from pagoda_daemon.engine.adapters import AdapterLoads, _attempt, _Read
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.kv.adapters import AdapterTable
from pagoda_daemon.runner.adapters import AdapterStore
from pagoda_daemon.scheduler.admission import abort
from pagoda_daemon.simulated.device.worker import Digest, SimulatedWorker, expected_tokens
from support.engine.drive import Drive

VOCAB, COUNT = 1000, 6
NAMES = ("a", "b", "c")
PROMPTS = tuple(tuple(range(start, start + 20)) for start in (1, 1, 400))


class Loads(AdapterLoads):
    """Reads when it is told to."""

    def read_now(self, state: Any, message: LoadAdapter, store: AdapterStore) -> AdapterLoaded:
        self._tell(_Read(message, _attempt(store, message)))
        (answer,) = self.hear(state)
        return answer


class Places(dict[int, Any]):
    """As a device's: there are three, whatever the slots are."""

    def __setitem__(self, slot: int, adapter: Any) -> None:
        if len(self) == 3:
            raise MemoryError
        super().__setitem__(slot, adapter)


@dataclass
class World:
    """A front's catalogue over an engine's core, and what every request that runs must say."""

    seed: int
    read: Callable[[Any, Any], Digest] = lambda path, _root: Digest(str(path))
    happened: Counter[str] = field(default_factory=Counter)
    pinned: dict[str, tuple[Version | None, tuple[int, ...]]] = field(default_factory=dict)
    wanted: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.store = AdapterStore(self.read, held=Places())
        worker = SimulatedWorker(WorkerLimits(24, 4, VOCAB, 64), adapters=self.store)
        self.drive = Drive(worker, max_concurrency=5, token_budget=16, depth=2, keep_plans=False)
        self.loads = Loads(lambda _fileno: None, lambda change: change())
        self.loads.open(self.drive.state, self.store)
        self.catalogue = Catalogue(Replica(0.0), self, AdaptersConfig(max_loaded=2), ("base",))  # type: ignore[arg-type]
        self.made = 0

    def load_adapter(self, path: str, _root: str) -> asyncio.Future[AdapterLoaded]:
        """As the engine's link does, answered at once."""
        answer: asyncio.Future[AdapterLoaded] = asyncio.get_running_loop().create_future()
        answer.set_result(self.loads.read_now(self.drive.state, LoadAdapter(0, path, ""), self.store))
        return answer

    def release_adapter(self, digest: str) -> None:
        self.loads.take(self.drive.state, ReleaseAdapter(digest))
        self.happened["released"] += 1

    async def act(self) -> None:
        """One random thing."""
        what = self.draw.choice(("load", "unload", "request", "request", "abort", "step", "step", "step", "step"))
        self.happened[what] += 1
        match what:
            case "load":
                await self._load()
            case "unload":
                self.catalogue.unload(self.draw.choice(NAMES))
            case "request":
                self._request()
            case "abort" if self.pinned:
                self._end(self.draw.choice(tuple(self.pinned)), aborted=True)
            case "step":
                self._step()

    async def _load(self) -> None:
        self.made += self.draw.random() < 0.7  # else content that is or was there, perhaps under another name
        try:
            await self.catalogue.load(self.draw.choice(NAMES), f"v{self.draw.randint(max(0, self.made - 2), self.made)}", in_place=True)
        except AdapterRejected:
            self.happened["full"] += 1
        except RequestFailed:
            self.happened["no place"] += 1

    def _request(self) -> None:
        name, prompt = self.draw.choice((*NAMES, "base")), self.draw.choice(PROMPTS)
        version = self.catalogue.take(name)
        if version is None and name != "base":
            return
        self.happened["begun"] += 1
        request_id, digest = f"r{self.happened['begun']}", version.digest if version else ""
        self.pinned[request_id] = version, self._reference(digest, prompt)
        self.drive.submit(request_id, prompt, COUNT, adapter=digest)

    def _reference(self, digest: str, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """What the adapter alone says."""
        if (digest, prompt) not in self.wanted:
            self.wanted[digest, prompt] = expected_tokens(prompt, COUNT, VOCAB, digest)
        return self.wanted[digest, prompt]

    def _step(self) -> None:
        self.drive.step()
        self.loads.tidy(self.drive.state)
        for request_id in [one for one in self.pinned if one in self.drive.ends]:
            self._end(request_id)

    def _end(self, request_id: str, *, aborted: bool = False) -> None:
        version, wanted = self.pinned.pop(request_id)
        if aborted:
            self.drive.take(abort(self.drive.state, request_id))
        said = tuple(self.drive.tokens.pop(request_id, ()))
        assert said == (wanted[: len(said)] if aborted else wanted), (self.seed, request_id)
        self.happened["old version"] += version is not None and not version.named
        if version is not None:
            self.catalogue.give_back(version)

    def finish(self) -> None:
        """Everything ends; nothing is held that no name has."""
        while self.pinned:
            self._step()
        for name in NAMES:
            self.catalogue.unload(name)
        self.loads.tidy(self.drive.state)
        assert self.store.held == {}
        assert len(self.drive.state.adapters) == 0
        self.drive.drain()


async def played(seed: int, acts: int) -> Counter[str]:
    world = World(seed)
    for _ in range(acts):
        await world.act()
    world.finish()
    return world.happened


async def test_each_answer_is_that_of_the_version_it_began_with() -> None:
    happened = await played(4, 400)
    assert min(happened[what] for what in ("old version", "released", "begun", "abort", "full", "no place")) > 2


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10))
async def test_ten_thousand_interleavings_never_mix_versions(seed: int) -> None:
    happened = await played(100 + seed, 1000)
    assert happened["old version"] > 10
    assert happened["released"] > 20


def test_a_slot_is_free_when_neither_a_name_nor_a_request_has_it() -> None:
    table = AdapterTable()
    assert (table.hold("x"), table.hold("x"), table.hold("y")) == (1, None, 2)
    table.use(1, 1)
    table.release("x")
    table.release("x")
    assert (table.take_freed(), table.slot_of("x")) == ([], 1)
    table.use(1, -1)
    assert (table.slot_of("x"), table.slot_of("y"), table.slot_of("")) == (None, 2, 0)
    assert table.hold("z") == 3  # the first one may still be in a plan that is under way
    assert table.take_freed() == [1]
    assert table.hold("w") == 1


async def test_a_fault_of_ours_is_not_the_clients_mistake() -> None:
    """Memory may run out while an adapter is read, or put into the device's."""
    for world in (World(1, out_of_memory), World(1)):
        if world.read is not out_of_memory:
            world.store.held.update({9: None, 10: None, 11: None})
        with pytest.raises(RequestFailed, match="an internal error"):
            await world.catalogue.load("a", "v1", in_place=False)
        assert world.catalogue.versions() == {}
        assert len(world.drive.state.adapters) == 0


async def test_content_that_two_names_load_is_put_there_by_the_second_where_the_first_failed() -> None:
    world, jobs = World(1), list[Callable[[], object]]()
    world.loads = Loads(lambda _fileno: None, jobs.append)
    state, store = world.drive.state, world.store
    world.loads.open(state, store)
    store.held.update({9: None, 10: None, 11: None})
    for call in (1, 2):
        world.loads._tell(_Read(LoadAdapter(call, "v1", ""), Digest("v1")))
    assert world.loads.hear(state) == []
    jobs.pop(0)()
    del store.held[9]
    jobs.pop(0)()
    assert [(answer.call, answer.fault) for answer in world.loads.hear(state)] == [(1, True), (2, False)]
    assert state.adapters.slot_of("v1") in store.held
    world.loads.take(state, ReleaseAdapter("v1"))
    world.loads._tell(_Read(LoadAdapter(3, "v2", ""), Digest("v2")))
    world.loads.hear(state)
    for job in jobs:
        job()
    (answer,) = world.loads.hear(state)
    assert not answer.fault, "the place that one leaves is free for the next"


def test_what_the_configuration_names_is_in_the_slots_that_the_engine_gives() -> None:
    modules = tuple(AdapterModule(name=name, path=path) for name, path in (("a", "x"), ("b", "y"), ("c", "x"), ("d", "z")))
    store, world = AdapterStore.of(AdaptersConfig(modules=modules), lambda path, _root: Digest(str(path))), World(1)
    assert world.loads.open(world.drive.state, store) == store.first == ("x", "y", "x", "z")
    assert {slot: one.digest for slot, one in store.held.items()} == {1: "x", 2: "y", 3: "z"}
    assert [world.drive.state.adapters.slot_of(digest) for digest in "xyz"] == [1, 2, 3]


def out_of_memory(_path: Any, _root: Any) -> Digest:
    raise MemoryError
