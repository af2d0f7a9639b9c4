"""Generate over a real gRPC port: the same tokens as undisturbed, from any point on; who leaves ends his request; failures have codes."""

import asyncio

import grpc
import pytest
from pagoda_contracts.names import GRPC_GENERATE, ROLE_GATEWAY, ROLE_OPERATOR
from pagoda_contracts.pb import inference_pb2 as pb
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_daemon.api.access.caller import ROLE_CLIENT, Principal
from pagoda_daemon.api.grpc import generate as grpc_generate
from pagoda_daemon.api.grpc.generate import submit_of, terms_of
from pagoda_daemon.core.errors import BadRequest
from pagoda_daemon.core.messages import Abort, Ready
from pagoda_daemon.core.sampling import NUMBERS, OFF
from pagoda_daemon.engine.loop import Engine
from pagoda_daemon.simulated.device.worker import expected_tokens
from pagoda_daemon.simulated.replicas.engine import LocalEngine
from pagoda_daemon.simulated.replicas.text import VOCAB
from support.engine.sampling_rows import not_off
from support.kube.issuer import Issuer
from support.servers.local_front import NAME, local_config, local_front

PROMPT = list(range(5, 45))
LIMITS = Ready(512, VOCAB, 16, 64, 4)
GATEWAY = Principal(ROLE_GATEWAY, "g")
WHOLE = expected_tokens(PROMPT, 200, VOCAB)
ENGINE = {"max_concurrency": 4, "max_model_len": 16_384, "kv_bytes": 2**23}
ENDLESS = 16_000  # tokens, half a minute: such an answer does not end by itself before a busy machine ends it


def asked(**changes):
    sampling = {"max_tokens": 24, "ignore_eos": True, **changes.pop("sampling", {})}
    return pb.GenerateRequest(**{"request_id": "r", "model": NAME, "prompt_tokens": PROMPT, "sampling": pb.Sampling(**sampling), **changes})


@pytest.fixture
async def front(tmp_path):
    async with local_front(local_config(tmp_path, step_ms=2, engine=ENGINE)) as made:
        yield made


@pytest.fixture
async def channel(front):
    async with front.channel() as made:
        yield made


def open_call(channel, request, **options):
    call = channel.unary_stream(
        GRPC_GENERATE,
        request_serializer=pb.GenerateRequest.SerializeToString,
        response_deserializer=pb.GenerateResponse.FromString,
    )
    return call(request, **options)


async def events(channel, request, **options):
    return [event async for event in open_call(channel, request, timeout=60, **options)]


def said(found):
    return [token for event in found if event.WhichOneof("event") == "tokens" for token in event.tokens.ids]


async def test_a_stream_is_accepted_then_tokens_in_order_then_finished(channel):
    found = await events(channel, asked())
    kinds = [event.WhichOneof("event") for event in found]
    assert (kinds[0], kinds[-1], set(kinds[1:-1])) == ("accepted", "finished", {"tokens"})
    assert found[0].accepted.prompt_tokens == len(PROMPT)
    assert said(found) == list(WHOLE[:24])
    assert [event.tokens.index for event in found[1:-1]] == list(range(24))
    assert (found[-1].finished.reason, found[-1].finished.completion_tokens) == (pb.FINISH_REASON_LENGTH, 24)


@pytest.mark.parametrize("known", [1, 7, 16, 23])
async def test_a_stream_that_broke_elsewhere_goes_on_with_the_same_tokens(channel, known):
    found = await events(channel, asked(resumed_tokens=WHOLE[:known]))
    assert said(found) == list(WHOLE[known:24])
    assert found[1].tokens.index == known
    assert found[0].accepted.prompt_tokens == len(PROMPT)
    assert found[-1].finished.completion_tokens == 24


async def test_a_stream_that_broke_right_before_its_end_only_ends(channel):
    found = await events(channel, asked(resumed_tokens=WHOLE[:24]))
    assert [event.WhichOneof("event") for event in found] == ["accepted", "finished"]
    assert (found[1].finished.completion_tokens, found[1].finished.reason) == (24, pb.FINISH_REASON_LENGTH)


async def test_going_on_where_it_was_computed_before_charges_no_less_than_nothing(channel, front):
    await events(channel, asked(sampling={"max_tokens": 100}))
    found = await events(channel, asked(sampling={"max_tokens": 110}, resumed_tokens=WHOLE[:99]))
    assert said(found) == list(WHOLE[99:110])
    stats = front.front.replica.stats
    assert 0 < stats.reused_tokens <= stats.prompt_tokens
    assert found[0].accepted.cached_tokens <= len(PROMPT)


async def test_a_stop_id_ends_it_and_is_its_last_token(channel):
    place = next(at for at in range(4, 24) if WHOLE[at] not in WHOLE[:at])
    found = await events(channel, asked(sampling={"stop_token_ids": [WHOLE[place]]}))
    assert said(found) == list(WHOLE[: place + 1])
    assert found[-1].finished == pb.Finished(reason=pb.FINISH_REASON_STOP, completion_tokens=place + 1)


async def test_a_caller_that_leaves_frees_its_request(front, channel):
    """Within how many steps, `daemon/replica/test_disconnects.py` counts with a device in lock-step."""
    replica = front.front.replica
    for _ in range(20):
        await leave(front, open_call(channel, asked(sampling={"max_tokens": ENDLESS})))
        await front.until(lambda: replica.stats.running == 0)
    await front.until(lambda: replica.in_flight == 0)
    assert replica.stats.blocks_used == 0


async def leave(front, call):
    """Hears a token and goes; returns once the engine has heard of it. Deep checks are sent too."""
    await call.read()
    aborted, engine = asyncio.Event(), front.engine
    real = engine._send

    def send(message):
        if isinstance(message, Abort):
            aborted.set()
        return real(message)

    engine._send = send
    call.cancel()
    async with asyncio.timeout(60):
        await aborted.wait()
    engine._send = real


async def test_what_goes_wrong_has_a_code_and_says_whether_another_replica_may_do_better(front, channel):
    async def failed(request):
        found = await events(channel, request)
        assert [event.WhichOneof("event") for event in found] == ["failed"]
        return found[0].failed.code, found[0].failed.retryable

    assert await failed(asked(model="other")) == ("model_not_found", False)
    assert await failed(asked(prompt_tokens=[])) == ("invalid_value", False)
    assert await failed(asked(prompt_tokens=[VOCAB])) == ("invalid_value", False)
    assert await failed(asked(sampling={"max_tokens": 40_000})) == ("context_length_exceeded", False)
    assert await failed(asked(sampling={"temperature": float("nan")})) == ("invalid_value", False)
    front.front.replica.enter(Phase.PHASE_DRAINING)
    assert await failed(asked()) == ("draining", True)


async def test_a_dead_engine_fails_a_stream_that_others_may_go_on_with(front, channel):
    call = open_call(channel, asked(sampling={"max_tokens": ENDLESS}))
    await call.read()
    front.engine.close()
    rest = []
    while (event := await call.read()) is not grpc.aio.EOF:
        rest.append(event)
    assert (rest[-1].failed.code, rest[-1].failed.retryable) == ("engine_died", True)


class Hastening(Engine):
    """Its clock is put forward by the test."""

    ahead_ms = 0.0

    def __init__(self, wire, config, build, clock_ms, *more):
        super().__init__(wire, config, build, lambda: clock_ms() + Hastening.ahead_ms, *more)


async def test_a_deadline_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr(Hastening, "ahead_ms", 0.0)
    monkeypatch.setattr(LocalEngine, "engine_type", Hastening)
    async with local_front(local_config(tmp_path, step_ms=2, engine=ENGINE)) as front, front.channel() as channel:
        call = open_call(channel, asked(sampling={"max_tokens": ENDLESS}, deadline_ms=600_000))
        found = [await call.read() for _ in range(3)]
        monkeypatch.setattr(Hastening, "ahead_ms", 700_000.0)
        while (event := await call.read()) is not grpc.aio.EOF:
            found.append(event)
    assert found[-1].WhichOneof("event") == "failed"
    assert 0 < len(said(found)) < ENDLESS


async def test_a_short_call_is_a_deadline_too(channel, front):
    call, found = open_call(channel, asked(sampling={"max_tokens": ENDLESS}), timeout=0.2), []
    try:
        found = [event async for event in call]
    except grpc.aio.AioRpcError as late:  # whichever of the two clocks strikes first
        code = late.code()
    assert found[-1].WhichOneof("event") == "failed" if found else code == grpc.StatusCode.DEADLINE_EXCEEDED
    await front.until(lambda: front.front.replica.stats.running == 0)


@pytest.mark.deep
@pytest.mark.parametrize("role", [None, ROLE_OPERATOR])
async def test_only_a_gateway_generates_where_callers_are_distinguished(tmp_path, role):
    issuer = Issuer(tmp_path)
    config = local_config(tmp_path, auth=issuer.config())
    async with local_front(config) as front, front.channel() as channel:
        metadata = (("authorization", f"Bearer {issuer.token(role)}"),) if role else ()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await events(channel, asked(), metadata=metadata)
        assert refused.value.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
        gateway = (("authorization", f"Bearer {issuer.token(ROLE_GATEWAY)}"),)
        assert said(await events(channel, asked(tenant="t", priority=3, cache_salt="s"), metadata=gateway)) == list(WHOLE[:24])


def test_tenant_and_its_like_are_a_gateways_word_only():
    request = asked(tenant="a", priority=4, cache_salt="s", weight=2.0, tier="batch", prefix_hashes=[bytes(16)], deadline_ms=500)
    terms = terms_of(GATEWAY, request, 1.0, None)
    assert (terms.tenant, terms.priority, terms.cache_salt, terms.weight, terms.tier) == ("a", 4, "s", 2.0, "batch")
    assert (terms.prefixes, terms.deadline_ms) == ((bytes(16),), 1500)
    other = terms_of(Principal(ROLE_CLIENT, "k"), request, 1.0, None)
    assert (other.tenant, other.priority, other.cache_salt, other.weight, other.prefixes) == ("key:k", 0, "", 1.0, ())
    assert other.deadline_ms == 1500
    assert terms_of(GATEWAY, request, 1.0, 0.2).deadline_ms == 1200
    assert terms_of(GATEWAY, asked(), 1.0, None).deadline_ms is None


@pytest.mark.parametrize(
    "wrong", [{"tenant": "a b"}, {"priority": 9999}, {"tier": "gold"}, {"weight": float("inf")}, {"prefix_hashes": [b"short"]}]
)
def test_a_gateways_senseless_word_is_refused(wrong):
    with pytest.raises(BadRequest):
        terms_of(GATEWAY, asked(**wrong), 0.0, None)


def test_the_engines_id_is_never_the_callers():
    one, other = (submit_of(asked(request_id="same"), LIMITS, ()) for _ in range(2))
    assert len({one.request_id, other.request_id, "same"}) == 3


@pytest.mark.parametrize("name", NUMBERS)
def test_each_number_of_a_request_is_the_engines_under_the_same_name(name):
    assert getattr(submit_of(asked(sampling={name: not_off(name)}), LIMITS, ()).sampling, name) == not_off(name)


def test_what_is_not_said_of_sampling_changes_nothing():
    sampling = submit_of(asked(sampling={"max_tokens": 0, "ignore_eos": False}), LIMITS, (7,)).sampling
    assert (sampling.max_tokens, sampling.top_p, sampling.repetition_penalty) == (512 - len(PROMPT), 1.0, 1.0)
    assert (sampling.temperature, sampling.seed, sampling.stop_token_ids) == (0.0, None, (7,))
    assert {name: getattr(sampling, name) for name in NUMBERS} == OFF
    assert submit_of(asked(sampling={"has_seed": True, "seed": 0}), LIMITS, ()).sampling.seed == 0


def test_no_more_stop_ids_are_taken_than_over_http():
    assert len(submit_of(asked(sampling={"stop_token_ids": [7] * 1024, "ignore_eos": True}), LIMITS, ()).sampling.stop_token_ids) == 1024
    with pytest.raises(BadRequest, match="at most 1024 entries, got 1025"):
        submit_of(asked(sampling={"stop_token_ids": [7] * 1025}), LIMITS, ())


@pytest.mark.parametrize("field", ["prompt_tokens", "resumed_tokens"])
def test_a_message_with_far_too_many_ids_is_refused_by_their_number(field, monkeypatch):
    monkeypatch.setattr(grpc_generate, "check_ids", lambda *_: pytest.fail("each id was looked at"))
    with pytest.raises(BadRequest) as refused:
        submit_of(asked(**{field: [0] * 100_000}), LIMITS, ())
    assert refused.value.code == "context_length_exceeded"
