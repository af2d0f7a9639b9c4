"""Raw streamed chats and open-loop load: no client library, no retry, every delta and its time kept."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import httpx
from pagoda_contracts.names import HEADER_ROUTE
from pagoda_contracts.route import Route, parse_route

CHAT = "/chat/completions"


@dataclass
class Stream:
    """One streamed answer: `deltas` as they came, one per token that completes text; `tokens` the server's own count of all tokens;
    `error` what went wrong, if anything did."""

    question: str
    started: float
    deltas: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    done: bool = False
    tokens: int | None = None
    error: str | None = None
    route: Route | None = None
    ended: float = 0.0

    @property
    def said(self) -> tuple[list[str], int | None, str | None]:
        """What two runs of one question must agree on."""
        return self.deltas, self.tokens, self.finish_reason

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    def in_flight_at(self, moment: float) -> bool:
        return self.started < moment < self.ended


def request_body(model: str, question: str, tokens: int | None = None) -> dict[str, object]:
    """With `tokens` the answer has exactly that many, over its end."""
    messages = [{"role": "user", "content": question}]
    long = {"max_tokens": tokens, "ignore_eos": True} if tokens else {}
    return {"model": model, "messages": messages, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}} | long


async def stream_chat(client: httpx.AsyncClient, model: str, question: str, tokens: int | None = None) -> Stream:
    """Asks and reads to the end; whatever goes wrong is in the result, nothing is raised and nothing is tried again."""
    stream = Stream(question, started=time.monotonic())
    try:
        async with client.stream("POST", CHAT, json=request_body(model, question, tokens)) as response:
            if HEADER_ROUTE in response.headers:
                stream.route = parse_route(response.headers[HEADER_ROUTE])
            if response.status_code != 200:
                stream.error = f"HTTP {response.status_code}: {(await response.aread()).decode()[:500]}"
            else:
                async for line in response.aiter_lines():
                    _take(stream, line)
    except httpx.HTTPError as error:
        stream.error = f"{type(error).__name__}: {error}"
    stream.ended = time.monotonic()
    if stream.error is None and not stream.done:
        stream.error = "the stream ended without [DONE]"
    return stream


def _take(stream: Stream, line: str) -> None:
    """What a client would stumble over is the stream's error: another kind of line, or anything behind the end."""
    if not line or line.startswith(":"):
        return
    if stream.done or not line.startswith("data: "):
        stream.error = f"{'behind [DONE]' if stream.done else 'no event'}: {line[:200]!r}"
        return
    if line == "data: [DONE]":
        stream.done = True
        return
    event = json.loads(line.removeprefix("data: "))
    if event.get("error"):
        stream.error = f"error event: {event['error']}"
    if event.get("usage"):
        stream.tokens = event["usage"]["completion_tokens"]
    for choice in event.get("choices", []):
        if choice["index"] != 0 or stream.finish_reason:
            stream.error = f"choice {choice['index']} after the finish reason {stream.finish_reason!r}: {line[:200]!r}"
        if choice["delta"].get("content"):
            stream.deltas.append(choice["delta"]["content"])
        stream.finish_reason = choice.get("finish_reason") or stream.finish_reason


def open_client(base_url: str) -> httpx.AsyncClient:
    """No limit on connections, no retries, generous read timeout: a test's own deadline ends it."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    return httpx.AsyncClient(base_url=base_url, timeout=httpx.Timeout(300), limits=limits, trust_env=False)


async def alone(base_url: str, model: str, questions: Sequence[str], tokens: int | None = None) -> dict[str, Stream]:
    """Each question by itself, one after another: the undisturbed run that others are compared with."""
    async with open_client(base_url) as client:
        return {question: await stream_chat(client, model, question, tokens) for question in questions}


async def together(base_url: str, model: str, questions: Sequence[str], tokens: int | None = None) -> list[Stream]:
    """All questions at once. `tokens`: see request_body."""
    async with open_client(base_url) as client:
        return list(await asyncio.gather(*(stream_chat(client, model, question, tokens) for question in questions)))


@dataclass(frozen=True)
class Load:
    """Arrivals at a fixed rate whatever the answers do: `before` an event, while it lasts, and `after` it. `tokens`: see request_body.
    `most` are under way: on a machine too busy to answer as many a second as arrive, the rest come later instead of filling every queue."""

    questions: Sequence[str]
    per_second: float
    before: int = 40
    after: int = 80
    tokens: int | None = None
    most: int = 256


async def open_loop(base_url: str, model: str, load: Load, event: Callable[[], Awaitable[None]]) -> list[Stream]:
    """Every stream of the load, in order of arrival, after all have ended. The event's own failure is raised."""
    async with open_client(base_url) as client:
        running: list[asyncio.Task[Stream]] = []
        room = asyncio.Semaphore(load.most)
        async with asyncio.timeout(1500):
            start = time.monotonic()

            async def arrive(wanted: Callable[[], bool]) -> None:
                while wanted():
                    await asyncio.sleep(max(0.0, start + len(running) / load.per_second - time.monotonic()))
                    await room.acquire()
                    question = load.questions[len(running) % len(load.questions)]
                    running.append(asyncio.create_task(stream_chat(client, model, question, load.tokens)))
                    running[-1].add_done_callback(lambda _: room.release())

            await arrive(lambda: len(running) < load.before)
            happening = asyncio.ensure_future(event())
            await arrive(lambda: not happening.done())
            await happening
            total = len(running) + load.after
            await arrive(lambda: len(running) < total)
            return list(await asyncio.gather(*running))
