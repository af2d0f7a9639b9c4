"""What a client sees when replicas refuse, vanish and die: nothing before the first byte of an answer, one clean error after it."""

import asyncio
import json

import aiohttp
import pytest
from pagoda_contracts.names import (
    ERROR_DRAINING,
    ERROR_ENGINE_DIED,
    ERROR_NOT_READY,
    ERROR_OVERLOADED,
    HEADER_RETRY_AFTER,
    HEADER_SHOULD_RETRY,
)
from pagoda_contracts.pb.daemon_pb2 import Phase
from support.servers.gateway_process import write_fleet
from support.servers.scripted_replica import DONE, EVENT, Exchange, Replica, running, say_ok


def once(fault, then=say_ok):
    """A script whose first request meets the fault."""
    pending = [fault]

    async def script(exchange: Exchange) -> None:
        await (pending.pop() if pending else then)(exchange)

    return script


async def abort(exchange: Exchange) -> None:
    exchange.die()


async def head_then_abort(exchange: Exchange) -> None:
    await exchange.begin_stream()
    exchange.die()


async def torn_body(exchange: Exchange) -> None:
    exchange.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
    await exchange.writer.drain()
    exchange.die()


def refusing(code):
    return lambda exchange: exchange.refuse(code)


async def too_many(exchange: Exchange) -> None:
    error = {"error": {"message": "queue_full", "code": ERROR_OVERLOADED}}
    await exchange.answer(429, error, b"retry-after: 3\r\n")


FAULTS = [
    (refusing(ERROR_DRAINING), "repick-draining"),
    (refusing(ERROR_NOT_READY), "repick-not-ready"),
    (refusing(ERROR_OVERLOADED), "repick-overloaded"),
    (too_many, "repick-overloaded"),
    (refusing(ERROR_ENGINE_DIED), "repick-engine-died"),
    (abort, "repick-closed"),
    (head_then_abort, "repick-closed"),
    (torn_body, "repick-closed"),
]


@pytest.mark.parametrize(
    ("fault", "reason"), FAULTS, ids=["draining", "not-ready", "overloaded", "too-many", "engine-died", "close", "empty", "torn"]
)
async def test_a_fault_before_the_first_byte_is_served_elsewhere(bench, replicas, fault, reason):
    a, b = replicas
    a.script = b.script = once(fault)
    await bench.serve(a, b)
    status, document, route = await bench.ask()
    assert status == 200
    assert (route.reason, route.attempt) == (reason, 2)
    (first,), (second,) = sorted([a.seen, b.seen], key=lambda seen: document["replica"] == seen[0].replica.name)
    assert first.body == second.body
    assert first.replica.name != document["replica"]


async def test_a_refusal_by_the_only_replica_waits_for_its_next_frame(bench, replicas):
    a, _ = replicas
    refused = asyncio.Event()

    async def refuse_and_say_no_more(exchange: Exchange) -> None:
        a.silent = True  # no beat that happens to come now ends the wait before anybody saw it
        await exchange.refuse(ERROR_DRAINING)
        refused.set()

    a.script = refuse_and_say_no_more
    await bench.serve(a)
    asked = asyncio.create_task(bench.ask())
    await asyncio.wait_for(refused.wait(), 120)
    await bench.metric_is("held_requests", 1)
    a.script, a.silent = say_ok, False
    a.say()
    status, _, route = await asked
    assert (status, route.attempt) == (200, len(a.seen))
    assert len(a.seen) >= 2
    assert route.held_ms > 0


async def test_when_all_are_overloaded_the_client_is_told_when_to_retry_after_one_attempt(bench, replicas):
    a, _ = replicas
    a.script = refusing(ERROR_OVERLOADED)
    await bench.serve(a)
    async with bench.post() as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (503, ERROR_OVERLOADED)
        assert (answer.headers[HEADER_RETRY_AFTER], answer.headers[HEADER_SHOULD_RETRY]) == ("5", "true")
    assert len(a.seen) == 1


async def test_no_connection_is_served_elsewhere(bench, replicas):
    a, b = replicas
    await bench.serve(a, b)
    a.hang_up()
    answers = [await bench.ask() for _ in range(3)]
    assert [(status, document["replica"]) for status, document, _ in answers] == [(200, "b")] * 3
    assert "repick-connect" in {route.reason for _, _, route in answers}


async def test_a_pooled_connection_that_was_dead_is_no_death_of_its_replica(bench, replicas):
    """The replica closed it as idle at the moment of the request. Its answer comes on a new connection, at the first attempt."""
    used, died, closing = set(), [], asyncio.Event()
    a, _ = replicas

    async def only_once(exchange: Exchange) -> None:
        if exchange.writer in used and closing.is_set():
            died.append(exchange)
            exchange.die()
            return
        used.add(exchange.writer)
        await say_ok(exchange)

    a.script = only_once
    await bench.serve(a)
    while not died:  # of a connection that idled for four seconds the gateway lets go, and this process may stop for longer
        closing.clear()
        await bench.ask()
        closing.set()
        status, _, route = await bench.ask()
        assert (status, route.reason, route.attempt) == (200, "only-endpoint", 1)
    assert await bench.metric("repicks_total", reason="closed") is None


async def test_a_request_that_kills_replicas_on_pooled_connections_kills_two_at_most(bench, replicas):
    async with running(Replica("c")) as c:
        three = [*replicas, c]
        await bench.serve(*three)
        asked: set[str] = set()
        while len(asked) < 3:
            asked.add((await bench.ask())[1]["replica"])

        async def killed(exchange: Exchange) -> None:
            exchange.replica.hang_up()
            exchange.die()

        for replica in three:
            replica.seen.clear()
            replica.script = killed
        assert (await bench.ask())[0] == 502
        assert sum(len(replica.seen) for replica in three) == 2


async def test_a_request_that_kills_replicas_kills_two_at_most(bench, replicas):
    a, b = replicas
    a.script = b.script = abort
    await bench.serve(a, b)
    async with bench.post() as answer:
        assert answer.status == 502
        assert answer.headers[HEADER_SHOULD_RETRY] == "false"
        assert (await answer.json())["error"]["code"] == "upstream_died"
    assert len(a.seen) == len(b.seen) == 1


@pytest.mark.parametrize("fault", [abort, lambda exchange: exchange.answer(500, {"error": {"message": "bug"}})], ids=["close", "500"])
async def test_a_replica_that_is_ready_and_fails_its_requests_is_left_out(bench, replicas, fault):
    """Its frames say that it is ready. After five failures in a row it gets no request for 5 s, then 10 s."""
    a, b = replicas
    a.script = fault
    await bench.serve(a, b)
    answers = [await bench.ask() for _ in range(60)]
    assert 5 <= len(a.seen) < 12, "the others are its first request after each pause"
    assert [status for status, _, _ in answers[-20:]].count(200) >= 19
    assert await bench.metric("left_out_total") >= 1


async def test_a_replica_that_dies_in_mid_stream_is_one_clean_error_event(bench, replicas):
    a, b = replicas

    async def die_after_two(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.chunk(EVENT % 0)
        await exchange.chunk(EVENT % 1)
        await exchange.chunk(b'data: {"torn')
        await go_on.wait()
        exchange.die()

    go_on = asyncio.Event()
    a.script = b.script = die_after_two
    await bench.serve(a, b)
    async with bench.post(stream=True) as answer:
        got = await answer.content.readexactly(len(EVENT % 0 + EVENT % 1))
        go_on.set()
        rest = await answer.content.read()
    assert got == EVENT % 0 + EVENT % 1
    event, done, end = rest.split(b"\n\n")
    assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "upstream_died"
    assert (done + b"\n\n", end) == (DONE, b"")
    assert len(a.seen) + len(b.seen) == 1
    assert await bench.metric("requests_total", code="502") == 1


async def test_a_client_that_leaves_ends_the_work_at_the_replica(bench, replicas):
    a, _ = replicas
    closed = asyncio.Event()

    async def endless(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.chunk(EVENT % 0)
        await exchange.closed_by_peer()
        closed.set()

    a.script = endless
    await bench.serve(a)
    async with bench.post(stream=True) as answer:
        await answer.content.readexactly(len(EVENT % 0))
    await asyncio.wait_for(closed.wait(), 60)
    await bench.metric_is("requests_total", 1, code="499")


async def test_a_client_that_leaves_before_any_answer_ends_the_work_too(bench, replicas):
    a, _ = replicas
    got, closed = asyncio.Event(), asyncio.Event()

    async def thinking(exchange: Exchange) -> None:
        got.set()
        await exchange.closed_by_peer()
        closed.set()

    a.script = thinking
    await bench.serve(a)
    asking = asyncio.create_task(bench.ask())
    await asyncio.wait_for(got.wait(), 60)
    asking.cancel()
    await asyncio.wait_for(closed.wait(), 60)


async def test_other_errors_of_a_replica_pass_untouched(bench, replicas):
    a, _ = replicas
    a.script = lambda exchange: exchange.answer(503, {"error": {"message": "busy", "code": "other"}}, b"retry-after: 7\r\n")
    await bench.serve(a)
    async with bench.post() as answer:
        assert (answer.status, answer.headers["retry-after"]) == (503, "7")
        assert await answer.json() == {"error": {"message": "busy", "code": "other"}}
    assert len(a.seen) == 1


async def test_a_slow_stream_arrives_event_by_event(bench, replicas):
    a, _ = replicas
    step = asyncio.Semaphore(0)

    async def stepwise(exchange: Exchange) -> None:
        await exchange.begin_stream()
        for number in range(4):
            await step.acquire()
            await exchange.chunk(EVENT % number)
        exchange.writer.write(b"0\r\n\r\n")

    a.script = stepwise
    await bench.serve(a)
    async with aiohttp.ClientSession() as client:
        step.release()
        async with client.post(f"{bench.gateway.url}/v1/completions", json={"model": "m", "stream": True}) as answer:
            for number in range(4):
                assert await answer.content.readexactly(len(EVENT % number)) == EVENT % number
                step.release()
            assert await answer.content.read() == b""


@pytest.mark.deep
@pytest.mark.parametrize("program", ["as it is"], indirect=True)
async def test_a_silent_replica_gets_no_request(bench, replicas):
    a, b = replicas
    await bench.serve(a, b)
    a.silent = True
    await bench.sees(silent=1)
    assert {(await bench.ask())[1]["replica"] for _ in range(4)} == {"b"}


@pytest.mark.parametrize("program", ["as it is"], indirect=True)
async def test_a_replica_with_a_dead_engine_gets_no_request(bench, replicas):
    a, b = replicas
    await bench.serve(a, b)
    a.say(engine_heartbeat_age_ms=60_000)
    await bench.sees(stuck=1)
    assert {(await bench.ask())[1]["replica"] for _ in range(4)} == {"b"}


async def test_a_draining_phase_takes_a_replica_out_before_it_refuses(bench, replicas):
    a, b = replicas
    await bench.serve(a, b)
    a.say(phase=Phase.PHASE_DRAINING)
    await bench.sees(draining=1)
    assert {(await bench.ask())[1]["replica"] for _ in range(4)} == {"b"}
    assert a.seen == []


# Requests that the gateway splits between revisions by weight: on this file's gateway, because one more takes a second of CPU


async def test_requests_are_split_by_weight_and_a_revision_that_can_take_none_loses_none(bench, replicas):
    old, new = replicas
    old.say(revision="old")
    new.say(revision="new")
    await bench.serve(old, new)
    weights = {"weights": {"old": 75, "new": 25}, "endpoints": [old.entry(), new.entry()]}
    write_fleet(bench.file, [{"name": bench.service, "served_names": ["m"], **weights}])
    await eventually_split(bench, new.name)
    answers = [(await bench.ask())[1]["replica"] for _ in range(40)]
    assert 8 <= answers.count(new.name) <= 12
    new.say(phase=Phase.PHASE_DRAINING, revision="new")
    await bench.sees(draining=1)
    assert {(await bench.ask())[1]["replica"] for _ in range(10)} == {old.name}


async def eventually_split(bench, rare):
    """The file is read again some time after it was written: until then equals take turns, and half of ten go to each."""
    async with asyncio.timeout(120):
        while [(await bench.ask())[1]["replica"] for _ in range(10)].count(rare) >= 4:
            pass
