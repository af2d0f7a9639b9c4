"""The two generating endpoints as ASGI applications: admit, read, parse, generate, write; and the watch for a client that left.

An answer's first byte is sent only when the engine gave the first token: whatever fails before is an HTTP status that a gateway
may retry elsewhere, whatever fails after is one error event and the end of the stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import structlog
from msgspec import UNSET, UnsetType
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagoda_daemon.api.access.caller import Terms
from pagoda_daemon.api.openai import requests
from pagoda_daemon.api.openai.errors import JSON, TOO_LARGE, TOO_SLOW, body_of
from pagoda_daemon.api.openai.logprobs import prompt_logprobs
from pagoda_daemon.api.openai.replies import DONE, Answer, Dialect, Head, event
from pagoda_daemon.api.openai.requests import ChatRequest, GenerationRequest
from pagoda_daemon.api.openai.tool_formats import tool_format
from pagoda_daemon.api.openai.tool_replies import ToolChat
from pagoda_daemon.api.openai.trace import Timing, timing
from pagoda_daemon.api.routes.believed import stamped
from pagoda_daemon.api.routes.events import EventStream
from pagoda_daemon.api.routes.generation import Delta, Generator, Submission, submissions
from pagoda_daemon.api.routes.usages import Usages
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.nouns.errors import BadRequest, DaemonError, Draining, ModelNotFound, NotReady, Overloaded
from pagoda_daemon.nouns.messages import Ready
from pagoda_daemon.text.answer import Piece

log = structlog.get_logger()

_WAITING_PER_ROW: Final = 16  # requests held per request that can decode: what waits behind 15 others has long missed its client
_LEAST_WAITING: Final = 128
_MAX_HELD_BYTES: Final = 128 * 2**20  # of bodies: eight of the largest; each may become as many bytes again of token ids
_INLINE_BODY: Final = 32 * 1024  # larger bodies are tokenised on a thread, and chats, whose template is another process's


@dataclass
class Admission:
    """Counts requests accepted and unfinished, as HTTP sees them, and their bodies' bytes; `idle` is set while there are none."""

    replica: Replica
    held_bytes: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    @contextmanager
    def reading(self) -> Iterator[Callable[[int], None]]:
        """While a body comes in, and as long as it is held. Refuses as `admit` does, but takes no place: a client that sends slowly keeps
        nobody out and holds up no drain. Yields what counts bytes as they come and refuses the one that makes them too many."""
        self._check()
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            self._check()
            held += size
            self.held_bytes += size
            if self.held_bytes > _MAX_HELD_BYTES:
                raise Overloaded(f"this replica holds requests of {self.held_bytes} bytes, accepted are {_MAX_HELD_BYTES}")

        try:
            yield hold
        finally:
            self.held_bytes -= held

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Refuses while draining, loading or full; otherwise holds the drain until the request is finished."""
        self._check()
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def limits_of(self, model: str | None, served_names: Sequence[str]) -> Ready:
        """What a request for `model` (None: whichever it is) has to fit; ModelNotFound where it is not served."""
        if model is not None and model not in served_names:
            raise ModelNotFound(f"model {model[:128]!r} is not served here, accepted: {', '.join(served_names)}")
        if self.replica.limits is None:
            raise NotReady("the model is still loading")
        return self.replica.limits

    def _check(self) -> None:
        if self.replica.leaving:
            raise Draining("this replica is draining; another one will take the request")
        if not self.replica.accepting:
            raise NotReady("the model is still loading")
        rows = self.replica.limits.max_concurrency if self.replica.limits else 0
        if self.replica.in_flight >= (most := max(_LEAST_WAITING, _WAITING_PER_ROW * rows)):
            raise Overloaded(f"this replica holds {self.replica.in_flight} requests, accepted are {most}")

    def _count(self, change: int) -> None:
        self.replica.in_flight += change
        self.idle.clear() if self.replica.in_flight else self.idle.set()
        self.replica.changed()


class Told(NamedTuple):
    """What comes with a body, and where the names of its fields go that nobody knows."""

    request_id: str
    terms: Terms
    ignored: list[str]

    @classmethod
    def of(cls, scope: Scope) -> Told:
        """As the layers around the endpoints have put it there."""
        state = scope["state"]
        return cls(state["request_id"], state["caller"].terms, state["ignored"])


@dataclass(frozen=True)
class Generate:
    """One endpoint: a request type and the dialect of its answers."""

    kind: type[GenerationRequest]
    dialect: Callable[[Head], Dialect]
    admission: Admission
    generator: Generator
    served_names: tuple[str, ...]
    fingerprint: str = ""
    ping_after_s: float | None = None

    def __post_init__(self) -> None:
        requests.learn(self.kind)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await admitted(self.admission, scope, receive, lambda body: self._answer(body, scope, receive, send))

    async def _answer(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        told = Told.of(scope)
        apart = len(body) > _INLINE_BODY or self.kind is ChatRequest
        prepare = asyncio.to_thread(self._prepare, body, told) if apart else None
        request, jobs, dialect = await prepare if prepare else self._prepare(body, told)
        usages = Usages(jobs, self._timing(request, told.request_id))
        async with aclosing(self.generator.deltas(jobs, scope["state"]["arrived"])) as deltas:  # type: ignore[type-var]
            if request.stream:
                events = EventStream(send, self.ping_after_s)
                await _stream(dialect, usages, deltas, events, include_usage=request.include_usage)
            else:
                answers = await self._whole(jobs, usages, deltas, request.prompt_logprobs)
                await Response(dialect.whole(answers, usages.usage()), media_type=JSON)(scope, receive, send)

    def _dialect(self, request: GenerationRequest, head: Head) -> Dialect:
        box = request.box if isinstance(request, ChatRequest) else None
        return self.dialect(head) if box is None else ToolChat(head, tool_format(self.generator.text), box)

    def _head(self, request: GenerationRequest, request_id: str, jobs: Sequence[Submission]) -> Head:
        spell = self.generator.text.spell if request.listed is not None else None
        choices = sum(job.message.n for job in jobs)
        return Head(request_id, int(time.time()), request.model, request.include_usage, spell, self.fingerprint, choices)

    def _timing(self, request: GenerationRequest, request_id: str) -> Callable[[], Timing | UnsetType] | None:
        """What tells the timings at the end, where they were asked for."""
        recent = self.generator.counts.recent
        return (lambda: timing(found) if (found := recent.get(request_id)) else UNSET) if request.include_timing else None

    async def _whole(
        self, jobs: Sequence[Submission], usages: Usages, deltas: AsyncIterator[list[Delta]], prompt_top: int | None
    ) -> list[Answer]:
        parts: dict[int, list[Delta]] = {job.first + index: [] for job in jobs for index in range(job.message.n)}
        async for found in deltas:
            for delta in found:
                usages.note(delta)
                parts[delta.choice].append(delta)
        answers = [_answer(part) for part in parts.values()]
        if prompt_top is None:
            return answers
        prompts = [job.message.prompt for job in jobs for _ in range(job.message.n)]
        spell = self.generator.text.spell
        return [
            answer._replace(prompt_logprobs=prompt_logprobs(prompt, part[0].prompt_scores, prompt_top, spell))
            for answer, prompt, part in zip(answers, prompts, parts.values(), strict=True)
        ]

    def _prepare(self, body: bytes, told: Told) -> tuple[GenerationRequest, tuple[Submission, ...], Dialect]:
        """All that takes longer the more the client wrote: looking into 8 MB of tools takes a second, in which no stream would move."""
        request = requests.parse(body, self.kind, told.ignored)
        limits = self.admission.limits_of(request.model, self.served_names)
        jobs = stamped(submissions(request, told.request_id, self.generator.text, limits), request, told.terms)
        return request, jobs, self._dialect(request, self._head(request, told.request_id, jobs))


async def admitted(admission: Admission, scope: Scope, receive: Receive, work: Callable[[bytes], Coroutine[Any, Any, None]]) -> None:
    """Reads the body, takes a place, and does `work` with it, for as long as the client stays."""
    with admission.reading() as hold:
        try:
            body = await read_body(Request(scope, receive), hold)
        except ClientDisconnect:
            return
        with admission.admit():
            await unless_gone(receive, work(body))


async def read_body(request: Request, hold: Callable[[int], None]) -> bytes:
    """The whole body, counted as it comes; BadRequest where it is too large."""
    chunks, size = [], 0
    try:
        async with asyncio.timeout(requests.BODY_S):
            async for chunk in request.stream():
                size += len(chunk)
                hold(len(chunk))
                if size > requests.MAX_BODY:
                    raise BadRequest(f"the body is larger than {requests.MAX_BODY} bytes", None, TOO_LARGE)
                chunks.append(chunk)
    except TimeoutError as error:
        raise BadRequest(f"the body took longer than {requests.BODY_S:g} s; {size} bytes of it came", None, TOO_SLOW) from error
    return b"".join(chunks)


def _answer(deltas: Sequence[Delta]) -> Answer:
    piece = Piece("".join(delta.piece.text for delta in deltas), tuple(scored for delta in deltas for scored in delta.piece.scored))
    return Answer(piece, deltas[-1].finish_reason or "stop")


async def _stream(
    dialect: Dialect, usages: Usages, deltas: AsyncIterator[list[Delta]], events: EventStream, *, include_usage: bool
) -> None:
    opening = dialect.opening()
    async with events:
        try:
            async for found in deltas:
                if (frames := opening + _frames(dialect, usages, found)) or not events.begun:
                    await events.write(frames)
                opening = b""
        except DaemonError as error:
            if not events.begun:
                raise
            log.warning("stream_failed", error=str(error), tokens=usages.completion_tokens)
            await events.end(event(body_of(error)) + DONE)
            return
        await events.end((dialect.usage(usages.usage()) if include_usage else b"") + DONE)


def _frames(dialect: Dialect, usages: Usages, deltas: Sequence[Delta]) -> bytes:
    """An event for each delta that says something; what came together is one write."""
    out = b""
    for delta in deltas:
        usages.note(delta)
        if delta.piece.text or delta.piece.scored:
            out += dialect.text(delta.piece, delta.choice)
        if delta.finish_reason:
            out += dialect.finish(delta.finish_reason, delta.choice)
    return out


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
