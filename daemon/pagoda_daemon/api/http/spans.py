"""The spans of a request that ended, for OpenTelemetry: a span for the whole, and one for each part of its way. Pure.

Names are those of OpenTelemetry's conventions for generative AI and for HTTP. Counts, times and names only; no text. Sent by `tracing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from pagoda_daemon.api.http.lines import access
from pagoda_daemon.api.openai.trace import timing
from pagoda_daemon.metrics.records import FAILED, Record

Value = str | int | float | bool | list[str]
_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_SERVER_ERROR: Final = 500


class Ended(NamedTuple):
    """A request as the access line knows it. Times are seconds of the monotonic clock; `parent` is the client's traceparent."""

    request_id: str
    method: str
    route: str
    status: int
    arrived: float
    ended: float
    model: str = ""
    refusal: str = ""
    parent: str = ""
    records: Sequence[Record] = ()


class Part(NamedTuple):
    """A child span; times as above."""

    name: str
    start: float
    end: float


def name_of(ended: Ended) -> str:
    """The operation and the model, as the conventions want it; a route that generates nothing goes by itself."""
    operation = _OPERATIONS.get(ended.route)
    return f"{ended.method} {ended.route}" if operation is None else f"{operation} {ended.model}".strip()


def attributes(ended: Ended) -> dict[str, Value]:
    """Of the whole. What is not known is absent."""
    found: dict[str, Value | None] = {
        "http.request.method": ended.method,
        "http.route": ended.route,
        "http.response.status_code": ended.status,
        "error.type": error_of(ended),
        "pagoda.request.id": ended.request_id,
    }
    if operation := _OPERATIONS.get(ended.route):
        found |= {"gen_ai.operation.name": operation, "gen_ai.provider.name": "pagoda"}
        found |= {"gen_ai.request.model": ended.model, "gen_ai.response.model": ended.model} if ended.model else {}
    if ended.records:
        found |= _generated(ended.records)
    return {name: value for name, value in found.items() if value is not None}


def error_of(ended: Ended) -> str | None:
    """Why a span is an error. A request that the client got wrong is none."""
    if ended.status >= _SERVER_ERROR:
        return ended.refusal or str(ended.status)
    return FAILED if any(FAILED in record.reasons for record in ended.records) else None


def _generated(records: Sequence[Record]) -> dict[str, Value | None]:
    fields = access(records)
    choices = sum(record.choices for record in records)
    return {
        "gen_ai.request.max_tokens": max(record.max_tokens for record in records),
        "gen_ai.request.choice.count": choices if choices > 1 else None,
        "gen_ai.usage.input_tokens": fields["prompt_tokens"],
        "gen_ai.usage.output_tokens": fields["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": fields["cached_tokens"],
        "gen_ai.response.finish_reasons": fields["finish"],
        "gen_ai.response.time_to_first_chunk": None if fields["ttft_ms"] is None else fields["ttft_ms"] / 1000,
        "pagoda.tenant": fields["tenant"] or None,
        "pagoda.itl.mean_ms": fields["itl_ms"],
        "pagoda.itl.p95_ms": fields["itl_p95_ms"],
    }


def parts(records: Sequence[Record]) -> Iterator[Part]:
    """Arrival to the engine, from there to a row, to the first token, to the last: those that began."""
    if not records:
        return
    times = timing(records)
    at = min(record.arrived for record in records)
    for name, took_ms in (
        ("prepare", times.prepare_ms),
        ("queue", times.queue_ms),
        ("prefill", times.prefill_ms),
        ("decode", times.decode_ms),
    ):
        if took_ms is None:
            return
        yield Part(name, at, at + took_ms / 1000)
        at += took_ms / 1000
