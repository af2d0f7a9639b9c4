"""SetAdapters: a replica gets the adapters that the operator wants, by its fetch sidecar, and tells how far each one is."""

from __future__ import annotations

import asyncio
import shutil

import grpc
from pagoda_contracts.names import GRPC_WATCH_STATE
from pagoda_contracts.pb.daemon_pb2 import (
    ADAPTER_PHASE_FAILED,
    ADAPTER_PHASE_LOADED,
    ADAPTER_PHASE_ON_DISK,
    Adapter,
    State,
    WatchStateRequest,
)
from pagoda_daemon.api.grpc.fetching import Fetched
from support.engine.adapter_files import write_adapter
from support.servers.adapter_replica import PROMPT, adapter, adapter_replica, on_disk
from support.servers.local_front import NAME

NOT_SHA = "sha256:1"


async def test_a_catalogue_is_fetched_and_loaded_and_each_name_answers_with_its_adapter(tmp_path, claims):
    async with adapter_replica(tmp_path, claims) as here:
        first, second = await here.settled(adapter("a", "one"), adapter("b", "two"))
        assert (first.name, first.digest.partition(":")[0]) == ("a", "sha256")
        assert await here.tokens("a") == here.expected("one")
        assert await here.tokens("b") == here.expected("two")
        assert (tmp_path / "store" / second.digest.replace(":", "-") / "adapter_config.json").is_file()
        cards = (await here.http.get("/v1/models")).json()["data"][1:]
        assert sorted((card["id"], card["parent"], card["root"]) for card in cards) == [
            ("a", NAME, first.digest),
            ("b", NAME, second.digest),
        ]


async def test_what_is_not_in_the_catalogue_any_more_is_unloaded(tmp_path, claims):
    async with adapter_replica(tmp_path, claims) as here:
        await here.settled(adapter("a", "one"), adapter("b", "two"))
        await here.settled(adapter("b", "two"), generation=2)
        assert [card["id"] for card in (await here.http.get("/v1/models")).json()["data"]] == [NAME, "b"]


async def test_a_name_flips_to_its_new_content_and_a_running_request_keeps_the_old_one(tmp_path, claims):
    async with adapter_replica(tmp_path, claims, step_ms=2) as here:
        await here.settled(adapter("a", "one"))
        slow = asyncio.create_task(here.tokens("a", 300))
        await here.front.until(lambda: here.front.front.replica.stats.running)
        (after,) = await here.settled(adapter("a", "two"), generation=2)
        assert await here.tokens("a") == here.expected("two")
        assert not slow.done()
        assert await slow == here.expected("one", 300)
        # The operator names the digest that was found: the same content, so nothing is fetched again.
        shutil.rmtree(claims / "loras")
        (same,) = (await here.set(adapter("a", "two", digest=after.digest), generation=3)).adapters
        assert (same.phase, same.digest) == (ADAPTER_PHASE_LOADED, after.digest)


async def test_what_cannot_be_brought_says_why_and_comes_once_it_can(tmp_path, claims):
    async with adapter_replica(tmp_path, claims) as here:
        wanted = (adapter("a", "none"), adapter("b", "two", digest="sha256:" + "0" * 64), Adapter(name="c", uri="pvc://other/x"))
        absent, other, unmounted = await here.settled(*wanted, phase=ADAPTER_PHASE_FAILED)
        assert "no such folder" in absent.reason
        assert "asked for is sha256:000" in other.reason
        assert "that claim is not mounted here" in unmounted.reason
        write_adapter(claims / "loras" / "none", b"now")
        async with asyncio.timeout(300):
            while (await here.set(*wanted)).adapters[0].phase != ADAPTER_PHASE_LOADED:
                await asyncio.sleep(0.01)
        assert await here.tokens("a") == here.expected("none")


async def test_an_update_that_fails_leaves_the_old_content_in_service(tmp_path, claims):
    async with adapter_replica(tmp_path, claims) as here:
        await here.settled(adapter("a", "one"))
        await here.settled(adapter("a", "none"), generation=2, phase=ADAPTER_PHASE_FAILED)
        assert await here.tokens("a") == here.expected("one")


async def test_frames_tell_what_is_loaded_what_failed_and_of_which_generation(tmp_path, claims):
    async with adapter_replica(tmp_path, claims) as here:
        loaded, failed = adapter("a", "one"), adapter("b", "none")
        await here.settled(loaded, generation=6)
        await here.set(loaded, failed, generation=7)
        watch = here.channel.unary_stream(
            GRPC_WATCH_STATE, request_serializer=WatchStateRequest.SerializeToString, response_deserializer=State.FromString
        )(WatchStateRequest(watcher="test"), timeout=300)
        async for frame in watch:
            if {one.name: one.phase for one in frame.adapters} == {"a": ADAPTER_PHASE_LOADED, "b": ADAPTER_PHASE_FAILED}:
                break
        assert frame.adapters_generation == 7


async def test_an_older_leader_and_an_older_catalogue_are_refused_and_a_new_leader_begins_anew(tmp_path, claims):
    async with adapter_replica(tmp_path, claims) as here:
        await here.set(generation=50, epoch=3)
        assert await here.refused(generation=60, epoch=2) == grpc.StatusCode.FAILED_PRECONDITION
        assert await here.refused(generation=49, epoch=3) == grpc.StatusCode.ABORTED
        await here.set(generation=50, epoch=3)
        await here.set(generation=1, epoch=4)
        assert here.front.front.replica.drain.epoch == 4


async def test_a_catalogue_that_cannot_be_meant_is_refused_whole(tmp_path, claims):
    async with adapter_replica(tmp_path, claims) as here:
        here.front.front._orders._uid = "mine"
        for wrong in (
            (adapter(NAME, "one"),),
            (adapter("a", "one"), adapter("a", "two")),
            (Adapter(name="a"),),
            (adapter("a", "one", digest=NOT_SHA),),
        ):
            assert await here.refused(*wrong) == grpc.StatusCode.INVALID_ARGUMENT
        assert await here.refused(pod_uid="another") == grpc.StatusCode.NOT_FOUND
        assert here.front.front._orders.generation == 0


async def test_with_a_sidecar_no_client_loads_or_unloads(tmp_path, claims):
    async with adapter_replica(tmp_path, claims) as here:
        assert (await here.http.post("/v1/load_lora_adapter", json={})).status_code == 404
        assert not {path for path in (await here.http.get("/openapi.json")).json()["paths"] if "lora" in path}


async def test_a_sidecar_that_is_gone_is_named_and_asked_again(tmp_path, claims):
    async with adapter_replica(tmp_path, claims) as here:
        here.front.front._orders._fetch._address = "127.0.0.1:1"
        (silent,) = await here.settled(adapter("a", "one"), phase=ADAPTER_PHASE_FAILED)
        assert silent.reason == "the fetch sidecar did not answer: UNAVAILABLE"


async def test_a_large_catalogue_is_fetched_a_few_at_a_time(tmp_path, claims):
    async with adapter_replica(tmp_path, claims, max_loaded=40) as here:
        running, most = 0, 0

        async def fetch(_entry, _begun):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return Fetched(claims / "loras" / "one", "sha256:" + "a" * 64)

        here.front.front._orders._fetch = fetch
        await here.settled(*(adapter(f"a{number}", "one") for number in range(40)))
        assert most == 8


async def test_a_request_loads_what_is_on_disk_in_the_place_of_what_was_used_least_recently(tmp_path, claims):
    wanted = (on_disk("a", "one"), on_disk("b", "two"), on_disk("c", "three"))
    async with adapter_replica(tmp_path, claims, max_loaded=2) as here:
        states = await here.settled(*wanted, phase=ADAPTER_PHASE_ON_DISK)
        cards = (await here.http.get("/v1/models")).json()["data"][1:]
        assert sorted((card["id"], card["root"]) for card in cards) == [(state.name, state.digest) for state in states]
        for name, folder in (("a", "one"), ("b", "two"), ("a", "one"), ("c", "three")):
            assert await here.tokens(name) == here.expected(folder)
        assert await here.phases(*wanted) == {"a": ADAPTER_PHASE_LOADED, "b": ADAPTER_PHASE_ON_DISK, "c": ADAPTER_PHASE_LOADED}
        together = await asyncio.gather(*(here.tokens(name) for name in "abab"))
        assert together == 2 * [here.expected("one"), here.expected("two")]


async def test_a_pinned_adapter_and_one_with_requests_keep_their_places(tmp_path, claims):
    wanted = (on_disk("a", "one", pinned=True), on_disk("b", "two"), on_disk("c", "three"))
    async with adapter_replica(tmp_path, claims, max_loaded=2, step_ms=2) as here:
        await here.settled(*wanted, phase=ADAPTER_PHASE_ON_DISK)
        await here.tokens("a")
        slow = asyncio.create_task(here.tokens("b", 300))
        await here.front.until(lambda: here.front.front.replica.stats.running)
        refused = await here.http.post("/v1/completions", json={"model": "c", "prompt": PROMPT, "max_tokens": 1})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert not slow.done()
        assert await slow == here.expected("two", 300)
        assert await here.tokens("c") == here.expected("three")
        assert (await here.phases(*wanted))["a"] == ADAPTER_PHASE_LOADED


async def test_a_loaded_name_flips_to_its_new_content_and_becomes_resident_or_goes_by_order(tmp_path, claims):
    async with adapter_replica(tmp_path, claims, max_loaded=1) as here:
        await here.settled(on_disk("a", "one"), phase=ADAPTER_PHASE_ON_DISK)
        assert await here.tokens("a") == here.expected("one")
        await here.settled(on_disk("a", "two"), generation=2)  # it was loaded, so its new content is
        assert await here.tokens("a") == here.expected("two")
        await here.settled(adapter("b", "three"), on_disk("a", "two"), generation=3, phase=None)
        assert await here.phases(adapter("b", "three"), on_disk("a", "two"), generation=3) == {
            "a": ADAPTER_PHASE_ON_DISK,
            "b": ADAPTER_PHASE_LOADED,
        }
        gone = await here.http.post("/v1/completions", json={"model": "a", "prompt": PROMPT, "max_tokens": 1})
        assert gone.status_code == 503  # the one place is another adapter's for good
        await here.set(adapter("b", "three"), generation=4)
        gone = await here.http.post("/v1/completions", json={"model": "a", "prompt": PROMPT, "max_tokens": 1})
        assert gone.status_code == 404
