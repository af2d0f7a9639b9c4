"""Served names: the oldest service holds them, later ones are told, and whose turn comes is looked at again."""

import asyncio
import copy

import pytest
from pagoda_operator.api.state import DEPLOYMENTS, SERVICES, Key, Taken
from pagoda_operator.watch.claims import Claims
from support.kube.fake_api import FakeApi, service_body
from support.worlds.world import KEY, World

OLD, NEW = "2025-01-01T00:00:00Z", "2026-06-01T00:00:00Z"


def body(name, *names, created=OLD, namespace="ns"):
    made = service_body(name, namespace, model={"uri": "pvc://m", "servedNames": list(names)})
    made["metadata"] |= {"creationTimestamp": created, "uid": f"uid-{namespace}-{name}"}
    return made


@pytest.fixture
def woken():
    return []


@pytest.fixture
def claims(woken):
    return Claims(woken.append)


def test_the_oldest_holds_a_name_and_only_contested_names_are_taken(claims):
    claims.put(body("young", "a", "b", created=NEW))
    claims.put(body("old", "a", namespace="other"))
    assert claims.taken(Key("ns", "young")) == (Taken("a", Key("other", "old")),)
    assert claims.taken(Key("other", "old")) == ()


def test_a_service_without_names_claims_its_own(claims):
    claims.put(body("tiny", namespace="a"))
    claims.put(body("tiny", namespace="b", created=NEW))
    assert claims.taken(Key("b", "tiny")) == (Taken("tiny", Key("a", "tiny")),)


def test_who_may_gain_or_lose_a_name_is_looked_at_again(claims, woken):
    claims.put(body("old", "a"))
    claims.put(body("young", "a", "b", created=NEW))
    claims.put(body("third", "c"))
    assert woken == [Key("ns", "old")]
    del woken[:]
    claims.put(body("old", "z"))
    assert woken == [Key("ns", "young")]
    claims.put(body("old", "z"))
    claims.drop(Key("ns", "third"))
    assert woken == [Key("ns", "young")]
    assert claims.taken(Key("ns", "young")) == ()


def test_names_that_nobody_wants_are_forgotten(claims):
    claims.put(body("old", "a"))
    claims.put(body("young", "a", created=NEW))
    claims.drop(Key("ns", "old"))
    claims.drop(Key("ns", "young"))
    claims.drop(Key("ns", "young"))
    assert claims._by_name == {}


def test_a_holder_whose_end_went_unseen_holds_nothing(claims, woken):
    api = FakeApi()
    for created in (body("young", "a", created=NEW), body("third", "a", created=NEW)):
        api.put(SERVICES, created)
    asyncio.run(claims.complete(api))
    claims.put(body("gone", "a"))
    del woken[:]
    first = min(api.of(SERVICES), key=lambda s: s["metadata"]["uid"])["metadata"]["name"]
    assert asyncio.run(claims.confirmed(api, Key("ns", first))) == ()
    assert Key("ns", "young" if first == "third" else "third") in woken


def test_a_first_look_knows_all_services():
    world = World()
    older = world.api.put(SERVICES, body("old", "tiny", namespace="other"))
    older["metadata"]["creationTimestamp"] = OLD
    world.settle()
    line = world.conditions()["Stalled"]
    assert (line["status"], line["reason"]) == ("True", "NameConflict")
    assert "'tiny' is held by other/old" in line["message"]
    assert world.names(DEPLOYMENTS) == []


def test_the_name_of_one_that_goes_is_the_next_ones():
    world = World()
    older = world.api.put(SERVICES, body("old", "tiny", namespace="other"))
    older["metadata"]["creationTimestamp"] = OLD
    world.settle()
    del world.api.objects[("InferenceService", "other", "old")]
    world.settle()
    world.make_ready()
    assert world.conditions()["Ready"]["status"] == "True"


def test_one_that_holds_another_name_serves_under_that():
    world = World(model={"uri": "pvc://models/tiny", "servedNames": ["mine", "theirs"]})
    older = world.api.put(SERVICES, body("old", "theirs", namespace="other"))
    older["metadata"]["creationTimestamp"] = OLD
    world.settle()
    world.make_ready()
    assert world.reason() == "NameConflict"
    assert len(world.names(DEPLOYMENTS)) == 1


def test_who_serves_already_goes_on_whatever_names_it_loses():
    world = World()
    world.settle()
    world.make_ready()
    before = world.names(DEPLOYMENTS)
    older = world.api.put(SERVICES, body("old", "tiny", namespace="other"))
    older["metadata"]["creationTimestamp"] = OLD
    world.operator._senses.claims.put(older)
    world.edit(replicas=2)
    world.settle()
    (deployment,) = world.api.of(DEPLOYMENTS)
    assert (world.names(DEPLOYMENTS), deployment["spec"]["replicas"], world.reason()) == (before, 2, "NameConflict")
    assert KEY.name in world.conditions()["Stalled"]["message"]


async def test_runs_that_begin_together_read_all_services_once(claims):
    api = FakeApi()
    api.put(SERVICES, body("old", "a"))
    listed = api.list

    async def slow(*asked):
        await asyncio.sleep(0)
        return await listed(*asked)

    api.list = slow
    await asyncio.gather(*(claims.complete(api) for _ in range(32)))
    assert api.reads == 1


async def test_what_was_told_while_all_services_were_read_is_not_undone_by_that_list(claims):
    api = FakeApi()
    api.put(SERVICES, body("first", "a"))
    api.put(SERVICES, body("other", "c"))
    listed = api.list

    async def late(*asked):
        answer = [dict(found) for found in await listed(*asked)]
        claims.put(body("first", "b"))  # its watch
        return answer

    api.list = late
    await claims.complete(api)
    claims.put(body("second", "a", "b", "c", created=NEW))
    assert claims.taken(Key("ns", "second")) == (Taken("b", Key("ns", "first")), Taken("c", Key("ns", "other")))


def names(api, namespace, name):
    return api.objects[SERVICES.kind, namespace, name]["status"].get("servedNames")


@pytest.mark.parametrize("restarts", [True, False])
def test_an_older_service_that_adds_a_name_does_not_take_it_from_a_younger_one_that_has_it(restarts):
    world = World()
    world.api.edit(SERVICES, "ns", "tiny", lambda body: body["metadata"].update(creationTimestamp=NEW))
    world.settle()
    world.make_ready()
    assert names(world.api, "ns", "tiny") == ["tiny"]
    world.api.put(SERVICES, body("old", "mine", namespace="other"))
    asyncio.run(world.operator.reconcile(Key("other", "old")))
    assert names(world.api, "other", "old") == ["mine"]
    wants = {"uri": "pvc://m", "servedNames": ["mine", "tiny"]}
    world.api.edit(SERVICES, "other", "old", lambda body: body["spec"].update(model=wants))
    if restarts:
        world.restart()
    for _ in range(3):
        for shown in world.api.of(SERVICES):  # by the watch
            world.operator._senses.claims.put(copy.deepcopy(shown))
        asyncio.run(world.operator.reconcile(Key("other", "old")))
        world.settle()
    assert (names(world.api, "ns", "tiny"), names(world.api, "other", "old")) == (["tiny"], ["mine"])
    assert world.reason() == "Available"
    told = next(c for c in world.api.objects[SERVICES.kind, "other", "old"]["status"]["conditions"] if c["type"] == "Stalled")
    assert (told["reason"], "'tiny' is held by ns/tiny" in told["message"]) == ("NameConflict", True)
    del world.api.objects[SERVICES.kind, "ns", "tiny"]
    asyncio.run(world.operator.reconcile(KEY))
    asyncio.run(world.operator.reconcile(Key("other", "old")))
    assert names(world.api, "other", "old") == ["mine", "tiny"]


def test_a_name_is_not_taken_from_one_that_got_it_unseen(claims):
    """The watch has shown the rival without its status."""
    api, older = FakeApi(), body("old", "a")
    rival = body("young", "a", created=NEW)
    for made in (older, rival):
        api.put(SERVICES, made)
        claims.put(made)
    asyncio.run(claims.complete(api))
    assert claims.taken(Key("ns", "old")) == ()
    api.objects[SERVICES.kind, "ns", "young"]["status"] = {"servedNames": ["a"]}
    assert asyncio.run(claims.confirmed(api, Key("ns", "old"))) == (Taken("a", Key("ns", "young")),)


@pytest.mark.parametrize(("holder", "most"), [(True, 1), (False, 2)])
async def test_many_of_one_name_read_one_holder_each_and_who_gains_it_all_others_once(claims, holder, most):
    """Sixty services of one name: each that waits for it read all others."""
    api, keys = FakeApi(), [Key("ns", f"s{number:02}") for number in range(60)]
    for number, key in enumerate(keys):
        made = body(key.name, "a", created=f"2025-01-01T00:{number:02}:00Z")
        api.put(SERVICES, made | ({"status": {"servedNames": ["a"]}} if holder and key == keys[-1] else {}))
    await claims.complete(api)
    begun = api.reads
    found = [await claims.confirmed(api, key) for key in keys]
    assert found.count(()) == 1
    assert found[-1 if holder else 0] == ()
    assert api.reads - begun <= most * len(keys)


async def test_who_would_gain_a_name_reads_its_rivals_up_to_one_that_has_it(claims):
    api, oldest = FakeApi(), Key("ns", "s00")
    for number in range(60):
        claims.put(api.put(SERVICES, body(f"s{number:02}", "a", created=f"2025-01-01T00:{number:02}:00Z")))
    await claims.complete(api)
    api.objects[SERVICES.kind, "ns", "s20"]["status"] = {"servedNames": ["a"]}
    begun = api.reads
    assert await claims.confirmed(api, oldest) == (Taken("a", Key("ns", "s20")),)
    assert api.reads - begun <= 28


async def test_who_holds_a_name_instead_of_one_that_is_gone_is_read_too(claims):
    """The next in the line went unseen as well."""
    api = FakeApi()
    api.put(SERVICES, body("c", "a", created="2025-01-03T00:00:00Z"))
    for name, created in (("a", "2025-01-01T00:00:00Z"), ("b", "2025-01-02T00:00:00Z")):
        claims.put(body(name, "a", created=created))
    await claims.complete(api)
    assert await claims.confirmed(api, Key("ns", "c")) == ()
