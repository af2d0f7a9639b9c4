"""Adapters on demand under requests that compete for few places, orders that change meanwhile, and files that are lost."""

from __future__ import annotations

import asyncio
import shutil
from unittest.mock import patch

from pagoda_contracts.pb.daemon_pb2 import ADAPTER_PHASE_FAILED, ADAPTER_PHASE_LOADED, ADAPTER_PHASE_ON_DISK
from pagoda_daemon.engine.client import EngineLink
from support.servers.adapter_replica import adapter, adapter_replica, on_disk

NAMES = {"a": "one", "b": "two", "c": "three"}


class Slow:
    """Loads of adapters that wait until the test lets them go on."""

    def __init__(self):
        self.begun, self.go_on, self.count = asyncio.Event(), asyncio.Event(), 0
        self._load = EngineLink.load_adapter

    async def load(self, link, path, root):
        self.count += 1
        self.begun.set()
        await self.go_on.wait()
        return await self._load(link, path, root)


def slow():
    made = Slow()

    async def load(link, path, root):
        return await made.load(link, path, root)

    return made, patch.object(EngineLink, "load_adapter", load)


async def offered(here, **fields):
    wanted = tuple(on_disk(name, folder, **fields) for name, folder in NAMES.items())
    await here.settled(*wanted, phase=ADAPTER_PHASE_ON_DISK)
    return wanted


async def test_what_a_request_loaded_is_not_evicted_before_the_request_is_answered(tmp_path, claims):
    """Each of two requests once loaded in vain for ever: the other one's load evicted it before it had come to use it."""
    async with adapter_replica(tmp_path, claims, max_loaded=1, step_ms=20) as here:
        await offered(here)
        made, loads = slow()
        with loads:
            body = {"prompt": [7] * 400, "max_tokens": 8, "ignore_eos": True}  # more than 1 KiB is prepared on a thread
            asked = [asyncio.create_task(here.http.post("/v1/completions", json=body | {"model": name})) for name in "ab"]
            await made.begun.wait()
            made.go_on.set()
            assert sorted([(await one).status_code for one in asked]) == [200, 503]
        assert made.count == 1


async def test_an_adapter_that_is_removed_while_a_request_loads_it_stays_removed(tmp_path, claims):
    async with adapter_replica(tmp_path, claims, max_loaded=1) as here:
        await offered(here)
        made, loads = slow()
        with loads:
            asked = asyncio.create_task(here.http.post("/v1/completions", json={"model": "a", "prompt": [1], "max_tokens": 1}))
            await made.begun.wait()
            await here.set(on_disk("b", "two"), generation=2)
            made.go_on.set()
            assert (await asked).status_code == 404
        assert await here.tokens("b") == here.expected("two")  # its place is free


async def test_a_load_goes_on_without_the_client_that_began_it_and_is_shared(tmp_path, claims):
    async with adapter_replica(tmp_path, claims, max_loaded=1) as here:
        await offered(here)
        made, loads = slow()
        with loads:
            leaving, staying = (asyncio.create_task(here.tokens("a")) for _ in range(2))
            await made.begun.wait()
            await here.front.until(lambda: here.front.front.replica.waking == 2)
            leaving.cancel()
            await here.front.until(lambda: here.front.front.replica.waking == 1)
            made.go_on.set()
            assert await staying == here.expected("one")
        assert (made.count, here.front.front.replica.waking) == (1, 0)


async def test_a_request_that_waited_for_its_adapter_names_an_ignored_field_once(tmp_path, claims):
    async with adapter_replica(tmp_path, claims, max_loaded=1) as here:
        await offered(here)
        asked = await here.http.post("/v1/completions", json={"model": "a", "prompt": [1], "max_tokens": 1, "unheard_of": 1})
        assert (asked.status_code, asked.headers["x-pagoda-ignored"]) == (200, "unheard_of")


async def test_files_that_cannot_be_used_are_found_before_a_request_asks(tmp_path, claims):
    (claims / "loras" / "two" / "adapter_model.safetensors").unlink()
    async with adapter_replica(tmp_path, claims) as here:
        (state,) = await here.settled(on_disk("b", "two"), phase=ADAPTER_PHASE_FAILED)
        assert state.reason
        assert (await here.http.post("/v1/completions", json={"model": "b", "prompt": [1], "max_tokens": 1})).status_code == 404


async def test_lost_files_are_brought_again(tmp_path, claims):
    async with adapter_replica(tmp_path, claims, max_loaded=1) as here:
        wanted = await offered(here)
        kept, store = {}, tmp_path / "store"
        for folder in store.iterdir():
            kept[folder] = tmp_path / folder.name
            shutil.move(folder, kept[folder])
        lost = await here.http.post("/v1/completions", json={"model": "a", "prompt": [1], "max_tokens": 1})
        assert (lost.status_code, lost.json()["error"]["code"]) == (503, "not_ready")
        async with asyncio.timeout(300):
            while (await here.phases(*wanted))["a"] not in (ADAPTER_PHASE_ON_DISK, ADAPTER_PHASE_LOADED):
                await asyncio.sleep(0.01)
        assert await here.tokens("a") == here.expected("one")


async def test_a_catalogue_that_makes_one_resident_keeps_it(tmp_path, claims):
    async with adapter_replica(tmp_path, claims, max_loaded=2) as here:
        await offered(here)
        await here.tokens("a")
        order = (adapter("a", "one"), on_disk("b", "two"), on_disk("c", "three"))
        await here.settled(*order, generation=2, phase=None)
        for name in ("b", "c", "b"):
            assert await here.tokens(name) == here.expected(NAMES[name])
        assert (await here.phases(*order, generation=2))["a"] == ADAPTER_PHASE_LOADED
