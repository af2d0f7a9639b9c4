"""News wakes those whom it may concern, and nobody else."""

import pytest
from pagoda_operator.api.state import Key
from pagoda_operator.watch.door import Door, Stand
from pagoda_operator.watch.observe import adapted_service, quota_namespaces

A, B, C = Key("ns", "a"), Key("ns", "b"), Key("other", "c")


class Woken(list):
    """A queue that only remembers."""

    def add(self, key, *, urgent=False):  # noqa: ARG002 (the queue's words)
        self.append(key)

    def by(self, news):
        self.clear()
        news()
        return sorted(set(self))


@pytest.fixture
def woken():
    return Woken()


@pytest.fixture
def door(woken):
    made = Door(woken)
    for key in (A, B, C):
        made.service(key, "default", gone=False)
    return made


def test_a_node_concerns_who_stands_on_it_and_who_waits_for_room(door, woken):
    assert woken.by(lambda: door.node("n1")) == []
    door.replica(Key("ns", "a-1"), Stand(A, "n1"), gone=False)
    door.replica(Key("ns", "a-2"), Stand(A, "n1"), gone=False)
    door.replica(Key("ns", "b-1"), Stand(B, "n2"), gone=False)
    door.waits(C, waiting=True)
    assert woken.by(lambda: door.node("n1")) == [A, C]
    door.replica(Key("ns", "a-1"), Stand(A, "n1"), gone=True)
    assert woken.by(lambda: door.node("n1")) == [A, C]
    door.replica(Key("ns", "a-2"), Stand(A, "n1"), gone=True)
    door.waits(C, waiting=False)
    assert woken.by(lambda: door.node("n1")) == []


def test_a_replica_that_gets_its_node_stands_there_and_nowhere_else(door, woken):
    for node in ("", "n1", "n1"):
        assert woken.by(lambda node=node: door.replica(Key("ns", "a-1"), Stand(A, node), gone=False)) == [A]
    assert woken.by(lambda: door.node("")) == []
    door.replica(Key("ns", "a-1"), Stand(A, "n1"), gone=True)
    assert door._standing == {}


def test_of_those_who_ended_unseen_nothing_is_kept(door, woken):
    for name in ("a-1", "a-2", "b-1"):
        door.replica(Key("ns", name), Stand(A if name < "b" else B, "n1"), gone=False)
    door.waits(C, waiting=True)
    door.keep([A, B], [Key("ns", "a-1")])
    assert woken.by(lambda: door.node("n1")) == [A]
    assert woken.by(door.room) == []
    assert woken.by(lambda: door.profile("default")) == [Key("", "default"), A, B]
    door.keep([], [])
    assert (door._standing, door._replicas, door._profiles) == ({}, {}, {})


def test_what_others_hold_concerns_only_who_waits(door, woken):
    assert woken.by(door.room) == []
    door.waits(B, waiting=True)
    assert woken.by(door.room) == [B]
    door.service(B, "default", gone=True)
    assert woken.by(door.room) == []


def test_a_quota_concerns_the_services_that_it_counts_and_who_waits(door, woken):
    assert woken.by(lambda: door.quota(["other", "empty"])) == [C]
    door.waits(A, waiting=True)
    assert woken.by(lambda: door.quota(["other"])) == [A, C]


def test_a_profile_concerns_its_users_and_itself(door, woken):
    door.service(B, "h100", gone=False)
    assert woken.by(lambda: door.profile("h100")) == [Key("", "h100"), B]


@pytest.mark.parametrize(
    ("reference", "expected"),
    [({"name": "tiny"}, Key("ns", "tiny")), ({"name": "tiny", "namespace": "other"}, Key("other", "tiny")), (None, None), ({}, None)],
)
def test_an_adapter_concerns_the_service_that_it_names(reference, expected):
    assert adapted_service({"metadata": {"namespace": "ns"}, "spec": {"serviceRef": reference}}) == expected


@pytest.mark.parametrize("subjects", [None, {}, {"apiKeysSecretRef": {"name": "k", "namespace": "n"}}, {"namespaces": None}])
def test_a_quota_without_namespaces_counts_no_service(subjects):
    assert quota_namespaces({"spec": {"subjects": subjects}}) == ()
