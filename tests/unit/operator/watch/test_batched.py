"""Reads of many runs in few requests: each answer is as fresh as a read of its own, and nobody's error, end or namesake is another's."""

import asyncio
import contextlib
import random
from collections import Counter

import pytest
from pagoda_contracts.names import LABEL_SERVICE
from pagoda_operator.api.errors import Denied
from pagoda_operator.api.state import CHILD_RESOURCES, DEPLOYMENTS, PODS, PROFILES, SERVICES, Key
from pagoda_operator.client.batched import Batched


class Server:
    """Answers as of when it was asked, once it is let; says what it was asked for."""

    def __init__(self):
        self.world = {}
        self.asked = []
        self.held = []
        self.holding = False
        self.broken = None
        self.now = self.most = 0

    async def list(self, resource, namespace, selector):
        self.asked.append((resource, namespace, selector))
        where = {key: found for key, found in self.world.items() if namespace in ("", key.namespace)}
        names = selector.removeprefix(LABEL_SERVICE).strip(" =").removeprefix("in (").removesuffix(")").split(",")
        answer = [item(key, found) for key, found in where.items() if key.name in names]
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self._let()
        finally:
            self.now -= 1
        return answer

    async def get(self, resource, namespace, name):
        self.asked.append((resource, namespace, name))
        answer = self.world.get(Key(namespace, name))
        await self._let()
        return answer

    async def _let(self):
        broken = self.broken
        if self.holding:
            gate = asyncio.Event()
            self.held.append(gate)
            await gate.wait()
        if broken is not None:
            raise broken


def item(key, found):
    return {"metadata": {"namespace": key.namespace, "name": "x", "labels": {LABEL_SERVICE: key.name}}, "found": found}


def selector(name):
    return f"{LABEL_SERVICE}={name}"


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def reader(server):
    """It is known of every name where it is."""
    return Batched(server, lambda key: {found.namespace for found in server.world if found.name == key.name} <= {key.namespace})


async def turns(count=5):
    """Whoever can go on does: every task, several steps."""
    for _ in range(count):
        await asyncio.sleep(0)


async def under_way(server, reader):
    """A list that has begun and is not answered yet."""
    server.holding = True
    task = asyncio.create_task(reader.list(PODS, "ns", selector("first")))
    await turns()
    assert len(server.held) == 1
    server.holding = False
    return task


async def test_thirty_two_runs_at_once_cost_one_list_of_each_kind(server, reader):
    kinds = (PODS, *CHILD_RESOURCES)
    server.world = {Key("ns", f"s{number}"): number for number in range(32)}
    asks = [reader.list(kind, "ns", selector(f"s{number}")) for number in range(32) for kind in kinds]
    answers = await asyncio.gather(*asks)
    assert sorted(kind.kind for kind, *_ in server.asked) == sorted(kind.kind for kind in kinds)
    assert [[found["found"] for found in answer] for answer in answers] == [[number] for number in range(32) for _ in kinds]


async def test_the_loop_turns_between_the_runs_that_one_list_answers(server, reader):
    begun, others = [], []

    async def run(name):
        await reader.list(PODS, "ns", selector(name))
        begun.append(len(others))

    async def beside():
        while len(begun) < 8:
            others.append(1)
            await asyncio.sleep(0)

    await asyncio.gather(beside(), *(run(f"s{number}") for number in range(8)))
    assert len(server.asked) == 1
    assert len(set(begun)) == 8


async def test_what_is_asked_while_a_list_is_under_way_is_answered_by_the_next(server, reader):
    server.world = {Key("ns", "second"): "old"}
    first = await under_way(server, reader)
    second = asyncio.create_task(reader.list(PODS, "ns", selector("second")))
    await turns()
    assert len(server.asked) == 1
    server.world[Key("ns", "second")] = "new"
    server.held.pop().set()
    assert await first == []
    assert [found["found"] for found in await second] == ["new"]


async def test_the_next_list_is_asked_for_before_all_of_this_one_are_told(server, reader):
    """One is told at each turn of the loop, and a turn may take a plan's time."""
    first, asked = await under_way(server, reader), []

    async def run(name):
        await reader.list(PODS, "ns", selector(name))
        asked.append(len(server.asked))

    runs = [asyncio.create_task(run(f"s{number}")) for number in range(8)]
    await turns()
    server.holding = True
    server.held.pop().set()
    await first
    await turns()
    late = asyncio.create_task(run("late"))
    await turns()
    server.holding = False
    server.held.pop().set()
    await asyncio.gather(*runs, late)
    assert len(server.asked) == 3
    assert asked[3] == 3


async def test_another_kind_waits_for_nobody(server, reader):
    await under_way(server, reader)
    assert await reader.list(DEPLOYMENTS, "ns", selector("first")) == []
    server.held.pop().set()


@pytest.mark.parametrize("seed", range(30))
async def test_no_answer_is_older_than_its_ask(server, reader, seed):
    rng = random.Random(seed)
    names, begun, answered = ["a", "b", "c"], 0, []
    server.holding = True

    async def run(name):
        asked_at = server.world.get(Key("ns", name), 0)
        (found,) = await reader.list(PODS, "ns", selector(name))
        answered.append(found["found"] >= asked_at)

    server.world = {Key("ns", name): 0 for name in names}
    async with asyncio.TaskGroup() as runs:
        while begun < 40:
            step = rng.randrange(4)
            if step == 0:
                runs.create_task(run(rng.choice(names)))
                begun += 1
            elif step == 1:
                server.world[Key("ns", rng.choice(names))] += 1
            elif step == 2 and server.held:
                server.held.pop(0).set()
            else:
                await turns(rng.randrange(1, 4))
        while len(answered) < begun:
            while server.held:
                server.held.pop().set()
            await turns()
    assert all(answered)
    assert len(server.asked) < begun  # or nothing was joined and this shows nothing


async def test_an_error_is_everybodys_who_was_in_that_list_and_nobody_elses(server, reader):
    first = await under_way(server, reader)
    server.broken = Denied("no")
    waiting = [asyncio.create_task(reader.list(PODS, "ns", selector(name))) for name in ("a", "b")]
    server.held.pop().set()
    assert await first == []
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [Denied, Denied]
    server.broken = None
    assert await reader.list(PODS, "ns", selector("a")) == []


async def test_a_run_that_ends_takes_no_others_answer_away(server, reader):
    server.world = {Key("ns", "stays"): 1}
    first = await under_way(server, reader)
    goes, stays = (asyncio.create_task(reader.list(PODS, "ns", selector(name))) for name in ("goes", "stays"))
    await turns()
    first.cancel()  # its list is under way
    goes.cancel()  # its list has not begun
    await turns()
    server.held.pop().set()
    assert [found["found"] for found in await stays] == [1]
    assert server.asked[1:] == [(PODS, "ns", selector("stays"))]
    for ended in (first, goes):
        with pytest.raises(asyncio.CancelledError):
            await ended


async def test_when_all_are_cancelled_the_next_ask_is_still_answered(server, reader):
    first = await under_way(server, reader)
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    asked = asyncio.create_task(reader.list(PODS, "ns", selector("b")))
    await turns()
    server.held.pop().set()
    assert await asked == []


async def test_services_of_several_namespaces_are_read_over_all_and_each_gets_its_own(server, reader):
    server.world = {Key("n1", "a"): "a of n1", Key("n2", "b"): "b of n2", Key("n2", "c"): "c of n2"}
    answers = await asyncio.gather(reader.list(PODS, "n1", selector("a")), reader.list(PODS, "n2", selector("b")))
    assert server.asked == [(PODS, "", f"{LABEL_SERVICE} in (a,b)")]
    assert [[found["found"] for found in answer] for answer in answers] == [["a of n1"], ["b of n2"]]


async def test_different_names_over_many_namespaces_cost_one_list_for_sixty_four(server):
    server.world = {Key(f"n{number}", f"s{number}"): number for number in range(500)}
    reader = Batched(server, lambda _: True)
    answers = await asyncio.gather(*(reader.list(PODS, key.namespace, selector(key.name)) for key in server.world))
    assert [[found["found"] for found in answer] for answer in answers] == [[number] for number in range(500)]
    assert [namespace for _, namespace, _ in server.asked] == [""] * 8


@pytest.mark.parametrize("known", [True, False])
async def test_different_names_in_one_namespace_cost_one_list_for_sixty_four(server, known):
    server.world = {Key("ns", f"s{number}"): number for number in range(500)}
    reader = Batched(server, lambda _: known)
    answers = await asyncio.gather(*(reader.list(PODS, "ns", selector(key.name)) for key in server.world))
    assert [[found["found"] for found in answer] for answer in answers] == [[number] for number in range(500)]
    assert [namespace for _, namespace, _ in server.asked] == ["ns"] * 8


async def test_one_namespace_alone_is_read_where_it_is(server, reader):
    await asyncio.gather(reader.list(PODS, "ns", selector("a")), reader.list(PODS, "ns", selector("b")))
    assert server.asked == [(PODS, "ns", f"{LABEL_SERVICE} in (a,b)")]


async def test_a_name_that_every_team_uses_is_read_in_its_namespace_alone_from_the_first_on_and_few_at_once(server, reader):
    server.world = {Key(f"n{number}", "chat"): number for number in range(50)}
    server.holding = True
    runs = [asyncio.create_task(reader.list(PODS, f"n{number}", selector("chat"))) for number in range(32)]
    while not all(run.done() for run in runs):
        await turns()
        while server.held:
            server.held.pop(0).set()
    assert [run.result() for run in runs] == [[item(Key(f"n{number}", "chat"), number)] for number in range(32)]
    assert Counter(server.asked) == Counter((PODS, f"n{number}", selector("chat")) for number in range(32))
    assert 1 < server.most <= 4


async def test_a_name_of_which_nothing_is_known_is_read_in_its_namespace_alone(server):
    reader = Batched(server)
    await asyncio.gather(reader.list(PODS, "n1", selector("a")), reader.list(PODS, "n2", selector("b")))
    assert Counter(server.asked) == Counter([(PODS, "n1", selector("a")), (PODS, "n2", selector("b"))])


async def test_a_name_that_a_second_namespace_gets_is_read_in_its_namespace_from_then_on(server, reader):
    server.world = {Key("n1", "a"): 1, Key("n2", "b"): 2}
    first = await under_way(server, reader)
    waiting = [asyncio.create_task(reader.list(PODS, *asked)) for asked in (("n1", selector("a")), ("n2", selector("b")))]
    server.world[Key("n3", "a")] = 3
    server.held.pop().set()
    assert await first == []
    await asyncio.gather(*waiting)
    assert Counter(server.asked[1:]) == Counter([(PODS, "n1", selector("a")), (PODS, "n2", selector("b"))])


async def test_a_profile_is_read_once_for_all_who_use_it_and_a_service_each_time(server, reader):
    server.world = {Key("", "default"): {"kind": "p"}, Key("ns", "a"): {"kind": "s"}}
    assert await asyncio.gather(*(reader.get(PROFILES, "", "default") for _ in range(9))) == [{"kind": "p"}] * 9
    assert await asyncio.gather(*(reader.get(SERVICES, "ns", "a") for _ in range(2))) == [{"kind": "s"}] * 2
    assert server.asked == [(PROFILES, "", "default"), *[(SERVICES, "ns", "a")] * 2]


async def test_a_list_of_anything_else_is_asked_as_it_is(server, reader):
    await reader.list(SERVICES, "", "")
    assert server.asked == [(SERVICES, "", "")]
