"""The generating endpoints as ASGI applications: admit, read, parse, generate, write.

An answer's first byte is sent only when the engine gave the first token: whatever fails before is an HTTP status that a gateway
may retry elsewhere, whatever fails after is one error event and the end of the stream.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple, cast

import msgspec
import structlog
from msgspec import UNSET, UnsetType
from pagoda_contracts.names import HEADER_ANSWERED, HEADER_USAGE
from pagoda_contracts.usage import to_header
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagoda_daemon.api.access.caller import Terms
from pagoda_daemon.api.access.pins import Pins
from pagoda_daemon.api.openai import fields, requests
from pagoda_daemon.api.openai.errors import JSON
from pagoda_daemon.api.openai.logprobs import prompt_logprobs
from pagoda_daemon.api.openai.replies import Answer, Dialect, Head
from pagoda_daemon.api.openai.requests import CompletionRequest, GenerationRequest
from pagoda_daemon.api.openai.trace import Timing, timing
from pagoda_daemon.api.routes.admission import Admission, admitted
from pagoda_daemon.api.routes.allowance import allowed, limited, used, within
from pagoda_daemon.api.routes.continuing import Answered, NoNotes, Notes, TokenLog, apart, begun_by, continuable, resumed, seeded, seeds_of
from pagoda_daemon.api.routes.events import EventStream
from pagoda_daemon.api.routes.generation import Answering, Delta, Generator, Submission
from pagoda_daemon.api.routes.preparing import in_time
from pagoda_daemon.api.routes.stamping import stamped
from pagoda_daemon.api.routes.submitting import submissions
from pagoda_daemon.api.routes.usages import Usages
from pagoda_daemon.core.errors import BadRequest, DaemonError, RequestFailed
from pagoda_daemon.core.messages import Ready
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.text.answer import Piece

log = structlog.get_logger()

_BYTES_PER_TOKEN: Final = 4  # of an answer that is written whole; with 256 tokens it is worth a thread

Parts = dict[int, list[Delta]]  # of each choice, in their order


class Context(NamedTuple):
    """What comes with a body. `ignored` takes the names of its fields that have no effect, `pins` the adapter that it uses."""

    request_id: str
    terms: Terms
    ignored: list[str]
    pins: Pins

    @classmethod
    def of(cls, scope: Scope) -> Context:
        """As the layers around the endpoints have put it there."""
        state = scope["state"]
        return cls(state["request_id"], state["caller"].terms, state["ignored"], state["pins"])


class Read(NamedTuple):
    """A body as the request that it is, what writes its answers, and how a refusal of it is worded. `most`: tokens of an answer, of which
    the context may hold fewer."""

    request: GenerationRequest
    dialect: Callable[[Head, Sampling], Dialect]
    refusal: Callable[[BadRequest], BadRequest] = lambda error: error
    most: int | None = None


class Prepared(NamedTuple):
    """A request that is ready for the engine, and how its answer is counted and written."""

    read: Read
    jobs: tuple[Submission, ...]
    usages: Usages
    dialect: Dialect
    notes: Notes | NoNotes

    @property
    def request(self) -> GenerationRequest:
        return self.read.request


@dataclass(frozen=True)
class Generate:
    """One endpoint: a request type and the dialect of its answers. Another API's endpoint reads its bodies itself (`_read`)."""

    kind: type[msgspec.Struct]
    dialect: Callable[..., Dialect]
    admission: Admission
    generator: Generator
    served_names: tuple[str, ...]
    fingerprint: str = ""
    ping_after_s: float | None = None
    seeds: Callable[[], int] = field(default_factory=lambda: seeds_of(None))

    def __post_init__(self) -> None:
        fields.learn(self.kind)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await admitted(self.admission, scope, receive, lambda body: self._answer(body, scope, receive, send))

    async def _answer(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        context = Context.of(scope)
        chat = self.kind is not CompletionRequest  # another process renders its template
        prepare = self.admission.preparing.run(len(body), lambda: self._prepare(body, context), blocks=chat)
        prepared = await in_time(context.terms.deadline_ms, prepare)
        scope["state"]["model"] = prepared.request.model
        try:
            await self._generated(prepared, scope, receive, send)
        except BadRequest as error:
            raise prepared.read.refusal(error) from error

    async def _generated(self, prepared: Prepared, scope: Scope, receive: Receive, send: Send) -> None:
        request, (_, jobs, usages, dialect, notes) = prepared.request, prepared
        async with self.generator.answering(jobs, scope["state"]["arrived"]) as answers:
            if request.stream:
                events = EventStream(send, self.ping_after_s, ping=dialect.ping + notes.silent, headers=notes.headers)
                await _stream(prepared, answers, events)
                return
            parts = await self._collect(jobs, usages, answers)
            size = _BYTES_PER_TOKEN * (usages.completion_tokens + (usages.prompt_tokens if _shows_prompt(request) else 0))
            with answers.written():
                whole = partial(self._whole, dialect, request, jobs, parts, usages)
                content = await self.admission.preparing.run(size, whole)
        headers = {HEADER_USAGE: to_header(used(usages))} if scope["state"]["caller"].terms.allowance.reports else None
        await Response(content, headers=headers, media_type=JSON)(scope, receive, send)

    def _head(self, request: GenerationRequest, request_id: str, jobs: Sequence[Submission], usages: Usages) -> Head:
        spell = self.generator.text.spell if request.listed is not None else None
        choices = sum(job.message.n for job in jobs)
        common = (request_id, int(time.time()), request.model, request.include_usage, spell, self.fingerprint, choices)
        prompts = _prompts(jobs) if request.return_token_ids else ()
        head = Head(*common, reading=jobs[0].reading, prompts=prompts, used=usages.usage)
        return replace(head, so_far=usages.usage) if request.continuous_usage else head

    def _timing(self, request: GenerationRequest, request_id: str) -> Callable[[], Timing | UnsetType] | None:
        """What reports the timings at the end, if the request asks for them."""
        recent = self.generator.counts.recent
        return (lambda: timing(found) if (found := recent.get(request_id)) else UNSET) if request.include_timing else None

    async def _collect(self, jobs: Sequence[Submission], usages: Usages, answers: Answering) -> Parts:
        parts: Parts = {job.first + index: [] for job in jobs for index in range(job.message.n)}
        async for found in answers:
            for delta in found:
                usages.note(delta)
                parts[delta.choice].append(delta)
        return parts

    def _whole(self, dialect: Dialect, request: GenerationRequest, jobs: Sequence[Submission], parts: Parts, usages: Usages) -> bytes:
        answers = [_answer(part) for part in parts.values()]
        if (top := request.prompt_logprobs) is not None:
            spell = self.generator.text.spell
            answers = [
                answer._replace(prompt_logprobs=prompt_logprobs(prompt, part[0].prompt_scores, top, spell))
                for answer, prompt, part in zip(answers, _prompts(jobs), parts.values(), strict=True)
            ]
        if request.return_token_ids:
            answers = [answer._replace(prompt_ids=prompt) for answer, prompt in zip(answers, _prompts(jobs), strict=True)]
        return dialect.whole(_best(answers, request.generated, request.n or 1), usages.usage())

    def _read(self, body: bytes, ignored: list[str]) -> Read:
        request = requests.parse(body, cast("type[GenerationRequest]", self.kind), ignored)
        return Read(request, lambda head, _sampling: self.dialect(head))

    def _prepare(self, body: bytes, context: Context) -> Prepared:
        """All that takes longer the more the client wrote: looking into 8 MB of tools takes a second, in which no stream would move."""
        terms = context.terms
        body, answered = apart(body, terms.answered)
        read = self._read(body, context.ignored)
        limits = within(self.admission.limits_of(read.request.model, self.served_names), terms.allowance)
        digest = context.pins.digest_of(read.request.model, self.served_names)  # first: it may have to be loaded
        try:
            made = submissions(read.request, context.request_id, self.generator.text, limits)
        except BadRequest as error:
            raise read.refusal(error) from error
        most = read.most
        made = made if most is None else tuple(limited(job, most) for job in made)
        bounded = most is not None or read.request.limit_field is not None
        jobs = stamped(allowed(made, terms.allowance, bounded=bounded), read.request, terms, digest)
        logged = terms.continuable and continuable(read.request, jobs)
        if answered is not None and not logged:
            raise BadRequest(f"{HEADER_ANSWERED} needs a stream of one answer", HEADER_ANSWERED)
        if logged:
            jobs = (seeded(jobs[0], self.seeds) if answered is None else resumed(jobs[0], answered, limits),)
        return self._prepared(read, jobs, context, answered, limits if logged else None)

    def _prepared(
        self, read: Read, jobs: Sequence[Submission], context: Context, answered: Answered | None, logged: Ready | None
    ) -> Prepared:
        """`answered`: elsewhere; `logged`: the limits of a replica whose notes have tokens."""
        begun = None if answered is None else answered.begun
        usages = Usages(jobs, self._timing(read.request, context.request_id), None if begun is None else begun.cached)
        head = self._head(read.request, context.request_id, jobs, usages)
        if begun is not None:
            head = replace(head, request_id=begun.id, created=begun.created)
        tokens = None if logged is None else TokenLog(begun_by(jobs[0], head, logged), lambda: usages.cached_tokens, begun)
        notes = Notes(partial(used, usages), tokens) if context.terms.allowance.reports else NoNotes()
        return Prepared(read, tuple(jobs), usages, read.dialect(head, jobs[0].sampling), notes)


def _shows_prompt(request: GenerationRequest) -> bool:
    return request.prompt_logprobs is not None or bool(request.return_token_ids)


def _prompts(jobs: Sequence[Submission]) -> tuple[tuple[int, ...], ...]:
    """The prompt's ids of each choice."""
    return tuple(job.message.prompt for job in jobs for _ in range(job.message.n))


def _best(answers: list[Answer], generated: int, returned: int) -> list[Answer]:
    """Of each prompt's `generated` answers the `returned` ones with the highest mean log-probability per token, the best first."""
    if generated == returned:
        return answers
    groups = (answers[at : at + generated] for at in range(0, len(answers), generated))
    return [answer for group in groups for answer in sorted(group, key=_likelihood, reverse=True)[:returned]]


def _likelihood(answer: Answer) -> float:
    found = [scored.logprob.logprob for scored in answer.piece.scored if scored.logprob is not None]
    return sum(found) / len(found) if found else -math.inf


def _answer(deltas: Sequence[Delta]) -> Answer:
    pieces = [delta.piece for delta in deltas]
    scored = tuple(scored for piece in pieces for scored in piece.scored)
    ids = tuple(token for piece in pieces for token in piece.token_ids)
    piece = Piece("".join(piece.text for piece in pieces), scored, ids)
    return Answer(piece, deltas[-1].finish_reason or "stop", stop=deltas[-1].stop)


async def _stream(prepared: Prepared, answers: Answering, events: EventStream) -> None:
    _, _, usages, dialect, notes = prepared
    opened = False
    async with events:
        try:
            async for found in answers:
                with answers.written():
                    opening, opened = b"" if opened else dialect.opening(), True
                    frames = opening + _frames(dialect, usages, found)
                if found and found[0].again:  # the client has them
                    continue
                notes.note(found)
                if frames or not events.begun:
                    await events.write(frames + notes.written())
        except DaemonError as error:
            if not events.begun:
                raise
            log.warning("stream_failed", error=type(error).__name__, tokens=usages.completion_tokens)
            await events.end(dialect.failed(error) + notes.failed(error))
            return
        except Exception:  # a fault of ours: its client gets the stream's last event all the same
            if not events.begun:
                raise
            log.exception("stream_failed", tokens=usages.completion_tokens)
            failure = RequestFailed("internal error")
            await events.end(dialect.failed(failure) + notes.failed(failure))
            return
        await events.end(dialect.end(usages.usage()) + notes.over())


def _frames(dialect: Dialect, usages: Usages, deltas: Sequence[Delta]) -> bytes:
    """An event for each delta that says something; what came together is one write."""
    out = b""
    for delta in deltas:
        usages.note(delta)
        if delta.piece.text or delta.piece.scored or delta.piece.token_ids:
            out += dialect.text(delta.piece, delta.choice)
        if delta.finish_reason:
            out += dialect.finish(delta.finish_reason, delta.choice, delta.stop)
    return out
