"""Errors become conditions, and what somebody undoes is not fought over."""

import asyncio
import random

import pytest
from pagoda_contracts.resources.profile import ServingProfileSpec
from pagoda_operator.api.errors import Denied, Refused, Unconverged
from pagoda_operator.api.state import DEPLOYMENTS, PODS, PROFILES, SERVICES, Key
from pagoda_operator.run.defaults import DEFAULT_KEY
from pagoda_operator.run.queue import KeyedQueue, Outcome
from pagoda_operator.run.reconcile import Reconciler
from pagoda_operator.run.settings import Settings
from support.kube.fake_api import FakeApi, profile_body, service_body
from support.worlds.fake_daemons import FakeDaemons
from support.worlds.world import World, now


def test_a_service_that_is_gone_or_going_is_left_alone():
    world = World()
    world.settle()
    written = len(world.api.journal)
    world.api.of(SERVICES)[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert world.run() == Outcome(gone=True)
    world.api.objects.pop(("InferenceService", "ns", "tiny"))
    assert world.run() == Outcome(gone=True)
    assert len(world.api.journal) == written


def test_a_refused_child_stalls_with_the_servers_words():
    world = World()
    world.api.refuse["Deployment"] = Refused("422: spec.nodeSelektor: unknown field")
    world.run()
    world.run()
    line = world.conditions()["Stalled"]
    assert (line["status"], line["reason"]) == ("True", "InvalidSpec")
    assert "nodeSelektor" in line["message"]


def test_a_denied_child_is_said_and_retried():
    world = World()
    world.api.refuse["Deployment"] = Denied("403: exceeded quota")
    world.run()
    with pytest.raises(Denied):
        world.run()
    line = world.conditions()["Reconciling"]
    assert (line["status"], line["reason"]) == ("True", "Forbidden")
    assert "exceeded quota" in line["message"]


def test_a_write_that_does_not_stay_is_given_up_for_a_while():
    world = World()
    world.settle()
    written = []

    def undo(verb, kind, name):
        written.append((verb, kind))

    world.api.before_write = undo

    def fight():
        for _ in range(20):
            world.api.edit(DEPLOYMENTS, "ns", world.names(DEPLOYMENTS)[0], lambda body: body["spec"].update(replicas=9))
            world.run()

    with pytest.raises(Unconverged, match="Apply Deployment"):
        fight()
    assert len(written) == 5


def test_the_default_profile_is_kept_as_the_installation_wrote_it():
    api = FakeApi()
    spec = ServingProfileSpec.model_validate({"images": {"daemon": "img:1"}, "allow": ["metadata.labels"]})
    operator = Reconciler(api, Settings(default_profile=spec), now)
    for _ in range(3):
        asyncio.run(operator.reconcile(DEFAULT_KEY))
    assert api.journal == [("apply", "ServingProfile", "default")]
    api.edit(PROFILES, "", "default", lambda body: body["spec"]["images"].update(daemon="img:2"))
    asyncio.run(operator.reconcile(DEFAULT_KEY))
    assert api.of(PROFILES)[0]["spec"]["images"] == {"daemon": "img:1"}


def test_without_an_installations_profile_the_name_is_an_admins():
    api = FakeApi()
    api.put(PROFILES, profile_body())
    operator = Reconciler(api, Settings(), now)
    assert asyncio.run(operator.reconcile(DEFAULT_KEY)) == Outcome()
    assert asyncio.run(operator.reconcile(Key("", "h100"))) == Outcome(gone=True)
    assert api.journal == []


class Gated(FakeApi):
    """Once it is closed a look at a service waits."""

    def __init__(self):
        super().__init__()
        self.open, self.looking = asyncio.Event(), []
        self.open.set()

    async def get(self, resource, namespace, name):
        if resource == SERVICES:
            self.looking.append(name)
            await self.open.wait()
        return await super().get(resource, namespace, name)


async def test_of_first_looks_some_are_made_at_a_time_and_a_service_that_was_looked_at_waits_for_none_of_them():
    """No worker waits with one: a takeover's first looks held 64 of 96 workers, and edits waited."""
    api, queue = Gated(), KeyedQueue(resync=3600.0, rng=random.Random(1))
    names = [f"s{number}" for number in range(200)]
    api.put(PROFILES, profile_body())
    for name in names:
        api.put(SERVICES, service_body(name))
    reconciler = Reconciler(api, Settings(), now)
    queue.few(reconciler.unseen, 32)
    await reconciler.reconcile(Key("ns", "s0"))
    api.open.clear()
    api.looking.clear()
    for name in names[1:]:
        queue.add(Key("ns", name))
    workers = [asyncio.create_task(queue.work(reconciler.reconcile)) for _ in range(96)]
    async with asyncio.timeout(60):
        while len(api.looking) < 32:
            await asyncio.sleep(0)
    queue.add(Key("ns", "s0"))
    async with asyncio.timeout(60):
        while api.looking[-1] != "s0":
            await asyncio.sleep(0)
    assert len(api.looking) == 33
    api.open.set()
    async with asyncio.timeout(60):
        while {*api.looking} != {*names}:
            await asyncio.sleep(0.001)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)


def serving(replicas):
    """That many replicas serve; their daemons."""
    world = World(replicas=replicas)
    world.daemons = daemons = FakeDaemons(world.api)
    world.restart()
    world.settle()
    daemons.probe()
    world.settle()
    return world, daemons


def test_a_replica_whose_daemon_has_nothing_left_is_let_go_in_three_looks():
    """Marked; told and, since its answer says so, made the cheapest; one less is asked for: each is seen before the next is begun."""
    world, daemons = serving(2)
    world.edit(replicas=1)
    written = len(world.api.journal)
    steps = []
    for _ in range(3):
        world.run()
        steps.append([entry[:2] for entry in world.api.journal[written:] if entry[1] != "InferenceService"])
        written = len(world.api.journal)
    assert steps == [[("annotate", "Pod")], [("annotate", "Pod")], [("apply", "Deployment")]]
    assert [word for _, word in daemons.told] == ["drain"]


def test_one_that_has_requests_left_is_only_told_again():
    world, daemons = serving(2)
    for pod in world.api.of(PODS):
        daemons.of(pod).in_flight = 1
    world.edit(replicas=1)
    written = len(world.api.journal)
    for _ in range(4):
        world.run()
    assert [entry[:2] for entry in world.api.journal[written:] if entry[1] != "InferenceService"] == [("annotate", "Pod")]
    assert len(daemons.told) >= 2
