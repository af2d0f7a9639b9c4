"""/v1/messages and /v1/messages/count_tokens: Anthropic's Messages API over the chat that /v1/chat/completions serves.

A body becomes a chat request (`api/anthropic/conversion.py`), whose way through admission, templates, limits and engine is that of every
chat. Its answer is written by `api/anthropic/dialect.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import structlog
from msgspec import structs
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagoda_daemon.answers.events import AnswerParser
from pagoda_daemon.api.anthropic import errors
from pagoda_daemon.api.anthropic.conversion import chat_of, refuse_fields_of_chats
from pagoda_daemon.api.anthropic.dialect import MessageHead, Messages
from pagoda_daemon.api.anthropic.replies import PING, CountTokensReply, event
from pagoda_daemon.api.anthropic.requests import CountTokensRequest, MessagesRequest
from pagoda_daemon.api.openai import fields, requests
from pagoda_daemon.api.openai.errors import JSON
from pagoda_daemon.api.openai.requests import ChatRequest
from pagoda_daemon.api.routes.admission import Admission, admitted
from pagoda_daemon.api.routes.believed import stamped
from pagoda_daemon.api.routes.completions import Told
from pagoda_daemon.api.routes.events import EventStream
from pagoda_daemon.api.routes.generation import Delta, Generator, Submission, chat_ids, submissions
from pagoda_daemon.api.routes.preparing import in_time
from pagoda_daemon.api.routes.usages import Usages
from pagoda_daemon.nouns.errors import DaemonError
from pagoda_daemon.nouns.messages import Ready
from pagoda_daemon.text.tokens import ModelText

log = structlog.get_logger()

_BYTES_PER_TOKEN: Final = 4  # of an answer that is written whole


class Prepared(NamedTuple):
    """A request that is ready for the engine, and how its answer is read, counted and written."""

    model: str
    stream: bool
    job: Submission
    usages: Usages
    parser: AnswerParser
    dialect: Messages

    def frames(self, deltas: Sequence[Delta]) -> bytes:
        """Returns the events for what is new of the answer; what came together is one write."""
        out = b""
        for delta in deltas:
            self.usages.note(delta)
            out += self.dialect.written(self.parser.push(delta.piece.text))
            if delta.finish_reason:
                out += self.dialect.written(self.parser.finish())
                out += self.dialect.ending(delta.finish_reason, delta.stop, self.usages.usage())
        return out

    def whole(self, deltas: Sequence[Delta]) -> bytes:
        """Returns the complete answer."""
        text, last = "".join(delta.piece.text for delta in deltas), deltas[-1]
        events = [*self.parser.push(text), *self.parser.finish()]
        return self.dialect.whole(events, last.finish_reason or "stop", last.stop, self.usages.usage())


@dataclass(frozen=True)
class CreateMessage:
    """POST /v1/messages."""

    admission: Admission
    generator: Generator
    served_names: tuple[str, ...]
    ping_after_s: float | None = None

    def __post_init__(self) -> None:
        fields.learn(MessagesRequest)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await admitted(self.admission, scope, receive, lambda body: self._answer(body, scope, receive, send))

    async def _answer(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        told, state = Told.of(scope), scope["state"]
        prepare = self.admission.preparing.run(len(body), lambda: self._prepare(body, told), blocks=True)
        prepared = await in_time(told.terms.deadline_ms, prepare)
        state["model"] = prepared.model
        async with aclosing(self.generator.deltas((prepared.job,), state["arrived"])) as deltas:  # type: ignore[type-var]
            if prepared.stream:
                await _stream(prepared, deltas, EventStream(send, self.ping_after_s, ping=PING), state["answer_id"])
                return
            found = [delta async for several in deltas for delta in several]
        for delta in found:
            prepared.usages.note(delta)
        size = _BYTES_PER_TOKEN * prepared.usages.completion_tokens
        content = await self.admission.preparing.run(size, partial(prepared.whole, found))
        await Response(content, media_type=JSON)(scope, receive, send)

    def _prepare(self, body: bytes, told: Told) -> Prepared:
        request = fields.typed(body, MessagesRequest, told.ignored)
        refuse_fields_of_chats(told.ignored)
        chat = checked_chat(request, told.ignored)
        limits = self.admission.limits_of(request.model, self.served_names)
        (job,) = stamped(submissions(chat, told.request_id, self.generator.text, limits), chat, told.terms)
        job, cut = limited(job, request.max_tokens)
        hides = request.thinking is not None and request.thinking.display == "omitted"
        call_id = partial(job.reading.call_id, told.request_id, 0)
        dialect = Messages(MessageHead(told.request_id, request.model, call_id, cut, hides))
        return Prepared(request.model, bool(request.stream), job, Usages((job,)), job.reading.parser(), dialect)


def checked_chat(request: MessagesRequest | CountTokensRequest, ignored: list[str]) -> ChatRequest:
    """Returns the chat that a request is answered as. `ignored` takes what has no effect, by the names that it has in the request."""
    chat, loosened = chat_of(request, ignored), list[str]()
    requests.check(chat, loosened)
    ignored += map(errors.own_name, loosened)
    return chat


def limited(job: Submission, most: int) -> tuple[Submission, bool]:
    """Returns the submission for at most so many tokens, and whether the context holds fewer. `job` may fill the context."""
    room = job.sampling.max_tokens
    sampling = structs.replace(job.sampling, max_tokens=min(most, room))
    return replace(job, message=structs.replace(job.message, sampling=sampling)), room < most


def count_tokens(request: CountTokensRequest, text: ModelText, limits: Ready) -> CountTokensReply:
    """Returns how many tokens the prompt of a message has: its `input_tokens` and the cached ones."""
    chat = checked_chat(request, [])
    return CountTokensReply(len(chat_ids(chat, chat.box, text, limits.max_model_len)))


async def _stream(prepared: Prepared, deltas: AsyncIterator[list[Delta]], events: EventStream, answer_id: str) -> None:
    begun = False
    async with events:
        try:
            async for found in deltas:
                frames = prepared.frames(found)
                if not begun:
                    frames, begun = prepared.dialect.opening(prepared.usages.usage()) + frames, True
                if frames:
                    await events.write(frames)
        except DaemonError as error:
            if not events.begun:
                raise
            log.warning("stream_failed", error=str(error), tokens=prepared.usages.completion_tokens)
            await events.end(event(errors.body_of(error, answer_id)))
            return
        await events.end(b"")
