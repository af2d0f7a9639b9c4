"""The demand of services: one message, what changed for watchers, then the wire of a real gateway with scripted replicas."""

import asyncio
from contextlib import asynccontextmanager, suppress

import grpc
import grpc.aio
import pytest
from pagoda_contracts.names import GRPC_WATCH_DEMAND, ROLE_GATEWAY, ROLE_OPERATOR, STATE_DEAD_MS
from pagoda_contracts.pb import demand_pb2 as pb
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_gateway.demand.admission import MAX_WATCHES
from pagoda_gateway.demand.callers import Callers
from pagoda_gateway.demand.messages import DemandMessages
from pagoda_gateway.demand.quota_reports import QuotaReports
from pagoda_gateway.demand.server import DemandServer
from pagoda_gateway.demand.service_demand import Facts, Held, service_demand
from pagoda_gateway.limits.ledger import WindowCount
from pagoda_gateway.requests.hold_queue import HoldQueue
from pagoda_gateway.requests.tally import ServiceTally, Tally
from pagoda_gateway.routing.endpoint import Endpoint, Frame
from pagoda_gateway.watch.cache import EndpointCache
from pagoda_gateway.watch.services import Replica, Service
from support.kube.issuer import SUBJECTS, Issuer
from support.servers.gateway_process import write_fleet

SERVICE = Service("ns/s", "u", "2026-01-01T00:00:00Z", ("m",))
NOW = 100_000.0
FRAME = Frame(
    *(1, "ready", 3, 2, 0),
    in_flight=5,
    waiting_tokens=70,
    blocks_used=20,
    blocks_total=80,
    revision="r1",
    phase_number=4,
    ttft_p95_ms=40,
    warm_ms=40,
)


def endpoint(name="ns/a", frame=FRAME, age=0.0, **fields) -> Endpoint:
    return Endpoint(name, "ns/s", "h", frame=frame, frame_made_ms=NOW - age, connected=True, **fields)


def report(*endpoints, held=0, since=None, tally=None):
    return service_demand(Facts(SERVICE, endpoints, Held(held, since), tally or ServiceTally()), NOW)


def test_only_fresh_endpoints_are_summed():
    one = report(endpoint(), endpoint("ns/b", age=STATE_DEAD_MS + 1), endpoint("ns/c", frame=None))
    assert (one.running, one.waiting, one.waiting_tokens, one.in_flight, one.blocks_used, one.blocks_total) == (3, 2, 70, 5, 20, 80)
    assert one.kv_utilization == pytest.approx(0.25)
    assert [(e.pod, e.verdict, e.reason) for e in one.endpoints] == [
        ("a", pb.VERDICT_FRESH, "ready"),
        ("b", pb.VERDICT_DEAD, "silent"),
        ("c", pb.VERDICT_UNSPECIFIED, "unheard"),
    ]
    first = one.endpoints[0]
    assert (first.revision, first.phase, first.in_flight, first.warm_ms) == ("r1", Phase.PHASE_READY, 5, 40)


@pytest.mark.parametrize(
    ("frame", "fields", "verdict", "reason"),
    [
        (FRAME._replace(deep_check_failed=True), {}, pb.VERDICT_DEAD, "deep-check"),
        (FRAME._replace(engine_age_ms=STATE_DEAD_MS + 1), {}, pb.VERDICT_DEAD, "stuck"),
        (FRAME._replace(step_age_ms=30_001), {}, pb.VERDICT_DEAD, "overdue"),
        (FRAME, {"faulty": True}, pb.VERDICT_FRESH, "device-fault"),
        (FRAME._replace(device_fault="Xid 79"), {}, pb.VERDICT_FRESH, "device-fault"),
        (FRAME._replace(phase="loading"), {}, pb.VERDICT_FRESH, "loading"),
        (FRAME, {"draining": True}, pb.VERDICT_FRESH, "draining"),
        (FRAME, {"draining": True, "age": STATE_DEAD_MS + 1}, pb.VERDICT_DEAD, "draining"),
        (FRAME, {"age": 1_500}, pb.VERDICT_SUSPECT, "suspect"),
        (None, {"draining": True}, pb.VERDICT_UNSPECIFIED, "draining"),
    ],
)
def test_verdicts_say_what_a_signal_is_worth_and_why(frame, fields, verdict, reason):
    (one,) = report(endpoint(frame=frame, **fields)).endpoints
    assert (one.verdict, one.reason) == (verdict, reason)
    assert one.device_fault == (frame.device_fault if frame else ""), "what others report is known to the operator already"


def test_a_wake_is_asked_for_only_by_a_held_request_of_a_service_without_replicas_that_stay():
    assert report(held=1, since=NOW).wake
    assert report(endpoint(draining=True), held=1, since=NOW).wake
    told = endpoint(frame=FRAME._replace(phase="draining"))
    assert report(told, held=1, since=NOW).wake
    assert not report(told, endpoint("ns/b"), held=1, since=NOW).wake
    assert not report(endpoint(frame=None), held=1, since=NOW).wake
    assert not report().wake


def test_idle_counts_from_the_last_request_and_not_while_one_is_under_way():
    assert report(tally=ServiceTally(arrived=2, ended=2, changed_ms=NOW - 61_000)).idle_ms == 60_000
    assert report(tally=ServiceTally(arrived=2, ended=1, changed_ms=NOW - 61_000)).idle_ms == 0


def test_the_replicas_own_first_tokens_count_where_no_stream_was_seen_here():
    assert report(endpoint()).ttft_p95_ms == 40
    tally = ServiceTally()
    tally.window.first_token(1_000, NOW)
    assert 900 <= report(endpoint(), tally=tally).ttft_p95_ms <= 1_100


class Harness:
    def __init__(self):
        self.now = 0.0
        self.cache, self.queue, self.tally = EndpointCache(), HoldQueue(10), Tally()
        self.cache.put_service(SERVICE)
        self.cache.put_replica(Replica("ns/a", "ns/s", "u", "h:1", "h:2", draining=False))
        self.messages = DemandMessages(self.cache, self.queue, self.tally, lambda: self.now)
        self.event = self.messages.watch()


def test_the_first_message_has_everything_and_a_service_at_rest_is_reported_once():
    harness = Harness()
    seen, full, news = harness.messages.since(-1)
    assert (full, [one.name for one in news]) == (True, ["s"])
    harness.now += 500
    seen, full, news = harness.messages.since(seen)
    assert (full, news) == (False, [])


def test_a_held_request_is_reported_between_two_heartbeats_and_replicas_states_with_the_next():
    harness = Harness()
    seen, _, _ = harness.messages.since(-1)
    harness.cache.update_state("ns/a", FRAME, 0, 0)
    harness.queue.enter("ns/s", 0)
    harness.now = 100
    assert harness.messages.since(seen)[2] == []
    harness.messages.changed("ns/s")
    assert harness.event.is_set()
    seen, full, news = harness.messages.since(seen)
    assert (full, [one.held for one in news]) == (False, [1])
    harness.now = 500
    harness.cache.update_state("ns/a", FRAME._replace(running=4), 500, 500)
    assert [one.running for one in harness.messages.since(seen)[2]] == [4]


def test_a_service_that_goes_makes_the_next_frame_whole_for_every_watcher_once():
    harness = Harness()
    harness.cache.put_service(SERVICE._replace(key="ns/t", uid="v", served_names=("n",)))
    early, _, _ = harness.messages.since(-1)
    late, _, _ = harness.messages.since(-1)
    harness.cache.delete_service("ns/t")
    harness.now = 500
    early, full, news = harness.messages.since(early)
    assert (full, [one.name for one in news]) == (True, ["s"])
    late, full, news = harness.messages.since(late)
    assert (full, [one.name for one in news]) == (True, ["s"])
    assert harness.messages.since(early)[1:] == (False, [])
    assert harness.messages.since(late)[1:] == (False, [])


@asynccontextmanager
async def watching(port, *services):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        watch = channel.unary_stream(
            GRPC_WATCH_DEMAND, request_serializer=pb.WatchDemandRequest.SerializeToString, response_deserializer=pb.Demand.FromString
        )
        call = watch(pb.WatchDemandRequest(watcher="operator/test", services=services), wait_for_ready=True)
        yield call
        call.cancel()


async def until(call, service, meets):
    """The service's first news that meet it, and the frames before them."""
    async with asyncio.timeout(120):
        frames = []
        while True:
            frame = await call.read()
            frames.append(frame)
            for one in frame.services:
                if f"{one.namespace}/{one.name}" == service and meets(one):
                    return one, frames


@pytest.mark.deep
async def test_a_watcher_is_notified_of_a_held_request_of_its_answer_and_of_a_failing_deep_check(bench, replicas):
    _, two = replicas
    write_fleet(bench.file, [{"name": bench.service, "served_names": ["m"]}])
    async with watching(bench.gateway.demand, bench.service) as call:
        _, frames = await until(call, bench.service, lambda demand: not demand.endpoints)
        assert (frames[0].full, frames[0].sequence, frames[0].peers) == (True, 1, 1)
        asked = asyncio.create_task(bench.ask())
        held, _ = await until(call, bench.service, lambda demand: demand.held == 1)
        assert (held.wake, held.requests_arrived, held.idle_ms) == (True, 1, 0)
        two.say(phase=Phase.PHASE_READY, running=7, revision="r9")
        await bench.serve(two)
        assert (await asked)[0] == 200
        served, _ = await until(call, bench.service, lambda demand: demand.requests_ended == 1 and demand.running == 7)
        assert (served.held, served.wake, [(r.revision, r.requests, r.errors) for r in served.revisions]) == (0, False, [("r9", 1, 0)])
        two.say(phase=Phase.PHASE_READY, deep_check_failed=True)
        failing, _ = await until(call, bench.service, lambda demand: any(e.deep_check_failed for e in demand.endpoints))
        assert [(e.verdict, e.reason) for e in failing.endpoints] == [(pb.VERDICT_DEAD, "deep-check")]


async def test_a_replica_that_fails_its_deep_check_takes_no_new_request_unless_all_do(bench, replicas):
    one, two = replicas
    await bench.serve(one, two)
    one.say(phase=Phase.PHASE_READY, deep_check_failed=True)
    await bench.metric_is("endpoints", 1, verdict="deep-check")
    assert {(await bench.ask())[1]["replica"] for _ in range(6)} == {two.name}
    two.say(phase=Phase.PHASE_READY, deep_check_failed=True)
    await bench.metric_is("endpoints", 2, verdict="deep-check")
    answers = [await bench.ask() for _ in range(4)]
    assert {(status, route.reason) for status, _, route in answers} == {(200, "only-unsound")}


async def test_a_sole_replica_that_fails_its_deep_check_serves_on_and_the_reason_says_so(bench, replicas):
    one, _ = replicas
    one.say(phase=Phase.PHASE_LOADING)
    write_fleet(bench.file, [{"name": bench.service, "served_names": ["m"], "endpoints": [one.entry()]}])
    await bench.metric_is("endpoints", 1, verdict="loading")
    held = asyncio.create_task(bench.ask())
    await bench.metric_is("held_requests", 1)
    one.say(phase=Phase.PHASE_READY, deep_check_failed=True)
    assert [(status, route.reason) for status, _, route in (await held, await bench.ask())] == [
        (200, "held-loading"),
        (200, "only-unsound"),
    ]


async def test_demand_is_sent_to_the_operator_and_to_no_other_caller(tmp_path):
    issuer = Issuer(tmp_path)
    messages = DemandMessages(EndpointCache(), HoldQueue(1), Tally(0.0), lambda: 0.0)
    server = DemandServer(messages, "g", lambda: 0.0, Callers(issuer.file, {SUBJECTS[ROLE_OPERATOR]: ROLE_OPERATOR}))
    port = await server.start("127.0.0.1:0")

    async def first(*metadata):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            method = channel.unary_stream(
                GRPC_WATCH_DEMAND, request_serializer=pb.WatchDemandRequest.SerializeToString, response_deserializer=pb.Demand.FromString
            )
            call = method(pb.WatchDemandRequest(watcher="x"), metadata=metadata)
            try:
                return (await call.read()).gateway
            except grpc.aio.AioRpcError as error:
                return error.code()
            finally:
                call.cancel()

    try:
        assert await first() is grpc.StatusCode.UNAUTHENTICATED
        assert await first(("authorization", "Bearer sk-123")) is grpc.StatusCode.UNAUTHENTICATED
        assert await first(("authorization", f"Bearer {issuer.token(ROLE_GATEWAY)}")) is grpc.StatusCode.PERMISSION_DENIED
        assert await first(("authorization", f"Bearer {issuer.token(ROLE_OPERATOR)}")) == "g"
    finally:
        await server.close()


async def test_calls_without_a_token_or_without_a_message_take_no_watchs_place(tmp_path):
    """A caller that sends no message is refused at once all the same; one with a token counts, up to the limit."""
    issuer = Issuer(tmp_path)
    messages = DemandMessages(EndpointCache(), HoldQueue(1), Tally(0.0), lambda: 0.0)
    server = DemandServer(messages, "g", lambda: 0.0, Callers(issuer.file, {SUBJECTS[ROLE_OPERATOR]: ROLE_OPERATOR}))
    port = await server.start("127.0.0.1:0")
    token = ("authorization", f"Bearer {issuer.token(ROLE_OPERATOR)}")
    try:
        async with asyncio.timeout(60), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            silent = channel.stream_stream(GRPC_WATCH_DEMAND)
            refused = [silent() for _ in range(2 * MAX_WATCHES)]
            assert {await call.code() for call in refused} == {grpc.StatusCode.UNAUTHENTICATED}
            watch = channel.unary_stream(
                GRPC_WATCH_DEMAND, request_serializer=pb.WatchDemandRequest.SerializeToString, response_deserializer=pb.Demand.FromString
            )
            watches = [watch(pb.WatchDemandRequest(), metadata=(token,)) for _ in range(MAX_WATCHES)]
            assert [(await call.read()).gateway for call in watches] == ["g"] * MAX_WATCHES
            assert await watch(pb.WatchDemandRequest(), metadata=(token,)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            watches[0].cancel()
            while True:
                with suppress(grpc.aio.AioRpcError):
                    assert (await watch(pb.WatchDemandRequest(), metadata=(token,)).read()).gateway == "g"
                    break
    finally:
        await server.close()


def test_quotas_are_sent_at_first_and_every_ten_seconds_if_they_changed():
    counts = [WindowCount("q", 60_000, 0, 1, 20)]
    reports = QuotaReports(lambda: list(counts))
    (row,) = reports.due(1_000).windows
    assert (row.quota, row.window_ms, row.start_unix_ms, row.requests, row.tokens) == ("q", 60_000, 0, 1, 20)
    counts[0] = WindowCount("q", 60_000, 0, 2, 20)
    assert reports.due(10_999) is None
    assert [row.requests for row in reports.due(11_000).windows] == [2]
    assert reports.due(30_000) is None
    counts.clear()
    assert reports.due(40_000) == pb.QuotaReport()


async def test_the_first_frame_of_a_watch_has_what_was_used_of_quotas():
    messages = DemandMessages(EndpointCache(), HoldQueue(1), Tally(0.0), lambda: 0.0)
    server = DemandServer(messages, "g", lambda: 0.0, quotas=lambda: [WindowCount("q", 60_000, 0, 1, 20)])
    port = await server.start("127.0.0.1:0")
    try:
        async with watching(port) as call:
            frame = await call.read()
            assert [row.quota for row in frame.quotas.windows] == ["q"]
            assert not (await call.read()).HasField("quotas")
    finally:
        await server.close()
