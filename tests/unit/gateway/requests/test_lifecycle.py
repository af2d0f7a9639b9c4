"""A request is interrupted at each of its awaits, in each way: afterwards all gauges are at rest and it was counted exactly once."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import aiohttp
import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict
from pagoda_contracts.names import ERROR_DRAINING
from pagoda_gateway.proxy import handlers
from pagoda_gateway.proxy.authenticate import TENANT
from pagoda_gateway.proxy.body import Limits
from pagoda_gateway.requests.errors import Died, GatewayError, ShuttingDown
from support.harness.gateway import GatewayHarness

LIMITS = Limits(body_bytes=1 << 20, body_seconds=300)
REFUSAL = b'{"error": {"code": "%s"}}' % ERROR_DRAINING.encode()


class Interrupted:
    """Runs a coroutine. At its await number `at` it calls `interrupt` and raises there what that raises. `point` counts."""

    def __init__(self, coroutine, at, interrupt):
        self._coroutine, self._at, self._interrupt = coroutine, at, interrupt
        self.point = 0

    def __await__(self):
        answer, raised = None, None
        while True:
            try:
                future = self._coroutine.throw(raised) if raised else self._coroutine.send(answer)
            except StopIteration as end:
                return end.value
            answer, raised = None, None
            self.point += 1
            try:
                if self.point == self._at:
                    self._interrupt()
                answer = yield future
            except BaseException as error:  # noqa: BLE001 - what the event loop throws in goes on
                raised = error


class Body:
    """Pieces that arrive one by one; an exception among them is raised. Each takes one turn of the loop."""

    def __init__(self, *pieces):
        self._pieces = list(pieces)

    async def readany(self):
        await asyncio.sleep(0)
        piece = self._pieces.pop(0) if self._pieces else b""
        if isinstance(piece, Exception):
            raise piece
        return piece


class ReplicaAnswer:
    """A replica's answer as aiohttp gives it."""

    def __init__(self, *pieces, status=200, kind="text/event-stream"):
        self.status, self.content_type, self.headers, self.content = status, kind, CIMultiDict(), Body(*pieces)

    async def read(self):
        return await self.content.readany()

    def close(self): ...


class Upstream:
    """Answers, or raises, in the order given; then it streams."""

    def __init__(self, *answers):
        self._answers = list(answers)

    async def send(self, *_call, **_options):
        await asyncio.sleep(0)
        answer = self._answers.pop(0) if self._answers else streamed()
        if isinstance(answer, Exception):
            raise answer
        return answer


class ClientStream(web.StreamResponse):
    """A stream to a client whose every write takes one turn of the loop."""

    def __init__(self, **options):
        super().__init__(**options)
        self.sent = b""

    async def prepare(self, _request):
        await asyncio.sleep(0)

    async def write(self, data):
        await asyncio.sleep(0)
        self.sent += data


def streamed():
    return ReplicaAnswer(b"data: 1\n\n", b"data: 2\n\n")


SCENARIOS = {
    "served at once": lambda: [streamed()],
    "without a stream": lambda: [ReplicaAnswer(b"{}", kind="application/json")],
    "an error of the replica": lambda: [ReplicaAnswer(b"{}", status=500, kind="application/json")],
    "refused, died, then served": lambda: [ReplicaAnswer(REFUSAL, status=503, kind="application/json"), Died("closed"), streamed()],
    "died three times": lambda: [Died("closed")] * 3,
    "died in the middle": lambda: [ReplicaAnswer(b"data: 1\n\n", aiohttp.ClientPayloadError())],
}
STATUS = {
    "served at once": 200,
    "without a stream": 200,
    "an error of the replica": 500,
    "refused, died, then served": 200,
    "died three times": 502,
    "died in the middle": 502,
}
# What ends the request, and the status that counts. A reset connection may also be the replica's: then the request is sent again, or its
# stream breaks.
ERRORS = {
    "cancelled": (asyncio.CancelledError, {499}),
    "reset": (ConnectionResetError, {499, 200, 502}),
    "an error of the gateway": (ZeroDivisionError, {500}),
}


class Harness(GatewayHarness):
    """Two ready replicas, which come while the first request is held; so it passes all stages."""

    def __init__(self, *answers):
        super().__init__()
        self.service()
        self.synced()
        self.under_test = self.api(Upstream(*answers), LIMITS)

    def request(self):
        request = make_mocked_request("POST", "/v1/completions", payload=SimpleNamespace(readany=Body(b'{"model"', b': "m"}').readany))
        request[handlers._REQUEST_ID], request[TENANT] = "id", ""
        return request

    async def ready(self):
        """Replicas become ready when the request is held; refusals are forgotten by later frames."""
        while True:
            if self.queue.total:
                for name in ("ns/a", "ns/b", "ns/c"):
                    self.frame(name=name)
            await asyncio.sleep(0)

    async def interrupted(self, at=0, interrupt=None):
        """One request through the handler; returns how many awaits it had."""
        run = Interrupted(self.under_test._inference(self.request()), at, interrupt)
        coming = asyncio.create_task(self.ready())
        try:
            self.answer = await run
        except (GatewayError, asyncio.CancelledError, ConnectionError) as error:
            self.answer = error
        finally:
            coming.cancel()
        return run.point

    def stop(self):
        self.stopping = asyncio.create_task(self.in_flight.finish(0))

    def counted(self):
        """How often which status was counted."""
        counted = Counter()
        for sample in (sample for family in self.metrics._registry.collect() for sample in family.samples):
            if sample.name == "pagoda_gateway_requests_total":
                counted[sample.labels["code"]] += int(sample.value)
        return counted

    def at_rest(self):
        tally = self.tally.of("ns/s")
        endpoints = self.cache.endpoints(self.cache.resolve("m"))
        return (self.in_flight.count, self.queue.total, self.budget.used, tally.under_way, [e.in_flight for e in endpoints if e.in_flight])


REST = (0, 0, 0, 0, [])


@pytest.fixture
def stream(monkeypatch):
    """Streams to clients need no connection."""
    monkeypatch.setattr("pagoda_gateway.proxy.relay.web.StreamResponse", ClientStream)


@pytest.fixture
def logs():
    """Entries are kept, not rendered: tracebacks take most of the time."""
    with structlog.testing.capture_logs() as entries:
        yield entries


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_request_that_runs_to_its_end_is_counted_by_its_answer(stream, logs, scenario):
    harness = Harness(*SCENARIOS[scenario]())
    await harness.interrupted()
    assert (harness.at_rest(), harness.counted()) == (REST, {str(STATUS[scenario]): 1})
    assert [entry["event"] for entry in logs] == ["a replica died with a request"] * (STATUS[scenario] == 502)


def raising(kind):
    def interrupt():
        raise kind

    return interrupt


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_interrupted_at_any_await_it_is_counted_once_and_leaves_nothing(stream, logs, scenario, error):
    points = await Harness(*SCENARIOS[scenario]()).interrupted()
    assert points >= 6
    kind, allowed = ERRORS[error]
    for at in range(1, points + 1):
        harness = Harness(*SCENARIOS[scenario]())
        logs.clear()
        assert await harness.interrupted(at, raising(kind)) >= at
        counted = harness.counted()
        assert (harness.at_rest(), counted.total()) == (REST, 1), f"at await {at} of {points}: {counted}"
        assert counted.keys() <= {str(status) for status in allowed}, f"at await {at} of {points}"
        assert len(logs) == counted["500"] + counted["502"], f"at await {at} of {points}: {logs}"


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_the_gateways_deadline_at_any_await_ends_a_request_once(stream, logs, scenario):
    points = await Harness(*SCENARIOS[scenario]()).interrupted()
    stopped = 0
    for at in range(1, points + 1):
        harness = Harness(*SCENARIOS[scenario]())
        await harness.interrupted(at, harness.stop)
        await asyncio.wait_for(harness.stopping, 60)
        counted = harness.counted()
        assert (harness.at_rest(), counted.total()) == (REST, 1), f"at await {at} of {points}: {counted}"
        stopped += counted["503"]
    assert stopped >= points // 2


async def test_a_request_that_comes_after_the_deadline_is_ended_too(stream):
    harness = Harness()
    await harness.interrupted(1, harness.stop)
    await asyncio.wait_for(harness.stopping, 60)
    await harness.interrupted()
    assert isinstance(harness.answer, ShuttingDown)
    assert (harness.at_rest(), harness.counted()) == (REST, {"503": 2})


async def test_a_request_that_comes_after_all_were_finished_in_time_is_served(stream):
    harness = Harness()
    await harness.in_flight.finish(60)
    await harness.interrupted()
    assert (harness.at_rest(), harness.counted()) == (REST, {"200": 1})


async def test_a_stream_that_broke_ends_with_one_event(stream, logs):
    harness = Harness(*SCENARIOS["died in the middle"]())
    await harness.interrupted()
    first, event, done, rest = harness.answer.sent.split(b"\n\n")
    assert (first, done, rest) == (b"data: 1", b"data: [DONE]", b"")
    assert b'"code":"upstream_died"' in event


async def test_an_error_of_the_gateway_in_the_middle_of_a_stream_ends_it_with_one_event(stream, logs):
    harness = Harness(ReplicaAnswer(b"data: 1\n\n", ZeroDivisionError("the cause")))
    await harness.interrupted()
    first, event, done, rest = harness.answer.sent.split(b"\n\n")
    assert (first, done, rest) == (b"data: 1", b"data: [DONE]", b"")
    assert b'"code":"internal_error"' in event
    assert "the cause" not in harness.answer.sent.decode()
    (entry,) = logs
    assert (entry["event"], entry["request_id"], entry["exc_info"]) == ("a request failed by an error of the gateway", "id", True)


async def test_bytes_of_a_body_count_until_the_request_ends(stream):
    harness, used = Harness(), []
    upstream = harness.under_test.upstream

    async def send(*call, fresh):
        used.append(harness.budget.used)
        return streamed()

    upstream.send = send
    await harness.interrupted()
    assert (used, harness.budget.used) == ([len(b'{"model": "m"}')], 0)
