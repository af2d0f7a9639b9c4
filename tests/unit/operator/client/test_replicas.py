"""Replicas' states without a gateway: the report says what a gateway would say of them, and counts requests over restarts."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.names import ROLE_OPERATOR
from pagoda_contracts.pb import demand_pb2 as pb
from pagoda_contracts.pb.daemon_pb2 import Phase, State
from pagoda_gateway.demand.service_demand import Facts, Held, service_demand
from pagoda_gateway.requests.tally import ServiceTally
from pagoda_gateway.routing.endpoint import Endpoint
from pagoda_gateway.watch.services import Service
from pagoda_gateway.watch.state_streams import parse_state
from pagoda_operator.api.pods import Pod
from pagoda_operator.api.signals import Seen
from pagoda_operator.api.state import Key
from pagoda_operator.client.daemons import OwnToken
from pagoda_operator.client.replicas import Replica, Replicas, states
from pagoda_operator.client.signals import Signals
from support.kube.issuer import Issuer
from support.servers.local_front import local_config, local_front
from support.servers.scripted_replica import Replica as Scripted
from support.servers.scripted_replica import running

KEY = Key("ns", "s")
POD = Pod("p", "r1", "gpu", ready=True, meta={"uid": "u"}, address="127.0.0.1")

SHARED = ("running", "waiting", "blocks_used", "blocks_total", "ttft_p95_ms")
FRAMES = st.builds(
    State,
    phase=st.sampled_from([phase for phase in Phase.values() if phase]),
    revision=st.just("r2"),
    running=st.integers(0, 9),
    waiting=st.integers(0, 9),
    in_flight=st.integers(0, 9),
    blocks_used=st.integers(0, 50),
    blocks_total=st.integers(50, 99),
    ttft_p95_ms=st.integers(0, 9_000),
    engine_heartbeat_age_ms=st.sampled_from([0, 900, 2_900, 3_100]),
    step_age_ms=st.sampled_from([0, 4_000, 6_000, 29_000, 31_000, 90_000]),
    predicted_step_ms=st.sampled_from([0, 1_000, 4_000]),
    deep_check_failed=st.booleans(),
    device_fault=st.sampled_from(["", "Xid 79"]),
    warm_ms=st.sampled_from([0, 4_500]),
)


def by_gateway(state: State, silent_s: float, draining: bool) -> pb.ServiceDemand:
    """What a gateway says that has read the same frame as long ago, and has no requests of its own."""
    endpoint = Endpoint("ns/p", "ns/s", "127.0.0.1:8000", draining=draining, connected=True)
    endpoint.frame, endpoint.frame_made_ms = parse_state(state), 100_000
    facts = Facts(Service("ns/s", "uid", "", ("s",)), (endpoint,), Held(0, None), ServiceTally())
    return service_demand(facts, 100_000 + 1_000 * silent_s)


@given(FRAMES, st.sampled_from([0.0, 1.0, 2.0, 4.0]), st.booleans())
def test_the_report_says_what_a_gateway_would_say(state, silent_s, draining):
    heard = Replica(replace(POD, drain_deadline_ms=1 if draining else None))
    heard.hear(state, 100.0)
    ours, theirs = states(KEY, [heard], 100.0 + silent_s), by_gateway(state, silent_s, draining)
    assert [getattr(ours, name) for name in SHARED] == [getattr(theirs, name) for name in SHARED]
    (mine,), (other,) = ours.endpoints, theirs.endpoints
    usable = {pb.VERDICT_SUSPECT: pb.VERDICT_FRESH}  # a doubt decides nothing of the operator's
    assert mine.verdict == usable.get(other.verdict, other.verdict)
    same = ("pod", "revision", "in_flight", "draining", "phase", "deep_check_failed", "device_fault", "warm_ms")
    assert [getattr(mine, name) for name in same] == [getattr(other, name) for name in same]
    if mine.verdict == pb.VERDICT_DEAD and not draining:
        assert mine.reason == other.reason


def test_requests_count_from_the_first_frame_and_over_a_restart():
    heard = Replica(POD)
    for admitted, ended in ((100, 98), (105, 104), (3, 1), (4, 4)):
        heard.hear(State(requests_admitted=admitted, requests_ended=ended), 0.0)
    assert (heard.admitted, heard.ended) == (5 + 3 + 1, 6 + 1 + 3)


@pytest.fixture
async def scripted():
    async with running(Scripted("p")) as replica:
        yield replica


async def until(found):
    async with asyncio.timeout(60):
        while not found():
            await asyncio.sleep(0.01)


async def test_a_replica_is_read_until_it_goes_and_its_requests_still_count(scripted):
    clock = asyncio.get_running_loop().time
    signals = Signals(clock, lambda _: None, wakes=False)
    replicas = Replicas(signals, clock, "test", port=int(scripted.grpc.rpartition(":")[2]))
    task = asyncio.create_task(replicas.run())
    scripted.say(requests_admitted=7, requests_ended=7)
    replicas.follow(KEY, [POD, replace(POD, name="q", meta={"uid": "v"}, address="")])
    await until(lambda: (seen := signals.of(KEY, 0)) is not None and seen.endpoints["p"].verdict is Seen.FRESH)
    scripted.say(requests_admitted=9, requests_ended=8, running=1)
    await until(lambda: replicas.report().services[0].requests_arrived == 2)
    assert signals.of(KEY, 0).wakes is False
    replicas.follow(KEY, [])
    (left,) = replicas.report().services
    assert (left.requests_arrived, left.requests_ended, list(left.endpoints)) == (2, 2, [])
    replicas.forget(KEY)
    assert not replicas.report().services
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def heard(replicas):
    """The verdict and reason of each replica."""
    (service,) = replicas.report().services
    return [(one.verdict, one.reason) for one in service.endpoints]


async def test_a_replica_that_asks_for_tokens_is_heard_with_the_operators_and_not_without(tmp_path):
    issuer, clock = Issuer(tmp_path), asyncio.get_running_loop().time
    (tmp_path / "token").write_text(issuer.token(ROLE_OPERATOR))
    async with local_front(local_config(tmp_path, auth=issuer.config())) as front:
        port = int(front.grpc.rpartition(":")[2])
        named = Replicas(Signals(clock, lambda _: None), clock, "test", OwnToken(tmp_path / "token"), port)
        nameless = Replicas(Signals(clock, lambda _: None), clock, "test", port=port)
        for one in (named, nameless):
            one.follow(KEY, [POD])
        await until(lambda: heard(named) == [(pb.VERDICT_FRESH, "ready")])
        assert heard(nameless) == [(pb.VERDICT_UNSPECIFIED, "unheard")]
        for one in (named, nameless):
            one.forget(KEY)


async def test_a_pod_with_another_address_is_read_anew_and_no_stream_stays(scripted):
    clock = asyncio.get_running_loop().time
    replicas = Replicas(Signals(clock, lambda _: None), clock, "test", port=int(scripted.grpc.rpartition(":")[2]))
    replicas.follow(KEY, [replace(POD, address="127.255.255.254")])
    assert heard(replicas) == [(pb.VERDICT_UNSPECIFIED, "unheard")]
    replicas.follow(KEY, [POD])
    await until(lambda: heard(replicas) == [(pb.VERDICT_FRESH, "ready")])
    replicas.forget(KEY)
    await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name() == "state p"])
