"""The lines of held requests: nobody is lost, nobody is served twice, and there is a bound. First the books, then the whole router."""

import asyncio

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from pagoda_gateway.requests.errors import AllOverloaded, Died, HoldTimeout, ModelNotFound, Overloaded, QueueFull, Refused
from pagoda_gateway.requests.hold_queue import Hold
from pagoda_gateway.requests.router import Journey, Router
from pagoda_gateway.requests.tally import Tally
from pagoda_gateway.routing.picker import Frame
from pagoda_gateway.watch.fleet import Fleet, Member, Service
from support.suite.profiles import examples

LIMIT = 4
SERVICES = st.sampled_from(["x", "y"])


class Books(RuleBasedStateMachine):
    """A model: the list of who waits where, in order, since when, and who was woken."""

    tickets = Bundle("tickets")

    def __init__(self):
        super().__init__()
        self.hold = Hold(LIMIT)
        self.waiting = []
        self.woken = set()
        self.since = {}

    @rule(target=tickets, service=SERVICES, now=st.integers(1, 1000))
    def enter(self, service, now):
        if len(self.waiting) == LIMIT:
            with pytest.raises(QueueFull):
                self.hold.enter(service, now)
            return None
        ticket = self.hold.enter(service, now)
        self.waiting.append((ticket, service))
        self.since[ticket] = now
        return ticket

    @rule(ticket=consumes(tickets))
    def leave(self, ticket):
        if ticket is not None:
            self.hold.leave(ticket)
            self.waiting = [entry for entry in self.waiting if entry[0] is not ticket]

    @rule(target=tickets, ticket=consumes(tickets), service=SERVICES)
    def move(self, ticket, service):
        if ticket is None:
            return None
        moved = self.hold.move(ticket, service)
        self.since[moved] = self.since[ticket]
        self.waiting = [entry for entry in self.waiting if entry[0] is not ticket] + [(moved, service)]
        return moved

    @rule(service=SERVICES)
    def wake(self, service):
        self.hold.wake(service)
        self.woken |= {ticket for ticket, place in self.waiting if place == service}

    @rule()
    def wake_all(self):
        self.hold.wake_all()
        self.woken |= {ticket for ticket, _ in self.waiting}

    @invariant()
    def books_agree(self):
        assert self.hold.total == len(self.waiting) <= LIMIT
        for service in ("x", "y"):
            since = [self.since[ticket] for ticket, place in self.waiting if place == service]
            assert (self.hold.count(service), self.hold.oldest(service)) == (len(since), min(since, default=None))
        for ticket, _ in self.waiting:
            assert ticket.woken == (ticket in self.woken)


TestBooks = Books.TestCase


class Silent:
    def repicked(self, service, reason): ...
    def held(self, service, seconds): ...


class World:
    """A router over a fleet of one service, with time that stands still unless told."""

    def __init__(self, timeout_s=300.0, limit=LIMIT):
        self.fleet, self.hold = Fleet(), Hold(limit)
        self.now_ms = 0.0
        self.tally = Tally()
        self.router = Router(self.fleet, self.hold, Silent(), timeout_s, lambda: self.now_ms, self.tally)
        self.fleet.on_state, self.fleet.on_names = self.router.state_changed, self.router.names_changed
        self.sequence = 0
        self.served = []

    def discover(self):
        self.fleet.put_service(Service("ns/s", "", "2026-01-01T00:00:00Z", ("m",)))
        self.fleet.mark_synced("services")
        self.fleet.mark_synced("members")

    def phase(self, phase, name="ns/a", running=0):
        self.fleet.put_member(Member(name, "ns/s", "", f"{name}:8000", "", leaving=False))
        self.sequence += 1
        self.fleet.hear(name, Frame(self.sequence, phase, running, 0, 0), self.now_ms, self.now_ms)

    async def request(self, label, model="m", failures=()):
        failures = list(failures)
        journey = Journey(model)

        async def attempt(http, route, *, fresh):
            if failures:
                raise failures.pop()
            self.served.append(label)
            return journey

        return await self.router.serve(journey, attempt)

    def start(self, label, **options):
        return asyncio.create_task(self.request(label, **options))


async def turns():
    """Lets every task run until all of them wait: what is left then waits for an event."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_the_held_are_served_in_the_order_they_came():
    world = World()
    world.discover()
    tasks = [world.start(number) for number in range(3)]
    await turns()
    assert (world.served, world.hold.count("ns/s")) == ([], 3)
    world.phase("loading")
    await turns()
    assert world.served == []
    world.phase("ready")
    await asyncio.gather(*tasks)
    assert (world.served, world.hold.total) == ([0, 1, 2], 0)
    assert tasks[0].result().why == "held-no-replica"


async def test_before_the_first_look_everything_is_held_and_after_it_the_unknown_is_refused():
    world = World()
    unknown, known = world.start("unknown", model="nobody"), world.start("known")
    await turns()
    assert world.hold.total == 2
    world.discover()
    with pytest.raises(ModelNotFound):
        await unknown
    world.phase("ready")
    assert (await known).why == "held-unsynced"
    assert world.hold.total == 0


async def test_a_name_that_disappears_ends_the_wait():
    world = World()
    world.discover()
    task = world.start(0)
    await turns()
    world.fleet.drop_service("ns/s")
    with pytest.raises(ModelNotFound):
        await task
    assert world.hold.total == 0


async def test_a_name_that_moves_takes_its_held_along():
    world = World()
    world.discover()
    task = world.start(0)
    await turns()
    world.fleet.put_service(Service("ns/older", "", "2020-01-01T00:00:00Z", ("m",)))
    await turns()
    assert (world.hold.count("ns/s"), world.hold.count("ns/older")) == (0, 1)
    assert [world.tally.of(service).under_way for service in ("ns/s", "ns/older")] == [0, 1]
    world.fleet.put_member(Member("ns/b", "ns/older", "", "b:8000", "", leaving=False))
    world.fleet.hear("ns/b", Frame(1, "ready", 0, 0, 0), 0, 0)
    assert (await task).endpoint == "b:8000"


async def test_one_too_many_is_refused_and_a_client_that_leaves_makes_room():
    world = World(limit=2)
    world.discover()
    first, second = world.start(1), world.start(2)
    await turns()
    with pytest.raises(QueueFull) as caught:
        await world.request(3)
    assert "held-no-replica" in caught.value.route
    first.cancel()
    await turns()
    assert world.hold.total == 1
    third = world.start(3)
    await turns()
    world.phase("ready")
    await asyncio.gather(second, third)
    assert world.served == [2, 3]


async def test_time_is_up_says_what_the_nearest_replica_does():
    world = World(timeout_s=0.0)
    world.discover()
    world.phase("loading")
    with pytest.raises(HoldTimeout, match="loading") as caught:
        await world.request(0)
    assert "held-loading" in caught.value.route
    assert world.hold.total == 0


async def test_a_request_that_is_held_twice_waits_no_longer_than_one_that_is_held_once():
    world = World(timeout_s=3600.0)
    world.discover()
    task = world.start(0, failures=[Refused("draining")])
    await turns()
    world.now_ms += 3600_000.0  # its time is up when the first replica comes, which turns it away
    world.phase("ready")
    await turns()
    assert task.done()
    with pytest.raises(HoldTimeout):
        await task


async def test_refused_everywhere_waits_for_news():
    world = World()
    world.discover()
    world.phase("ready", "ns/a")
    world.phase("ready", "ns/b")
    task = world.start(0, failures=[Refused("draining"), Refused("draining")])
    await turns()
    assert (world.served, world.hold.count("ns/s")) == ([], 1)
    world.phase("ready", "ns/b")
    journey = await task
    assert (journey.attempt, journey.why, journey.endpoint) == (3, "repick-draining", "ns/b:8000")


async def test_a_frame_heard_during_the_attempt_does_not_bring_the_dead_back():
    world, went = World(), []
    world.discover()
    world.phase("ready", "ns/a")
    world.phase("ready", "ns/b", running=5)

    async def attempt(http, route, *, fresh):
        went.append(http)
        if len(went) == 1:
            world.phase("ready", "ns/a")
            raise Died("closed")

    await world.router.serve(Journey("m"), attempt)
    assert went == ["ns/a:8000", "ns/b:8000"]


async def test_overloaded_everywhere_is_answered_after_one_try_each():
    world = World()
    world.discover()
    world.phase("ready", "ns/a")
    world.phase("ready", "ns/b")
    world.phase("loading", "ns/c")
    went = []

    async def attempt(http, route, *, fresh):
        went.append(http)
        world.phase("ready", http.removesuffix(":8000"))
        raise Overloaded("overloaded")

    with pytest.raises(AllOverloaded) as caught:
        await world.router.serve(Journey("m"), attempt)
    assert sorted(went) == ["ns/a:8000", "ns/b:8000"]
    assert (caught.value.status, caught.value.retry_after, world.hold.total) == (503, 5, 0)
    assert "repick-overloaded" in caught.value.route


async def test_overloaded_here_and_refused_there_waits_for_the_other_ones_news():
    world = World()
    world.discover()
    world.phase("ready", "ns/a")
    world.phase("ready", "ns/b", running=5)
    task = world.start(0, failures=[Refused("draining"), Overloaded("overloaded")])
    await turns()
    world.phase("ready", "ns/a")
    await turns()
    assert (world.served, world.hold.count("ns/s")) == ([], 1)
    world.phase("ready", "ns/b")
    assert (await task).endpoint == "ns/b:8000"


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
def test_nobody_is_lost_and_nobody_is_served_twice(steps):
    """Arrivals with 0 to 2 refusals each, departures, phases, and any interleaving; at the end a replica stays ready."""

    async def scenario():
        world, tasks = World(limit=6), []
        world.discover()
        for what, value in steps:
            if what == "arrive":
                tasks.append(world.start(len(tasks), failures=[Refused("draining")] * value))
            elif what == "leave" and value < len(tasks):
                tasks[value].cancel()
            elif what == "phase":
                world.phase(value)
            else:
                for _ in range(value):
                    await asyncio.sleep(0)
            assert world.hold.total <= 6
        for _ in range(2 * len(tasks) + 1):  # a frame forgives the replica one refusal, and no request has more than two
            world.phase("ready")
            await turns()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        done = [label for label, outcome in enumerate(outcomes) if isinstance(outcome, Journey)]
        assert sorted(world.served) == sorted(set(world.served)), "served twice"
        assert set(done) <= set(world.served)
        assert all(isinstance(outcome, Journey | QueueFull | asyncio.CancelledError) for outcome in outcomes)
        assert world.hold.total == 0
        assert all(endpoint.own == 0 for endpoint in world.fleet.endpoints(world.fleet.resolve("m")))

    asyncio.run(asyncio.wait_for(scenario(), 60))
