"""SetState, SetAdapters and the health service over a real gRPC port: who may, what it does, what a stale order gets."""

import asyncio
import threading
import time
from contextlib import contextmanager

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2
from pagoda_contracts.names import (
    GRPC_HEALTH_CHECK,
    GRPC_HEALTH_WATCH,
    GRPC_SET_ADAPTERS,
    GRPC_SET_STATE,
    GRPC_WATCH_STATE,
    ROLE_GATEWAY,
    ROLE_METRICS,
    ROLE_OPERATOR,
)
from pagoda_contracts.pb.daemon_pb2 import (
    TARGET_DRAINING,
    TARGET_SERVING,
    TARGET_UNSPECIFIED,
    Phase,
    SetAdaptersRequest,
    SetAdaptersResponse,
    SetStateRequest,
    SetStateResponse,
    State,
    WatchStateRequest,
)
from pagoda_daemon.api.access.roles import METHODS
from pagoda_daemon.api.front import front as front_module
from pagoda_daemon.api.grpc import control
from pagoda_daemon.api.grpc import health as grpc_health
from pagoda_daemon.api.grpc import server as grpc_server
from pagoda_daemon.api.grpc import watch as grpc_watch
from pagoda_daemon.text.tokens import ModelText
from support.kube.issuer import STRANGER, Issuer
from support.servers.local_front import NAME, local_config, local_front
from support.servers.loop_clock import LoopClock

LONG = {"model": NAME, "prompt": "x", "max_tokens": 300, "ignore_eos": True}
SHORT = LONG | {"max_tokens": 3}
# 20 s: it ends only by being ended.
ENDLESS = LONG | {"max_tokens": 4000}
SOON = 20


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture
async def front(tmp_path, issuer):
    engine = {"max_model_len": 4096, "kv_bytes": 2**23}
    config = local_config(tmp_path, step_ms=5, auth=issuer.config(), drain_timeout="60s", engine=engine)
    async with local_front(config) as made:
        yield made


@pytest.fixture
async def channel(front):
    async with front.channel() as made:
        yield made


@pytest.fixture
def metadata(issuer):
    return {role: (("authorization", f"Bearer {issuer.token(role)}"),) for role in (ROLE_OPERATOR, ROLE_GATEWAY, ROLE_METRICS)} | {
        "stranger": (("authorization", f"Bearer {issuer.keys[0].token(STRANGER)}"),),
        "nobody": (),
    }


def call(channel, method, response):
    return channel.unary_unary(method, request_serializer=lambda one: one.SerializeToString(), response_deserializer=response.FromString)


async def set_state(channel, metadata, **order):
    return await call(channel, GRPC_SET_STATE, SetStateResponse)(SetStateRequest(**order), metadata=metadata[ROLE_OPERATOR], timeout=120)


def watched(channel, metadata, role=ROLE_GATEWAY):
    watch = channel.unary_stream(
        GRPC_WATCH_STATE, request_serializer=WatchStateRequest.SerializeToString, response_deserializer=State.FromString
    )
    return watch(WatchStateRequest(watcher="test"), metadata=metadata[role], timeout=120)


async def code_of(awaitable):
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await awaitable
    return refused.value.code()


def http(front, issuer):
    headers = {"authorization": f"Bearer {issuer.token(ROLE_GATEWAY)}"}
    return httpx.AsyncClient(base_url=f"http://{front.http}", headers=headers, timeout=600)


def in_ms(seconds):
    return int((time.time() + seconds) * 1000)


async def test_a_drain_by_order_refuses_and_is_turned_back(front, channel, metadata, issuer):
    deadline = in_ms(30)
    async with http(front, issuer) as client:
        answer = await set_state(channel, metadata, target=TARGET_DRAINING, deadline_unix_ms=deadline, epoch=3)
        assert (answer.phase, answer.deadline_unix_ms, answer.epoch) == (Phase.PHASE_DRAINING, deadline, 3)
        refused = await client.post("/v1/completions", json=LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        again = await set_state(channel, metadata, target=TARGET_DRAINING, deadline_unix_ms=in_ms(900), epoch=3)
        assert again.deadline_unix_ms == deadline
        back = await set_state(channel, metadata, target=TARGET_SERVING, epoch=3)
        assert (back.phase, back.deadline_unix_ms) == (Phase.PHASE_READY, 0)
        served = await client.post("/v1/completions", json={**LONG, "max_tokens": 3})
        assert served.status_code == 200


async def test_at_an_orders_deadline_running_requests_end_and_the_replica_stays(front, channel, metadata, issuer):
    async with http(front, issuer) as client:
        running = asyncio.ensure_future(client.post("/v1/completions", json=ENDLESS))
        await front.until(lambda: front.front.replica.stats.running == 1)
        answer = await set_state(channel, metadata, target=TARGET_DRAINING, deadline_unix_ms=in_ms(0.2), epoch=1)
        assert answer.in_flight == 1
        cut = await running
        assert (cut.status_code, cut.json()["error"]["code"]) == (503, "draining")
        await front.until(lambda: front.front.replica.stats.running == 0)
        await set_state(channel, metadata, target=TARGET_SERVING, epoch=1)
        assert (await client.post("/v1/completions", json={**LONG, "max_tokens": 3})).status_code == 200


@pytest.mark.parametrize("skew_s", [-300, 300])
async def test_how_long_is_left_counts_by_our_own_clock_whatever_time_the_sender_has(skew_s, front, channel, metadata):
    order = {"target": TARGET_DRAINING, "deadline_unix_ms": in_ms(30 + skew_s), "remaining_ms": 30_000}
    before = time.time()
    answer = await set_state(channel, metadata, **order, epoch=1)
    assert before + 29.9 <= answer.deadline_unix_ms / 1000 <= time.time() + 30.1
    left = front.front._control.left_s()
    assert 0 < left <= 30
    # Neither who says it again nor a successor whose clock is the other way round moves it.
    for other in ({**order, "remaining_ms": 1}, {**order, "deadline_unix_ms": in_ms(-skew_s), "remaining_ms": 900_000}):
        again = await set_state(channel, metadata, **other, epoch=2)
        assert again.deadline_unix_ms == answer.deadline_unix_ms
    assert 0 < front.front._control.left_s() <= left


async def test_a_step_of_the_wall_clock_moves_no_deadline(front, channel, metadata, monkeypatch):
    await set_state(channel, metadata, target=TARGET_DRAINING, remaining_ms=30_000, epoch=1)
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + 300)
    assert 0 < front.front._control.left_s() <= 30
    front.front._control.end()  # SIGTERM: the first deadline holds
    assert 0 < front.front._control.left_s() <= 30


async def test_what_reaches_the_engine_after_the_deadline_ends_too(front, channel, metadata, issuer, monkeypatch):
    monkeypatch.setattr(control, "_CUT_AGAIN_S", 0.05)
    encoding, late, cut = ModelText.encode_chat, threading.Event(), asyncio.Event()
    monkeypatch.setattr(ModelText, "encode_chat", lambda *given: late.wait(60) and encoding(*given))
    fail = front.front._control._fail_streams
    monkeypatch.setattr(front.front._control, "_fail_streams", lambda error: (cut.set(), fail(error)))
    async with http(front, issuer) as client:
        chat = {"model": NAME, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4000, "ignore_eos": True}
        running = asyncio.ensure_future(client.post("/v1/chat/completions", json=chat))
        await front.until(lambda: front.front.replica.in_flight == 1)
        await set_state(channel, metadata, target=TARGET_DRAINING, deadline_unix_ms=in_ms(0.05), epoch=1)
        await cut.wait()
        late.set()
        answer = await running
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
        assert front.front.replica.phase == Phase.PHASE_DRAINING


@pytest.mark.deep
async def test_a_drain_that_is_turned_back_cuts_nobody(front, channel, metadata, issuer):
    clock = LoopClock()
    async with http(front, issuer) as client:
        running = asyncio.ensure_future(client.post("/v1/completions", json=LONG))
        await front.until(lambda: front.front.replica.in_flight == 1)  # written by this loop: however late it is, none is missed
        await set_state(channel, metadata, target=TARGET_DRAINING, deadline_unix_ms=in_ms(SOON), epoch=1)
        await set_state(channel, metadata, target=TARGET_SERVING, epoch=1)
        clock.skip(2 * SOON)
        whole = await running
        assert (whole.status_code, whole.json()["usage"]["completion_tokens"]) == (200, 300)


async def test_an_older_epoch_is_refused_and_changes_nothing(front, channel, metadata):
    await set_state(channel, metadata, target=TARGET_DRAINING, epoch=7)
    for target in (TARGET_SERVING, TARGET_DRAINING):
        assert await code_of(set_state(channel, metadata, target=target, epoch=6)) == grpc.StatusCode.FAILED_PRECONDITION
    assert front.front.replica.phase == Phase.PHASE_DRAINING
    assert await code_of(set_state(channel, metadata, target=TARGET_UNSPECIFIED, epoch=8)) == grpc.StatusCode.INVALID_ARGUMENT
    assert front.front.replica.drain.epoch == 7


async def test_after_sigterm_no_order_brings_it_back_and_the_first_deadline_holds(front, channel, metadata, issuer):
    clock = LoopClock()
    async with http(front, issuer) as client:
        running = asyncio.ensure_future(client.post("/v1/completions", json=ENDLESS))
        await front.until(lambda: front.front.replica.stats.running == 1)
        first = in_ms(SOON)
        await set_state(channel, metadata, target=TARGET_DRAINING, deadline_unix_ms=first, epoch=1)
        front.front.stop()
        assert await code_of(set_state(channel, metadata, target=TARGET_SERVING, epoch=2)) == grpc.StatusCode.FAILED_PRECONDITION
        assert front.front.replica.drain.until.unix_ms == first
        clock.skip(2 * SOON)
        assert (await running).json()["error"]["code"] == "draining"
        await front.task


@contextmanager
def standing(clock):
    """No timer strikes before the test says so."""
    clock.stop()
    try:
        yield
    finally:
        clock.go_on()


async def drains_when_told(client, clock, stream):
    """Requests are served until the watcher was told of the drain, and refused after it."""
    served = await client.post("/v1/completions", json=SHORT)
    assert (served.status_code, (await client.get("/health")).status_code) == (200, 503)
    clock.skip(0.1)
    while (await stream.read()).phase != Phase.PHASE_DRAINING:  # of before the drain, read late; what has no phase is the end
        pass
    assert (await client.post("/v1/completions", json=SHORT)).status_code == 200  # a gateway sent it before it could read the frame
    clock.skip(0.3)
    refused = await client.post("/v1/completions", json=SHORT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")


async def test_an_order_to_drain_is_answered_at_once_and_requests_are_refused_when_watchers_know(front, channel, metadata, issuer):
    clock, stream = LoopClock(), watched(channel, metadata)
    assert (await stream.read()).phase == Phase.PHASE_READY
    async with http(front, issuer) as client:
        for epoch in (1, 2):  # one that was turned back is announced again
            with standing(clock):
                answer = await set_state(channel, metadata, target=TARGET_DRAINING, remaining_ms=30_000, epoch=epoch)
                assert answer.phase == Phase.PHASE_DRAINING
                await drains_when_told(client, clock, stream)
            await set_state(channel, metadata, target=TARGET_SERVING, epoch=epoch)
            assert (await client.post("/v1/completions", json=SHORT)).status_code == 200
            while (await stream.read()).phase != Phase.PHASE_READY:
                pass
    stream.cancel()


@pytest.mark.parametrize(("left_ms", "bound_s"), [(30_000, 1.0), (300, 0.3)])
async def test_a_watcher_that_cannot_be_told_delays_refusals_by_a_second_at_most(
    front, channel, metadata, issuer, monkeypatch, left_ms, bound_s
):
    monkeypatch.setattr(grpc_watch, "STATE_FLOOR_MS", 10**8)
    monkeypatch.setattr(grpc_watch, "STATE_HEARTBEAT_MS", 10**8)
    clock, stream = LoopClock(), watched(channel, metadata)
    await stream.read()
    with standing(clock):
        async with http(front, issuer) as client:
            await set_state(channel, metadata, target=TARGET_DRAINING, remaining_ms=left_ms, epoch=1)
            clock.skip(bound_s - 0.05)
            assert (await client.post("/v1/completions", json=SHORT)).status_code == 200
            clock.skip(0.1)
            assert (await client.post("/v1/completions", json=SHORT)).status_code == 503
    stream.cancel()


@pytest.mark.deep
async def test_after_sigterm_an_idle_replica_serves_and_then_refuses_in_words_until_its_watchers_have_heard(
    front, channel, metadata, issuer
):
    clock, stream = LoopClock(), watched(channel, metadata)
    assert (await stream.read()).phase == Phase.PHASE_READY
    async with http(front, issuer) as client:
        with standing(clock):
            front.front.stop()
            await drains_when_told(client, clock, stream)
    await front.task


async def test_the_time_in_which_the_process_was_stopped_gives_nobody_up_after_a_second_signal(front, issuer, monkeypatch):
    clock, given_up = LoopClock(), []
    monkeypatch.setattr(front_module, "_SECOND_SIGNAL_S", 60.0)  # a busy machine may take a while to end in order
    monkeypatch.setattr(front.front, "_give_up", lambda: given_up.append(True))
    async with http(front, issuer) as client:
        running = asyncio.ensure_future(client.post("/v1/completions", json=ENDLESS))
        await front.until(lambda: front.front.replica.stats.running == 1)
        front.front.stop()
        front.front.stop()
        clock.skip(300)  # before the loop has turned once
        assert (await running).json()["error"]["code"] == "draining"
    await front.task
    assert given_up == []


async def test_frames_carry_the_drains_deadline_and_the_epoch(front, channel, metadata):
    stream = watched(channel, metadata)
    assert (await stream.read()).drain_deadline_unix_ms == 0
    deadline = in_ms(60)
    await set_state(channel, metadata, target=TARGET_DRAINING, deadline_unix_ms=deadline, epoch=4)
    async with asyncio.timeout(120):
        while (state := await stream.read()).phase != Phase.PHASE_DRAINING:
            pass
    assert (state.drain_deadline_unix_ms, state.epoch) == (deadline, 4)
    stream.cancel()


async def test_adapters_are_unimplemented_in_a_sentence(channel, metadata):
    ask = call(channel, GRPC_SET_ADAPTERS, SetAdaptersResponse)
    with pytest.raises(grpc.aio.AioRpcError, match="takes no catalogue") as refused:
        await ask(SetAdaptersRequest(), metadata=metadata[ROLE_OPERATOR], timeout=120)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("role", ["nobody", "stranger", ROLE_GATEWAY, ROLE_METRICS])
async def test_only_the_operator_gives_orders(front, channel, metadata, role):
    wanted = grpc.StatusCode.UNAUTHENTICATED if role == "nobody" else grpc.StatusCode.PERMISSION_DENIED
    for method, request, response in (
        (GRPC_SET_STATE, SetStateRequest(target=TARGET_DRAINING, epoch=1), SetStateResponse),
        (GRPC_SET_ADAPTERS, SetAdaptersRequest(), SetAdaptersResponse),
    ):
        assert await code_of(call(channel, method, response)(request, metadata=metadata[role], timeout=120)) == wanted
    assert front.front.replica.phase == Phase.PHASE_READY


@pytest.mark.parametrize(("role", "let_in"), [("nobody", False), (ROLE_METRICS, False), (ROLE_GATEWAY, True), (ROLE_OPERATOR, True)])
async def test_state_is_for_gateways_and_the_operator(channel, metadata, role, let_in):
    stream = watched(channel, metadata, role)
    if let_in:
        assert (await stream.read()).phase == Phase.PHASE_READY
        stream.cancel()
    else:
        assert await code_of(stream.read()) in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


async def test_health_is_open_and_follows_readiness(front, channel, metadata):
    check = call(channel, GRPC_HEALTH_CHECK, health_pb2.HealthCheckResponse)
    for service in ("", "pagoda.v1.Daemon", "pagoda.v1.Inference"):
        answer = await check(health_pb2.HealthCheckRequest(service=service), timeout=120)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert await code_of(check(health_pb2.HealthCheckRequest(service="other"), timeout=120)) == grpc.StatusCode.NOT_FOUND
    await set_state(channel, metadata, target=TARGET_DRAINING, epoch=1)
    answer = await check(health_pb2.HealthCheckRequest(), timeout=120)
    assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_an_unknown_method_is_unimplemented(channel, metadata):
    ask = call(channel, "/pagoda.v1.Daemon/Reboot", SetStateResponse)
    assert await code_of(ask(SetStateRequest(), metadata=metadata[ROLE_OPERATOR], timeout=120)) == grpc.StatusCode.UNIMPLEMENTED


async def test_a_message_larger_than_accepted_is_refused_by_its_length(front, channel, metadata):
    ask = channel.unary_unary(GRPC_SET_STATE, request_serializer=lambda data: data, response_deserializer=lambda data: data)
    assert await code_of(ask(b"\x00" * (9 * 2**20), metadata=metadata[ROLE_OPERATOR], timeout=120)) == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert front.front.replica.accepting


async def test_every_method_stands_in_the_table(front):
    assert {method.method for method in front.front.methods} == METHODS.keys()


async def test_a_caller_that_never_sends_its_message_is_sent_away(front, channel, metadata, monkeypatch):
    monkeypatch.setattr(grpc_server, "_FIRST_MESSAGE_S", 0.05)
    ask = channel.stream_unary(GRPC_SET_STATE, request_serializer=lambda data: data, response_deserializer=lambda data: data)
    silent = ask(metadata=metadata[ROLE_OPERATOR], timeout=120)
    assert await code_of(silent) == grpc.StatusCode.INVALID_ARGUMENT


async def test_watchers_of_health_are_bounded_and_hear_of_changes(front, channel, metadata, monkeypatch):
    monkeypatch.setattr(grpc_health, "_MAX_WATCHERS", 2)
    watch = channel.unary_stream(
        GRPC_HEALTH_WATCH,
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    streams = [watch(health_pb2.HealthCheckRequest(service=name)) for name in ("", "other")]
    first = [(await stream.read()).status for stream in streams]
    assert first == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN]
    assert await code_of(watch(health_pb2.HealthCheckRequest()).read()) == grpc.StatusCode.RESOURCE_EXHAUSTED
    await set_state(channel, metadata, target=TARGET_DRAINING, epoch=1)
    assert (await streams[0].read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    for stream in streams:
        stream.cancel()
