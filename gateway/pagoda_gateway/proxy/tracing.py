"""Tracing: spans of requests for an OpenTelemetry collector, and the `traceparent` that a replica continues. Used by observe.py.

Off unless it is configured; then the extra `otel` is needed. Without it, a client's `traceparent` passes to the replica as it came. The SDK
sends on a thread of its own, drops spans if the collector is slow, and reads its own variables: sampler, headers, limits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from pagoda_gateway.requests.observed import Observed, access_line

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

log = structlog.get_logger()

TRACEPARENT: Final = "traceparent"
_LAST_S: Final = 2.0  # for spans that are not sent yet when the gateway ends
_COMPLAIN_S: Final = 60.0
_MAX_SHOWN: Final = 500
_UNAUTHENTICATED: Final = 401
_FAILED: Final = 500
# Attributes have the names of OpenTelemetry's conventions where there are some.
_NAMES: Final = {
    "id": "pagoda.request.id",
    "route": "http.route",
    "status": "http.response.status_code",
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "finish": "gen_ai.response.finish_reasons",
    "refusal": "error.type",
}


class Part(NamedTuple):
    """A child span; times in ms of the gateway's clock."""

    name: str
    start_ms: float
    end_ms: float


class Tracing:
    """Begins a span when a request arrives, so that a replica's span can be its child, and ends it with what became of it."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("pagoda_gateway")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, method: str, headers: Mapping[str, str]) -> tuple[Span, str]:
        """Returns the span, which continues the client's trace if it sent one, and the header for the replica."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        parent = headers.get(TRACEPARENT)
        outer = self._propagator.extract({TRACEPARENT: parent}) if parent else None
        span = self._tracer.start_span(method, outer, SpanKind.SERVER)
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span))
        return span, carrier.get(TRACEPARENT, "")

    def end(self, span: Span, observed: Observed) -> None:
        """Ends the span. That of a request without a valid key is dropped: whoever is not let in cannot fill a collector."""
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        if observed.status == _UNAUTHENTICATED or not span.is_recording():
            return
        span.update_name(f"{observed.method} {observed.route}")
        span.set_attribute("http.request.method", observed.method)
        for name, value in access_line(observed).items():
            span.set_attribute(_NAMES.get(name, f"pagoda.{name}"), value)
        offset = time.time() * 1000 - observed.ended_ms
        inside = set_span_in_context(span)
        for part in parts(observed):
            child = self._tracer.start_span(part.name, inside, start_time=_nanoseconds(offset + part.start_ms))
            child.end(_nanoseconds(offset + part.end_ms))
        if observed.status >= _FAILED:
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    async def close(self) -> None:
        """Sends what is left, for two seconds at most: a collector that does not answer holds up no drain."""
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(self._provider.shutdown), _LAST_S)


def parts(observed: Observed) -> Iterator[Part]:
    """Yields the stages that began: reading the body, holding the request, and the replica that was asked last."""
    life = observed.life
    if life is None or not life.admitted_ms:
        return
    yield Part("read", observed.began_ms, life.admitted_ms)
    if life.held_ms:
        yield Part("hold", life.admitted_ms, life.admitted_ms + life.held_ms)
    if life.asked_ms:
        yield Part("replica", life.asked_ms, observed.ended_ms)


def tracing(endpoint: str) -> Tracing:
    """Connects the SDK. ModuleNotFoundError if the extra is not installed."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    ours = Resource.create({"service.name": "pagoda-gateway"})
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    sdk = logging.getLogger("opentelemetry")
    if not sdk.handlers:
        sdk.addHandler(_Complaints(logging.WARNING))
        sdk.propagate = False
    return Tracing(provider)


class _Complaints(logging.Handler):
    """What the SDK says of a collector that does not answer: one line a minute, since it says it for every try."""

    _due = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if record.created >= self._due:
            self._due = record.created + _COMPLAIN_S
            log.warning("tracing_failed", why=record.getMessage()[:_MAX_SHOWN])


def _nanoseconds(ms: float) -> int:
    return int(ms * 1e6)
