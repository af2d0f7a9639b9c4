"""tracing: sends spans of requests to an OpenTelemetry collector. Made by `front.py`; off unless it is configured.

OpenTelemetry's own SDK does the sending, on a thread of its own, and drops spans if the collector is slow. It is an extra, imported only if
tracing is on. The SDK reads its own environment variables: sampler, headers, limits, resource attributes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog
from pagoda_contracts.launch import TracingConfig

from pagoda_daemon.api.http.spans import Ended, attributes, error_of, name_of, parts
from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.metrics.seldom import Seldom

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = structlog.get_logger()
_LAST_S: Final = 2.0  # for spans that are not sent yet when the replica ends
_COMPLAIN_S: Final = 60.0
_MAX_SHOWN: Final = 500
_SCOPE: Final = "pagoda_daemon"


class Complaints(logging.Handler):
    """What the SDK says of a collector that does not answer, as a line of our log: one a minute, since it says it for every try."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._seldom = Seldom(_COMPLAIN_S)

    def emit(self, record: logging.LogRecord) -> None:
        if self._seldom.due(time.monotonic()):
            log.warning("tracing_failed", why=record.getMessage()[:_MAX_SHOWN])


class Tracing:
    """Makes the spans of a request once it has ended, with the times that were noted: nothing is done while it runs."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer(_SCOPE)
        self._propagator = TraceContextTextMapPropagator()

    def export(self, ended: Ended) -> None:
        """Continues the client's trace where it sent one."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        unix = time.time() - time.monotonic()
        outer = self._propagator.extract({"traceparent": ended.parent}) if ended.parent else None
        span = self._tracer.start_span(
            name_of(ended), outer, SpanKind.SERVER, attributes=attributes(ended), start_time=_nanoseconds(unix + ended.arrived)
        )
        if span.is_recording():
            inside = set_span_in_context(span)
            for part in parts(ended.records):
                child = self._tracer.start_span(part.name, inside, start_time=_nanoseconds(unix + part.start))
                child.end(_nanoseconds(unix + part.end))
        if error_of(ended) is not None:
            span.set_status(Status(StatusCode.ERROR))
        span.end(_nanoseconds(unix + ended.ended))

    async def close(self) -> None:
        """Sends what is left, for two seconds at most: a collector that does not answer holds up no drain."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # nobody waits any more
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut, name="tracing", daemon=True).start()
        with suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), _LAST_S)


def tracing(config: TracingConfig | None, version: str, *, wished: bool) -> Tracing | None:
    """None without a configuration. Where the extra is missing: ConfigRejected if the DaemonConfig `wished` for it, else a warning, because
    clusters set OpenTelemetry's variables for every container."""
    if config is None:
        return None
    try:
        made = Tracing(_provider(config, version))
    except ModuleNotFoundError as missing:
        said = f"module {missing.name!r} is missing; install it in a checkout: pip install '.[daemon,otel]'"
        if wished:
            raise ConfigRejected(f"tracing: {said}") from missing
        log.warning("tracing_off", why=said)
        return None
    sdk = logging.getLogger("opentelemetry")
    if not sdk.handlers:  # one for all fronts of a process
        sdk.addHandler(Complaints())
        sdk.propagate = False
    return made


def _provider(config: TracingConfig, version: str) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    ours = Resource.create({"service.name": config.service_name, "service.version": version})
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=config.endpoint)))
    return provider


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
