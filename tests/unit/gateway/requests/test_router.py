"""Routing of held, refused and lost requests: none is lost, none is served twice, and the hold queue is bounded."""

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pagoda_gateway.requests.errors import (
    AllOverloaded,
    Died,
    HoldTimeout,
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
from pagoda_gateway.watch.services import Hold
from support.suite.profiles import examples
from support.worlds.gateway import GatewayWorld


@dataclass
class Done:
    """An answer, and the life of its request."""

    life: object
    status: int = 200


class World(GatewayWorld):
    """Starts requests whose attempts fail as a test says."""

    def __init__(self, timeout_s=300.0, limit=4, **options):
        super().__init__(timeout_s, limit, **options)
        self.served = []

    async def request(self, label, model="m", failures=(), claim=None, until=None, ping=None):
        """`until`: the replica has the request until this event."""
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
            life.claim, life.ping = claim or life.claim, ping
            return (await self.router.serve(life, attempt)).life

    async def serve(self, attempt):
        """One request for the model m with this attempt."""
        async with self.in_flight.begin() as life:
            life.request = RoutingRequest("m")
            return await self.router.serve(life, attempt)

    def start(self, label, **options):
        return asyncio.create_task(self.request(label, **options))


def discover(world):
    world.service()
    world.synced()


async def turns():
    """Lets every task run until all of them wait: what is left then waits for an event."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_the_held_are_served_in_the_order_they_came():
    world = World()
    discover(world)
    tasks = [world.start(number) for number in range(3)]
    await turns()
    assert (world.served, world.queue.count("ns/s")) == ([], 3)
    world.frame("loading")
    await turns()
    assert world.served == []
    world.frame("ready")
    await asyncio.gather(*tasks)
    assert (world.served, world.queue.total) == ([0, 1, 2], 0)
    assert tasks[0].result().reason == "held-no-replica"


async def test_before_the_first_look_everything_is_held_and_after_it_the_unknown_is_refused():
    world = World()
    unknown, known = world.start("unknown", model="nobody"), world.start("known")
    await turns()
    assert world.queue.total == 2
    discover(world)
    with pytest.raises(ModelNotFound):
        await unknown
    world.frame("ready")
    assert (await known).reason == "held-unsynced"
    assert world.queue.total == 0


async def test_a_name_that_disappears_ends_the_wait():
    world = World()
    discover(world)
    task = world.start(0)
    await turns()
    world.cache.delete_service("ns/s")
    with pytest.raises(ModelNotFound):
        await task
    assert world.queue.total == 0


async def test_a_name_lost_seconds_ago_may_come_back_and_one_lost_long_ago_does_not():
    world = World()
    discover(world)
    world.cache.delete_service("ns/s")
    for passed_ms, retried in ((29_999, True), (1, False)):
        world.now_ms += passed_ms
        with pytest.raises(ModelNotFound) as caught:
            await world.request(0)
        assert (caught.value.status, caught.value.should_retry) == (404, retried)
    discover(world)
    world.frame("ready")
    await world.request("again")
    assert world.served == ["again"]


async def test_a_service_that_only_a_person_can_repair_holds_no_request_and_answers_those_it_held():
    world = World()
    discover(world)
    held = world.start("held")
    await turns()
    world.service(stalled="ModelRejected: no safetensors")
    with pytest.raises(ServiceStalled, match="ModelRejected: no safetensors") as caught:
        await held
    assert (caught.value.should_retry, world.queue.total) == (False, 0)
    with pytest.raises(ServiceStalled):
        await world.request("new")
    world.service()
    cured = world.start("cured")
    await turns()
    world.frame("ready")
    await cured
    assert world.served == ["cured"]


async def test_a_stalled_service_serves_by_the_replicas_that_it_has():
    """The new revision is refused; the old one has one replica, which refuses a request for the moment."""
    world = World()
    world.service(stalled="ModelRejected: no safetensors")
    world.synced()
    world.frame("ready")
    await world.request("old")
    assert world.router.why_not("ns/s") == ""
    task = world.start("refused", failures=[Refused("draining")])
    await turns()
    assert world.queue.total == 1
    world.frame("ready")
    await task
    assert world.served == ["old", "refused"]
    world.cache.delete_replica("ns/a")
    assert world.router.why_not("ns/s") == "ModelRejected: no safetensors"


async def test_a_name_that_moves_takes_its_held_along():
    world = World()
    discover(world)
    task = world.start(0)
    await turns()
    world.service("ns/older", created="2020-01-01T00:00:00Z")
    await turns()
    assert (world.queue.count("ns/s"), world.queue.count("ns/older")) == (0, 1)
    assert [world.tally.of(service).under_way for service in ("ns/s", "ns/older")] == [0, 1]
    world.frame(name="ns/b", service="ns/older", address="b:8000")
    assert (await task).endpoint == "b:8000"


async def test_one_too_many_is_refused_and_a_client_that_leaves_makes_room():
    world = World(limit=2)
    discover(world)
    first, second = world.start(1), world.start(2)
    await turns()
    with pytest.raises(QueueFull) as caught:
        await world.request(3)
    assert "held-no-replica" in caught.value.route
    first.cancel()
    await turns()
    assert world.queue.total == 1
    third = world.start(3)
    await turns()
    world.frame("ready")
    await asyncio.gather(second, third)
    assert world.served == [2, 3]


async def test_time_is_up_says_what_the_nearest_replica_does():
    world = World(timeout_s=0.0)
    discover(world)
    world.frame("loading")
    with pytest.raises(HoldTimeout, match="loading") as caught:
        await world.request(0)
    assert "held-loading" in caught.value.route
    assert world.queue.total == 0


async def test_a_request_that_is_held_twice_waits_no_longer_than_one_that_is_held_once():
    world = World(timeout_s=3600.0)
    discover(world)
    task = world.start(0, failures=[Refused("draining")])
    await turns()
    world.now_ms += 3600_000.0  # its time is up when the first replica comes, which turns it away
    world.frame("ready")
    await turns()
    assert task.done()
    with pytest.raises(HoldTimeout):
        await task


async def test_refused_everywhere_waits_for_a_new_state():
    world = World()
    discover(world)
    world.frame("ready", "ns/a")
    world.frame("ready", "ns/b")
    task = world.start(0, failures=[Refused("draining"), Refused("draining")])
    await turns()
    assert (world.served, world.queue.count("ns/s")) == ([], 1)
    world.frame("ready", "ns/b")
    life = await task
    assert (life.attempt, life.reason, life.endpoint) == (3, "repick-draining", "ns/b:8000")


async def test_a_frame_that_arrives_during_the_attempt_does_not_make_a_dead_endpoint_routable():
    world, went = World(), []
    discover(world)
    world.frame("ready", "ns/a")
    world.frame("ready", "ns/b", running=5)

    async def attempt(address, route, *, fresh):
        went.append(address)
        if len(went) == 1:
            world.frame("ready", "ns/a")
            raise Died("closed")
        return Done(None)

    await world.serve(attempt)
    assert went == ["ns/a:8000", "ns/b:8000"]


@pytest.mark.parametrize(
    ("advances", "error"), [("yyyyyyyyn", True), ("ynn", True), ("ynynyn", False), ("yn", False), ("n", False), ("nn", True)]
)
async def test_a_stream_goes_on_unless_three_replicas_in_a_row_die_before_a_new_token(advances, error):
    """Two that die right after each other have nothing to do with the streams that the second one had taken over. A request without a
    token is sent again once."""
    world, went = World(), []
    discover(world)
    for name in ("ns/a", "ns/b", "ns/c"):
        world.frame("ready", name)
    with world.counters.budget.account() as take:
        life = RequestLife(world.counters, "id", take, RoutingRequest("m"))

        async def attempt(address, route, *, fresh):
            assert fresh is bool(went)
            if len(went) == len(advances):
                return Done(life)
            advanced = advances[len(went)] == "y"
            went.append(address)
            for name in ("ns/a", "ns/b", "ns/c"):
                world.frame("ready", name)
            life.begun, life.advanced = life.begun or advanced, advanced
            raise Died("closed")

        if error:
            with pytest.raises(UpstreamDied):
                await world.router.serve(life, attempt)
        else:
            assert (await world.router.serve(life, attempt)).status == 200
    assert len(went) == len(advances)


async def test_overloaded_everywhere_is_answered_after_one_try_each():
    world = World()
    discover(world)
    world.frame("ready", "ns/a")
    world.frame("ready", "ns/b")
    world.frame("loading", "ns/c")
    went = []

    async def attempt(address, route, *, fresh):
        went.append(address)
        world.frame("ready", address.removesuffix(":8000"))
        raise Overloaded("overloaded")

    with pytest.raises(AllOverloaded) as caught:
        await world.serve(attempt)
    assert sorted(went) == ["ns/a:8000", "ns/b:8000"]
    assert (caught.value.status, caught.value.retry_after, world.queue.total) == (503, 5, 0)
    assert "repick-overloaded" in caught.value.route


async def test_overloaded_here_and_refused_there_waits_for_a_new_state_of_the_other():
    world = World()
    discover(world)
    world.frame("ready", "ns/a")
    world.frame("ready", "ns/b", running=5)
    task = world.start(0, failures=[Refused("draining"), Overloaded("overloaded")])
    await turns()
    world.frame("ready", "ns/a")
    await turns()
    assert (world.served, world.queue.count("ns/s")) == ([], 1)
    world.frame("ready", "ns/b")
    assert (await task).endpoint == "ns/b:8000"


async def test_a_service_says_for_how_long_and_how_many_requests_are_held():
    world = World(timeout_s=3600.0)
    world.service(hold=Hold(timeout_s=0.0))
    world.synced()
    with pytest.raises(HoldTimeout):
        await world.request(0)
    world.service(hold=Hold(requests=1))
    task = world.start("held")
    await turns()
    with pytest.raises(QueueFull, match="at most 1 are"):
        await world.request(1)
    world.service(hold=Hold(requests=0))  # one that was accepted stays
    await turns()
    world.frame()
    await task
    assert world.served == ["held"]


@pytest.mark.parametrize(("ready_in_ms", "retry_after"), [(30_500, 31), (900_000, 120), (-1, 5), (None, 5)])
async def test_a_refusal_for_want_of_room_says_when_a_starting_replica_should_be_ready(ready_in_ms, retry_after):
    world = World(limit=0)
    world.service(ready_at_ms=0 if ready_in_ms is None else round(world.now_ms) + ready_in_ms)
    world.synced()
    with pytest.raises(QueueFull) as caught:
        await world.request(0)
    assert caught.value.retry_after == retry_after


async def test_a_stream_that_is_held_for_long_gets_pings_until_it_is_served():
    world, pings = World(ping_s=0.0), []
    discover(world)

    async def ping(route):
        pings.append(route)
        if len(pings) == 3:
            world.frame()

    await world.request("stream", ping=ping)
    assert pings == ["endpoint=none; reason=held-no-replica; held_ms=0; attempt=1"] * 3
    assert world.served == ["stream"]


async def test_requests_beyond_a_replicas_rows_are_held_and_go_when_one_ends_in_the_order_of_turns():
    """Eight rows, and one more as nobody knows how long requests take. A flood has them all and is held; another tenant is second."""
    world = World(limit=100)
    discover(world)
    world.frame(rows=8)
    ends = [asyncio.Event() for _ in range(30)]
    tasks = [world.start(number, claim=Claim("flood"), until=ends[number]) for number in range(30)]
    await turns()
    assert (world.served, world.queue.count("ns/s")) == (list(range(9)), 21)
    tasks.append(world.start("other", claim=Claim("other")))
    tasks.append(world.start("batch", claim=Claim("other", rank_of("batch", 0))))
    for number in range(2):
        ends[number].set()
        await turns()
    assert world.served[9:] == [9, "other", 10]  # the other one's place is free again at once
    assert tasks[30].result().reason == "held-full"
    assert tasks[0].result().reason == "only-endpoint"
    for end in ends:
        end.set()
    await asyncio.gather(*tasks)
    assert [one for one in world.served if isinstance(one, int)] == list(range(30)), "the order of a tenant"
    assert 0 < world.served.index("batch") - 9 <= 10, "of ten turns one is for the batch tier"
    assert world.queue.total == 0


async def test_a_request_is_held_only_if_all_replicas_are_full_and_takes_the_first_place_that_is_free():
    world = World(limit=100)
    discover(world)
    for name in ("ns/a", "ns/b"):
        world.frame(name=name, rows=8)
    ends = [asyncio.Event() for _ in range(18)]
    tasks = [world.start(number, until=ends[number]) for number in range(18)]
    await turns()
    assert (len(world.served), world.queue.count("ns/s")) == (18, 0)
    tasks.append(world.start("held"))
    await turns()
    assert (len(world.served), world.queue.count("ns/s")) == (18, 1)
    world.frame(name="ns/a", rows=8, running=8)  # nothing has ended
    await turns()
    assert world.queue.count("ns/s") == 1
    ends[7].set()
    await turns()
    assert world.served[-1] == "held"
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
        world, tasks = World(limit=6), []
        discover(world)
        for what, value in steps:
            if what == "arrive":
                tasks.append(world.start(len(tasks), failures=[Refused("draining")] * value))
            elif what == "leave" and value < len(tasks):
                tasks[value].cancel()
            elif what == "phase":
                world.frame(value)
            else:
                for _ in range(value):
                    await asyncio.sleep(0)
            assert world.queue.total <= 6
        for _ in range(2 * len(tasks) + 1):  # a frame forgives the replica one refusal, and no request has more than two
            world.frame("ready")
            await turns()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        done = [label for label, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
        assert sorted(world.served) == sorted(set(world.served)), "served twice"
        assert set(done) <= set(world.served)
        assert all(
            not isinstance(outcome, BaseException) or isinstance(outcome, QueueFull | asyncio.CancelledError) for outcome in outcomes
        )
        assert world.queue.total == 0
        assert all(endpoint.in_flight == 0 for endpoint in world.cache.endpoints(world.cache.resolve("m")))

    asyncio.run(asyncio.wait_for(scenario(), 60))
