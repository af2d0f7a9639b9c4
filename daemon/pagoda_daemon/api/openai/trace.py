"""What a request went through, for whoever sent it: `GET /v1/requests/{id}/trace`, and the timings in `usage` where they are asked for.

Times and counts only, never text: `metrics/records.py` holds nothing else. `timing` and `trace` are pure.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from pagoda_contracts.names import ID_PREFIXES
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from pagoda_daemon.api.access.caller import Caller
from pagoda_daemon.core.errors import RequestNotFound, shown
from pagoda_daemon.metrics.records import Record, Ring

# As the body says it, or as the header does where a client wished for none.
_ID: Final = re.compile(rf"(?:{ID_PREFIXES})?([0-9a-f]{{32}})")


class Timing(msgspec.Struct, frozen=True):
    """Milliseconds. `prepare` arrival to the engine, `queue` from there to a row, `prefill` from there to the first token, `decode` from
    there to the last one; of several prompts the longest, of several answers the first's. `ttft` and `total` since arrival. What has not
    happened yet is null."""

    prepare_ms: float
    queue_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    ttft_ms: float | None
    total_ms: float | None
    cached_tokens: int
    chunks: int
    preemptions: int


class AnswerTrace(msgspec.Struct, frozen=True):
    """One answer; `prompt` and `index` number it. Its times and tokens are null until its first token."""

    prompt: int
    index: int
    finish_reason: str | None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    cached_tokens: int | None = None
    computed_tokens: int | None = None
    chunks: int | None = None
    preemptions: int | None = None


class Trace(msgspec.Struct, frozen=True):
    """GET /v1/requests/{id}/trace. `refusal`: why the engine would not begin."""

    id: str
    arrived_at: float
    state: Literal["running", "finished"]
    prompt_tokens: int
    completion_tokens: int
    max_tokens: int
    timing: Timing
    answers: tuple[AnswerTrace, ...]
    refusal: str | None = None
    object: Literal["request.trace"] = "request.trace"


def timing(records: Sequence[Record]) -> Timing:
    """Of one request, whose prompts the records are."""
    arrived = min(record.arrived for record in records)
    lives = [life for record in records for life in record.lives.values()]
    begun = [record.lives[min(record.lives)] for record in records if record.lives]
    first = min((record.first_token for record in records if record.first_token is not None), default=None)
    ends = [record.ended for record in records if record.ended is not None]
    ended = max(ends) if len(ends) == len(records) else None
    return Timing(
        prepare_ms=_ms(max(record.submitted for record in records) - arrived),
        queue_ms=_ms(max(life.queued_ms for life in begun) / 1000) if begun else None,
        prefill_ms=_ms(max(life.prefill_ms for life in begun) / 1000) if begun else None,
        decode_ms=_ms(ended - first) if ended is not None and first is not None else None,
        ttft_ms=_ms(first - arrived) if first is not None else None,
        total_ms=_ms(ended - arrived) if ended is not None else None,
        cached_tokens=sum(record.cached_tokens for record in records),
        chunks=sum(life.chunks for life in lives),
        preemptions=sum(life.preemptions for life in lives),
    )


def trace(request_id: str, records: Sequence[Record], now: float, unix: float) -> Trace:
    """At `now` of the monotonic clock, which is `unix`."""
    running = any(record.ended is None for record in records)
    return Trace(
        id=request_id,
        arrived_at=round(unix - (now - min(record.arrived for record in records)), 3),
        state="running" if running else "finished",
        prompt_tokens=sum(record.prompt_tokens for record in records),
        completion_tokens=sum(record.completion_tokens for record in records),
        max_tokens=max(record.max_tokens for record in records),
        timing=timing(records),
        answers=tuple(_answer(number, record, index) for number, record in enumerate(records) for index in range(record.choices)),
        refusal=next((record.refusal for record in records if record.refusal), None),
    )


def _answer(prompt: int, record: Record, index: int) -> AnswerTrace:
    reason = record.ends.get(index) if record.ended is None else record.reasons[index]
    life = record.lives.get(index)
    if life is None:
        return AnswerTrace(prompt, index, reason)
    times = (_ms(life.queued_ms / 1000), _ms(life.prefill_ms / 1000))
    return AnswerTrace(prompt, index, reason, *times, life.cached_tokens, life.computed_tokens, life.chunks, life.preemptions)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


class Traces:
    """The endpoint. A trace is its tenant's: to another one there is no such request."""

    def __init__(self, recent: Ring) -> None:
        self._recent = recent

    async def get(self, request: Request) -> Response:
        given = request.path_params["id"]
        match = _ID.fullmatch(given)
        records = self._recent.get(match[1]) if match else ()
        mine = tenant_of(request.scope)
        if not records or any(record.tenant != mine for record in records):
            raise RequestNotFound(f"no request {shown(given)} is remembered here")
        found = trace(records[0].request_id.partition("-")[0], records, time.monotonic(), time.time())
        return Response(msgspec.json.encode(found), media_type="application/json")


def tenant_of(scope: Scope) -> str:
    """The caller's tenant, as authentication found it."""
    caller: Caller = scope["state"]["caller"]
    return caller.terms.tenant
