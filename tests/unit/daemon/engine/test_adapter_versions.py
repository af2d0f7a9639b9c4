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
from pagoda_contracts.launch import AdaptersConfig
from pagoda_daemon.api.access.catalogue import Catalogue
from pagoda_daemon.api.access.versions import Version
from pagoda_daemon.core.batch import WorkerLimits
from pagoda_daemon.core.errors import AdapterRejected, RequestFailed
from pagoda_daemon.core.messages import AdapterLoaded, LoadAdapter, ReleaseAdapter
from pagoda_daemon.engine.adapters import AdapterLoads, _attempt
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
        return self._answer(state, message, _attempt(store, message))


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
        self.store = AdapterStore(self.read)
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
    happened = await played(1, 400)
    assert min(happened[what] for what in ("old version", "released", "begun", "abort", "full")) > 2


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
    """Memory may run out while an adapter is read."""
    world = World(1, out_of_memory)
    with pytest.raises(RequestFailed, match="an internal error"):
        await world.catalogue.load("a", "v1", in_place=False)
    assert world.catalogue.versions() == {}


def out_of_memory(_path: Any, _root: Any) -> Digest:
    raise MemoryError
