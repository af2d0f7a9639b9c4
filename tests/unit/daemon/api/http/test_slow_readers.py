"""Clients that do not read: what they cost is bounded, by count; then they are cut, and the streams beside them never notice."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import ExitStack
from functools import partial

import grpc
import grpc.aio
import pytest
from pagoda_contracts.names import GRPC_HEALTH
from pagoda_daemon.api.grpc import server as grpc_server
from pagoda_daemon.api.http.connection import Bounds
from pagoda_daemon.engine import client
from pagoda_daemon.simulated.device.worker import expected_tokens
from support.engine.toy_model import VOCAB
from support.servers.local_replica import HOST, NAME, LocalReplica, generate, local_replica, request, texts
from support.servers.loop_clock import LoopClock
from support.suite.profiles import examples

TOKENS = 1000
NEVER = 1e6
SMALL = 4096  # of the kernel's buffers: the least it takes, so that little has to be generated until they are full
ENGINE = {"max_model_len": 4096, "token_budget": 1024, "max_concurrency": 600}
NARROW = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))


async def open_slowly(replica: LocalReplica, number: int) -> socket.socket:
    """Asks for much and reads nothing."""
    client_socket = socket.socket()
    client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    client_socket.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client_socket, (HOST, replica.ports.http))
    body = {"model": NAME, "prompt": [number % 250, number // 250], "max_tokens": TOKENS, "stream": True, "ignore_eos": True}
    await loop.sock_sendall(client_socket, request("POST", "/v1/completions", json.dumps(body).encode()))
    return client_socket


async def beside(replica: LocalReplica, number: int) -> None:
    """A stream of somebody who reads."""
    prompt = [251, number]
    body = {"model": NAME, "prompt": prompt, "max_tokens": 300, "stream": True, "ignore_eos": True}
    status, events = await replica.post("/v1/completions", body)
    assert status == 200
    assert texts(events) == replica.text.decode(expected_tokens(prompt, 300, VOCAB))


async def judge(readers: int, bounds: Bounds, most_behind: int) -> int:
    """How many tokens waited at most for any one reader."""
    async with local_replica(bounds=bounds, engine=ENGINE, turns=4) as replica:
        with ExitStack() as opened:
            for number in range(readers):
                opened.enter_context(await open_slowly(replica, number))
            await replica.until(lambda: len(replica.engine.submitted) == readers)
            tokens = [replica.engine.computed[message.request_id] for message in replica.engine.submitted]
            worst = 0

            async def watch() -> None:
                nonlocal worst
                while replica.engine._streams:
                    worst = max([worst, *(stream.behind for stream in replica.engine._streams.values())])
                    await replica.engine.steps(1 + readers // 50)

            watching = asyncio.ensure_future(watch())
            await asyncio.gather(*(beside(replica, number) for number in range(4)))
            await replica.until(lambda: len(replica.engine.aborted) == readers or len(tokens[-1]) == TOKENS)
            watching.cancel()
            assert max(map(len, tokens)) < TOKENS
            assert worst <= most_behind
        await replica.at_rest()
        return worst


@pytest.mark.deep
async def test_a_client_that_takes_no_byte_while_tokens_pile_up_is_cut() -> None:
    bounds = Bounds(send_buffer=SMALL, stalled_s=NEVER, look_s=0.001, backlog=64)
    assert await judge(8, bounds, most_behind=TOKENS) >= 64


@pytest.mark.deep
async def test_a_client_that_takes_no_byte_for_long_is_cut_however_little_piles_up() -> None:
    await judge(8, Bounds(send_buffer=SMALL, stalled_s=0.02, look_s=0.01, backlog=TOKENS), most_behind=TOKENS)


@pytest.mark.deep
async def test_a_bound_on_what_piles_up_holds_by_count_whatever_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MAX_BEHIND", 100)
    assert await judge(8, Bounds(send_buffer=SMALL, look_s=NEVER), most_behind=101) > 50


@pytest.mark.deep
async def test_however_many_slow_readers_there_are_they_cost_a_bound_each_and_nobody_else_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MAX_BEHIND", 200)
    await judge(examples(50), Bounds(send_buffer=SMALL, stalled_s=NEVER, look_s=0.05, backlog=100), most_behind=201)


@pytest.mark.deep
async def test_without_a_bound_everything_piles_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MAX_BEHIND", TOKENS)
    with pytest.raises(AssertionError):
        await judge(2, Bounds(send_buffer=SMALL, look_s=NEVER), most_behind=101)


async def judge_grpc(readers: int, most_behind: int, stalled_s: float = 0.0) -> int:
    """The same for callers of Generate, whose window is narrow so that little has to be generated until it is full. With `stalled_s` so
    much time passes once the streams beside them are whole, until all are cut."""
    clock = LoopClock()
    async with local_replica(engine=ENGINE, turns=4) as replica:
        address, worst = f"{HOST}:{replica.ports.grpc}", 0
        async with grpc.aio.insecure_channel(address, options=NARROW) as channel, grpc.aio.insecure_channel(address) as other:
            # gRPC has threads of its own: who reads is not behind because they wait for a core, if a step lasts a round trip of theirs.
            replica.engine.round_trip = partial(other.unary_unary(f"/{GRPC_HEALTH}/Check"), b"")
            unread = [generate(channel, [number, 1], TOKENS) for number in range(readers)]
            await replica.until(lambda: len(replica.engine.submitted) == readers)
            tokens = [replica.engine.computed[message.request_id] for message in replica.engine.submitted]

            async def watch() -> None:
                nonlocal worst
                while replica.engine._streams:
                    worst = max([worst, *(stream.behind for stream in replica.engine._streams.values())])
                    await replica.engine.steps(1)

            watching = asyncio.ensure_future(watch())
            await asyncio.gather(*(read_whole(other, [251, number]) for number in range(4)))
            replica.engine.round_trip = None
            await replica.until(lambda: len(replica.engine.aborted) == readers or len(tokens[-1]) == TOKENS)
            watching.cancel()
            assert max(map(len, tokens)) < TOKENS
            assert worst <= most_behind
            while stalled_s and replica.front.replica.in_flight:
                clock.skip(stalled_s)
                await asyncio.sleep(0.01)
            await replica.at_rest()  # though all of them are still there
            for call in unread:
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    _ = [event async for event in call]
                assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        return worst


async def read_whole(channel: grpc.aio.Channel, prompt: list[int]) -> None:
    said = [token async for event in generate(channel, prompt, 300) for token in event.tokens.ids]
    assert tuple(said) == expected_tokens(prompt, 300, VOCAB)


@pytest.mark.deep
async def test_a_caller_of_generate_that_reads_nothing_stops_by_count_and_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MAX_BEHIND", 100)
    monkeypatch.setattr(grpc_server, "_STALLED_S", 600.0)
    assert await judge_grpc(8, most_behind=101, stalled_s=600.0) > 50


@pytest.mark.deep
async def test_a_caller_of_generate_that_reads_nothing_for_long_is_cut_however_little_piles_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "_STALLED_S", 0.5)
    async with (
        local_replica(engine=ENGINE, turns=4) as replica,
        grpc.aio.insecure_channel(f"{HOST}:{replica.ports.grpc}", options=NARROW) as channel,
    ):
        call = generate(channel, [1, 2], 400)
        await replica.until(lambda: len(replica.engine.submitted) == 1)
        await replica.at_rest()
        with pytest.raises(grpc.aio.AioRpcError):
            _ = [event async for event in call]


@pytest.mark.deep
async def test_without_a_bound_everything_piles_up_for_a_caller_of_generate_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MAX_BEHIND", TOKENS)
    with pytest.raises(AssertionError):
        await judge_grpc(2, most_behind=101)
