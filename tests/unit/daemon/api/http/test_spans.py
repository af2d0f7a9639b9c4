"""OpenTelemetry: what a collector gets of a request. The judge reads OTLP by the protobuf classes of OpenTelemetry's own package."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from pagoda_contracts.launch import TracingConfig
from pagoda_daemon.api.http.spans import Ended, attributes, error_of, name_of, parts
from pagoda_daemon.api.http.tracing import Complaints, tracing
from pagoda_daemon.api.routes.openapi import OPERATIONS
from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.core.messages import Life
from pagoda_daemon.metrics.records import Record
from pagoda_daemon.process import settings
from structlog.testing import capture_logs
from support.judges.refusals import CHAT, COMPLETIONS, chat, completion
from support.servers.local_replica import NAME, local_replica

SECRET = "a secret sentence"
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def record(**changes):
    made = Record("r", 10.0, 10.25, prompt_tokens=30, max_tokens=8, tenant="key:alice", first_token=11.25, ended=12.0, completion_tokens=4)
    made.lives[0] = Life(queued_ms=500.0, prefill_ms=500.0, cached_tokens=16)
    made.ends[0] = "stop"
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def ended(**changes):
    return Ended("r", "POST", CHAT, 200, 10.0, 12.5, "tiny", records=(record(),))._replace(**changes)


def test_a_span_has_the_names_of_the_conventions():
    assert name_of(ended()) == "chat tiny"
    assert attributes(ended()) == {
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "pagoda.request.id": "r",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "pagoda",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.request.max_tokens": 8,
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 16,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": 1.25,
        "pagoda.tenant": "key:alice",
        "pagoda.itl.mean_ms": 250.0,
    }
    assert name_of(ended(route="/tokenize")) == "POST /tokenize"


def test_the_way_of_a_request_is_parts_one_after_the_other():
    assert [tuple(part) for part in parts((record(),))] == [
        ("prepare", 10.0, 10.25),
        ("queue", 10.25, 10.75),
        ("prefill", 10.75, 11.25),
        ("decode", 11.25, 12.0),
    ]
    assert [part.name for part in parts((record(lives={}, first_token=None),))] == ["prepare"]
    assert list(parts(())) == []


def test_only_what_the_replica_did_wrong_is_an_error():
    assert [error_of(ended(status=status)) for status in (200, 400, 429)] == [None] * 3
    assert error_of(ended(status=503, refusal="overloaded")) == "overloaded"
    assert error_of(ended(records=(record(ends={}, reason="error"),))) == "error"
    assert error_of(ended(records=(record(ends={}, reason="abort"),))) is None


class Collector(BaseHTTPRequestHandler):
    """Keeps what is exported."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        assert (self.path, self.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
        self.server.got.append((body, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def collector():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    server.got = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server, TracingConfig(endpoint=f"http://127.0.0.1:{server.server_address[1]}/v1/traces", service_name="ours")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.deep  # the SDK is imported, and its threads end
async def test_a_collector_gets_the_clients_trace_continued_and_no_text():
    with collector() as (server, config):
        async with local_replica(tracing=config) as replica:
            body = completion(prompt=SECRET, max_tokens=3, ignore_eos=True, stream=True)
            await replica.post(COMPLETIONS, body, traceparent=f"00-{TRACE}-{CALLER}-01")
            await replica.post(CHAT, chat(temperature=-1), traceparent="garbage")
            await replica.post(COMPLETIONS, body, traceparent=f"00-{TRACE}-{CALLER}-00")  # the caller keeps no trace of it
            await replica.get("/metrics")
            await replica.at_rest()
    raw = b"".join(body for body, _ in server.got)
    scopes = [scope for _, request in server.got for resource in request.resource_spans for scope in resource.scope_spans]
    spans = [span for scope in scopes for span in scope.spans]
    ours = [span for span in spans if span.trace_id.hex() == TRACE]
    (whole,) = [span for span in ours if span.kind == Span.SPAN_KIND_SERVER]
    assert (whole.name, whole.parent_span_id.hex()) == (f"text_completion {NAME}", CALLER)
    attributes = {one.key: one.value for one in whole.attributes}
    assert (attributes["gen_ai.usage.input_tokens"].int_value, attributes["gen_ai.usage.output_tokens"].int_value) == (len(SECRET), 3)
    inner = [span for span in ours if span is not whole]
    assert [span.name for span in inner] == ["prepare", "queue", "prefill", "decode"]
    assert {span.parent_span_id for span in inner} == {whole.span_id}
    assert all(whole.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano for span in inner)
    (refused,) = [span for span in spans if span.trace_id.hex() != TRACE]
    assert (refused.name, refused.status.code, refused.parent_span_id) == ("chat", Status.STATUS_CODE_UNSET, b"")
    assert SECRET.encode() not in raw
    resource = {one.key: one.value.string_value for one in server.got[0][1].resource_spans[0].resource.attributes}
    assert resource["service.name"] == "ours"


def test_without_the_extra_a_wish_is_refused_and_a_variable_is_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigRejected, match=r"pip install '\.\[daemon,otel\]'"):
        tracing(TracingConfig(), "1", wished=True)
    with capture_logs() as found:
        assert tracing(TracingConfig(), "1", wished=False) is None
    assert [line["event"] for line in found] == ["tracing_off"]
    assert tracing(None, "1", wished=False) is None


def test_a_collector_that_is_not_there_is_one_line():
    with capture_logs() as found:
        complaints = Complaints()
        for _ in range(3):
            complaints.emit(logging.LogRecord("opentelemetry", logging.WARNING, "", 0, "no %s", ("collector" * 100,), None))
    assert [(line["event"], line["why"][:12], len(line["why"])) for line in found] == [("tracing_failed", "no collector", 500)]


@pytest.mark.parametrize(
    ("environ", "on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_opentelemetrys_variables_turn_it_on(tmp_path, environ, on):
    made = settings.resolve(["serve", str(tmp_path)], environ)
    assert (made.tracing is not None) is on
    given = settings.resolve(["serve", str(tmp_path), "--set", "tracing.endpoint=http://d:4318/v1/traces"], environ).tracing
    assert (given is not None and given.endpoint == "http://d:4318/v1/traces") is ("OTEL_SDK_DISABLED" not in environ)


@pytest.mark.parametrize("route", [one.path for one in OPERATIONS if one.chunk or one.events])
def test_a_span_of_each_generating_endpoint_names_its_operation_and_model(route):
    said = attributes(ended(route=route))
    assert (said["gen_ai.request.model"], name_of(ended(route=route))) == ("tiny", f"{said['gen_ai.operation.name']} tiny")
