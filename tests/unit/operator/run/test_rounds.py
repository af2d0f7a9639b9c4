"""When statuses without runs of their own are looked at, and that a profile's status is written only if it changes."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from pagoda_contracts.names import LABEL_CLASS
from pagoda_contracts.resources.meta import ObjectMeta
from pagoda_operator.api.errors import Unavailable
from pagoda_operator.api.state import PROFILES, SERVICES
from pagoda_operator.decide.status.profile import Profile
from pagoda_operator.run.profiles import ProfileStatuses
from pagoda_operator.run.rounds import Rounds
from pagoda_operator.watch.caches import Caches
from pagoda_operator.watch.triggers import Triggers
from support.kube.fake_api import FakeApi, profile_body, service_body

START = datetime(2026, 1, 1, tzinfo=UTC)


class NoQueue:
    def __init__(self):
        self.added = Counter()

    def add(self, key, **_):
        self.added[key] += 1


class Watched:
    """An operator's writer of profiles' statuses, whose caches see every write."""

    def __init__(self):
        self.now, self.queue, self.api = 0.0, NoQueue(), FakeApi()
        self.triggers = Triggers(self.queue)
        self.caches = Caches(self.triggers.changed)
        self.writer = ProfileStatuses(self.api, self.caches, self.triggers, lambda: START + timedelta(seconds=self.now), lambda: self.now)

    def put(self, resource, body):
        self.api.put(resource, body)
        self.seen(resource)

    def seen(self, resource):
        for body in self.api.of(resource):
            self.caches.event(resource, body, gone=False)

    def rounds(self, count=1):
        """How many statuses each of them wrote."""
        before = len(self.api.journal)
        for _ in range(count):
            asyncio.run(self.writer.write())
            self.seen(PROFILES)
            self.now += 2.0
        return len(self.api.journal) - before


@pytest.fixture
def watched():
    made = Watched()
    made.put(PROFILES, profile_body())
    return made


def status(watched, place=0):
    return watched.api.of(PROFILES)[place]["status"]


def test_a_profile_is_told_of_at_once_and_at_rest_nothing_is_written(watched):
    assert watched.rounds() == 1
    assert (status(watched)["services"], status(watched)["conditions"][0]["reason"]) == (0, "Accepted")
    assert watched.rounds(100) == 0


def test_many_new_services_are_one_write_and_their_runs_are_not_woken_by_it(watched):
    watched.rounds()
    for number in range(20):
        watched.put(SERVICES, service_body(f"s{number}", "ns"))
        assert watched.rounds() == 0
    watched.queue.added.clear()
    assert (watched.rounds(2), status(watched)["services"]) == (1, 20)
    assert watched.queue.added == {}


def test_services_that_come_without_end_are_counted_each_minute(watched):
    watched.rounds()
    written = 0
    for number in range(60):
        watched.put(SERVICES, service_body(f"s{number}", "ns"))
        written += watched.rounds()
    assert written == 2


def test_an_edit_is_answered_in_the_next_round(watched):
    watched.rounds()
    watched.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(images={}))
    watched.seen(PROFILES)
    assert watched.rounds() == 1
    assert (status(watched)["observedGeneration"], status(watched)["conditions"][0]["reason"]) == (2, "InvalidSpec")


def test_the_profile_of_another_class_is_left_to_its_own_install(watched):
    blue = profile_body("blue")
    blue["metadata"]["labels"] = {LABEL_CLASS: "blue"}
    watched.put(PROFILES, blue)
    assert watched.rounds() == 1
    assert "status" not in next(body for body in watched.api.of(PROFILES) if body["metadata"]["name"] == "blue")
    assert asyncio.run(watched.caches.get(PROFILES, "", "blue")), "services of this install may use it"


def test_a_write_that_fails_is_made_again_after_ten_seconds():
    now, tries = [0.0], []

    async def fail(profile):
        tries.append(now[0])
        raise Unavailable("away")

    rounds = Rounds(lambda: now[0])
    for now[0] in range(0, 21, 2):
        asyncio.run(rounds.each([Profile("p")], fail))
    assert tries == [0, 10, 20]


def test_one_object_s_fault_ends_no_round_of_the_others():
    looked = []

    async def look(profile):
        looked.append(profile.name)
        raise KeyError(profile.name)

    rounds = Rounds(lambda: 0.0)
    profiles = [Profile(name, meta=ObjectMeta(name=name, uid=name)) for name in ("a", "b")]
    asyncio.run(rounds.each(profiles, look))
    asyncio.run(rounds.each(profiles, look))
    assert looked == ["a", "b"], "and it is looked at again in its turn"
