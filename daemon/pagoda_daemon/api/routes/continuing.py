"""Continuing: a stream that goes on at another replica. What this one notes in its own streams, and how it takes up another's. Pure.

A stream for a gateway has a note behind the events of each write (contracts, notes.py). It holds the tokens that all events before it were
made of, so a gateway that has read it knows exactly what its client has. The gateway keeps the tokens as they are and sends them behind the
body of the same request: here they become the answer's first tokens. They are read again as if they came from the engine, so that text,
stop strings, calls and usage are where they were, and nothing of them is sent. Tokens after them are drawn by seed and position, as they
were there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
from msgspec import structs
from pagoda_contracts.names import CONTINUABLE_EXACT, CONTINUABLE_NO, CONTINUABLE_OTHER, HEADER_ANSWERED, HEADER_CONTINUABLE
from pagoda_contracts.notes import Note, to_comment
from pagoda_contracts.usage import Used

from pagoda_daemon.api.openai.errors import retryable
from pagoda_daemon.api.openai.replies import Head
from pagoda_daemon.api.openai.requests import GenerationRequest
from pagoda_daemon.api.openai.sampling import check_ids
from pagoda_daemon.api.routes.generation import Delta, Submission
from pagoda_daemon.core.errors import BadRequest, CannotContinue, DaemonError
from pagoda_daemon.core.messages import Ready, RowOutput, TokenLogprob
from pagoda_daemon.core.sampling import random_of


class Begun(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an answer began, in its first note: the id and time that all its events have, its random seed, how many tokens of the prompt
    were cached. `model` and `by` name the weights and what computes them, `prompt` the prompt's tokens."""

    id: str
    created: int
    model: str
    by: str
    prompt: str
    seed: int | None = None
    cached: int = 0


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens since the note before. `reason`: the engine ended the answer with the last one, or (`apart`) after it. `closed`: its end was
    written too, perhaps at a stop string, of which the engine knows nothing. The first one has `begun`: a note is all or nothing."""

    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    reason: str | None = None
    apart: bool = False
    closed: bool = False
    begun: Begun | None = None


@dataclass(frozen=True)
class Answered:
    """What another replica said of an answer."""

    begun: Begun
    said: tuple[Said, ...]

    def rows(self, request_id: str) -> Iterator[RowOutput]:
        """As the engine gave it: a token at a time."""
        for one in self.said:
            last = len(one.ids) - 1
            for at, token in enumerate(one.ids):
                reason = one.reason if at == last and not one.apart else None
                yield RowOutput(request_id, (token,), reason, logprobs=one.logprobs[at : at + 1])
            if one.apart:
                yield RowOutput(request_id, (), one.reason)


_SAID: Final = msgspec.json.Decoder(Said)


def apart(body: bytes, size: int) -> tuple[bytes, Answered | None]:
    """The client's body, and what stands in the `size` bytes behind it; BadRequest where these are not of notes."""
    if not size:
        return body, None
    if not 0 < size < len(body):
        raise BadRequest(f"{HEADER_ANSWERED} must be between 1 and the body's {len(body)} bytes, got {size}", HEADER_ANSWERED)
    try:
        said = tuple(map(_SAID.decode, body[-size:].split(b"\n")))
    except msgspec.DecodeError as error:
        raise BadRequest(f"{HEADER_ANSWERED}: {error}", HEADER_ANSWERED) from error
    if (begun := said[0].begun) is None:
        raise BadRequest(f"{HEADER_ANSWERED}: the first note does not say how the answer began", HEADER_ANSWERED)
    return body[:-size], Answered(begun, said)


def resumed(job: Submission, answered: Answered, limits: Ready) -> Submission:
    """The submission as it goes on after `answered`; CannotContinue where another model or adapter said that."""
    if answered.begun.model != _weights(job, limits):
        raise CannotContinue("the answer was begun by another model or adapter, so it cannot be continued here")
    rows = tuple(answered.rows(job.message.request_id))
    ids = tuple(token for row in rows for token in row.token_ids)
    check_ids(HEADER_ANSWERED, ids, limits.vocab_size)
    sampling = structs.replace(job.sampling, seed=answered.begun.seed)
    closed = answered.said[-1].closed
    return replace(job, message=structs.replace(job.message, sampling=sampling, resumed=ids), answered=rows, closed=closed)


def continuable(request: GenerationRequest, jobs: Sequence[Submission]) -> bool:
    """One answer to one prompt, nothing of which is the prompt's own."""
    plain = request.stream and len(jobs) == 1 and jobs[0].message.n == 1 and jobs[0].answers
    return bool(plain and jobs[0].echo is None and jobs[0].sampling.prompt_logprobs is None)


def seeded(job: Submission, seeds: Callable[[], int]) -> Submission:
    """With a seed that can be reported, if the answer is random and the request brings none."""
    sampling = job.sampling
    if sampling.temperature == 0 or sampling.seed is not None:
        return job
    return replace(job, message=structs.replace(job.message, sampling=structs.replace(sampling, seed=seeds())))


def seeds_of(seed: int | None) -> Callable[[], int]:
    """What draws the seeds of requests: the same ones after each start where the configuration has a seed."""
    drawn = random_of(seed)
    return lambda: drawn.getrandbits(63)


def begun_by(job: Submission, head: Head, limits: Ready) -> Begun:
    """What the first note says of an answer, but for `cached`."""
    prompt = hashlib.blake2b(repr(job.message.prompt).encode(), digest_size=8).hexdigest()
    return Begun(
        head.request_id, head.created, _weights(job, limits), f"{limits.computed_by} {head.fingerprint}", prompt, job.sampling.seed
    )


def _weights(job: Submission, limits: Ready) -> str:
    """Names what computes the answer: the model, and the adapter if it has one."""
    return limits.model + job.message.adapter


class TokenLog:
    """What the notes of one stream say of its tokens, from its beginning or, if it was begun elsewhere (`before`), from there on."""

    def __init__(self, own: Begun, cached: Callable[[], int], before: Begun | None = None) -> None:
        self._own, self._cached, self._before = own, cached, before
        self._first = before is None
        self._deltas: list[Delta] = []

    @property
    def exact(self) -> bool:
        """Whether this replica computes what the one before it would have computed."""
        before = self._before
        return before is None or (before.by, before.prompt) == (self._own.by, self._own.prompt)

    def note(self, deltas: Sequence[Delta]) -> None:
        """These are written next, or show nothing yet."""
        self._deltas += deltas

    def take(self) -> bytes:
        """Returns all that was noted since the last time."""
        said, self._deltas = _said(self._deltas), []
        if self._first:
            self._first, said = False, structs.replace(said, begun=structs.replace(self._own, cached=self._cached()))
        return msgspec.json.encode(said)


@dataclass(frozen=True)
class Notes:
    """What is sent to a gateway beside the events of one stream. `log`: of a stream that another replica can continue."""

    used: Callable[[], Used]
    log: TokenLog | None = None

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Of the answer."""
        exact = CONTINUABLE_NO if self.log is None else CONTINUABLE_EXACT if self.log.exact else CONTINUABLE_OTHER
        return ((HEADER_CONTINUABLE.encode(), exact.encode()),)

    @property
    def silent(self) -> bytes:
        """Behind events that no token made."""
        return to_comment(Note())

    def note(self, deltas: Sequence[Delta]) -> None:
        """These are written next, or show nothing yet."""
        if self.log is not None:
            self.log.note(deltas)

    def written(self) -> bytes:
        """Behind the events of all that was noted."""
        return to_comment(Note("more", self.used(), b"" if self.log is None else self.log.take()))

    def over(self) -> bytes:
        """Behind the last events of an answer."""
        return to_comment(Note("over", self.used()))

    def failed(self, error: DaemonError) -> bytes:
        """Behind those that report an error: the gateway drops them if another replica can go on."""
        return to_comment(Note("died" if self.log is not None and retryable(error) else "over", self.used()))


class NoNotes:
    """Of a stream whose client is no gateway."""

    headers: tuple[tuple[bytes, bytes], ...] = ()
    silent = b""

    def note(self, deltas: Sequence[Delta]) -> None:
        """Nothing."""

    def written(self) -> bytes:
        return b""

    def over(self) -> bytes:
        return b""

    def failed(self, error: DaemonError) -> bytes:
        del error
        return b""


def _said(deltas: Sequence[Delta]) -> Said:
    rows = [delta.row for delta in deltas if delta.row is not None]
    ids = tuple(token for row in rows for token in row.token_ids)
    logprobs = tuple(one for row in rows for one in row.logprobs)
    closed = any(delta.finish_reason is not None for delta in deltas)
    last = rows[-1] if rows else None
    if last is None or last.finish_reason is None:
        return Said(ids, logprobs, closed=closed)
    return Said(ids, logprobs, last.finish_reason, not last.token_ids, closed)
