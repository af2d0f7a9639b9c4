"""Routing of held, refused and lost requests: none is lost, none is served twice, and the hold queue is bounded."""

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pagoda_gateway.limits.rules import Policy, Rule
from pagoda_gateway.requests.errors import (
    UNREACHABLE,
    AllOverloaded,
    Died,
    HoldTimeout,
    ModelNotAllowed,
    ModelNotFound,
    Overloaded,
    QueueFull,
    Refused,
    ServiceStalled,
    UpstreamDied,
)
from pagoda_gateway.requests.hold_queue import Claim
from pagoda_gateway.requests.lifecycle import RequestLife
from pagoda_gateway.routing.request import RoutingRequest
from pagoda_gateway.routing.turns import rank_of
from pagoda_gateway.watch.services import Hold, Service
from support.harness.gateway import GatewayHarness
from support.suite.profiles import examples


@dataclass
class Done:
    """An answer, and the life of its request."""

    life: object
    status: int = 200


class Harness(GatewayHarness):
    """Starts requests whose attempts fail as a test says."""

    def __init__(self, timeout_s=300.0, limit=4, **options):
        super().__init__(timeout_s, limit, **options)
        self.served = []

    async def request(self, label, model="m", failures=(), until=None, **of_life):
        """`until`: the replica has the request until this event. The rest are fields of its life."""
        failures = list(failures)

        async with self.in_flight.begin() as life:

            async def attempt(address, route, *, fresh):
                if failures:
                    raise failures.pop()
                self.served.append(label)
                if until is not None:
                    await until.wait()
                return Done(life)

            life.request = RoutingRequest(model)
            for name, value in of_life.items():
                setattr(life, name, value)
            return (await self.router.serve(life, attempt)).life

    async def serve(self, attempt):
        """One request for the model m with this attempt."""
        async with self.in_flight.begin() as life:
            life.request = RoutingRequest("m")
            return await self.router.serve(life, attempt)

    def start(self, label, **options):
        return asyncio.create_task(self.request(label, **options))


def discover(harness):
    harness.service()
    harness.synced()


async def turns():
    """Lets every task run until all of them wait: what is left then waits for an event."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_the_held_are_served_in_the_order_they_came():
    harness = Harness()
    discover(harness)
    tasks = [harness.start(number) for number in range(3)]
    await turns()
    assert (harness.served, harness.queue.count("ns/s")) == ([], 3)
    harness.frame("loading")
    await turns()
    assert harness.served == []
    harness.frame("ready")
    await asyncio.gather(*tasks)
    assert (harness.served, harness.queue.total) == ([0, 1, 2], 0)
    assert tasks[0].result().reason == "held-no-replica"


async def test_before_the_first_look_everything_is_held_and_after_it_the_unknown_is_refused():
    harness = Harness()
    unknown, known = harness.start("unknown", model="nobody"), harness.start("known")
    await turns()
    assert harness.queue.total == 2
    discover(harness)
    with pytest.raises(ModelNotFound):
        await unknown
    harness.frame("ready")
    assert (await known).reason == "held-unsynced"
    assert harness.queue.total == 0


async def test_a_name_that_disappears_ends_the_wait():
    harness = Harness()
    discover(harness)
    task = harness.start(0)
    await turns()
    harness.cache.delete_service("ns/s")
    with pytest.raises(ModelNotFound):
        await task
    assert harness.queue.total == 0


async def test_a_name_that_moves_to_a_namespace_that_is_hidden_from_the_tenant_ends_its_wait():
    harness = Harness()
    discover(harness)
    policy = Policy((Rule("a", namespaces=frozenset({"ns", "other"})), Rule("b", namespaces=frozenset({"ns"}))))
    held, free = harness.start("held", policy=policy), harness.start("free")
    await turns()
    harness.service("other/x", created="2026-01-02T00:00:00Z")
    harness.cache.delete_service("ns/s")
    with pytest.raises(ModelNotAllowed):
        await held
    harness.frame(name="other/a", service="other/x")
    await free
    assert harness.served == ["free"]


async def test_a_name_lost_seconds_ago_may_come_back_and_one_lost_long_ago_does_not():
    harness = Harness()
    discover(harness)
    harness.cache.delete_service("ns/s")
    for passed_ms, retried in ((29_999, True), (1, False)):
        harness.now_ms += passed_ms
        with pytest.raises(ModelNotFound) as caught:
            await harness.request(0)
        assert (caught.value.status, caught.value.should_retry) == (404, retried)
    discover(harness)
    harness.frame("ready")
    await harness.request("again")
    assert harness.served == ["again"]


async def test_a_service_that_only_a_person_can_repair_holds_no_request_and_answers_those_it_held():
    harness = Harness()
    discover(harness)
    held = harness.start("held")
    await turns()
    harness.service(stalled="ModelRejected: no safetensors")
    with pytest.raises(ServiceStalled, match="ModelRejected: no safetensors") as caught:
        await held
    assert (caught.value.should_retry, harness.queue.total) == (False, 0)
    with pytest.raises(ServiceStalled):
        await harness.request("new")
    harness.service()
    cured = harness.start("cured")
    await turns()
    harness.frame("ready")
    await cured
    assert harness.served == ["cured"]


async def test_a_stalled_service_serves_by_the_replicas_that_it_has():
    """The new revision is refused; the old one has one replica, which refuses a request for the moment."""
    harness = Harness()
    harness.service(stalled="ModelRejected: no safetensors")
    harness.synced()
    harness.frame("ready")
    await harness.request("old")
    assert harness.router.why_not("ns/s") == ""
    task = harness.start("refused", failures=[Refused("draining")])
    await turns()
    assert harness.queue.total == 1
    harness.frame("ready")
    await task
    assert harness.served == ["old", "refused"]
    harness.cache.delete_replica("ns/a")
    assert harness.router.why_not("ns/s") == "ModelRejected: no safetensors"


async def test_a_name_that_moves_takes_its_held_along():
    harness = Harness()
    discover(harness)
    task = harness.start(0)
    await turns()
    harness.service("ns/older", created="2020-01-01T00:00:00Z")
    await turns()
    assert (harness.queue.count("ns/s"), harness.queue.count("ns/older")) == (0, 1)
    assert [harness.tally.of(service).under_way for service in ("ns/s", "ns/older")] == [0, 1]
    harness.frame(name="ns/b", service="ns/older", address="b:8000")
    assert (await task).endpoint == "b:8000"


async def test_one_too_many_is_refused_and_a_client_that_leaves_makes_room():
    harness = Harness(limit=2)
    discover(harness)
    first, second = harness.start(1), harness.start(2)
    await turns()
    with pytest.raises(QueueFull) as caught:
        await harness.request(3)
    assert "held-no-replica" in caught.value.route
    first.cancel()
    await turns()
    assert harness.queue.total == 1
    third = harness.start(3)
    await turns()
    harness.frame("ready")
    await asyncio.gather(second, third)
    assert harness.served == [2, 3]


async def test_time_is_up_says_what_the_nearest_replica_does():
    harness = Harness(timeout_s=0.0)
    discover(harness)
    harness.frame("loading")
    with pytest.raises(HoldTimeout, match="loading") as caught:
        await harness.request(0)
    assert "held-loading" in caught.value.route
    assert harness.queue.total == 0


async def test_a_request_that_is_held_twice_waits_no_longer_than_one_that_is_held_once():
    harness = Harness(timeout_s=3600.0)
    discover(harness)
    task = harness.start(0, failures=[Refused("draining")])
    await turns()
    harness.now_ms += 3600_000.0  # its time is up when the first replica comes, which turns it away
    harness.frame("ready")
    await turns()
    assert task.done()
    with pytest.raises(HoldTimeout):
        await task


async def test_refused_everywhere_waits_for_a_new_state():
    harness = Harness()
    discover(harness)
    harness.frame("ready", "ns/a")
    harness.frame("ready", "ns/b")
    task = harness.start(0, failures=[Refused("draining"), Refused("draining")])
    await turns()
    assert (harness.served, harness.queue.count("ns/s")) == ([], 1)
    harness.frame("ready", "ns/b")
    life = await task
    assert (life.attempt, life.reason, life.endpoint) == (3, "repick-draining", "ns/b:8000")


async def test_a_frame_that_arrives_during_the_attempt_does_not_make_a_dead_endpoint_routable():
    harness, went = Harness(), []
    discover(harness)
    harness.frame("ready", "ns/a")
    harness.frame("ready", "ns/b", running=5)

    async def attempt(address, route, *, fresh):
        went.append(address)
        if len(went) == 1:
            harness.frame("ready", "ns/a")
            raise Died("closed")
        return Done(None)

    await harness.serve(attempt)
    assert went == ["ns/a:8000", "ns/b:8000"]


@pytest.mark.parametrize(
    ("advances", "error"), [("yyyyyyyyn", True), ("ynn", True), ("ynynyn", False), ("yn", False), ("n", False), ("nn", True)]
)
async def test_a_stream_goes_on_unless_three_replicas_in_a_row_die_before_a_new_token(advances, error):
    """Two that die right after each other have nothing to do with the streams that the second one had taken over. A request without a
    token is sent again once."""
    harness, went = Harness(), []
    discover(harness)
    for name in ("ns/a", "ns/b", "ns/c"):
        harness.frame("ready", name)
    with harness.counters.budget.account() as take:
        life = RequestLife(harness.counters, "id", take, RoutingRequest("m"))

        async def attempt(address, route, *, fresh):
            assert fresh is bool(went)
            if len(went) == len(advances):
                return Done(life)
            advanced = advances[len(went)] == "y"
            went.append(address)
            for name in ("ns/a", "ns/b", "ns/c"):
                harness.frame("ready", name)
            life.begun, life.advanced = life.begun or advanced, advanced
            raise Died("closed")

        if error:
            with pytest.raises(UpstreamDied):
                await harness.router.serve(life, attempt)
        else:
            assert (await harness.router.serve(life, attempt)).status == 200
    assert len(went) == len(advances)


@pytest.mark.parametrize("error", [Died("closed"), Refused(UNREACHABLE)])
async def test_a_replica_that_fails_its_requests_is_left_out_and_asked_before_a_request_has_to_wait(error):
    harness, went, broken = Harness(), [], {"ns/a"}
    discover(harness)

    async def attempt(address, route, *, fresh):
        went.append(address.removesuffix(":8000"))
        if went[-1] in broken:
            raise error
        return Done(None)

    async def ask(times, after_ms=0):
        for _ in range(times):
            harness.now_ms += after_ms
            for name in ("ns/a", "ns/b"):
                harness.frame("ready", name)
            await harness.serve(attempt)

    await ask(20)
    assert (went.count("ns/a"), went[-10:]) == (5, ["ns/b"] * 10)
    await ask(10, after_ms=1_000)
    assert went.count("ns/a") == 6, "after its time it gets one request"
    broken.symmetric_difference_update({"ns/a", "ns/b"})
    await ask(1)
    assert went[-2:] == ["ns/b", "ns/a"], "no other one can take this request"


async def test_overloaded_everywhere_is_answered_after_one_try_each():
    harness = Harness()
    discover(harness)
    harness.frame("ready", "ns/a")
    harness.frame("ready", "ns/b")
    harness.frame("loading", "ns/c")
    went = []

    async def attempt(address, route, *, fresh):
        went.append(address)
        harness.frame("ready", address.removesuffix(":8000"))
        raise Overloaded("overloaded")

    with pytest.raises(AllOverloaded) as caught:
        await harness.serve(attempt)
    assert sorted(went) == ["ns/a:8000", "ns/b:8000"]
    assert (caught.value.status, caught.value.retry_after, harness.queue.total) == (503, 5, 0)
    assert "repick-overloaded" in caught.value.route


async def test_a_replica_without_a_place_for_an_adapter_gets_other_requests_before_its_next_frame():
    harness = Harness()
    harness.cache.put_service(Service("ns/s", "", "2026-01-01T00:00:00Z", ("m", "pirate")))
    harness.synced()
    harness.frame("ready")
    (endpoint,) = harness.cache.endpoints(harness.cache.service("ns/s"))
    endpoint.frame = endpoint.frame._replace(adapters=frozenset({"pirate"}))
    with pytest.raises(AllOverloaded):
        await harness.request("adapter", model="pirate", failures=[Overloaded("overloaded")])
    await harness.request("model")
    waiting = harness.start("adapter", model="pirate")
    await turns()
    assert (harness.served, harness.queue.total) == (["model"], 1)
    harness.frame("ready")
    endpoint.frame = endpoint.frame._replace(adapters=frozenset({"pirate"}))
    await waiting


async def test_overloaded_here_and_refused_there_waits_for_a_new_state_of_the_other():
    harness = Harness()
    discover(harness)
    harness.frame("ready", "ns/a")
    harness.frame("ready", "ns/b", running=5)
    task = harness.start(0, failures=[Refused("draining"), Overloaded("overloaded")])
    await turns()
    harness.frame("ready", "ns/a")
    await turns()
    assert (harness.served, harness.queue.count("ns/s")) == ([], 1)
    harness.frame("ready", "ns/b")
    assert (await task).endpoint == "ns/b:8000"


async def test_a_service_says_for_how_long_and_how_many_requests_are_held():
    harness = Harness(timeout_s=3600.0)
    harness.service(hold=Hold(timeout_s=0.0))
    harness.synced()
    with pytest.raises(HoldTimeout):
        await harness.request(0)
    harness.service(hold=Hold(requests=1))
    task = harness.start("held")
    await turns()
    with pytest.raises(QueueFull, match="at most 1 are"):
        await harness.request(1)
    harness.service(hold=Hold(requests=0))  # one that was accepted stays
    await turns()
    harness.frame()
    await task
    assert harness.served == ["held"]


@pytest.mark.parametrize(("ready_in_ms", "retry_after"), [(30_500, 31), (900_000, 120), (-1, 5), (None, 5)])
async def test_a_refusal_for_want_of_room_says_when_a_starting_replica_should_be_ready(ready_in_ms, retry_after):
    harness = Harness(limit=0)
    harness.service(ready_at_ms=0 if ready_in_ms is None else round(harness.now_ms) + ready_in_ms)
    harness.synced()
    with pytest.raises(QueueFull) as caught:
        await harness.request(0)
    assert caught.value.retry_after == retry_after


async def test_a_stream_that_is_held_for_long_gets_pings_until_it_is_served():
    harness, pings = Harness(ping_s=0.0), []
    discover(harness)

    async def ping(route):
        pings.append(route)
        harness.now_ms += 15_000
        if len(pings) == 3:
            harness.frame()

    await harness.request("stream", ping=ping)
    assert pings == [f"endpoint=none; reason=held-no-replica; held_ms={held_ms}; attempt=1" for held_ms in (0, 15_000, 30_000)]
    assert harness.served == ["stream"]


async def test_requests_beyond_a_replicas_rows_are_held_and_go_when_one_ends_in_the_order_of_turns():
    """Eight rows, and one more as nobody knows how long requests take. A flood has them all and is held; another tenant is second."""
    harness = Harness(limit=100)
    discover(harness)
    harness.frame(rows=8)
    ends = [asyncio.Event() for _ in range(30)]
    tasks = [harness.start(number, claim=Claim("flood"), until=ends[number]) for number in range(30)]
    await turns()
    assert (harness.served, harness.queue.count("ns/s")) == (list(range(9)), 21)
    tasks.append(harness.start("other", claim=Claim("other")))
    tasks.append(harness.start("batch", claim=Claim("other", rank_of("batch", 0))))
    for number in range(2):
        ends[number].set()
        await turns()
    assert harness.served[9:] == [9, "other", 10]  # the other one's place is free again at once
    assert tasks[30].result().reason == "held-full"
    assert tasks[0].result().reason == "only-endpoint"
    for end in ends:
        end.set()
    await asyncio.gather(*tasks)
    assert [one for one in harness.served if isinstance(one, int)] == list(range(30)), "the order of a tenant"
    assert 0 < harness.served.index("batch") - 9 <= 10, "of ten turns one is for the batch tier"
    assert harness.queue.total == 0


async def test_a_request_is_held_only_if_all_replicas_are_full_and_takes_the_first_place_that_is_free():
    harness = Harness(limit=100)
    discover(harness)
    for name in ("ns/a", "ns/b"):
        harness.frame(name=name, rows=8)
    ends = [asyncio.Event() for _ in range(18)]
    tasks = [harness.start(number, until=ends[number]) for number in range(18)]
    await turns()
    assert (len(harness.served), harness.queue.count("ns/s")) == (18, 0)
    tasks.append(harness.start("held"))
    await turns()
    assert (len(harness.served), harness.queue.count("ns/s")) == (18, 1)
    harness.frame(name="ns/a", rows=8, running=8)  # nothing has ended
    await turns()
    assert harness.queue.count("ns/s") == 1
    ends[7].set()
    await turns()
    assert harness.served[-1] == "held"
    assert tasks[-1].result().reason == "held-full"
    for end in ends:
        end.set()
    await asyncio.gather(*tasks)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, 2)),
        st.tuples(st.just("leave"), st.integers(0, 20)),
        st.tuples(st.just("phase"), st.sampled_from(["ready", "loading", "draining"])),
        st.tuples(st.just("turn"), st.integers(0, 3)),
    ),
    max_size=40,
)


@settings(max_examples=examples(30), deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(STEPS)
def test_no_request_is_lost_and_none_is_served_twice(steps):
    """Arrivals with 0 to 2 refusals each, departures, phases, and any interleaving; at the end a replica stays ready."""

    async def scenario():
        harness, tasks = Harness(limit=6), []
        discover(harness)
        for what, value in steps:
            if what == "arrive":
                tasks.append(harness.start(len(tasks), failures=[Refused("draining")] * value))
            elif what == "leave" and value < len(tasks):
                tasks[value].cancel()
            elif what == "phase":
                harness.frame(value)
            else:
                for _ in range(value):
                    await asyncio.sleep(0)
            assert harness.queue.total <= 6
        for _ in range(2 * len(tasks) + 1):  # a frame forgives the replica one refusal, and no request has more than two
            harness.frame("ready")
            await turns()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        done = [label for label, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
        assert sorted(harness.served) == sorted(set(harness.served)), "served twice"
        assert set(done) <= set(harness.served)
        assert all(
            not isinstance(outcome, BaseException) or isinstance(outcome, QueueFull | asyncio.CancelledError) for outcome in outcomes
        )
        assert harness.queue.total == 0
        assert all(endpoint.in_flight == 0 for endpoint in harness.cache.endpoints(harness.cache.resolve("m")))

    asyncio.run(asyncio.wait_for(scenario(), 60))


async def test_a_request_whose_replicas_are_full_stops_no_other_one():
    """The first one was refused by the idle replica, so only the full one is left for it."""
    harness = Harness(limit=20)
    discover(harness)
    harness.frame(name="ns/idle", rows=8)
    harness.frame(name="ns/full", rows=1, running=40)
    for endpoint in harness.cache.endpoints(harness.cache.service("ns/s")):
        endpoint.in_flight = 5 if endpoint.name == "ns/full" else 0
    refused = harness.start("refused", failures=[Overloaded("overloaded")])
    await turns()
    assert harness.queue.count("ns/s") == 1
    others = [harness.start(number) for number in range(4)]
    await turns()
    harness.now_ms += 500
    harness.frame(name="ns/idle", rows=8)  # its refusal counts until then
    await asyncio.gather(*others)
    assert (sorted(harness.served), harness.queue.count("ns/s")) == ([0, 1, 2, 3], 1)
    refused.cancel()


async def test_a_request_held_before_the_first_sync_waits_as_its_service_says():
    harness = Harness(timeout_s=300.0)
    early = harness.start("early")
    await turns()
    harness.service(hold=Hold(0.05, None))
    harness.synced()
    with pytest.raises(HoldTimeout):
        await early
