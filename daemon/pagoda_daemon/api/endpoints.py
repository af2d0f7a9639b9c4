"""The two generating endpoints as ASGI applications: admit, read, parse, generate, write; and the watch for a client that left.

An answer's first byte is sent only when the engine gave the first token: whatever fails before is an HTTP status that a gateway
may retry elsewhere, whatever fails after is one error event and the end of the stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagoda_daemon.api import requests
from pagoda_daemon.api.answer import Piece
from pagoda_daemon.api.errors import JSON, body_of
from pagoda_daemon.api.generation import Delta, Generator, Submission, submission
from pagoda_daemon.api.logprobs import Spell, prompt_logprobs
from pagoda_daemon.api.replies import DONE, SSE_HEADERS, Dialect, Head, Whole, event
from pagoda_daemon.api.requests import GenerationRequest
from pagoda_daemon.errors import BadRequest, DaemonError, Draining, ModelNotFound, NotReady, Overloaded
from pagoda_daemon.health import Replica

log = structlog.get_logger()

_WAITING_PER_ROW: Final = 16  # requests held per request that can decode: what waits behind 15 others has long missed its client
_LEAST_WAITING: Final = 128
_MAX_HELD_BYTES: Final = 128 * 2**20  # of bodies: eight of the largest; each may become as many bytes again of token ids
_INLINE_BODY: Final = 32 * 1024  # larger bodies are tokenised on a thread: 16 MB of text take seconds, a heartbeat has 500 ms


@dataclass
class Admission:
    """Counts requests accepted and unfinished, as HTTP sees them, and their bodies' bytes; `idle` is set while there are none."""

    replica: Replica
    held_bytes: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    @contextmanager
    def admit(self) -> Iterator[Callable[[int], None]]:
        """Refuses while draining, loading or full; otherwise holds the drain until the request is finished. Yields what counts its
        bytes as they come, and refuses the one that makes them too many."""
        if self.replica.leaving:
            raise Draining("this replica is draining; another one will take the request")
        if not self.replica.accepting:
            raise NotReady("the model is still loading")
        rows = self.replica.limits.max_concurrency if self.replica.limits else 0
        if self.replica.in_flight >= (most := max(_LEAST_WAITING, _WAITING_PER_ROW * rows)):
            raise Overloaded(f"this replica holds {self.replica.in_flight} requests, accepted are {most}")
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            held += size
            self.held_bytes += size
            if self.held_bytes > _MAX_HELD_BYTES:
                raise Overloaded(f"this replica holds requests of {self.held_bytes} bytes, accepted are {_MAX_HELD_BYTES}")

        self._count(1)
        try:
            yield hold
        finally:
            self.held_bytes -= held
            self._count(-1)

    def _count(self, change: int) -> None:
        self.replica.in_flight += change
        self.idle.clear() if self.replica.in_flight else self.idle.set()
        self.replica.changed()


@dataclass(frozen=True)
class Generate:
    """One endpoint: a request type and the dialect of its answers."""

    kind: type[GenerationRequest]
    dialect: Callable[[Head], Dialect]
    admission: Admission
    generator: Generator
    served_names: tuple[str, ...]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.admission.admit() as hold:
            try:
                body = await _read(Request(scope, receive), hold)
            except ClientDisconnect:
                return
            await unless_gone(receive, self._answer(body, scope, receive, send))

    async def _answer(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        request_id: str = scope["state"]["request_id"]
        prepare = asyncio.to_thread(self._prepare, body, request_id) if len(body) > _INLINE_BODY else None
        request, job = await prepare if prepare else self._prepare(body, request_id)
        spell = self.generator.text.spell
        shown = spell if request.listed is not None else None
        dialect = self.dialect(Head(request_id, int(time.time()), request.model, request.include_usage, shown))
        async with aclosing(self.generator.deltas(job, scope["state"]["arrived"])) as deltas:  # type: ignore[type-var]
            if request.stream:
                await _stream(dialect, job, deltas, send, include_usage=request.include_usage)
            else:
                content = dialect.whole(_whole(job, [delta async for delta in deltas], request.prompt_logprobs, spell))
                await Response(content, media_type=JSON)(scope, receive, send)

    def _prepare(self, body: bytes, request_id: str) -> tuple[GenerationRequest, Submission]:
        request = requests.parse(body, self.kind)
        if request.model not in self.served_names:
            raise ModelNotFound(f"model {request.model[:128]!r} is not served here, accepted: {', '.join(self.served_names)}")
        limits = self.admission.replica.limits
        if limits is None:
            raise NotReady("the model is still loading")
        return request, submission(request, request_id, self.generator.text, limits)


async def _read(request: Request, hold: Callable[[int], None]) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        hold(len(chunk))
        if size > requests.MAX_BODY:
            raise BadRequest(f"the body is larger than {requests.MAX_BODY} bytes", None, "request_too_large")
        chunks.append(chunk)
    return b"".join(chunks)


def _whole(job: Submission, deltas: list[Delta], prompt_top: int | None, spell: Spell) -> Whole:
    last = deltas[-1]
    piece = Piece("".join(delta.piece.text for delta in deltas), tuple(scored for delta in deltas for scored in delta.piece.scored))
    whole = Whole(piece, last.finish_reason or "stop", job.usage(last.completion_tokens))
    if prompt_top is None:
        return whole
    return whole._replace(prompt_logprobs=prompt_logprobs(job.message.prompt, deltas[0].prompt_scores, prompt_top, spell))


async def _stream(dialect: Dialect, job: Submission, deltas: AsyncIterator[Delta], send: Send, *, include_usage: bool) -> None:
    first = await anext(deltas)
    await send({"type": "http.response.start", "status": 200, "headers": list(SSE_HEADERS)})
    await _write(send, dialect.opening() + _frames(dialect, first))
    last = first
    try:
        async for last in deltas:
            if frames := _frames(dialect, last):
                await _write(send, frames)
    except DaemonError as error:
        log.warning("stream_failed", request_id=job.message.request_id, error=str(error), tokens=last.completion_tokens)
        await _write(send, event(body_of(error)) + DONE, more=False)
        return
    tail = dialect.usage(job.usage(last.completion_tokens)) if include_usage else b""
    await _write(send, tail + DONE, more=False)


def _frames(dialect: Dialect, delta: Delta) -> bytes:
    text = dialect.text(delta.piece) if delta.piece.text or delta.piece.scored else b""
    return text + dialect.finish(delta.finish_reason) if delta.finish_reason else text


async def _write(send: Callable[[dict[str, Any]], Awaitable[None]], body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` to its end, or cancels it when the client leaves, streaming or not (Starlette watches only streams)."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
