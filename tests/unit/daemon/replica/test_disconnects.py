"""Clients that leave at random moments: the engine stops within two steps, nothing is left, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import grpc.aio
import pytest
from pagoda_contracts.names import GRPC_HEALTH
from pagoda_daemon.api.http.connection import BoundedProtocol
from pagoda_daemon.engine.client import EngineLink
from pagoda_daemon.simulated.device.worker import expected_tokens
from pagoda_daemon.text.tokens import ModelText
from support.engine.toy_model import VOCAB
from support.servers.local_replica import HOST, NAME, PATIENCE_S, LocalReplica, generate, local_replica, request, texts
from support.suite.profiles import examples

MOST_WASTED = 2
LET_IN = 10  # steps: who means to stay for so many counts them from when the engine has heard of him
AT_ONCE = 32
RST = struct.pack("ii", 1, 0)  # linger on, for no time: close() resets
INNOCENTS = [[7, n] for n in range(4)]
INNOCENT_TOKENS = 300


@dataclass(frozen=True)
class Cut:
    """One client that leaves: what it asks, and when and how it goes."""

    number: int
    chat: bool
    stream: bool
    length: int
    after: int  # steps; below zero: half its request
    reset: bool

    @property
    def said(self) -> str:
        """Its own, so that its request is known again on the engine's side."""
        return f"{self.number} " + "x" * self.length

    def raw(self) -> bytes:
        body = {"messages": [{"role": "user", "content": self.said}]} if self.chat else {"prompt": self.said}
        rest = {"model": NAME, "stream": self.stream, "max_tokens": 250, "ignore_eos": True}
        path = "/v1/chat/completions" if self.chat else "/v1/completions"
        return request("POST", path, json.dumps(body | rest).encode())

    def ids(self, text: ModelText) -> tuple[int, ...]:
        return text.encode_chat([{"role": "user", "content": self.said}], 512) if self.chat else text.encode(self.said, 512)


def cuts(count: int, seed: int) -> list[Cut]:
    luck = random.Random(seed)
    moments = (-1, 0, *range(60))
    return [
        Cut(n, luck.random() < 0.5, luck.random() < 0.5, luck.randrange(200), luck.choice(moments), luck.random() < 0.5)
        for n in range(count)
    ]


async def leave(replica: LocalReplica, cut: Cut) -> int:
    """Asks and goes; the number of the step under way at that moment. No device waits for who renders a conversation in another process: of
    those who count from their asking on, all may be gone before one is rendered."""
    _, writer = await replica.connect()
    raw = cut.raw()
    writer.write(raw if cut.after >= 0 else raw[: len(raw) // 2])
    if cut.after >= LET_IN:
        prompt = cut.ids(replica.text)
        await replica.until(lambda: prompt in replica.engine.asked)
    if cut.after > 0:
        async with asyncio.timeout(PATIENCE_S):
            await replica.engine.steps(cut.after)
    if cut.reset:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
        writer.transport.abort()
    else:
        writer.close()
    return replica.engine.worker.started


async def innocent(replica: LocalReplica, prompt: list[int]) -> str:
    body = {"model": NAME, "prompt": prompt, "max_tokens": INNOCENT_TOKENS, "stream": True, "ignore_eos": True}
    status, events = await replica.post("/v1/completions", body)
    assert status == 200, events
    return texts(events)


async def innocents(replica: LocalReplica, over: asyncio.Event) -> int:
    """Streams beside the others, one after another until `over`: each whole, and as if alone."""
    count = 0
    while not over.is_set() or count == 0:
        said = await asyncio.gather(*(innocent(replica, prompt) for prompt in INNOCENTS))
        assert said == [replica.text.decode(expected_tokens(prompt, INNOCENT_TOKENS, VOCAB)) for prompt in INNOCENTS]
        count += len(said)
    return count


async def cut_all(replica: LocalReplica, wanted: list[Cut]) -> dict[int, int]:
    """The step under way when each client left."""
    places, left = asyncio.Semaphore(AT_ONCE), {}

    async def one(cut: Cut) -> None:
        async with places:
            left[cut.number] = await leave(replica, cut)

    await asyncio.gather(*map(one, wanted))
    return left


def wasted(replica: LocalReplica, wanted: list[Cut], left: dict[int, int]) -> list[int]:
    """Tokens computed in steps that began after the client had left, for each client for whom any was computed at all."""
    number_of = {cut.ids(replica.text): cut.number for cut in wanted}
    served = [(number_of.get(message.prompt), replica.engine.computed[message.request_id]) for message in replica.engine.submitted]
    return [sum(step > left[number] for step in steps) for number, steps in served if number is not None and steps]


async def judge(count: int, seed: int = 7) -> None:
    wanted, over = cuts(count, seed), asyncio.Event()
    async with local_replica(engine={"token_budget": 128, "max_concurrency": 32}) as replica:
        beside = asyncio.ensure_future(innocents(replica, over))
        left = await cut_all(replica, wanted)
        over.set()
        assert await beside >= len(INNOCENTS)
        await replica.at_rest()
        counts = wasted(replica, wanted, left)
        assert len(counts) > count / 2, len(counts)
        assert max(counts) <= MOST_WASTED, counts
        await replica.until(lambda: replica.connections == len(replica.opened) - count)  # the innocents' own stay open


@pytest.mark.deep
async def test_hundreds_of_clients_that_leave_cost_two_tokens_each_at_most_and_lose_no_block() -> None:
    await judge(examples(150))


@dataclass(frozen=True)
class Cancel:
    """One caller of Generate that leaves: before or after his first token, so many steps on, at any place among the loop's turns."""

    number: int
    heard: bool
    after: int
    turns: int

    @property
    def prompt(self) -> tuple[int, ...]:
        return (self.number % 250 + 1, self.number // 250 + 1, *range(self.number % 60))


def cancels(count: int, seed: int) -> list[Cancel]:
    luck = random.Random(seed)
    return [Cancel(n, luck.random() < 0.5, luck.choice((0, 0, *range(40))), luck.randrange(60)) for n in range(count)]


async def leave_grpc(replica: LocalReplica, channel: grpc.aio.Channel, cancel: Cancel) -> int:
    """The number of the step under way when a caller cancels."""
    stream = generate(channel, cancel.prompt, 250)
    if cancel.heard:
        await stream.read()
    if cancel.after:
        async with asyncio.timeout(PATIENCE_S):
            await replica.engine.steps(cancel.after)
    for _ in range(cancel.turns):
        await asyncio.sleep(0)
    stream.cancel()
    return replica.engine.worker.started


async def innocent_grpc(channel: grpc.aio.Channel, prompt: list[int]) -> None:
    said = [token async for event in generate(channel, prompt, INNOCENT_TOKENS) for token in event.tokens.ids]
    assert tuple(said) == expected_tokens(prompt, INNOCENT_TOKENS, VOCAB)


async def innocents_grpc(channel: grpc.aio.Channel, over: asyncio.Event) -> int:
    count = 0
    while not over.is_set() or count == 0:
        await asyncio.gather(*(innocent_grpc(channel, [251, n]) for n in range(4)))
        count += 4
    return count


async def cancel_all(replica: LocalReplica, channel: grpc.aio.Channel, wanted: list[Cancel]) -> dict[tuple[int, ...], int]:
    """The step under way when each caller left, by his prompt."""
    places, left = asyncio.Semaphore(AT_ONCE), {}

    async def one(cancel: Cancel) -> None:
        async with places:
            left[cancel.prompt] = await leave_grpc(replica, channel, cancel)

    await asyncio.gather(*map(one, wanted))
    return left


async def judge_grpc(count: int, seed: int = 3) -> None:
    """gRPC has threads of its own between the two, so that a cancellation takes no known number of turns. A step here lasts a round trip of
    another call on the same connection, which the cancellation precedes: again a count, whatever the machine's threads do."""
    over = asyncio.Event()
    async with (
        local_replica(engine={"token_budget": 128, "max_concurrency": 40}) as replica,
        grpc.aio.insecure_channel(f"{HOST}:{replica.ports.grpc}") as channel,
    ):
        replica.engine.round_trip = partial(channel.unary_unary(f"/{GRPC_HEALTH}/Check"), b"")
        beside = asyncio.ensure_future(innocents_grpc(channel, over))
        left = await cancel_all(replica, channel, cancels(count, seed))
        over.set()
        assert await beside >= 4
        await replica.at_rest()
        served = [(left.get(message.prompt), replica.engine.computed[message.request_id]) for message in replica.engine.submitted]
        counts = [sum(step > at for step in steps) for at, steps in served if at is not None and steps]
        assert len(counts) > count / 2, len(counts)
        assert max(counts) <= MOST_WASTED, counts
        replica.engine.round_trip = None


@pytest.mark.deep
async def test_hundreds_of_callers_of_generate_that_cancel_cost_two_tokens_each_at_most_and_lose_no_block() -> None:
    await judge_grpc(examples(150))


@pytest.mark.deep
@pytest.mark.parametrize("judged", [judge, judge_grpc])
async def test_the_count_sees_an_abort_that_is_never_sent(
    judged: Callable[[int], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgets(self: EngineLink, request_id: str, *, finished: bool) -> None:
        self._streams.pop(request_id, None)

    monkeypatch.setattr(EngineLink, "close_stream", forgets)
    with pytest.raises(AssertionError):
        await judged(20)


def stream_of(prompt: list[int]) -> bytes:
    body = {"model": NAME, "prompt": prompt, "max_tokens": 400, "stream": True, "ignore_eos": True}
    return request("POST", "/v1/completions", json.dumps(body).encode())


async def leave_with_two_requests_under_way(replica: LocalReplica) -> None:
    _, writer = await replica.connect()
    writer.write(stream_of([1, 2]) + stream_of([3, 4]))
    await replica.until(lambda: replica.engine.submitted)
    await replica.engine.steps(5)
    assert len(replica.engine.submitted) == 1
    writer.close()
    at = replica.engine.worker.started
    await replica.at_rest()
    (message,) = replica.engine.submitted
    assert sum(step > at for step in replica.engine.computed[message.request_id]) <= MOST_WASTED


async def test_a_client_that_had_sent_its_next_request_already_is_seen_leaving_too() -> None:
    async with local_replica() as replica:
        await leave_with_two_requests_under_way(replica)


async def test_without_our_protocol_a_pipelining_client_is_not_seen_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn tells the request that came last, which has not begun: the day it tells them all, our override may go."""
    monkeypatch.setattr(BoundedProtocol, "_give_up", lambda _: None)
    async with local_replica() as replica:
        with pytest.raises(AssertionError):
            await leave_with_two_requests_under_way(replica)
