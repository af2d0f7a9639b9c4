"""Served names: the oldest service holds them, later ones are told, and whose turn comes is looked at again."""

import pytest
from pagoda_contracts.name_owners import read_reserved
from pagoda_operator.api.state import DEPLOYMENTS, PODS, SERVICES, Key, Taken
from pagoda_operator.watch.triggers import NameOwners
from support.harness.harness import KEY, Harness
from support.kube.fake_api import service_body

OLD, NEW = "2025-01-01T00:00:00Z", "2026-06-01T00:00:00Z"


def body(name, *names, created=OLD, namespace="ns"):
    made = service_body(name, namespace, model={"uri": "pvc://m", "servedNames": list(names)})
    made["metadata"] |= {"creationTimestamp": created, "uid": f"uid-{namespace}-{name}"}
    return made


@pytest.fixture
def woken():
    return []


@pytest.fixture
def owners(woken):
    return NameOwners(woken.append)


def test_the_oldest_service_has_a_name_and_only_contested_names_are_taken(owners):
    owners.put(body("young", "a", "b", created=NEW))
    owners.put(body("old", "a", namespace="other"))
    assert owners.taken(Key("ns", "young")) == (Taken("a", "'a' belongs to other/old"),)
    assert owners.taken(Key("other", "old")) == ()


def test_a_service_without_names_claims_its_own(owners):
    owners.put(body("tiny", namespace="a"))
    owners.put(body("tiny", namespace="b", created=NEW))
    assert owners.taken(Key("b", "tiny")) == (Taken("tiny", "'tiny' belongs to a/tiny"),)


def test_services_that_may_gain_or_lose_a_name_are_queued(owners, woken):
    owners.put(body("old", "a"))
    owners.put(body("young", "a", "b", created=NEW))
    owners.put(body("third", "c"))
    assert woken == [Key("ns", "old")]
    del woken[:]
    owners.put(body("old", "z"))
    assert woken == [Key("ns", "young")]
    owners.put(body("old", "z"))
    owners.drop(Key("ns", "third"))
    assert woken == [Key("ns", "young")]
    assert owners.taken(Key("ns", "young")) == ()


NEVER = {"conditions": [{"type": "Serving", "status": "False", "reason": "NotServedYet"}]}
ASLEEP = {"conditions": [{"type": "Serving", "status": "False", "reason": "NoReplica"}]}


@pytest.mark.parametrize(
    ("namespace", "conditions", "taken"),
    [("ns", NEVER, True), ("other", NEVER, False), ("other", ASLEEP, True), ("other", {}, True)],
)
def test_a_service_that_never_served_keeps_no_name_from_another_namespace(owners, namespace, conditions, taken):
    first = body("first", "a", namespace=namespace)
    first["status"] = conditions | {"servedNames": ["a"]}
    owners.put(first)
    second = body("second", "a", created=NEW)
    second["status"] = NEVER
    owners.put(second)
    assert owners.taken(Key("ns", "second")) == ((Taken("a", f"'a' belongs to {namespace}/first"),) if taken else ())
    assert owners.taken(Key(namespace, "first")) == ()


def test_the_first_that_serves_has_the_name_and_the_other_one_is_told(owners, woken):
    older, younger = body("older", "a", namespace="other"), body("younger", "a", created=NEW)
    for one in (older, younger):
        one["status"] = NEVER | {"servedNames": ["a"]}
        owners.put(one)
    assert (owners.taken(Key("ns", "younger")), owners.owner("a")) == ((), Key("other", "older"))
    del woken[:]
    younger["status"] = {"conditions": [{"type": "Serving", "status": "True", "reason": "TakesRequests"}], "servedNames": ["a"]}
    owners.put(younger)
    assert owners.taken(Key("other", "older")) == (Taken("a", "'a' belongs to ns/younger"),)
    assert woken == [Key("other", "older")]


def test_a_reserved_name_is_free_for_the_youngest_service_of_its_namespaces_and_others_are_told_so():
    owners = NameOwners(reserved=read_reserved('{"a": ["ns"]}'))
    first = body("first", "a", "b", namespace="other")
    first["status"] = {"servedNames": ["a", "b"]}  # it had the name before the administrator reserved it
    owners.put(first)
    assert owners.owner("a") is None
    owners.put(body("second", "a", created=NEW))
    (taken,) = owners.taken(Key("other", "first"))
    assert (taken.name, taken.reserved, "reserved for namespaces ns" in taken.why) == ("a", True, True)
    assert (owners.taken(Key("ns", "second")), owners.owner("a")) == ((), Key("ns", "second"))


def test_a_service_whose_only_name_is_reserved_starts_nothing_and_its_condition_says_for_whom():
    harness = Harness()
    harness.name_owners.reserved = read_reserved('{"ti*": ["platform", "team-a"]}')
    harness.settle()
    line = harness.conditions()["Stalled"]
    assert (line["status"], line["reason"], harness.names(DEPLOYMENTS)) == ("True", "NameReserved", [])
    assert "'tiny' is reserved for namespaces platform, team-a by reservedNames 'ti*'" in line["message"]
    assert names(harness.api, "ns", "tiny") == []


def test_unclaimed_names_are_forgotten(owners):
    owners.put(body("old", "a"))
    owners.put(body("young", "a", created=NEW))
    owners.drop(Key("ns", "old"))
    owners.drop(Key("ns", "young"))
    owners.drop(Key("ns", "young"))
    assert owners._by_name == {}


@pytest.mark.parametrize("uri", ["pvc://models/tiny", "hf://org/not-inspected-yet"])
def test_a_first_look_knows_all_services(uri):
    harness = Harness(model={"uri": uri})
    older = harness.api.put(SERVICES, body("old", "tiny", namespace="other"))
    older["metadata"]["creationTimestamp"] = OLD
    harness.settle()
    line = harness.conditions()["Stalled"]
    assert (line["status"], line["reason"]) == ("True", "NameConflict")
    assert "'tiny' belongs to other/old" in line["message"]
    assert (harness.names(DEPLOYMENTS), harness.api.of(PODS)) == ([], [])


def test_the_name_of_one_that_goes_is_the_next_ones():
    harness = Harness()
    older = harness.api.put(SERVICES, body("old", "tiny", namespace="other"))
    older["metadata"]["creationTimestamp"] = OLD
    harness.settle()
    del harness.api.objects[("InferenceService", "other", "old")]
    harness.settle()
    harness.make_ready()
    assert harness.conditions()["Ready"]["status"] == "True"


def test_a_service_with_one_name_left_serves_under_it():
    harness = Harness(model={"uri": "pvc://models/tiny", "servedNames": ["mine", "theirs"]})
    older = harness.api.put(SERVICES, body("old", "theirs", namespace="other"))
    older["metadata"]["creationTimestamp"] = OLD
    harness.settle()
    harness.make_ready()
    assert harness.reason() == "NameConflict"
    assert len(harness.names(DEPLOYMENTS)) == 1


def test_a_running_service_goes_on_if_it_loses_names():
    harness = Harness()
    harness.settle()
    harness.make_ready()
    before = harness.names(DEPLOYMENTS)
    older = harness.api.put(SERVICES, body("old", "tiny", namespace="other"))
    older["metadata"]["creationTimestamp"] = OLD
    older["status"] = {"servedNames": ["tiny"]}
    harness.edit(replicas=2)
    harness.settle()
    (deployment,) = harness.api.of(DEPLOYMENTS)
    assert (harness.names(DEPLOYMENTS), deployment["spec"]["replicas"], harness.reason()) == (before, 2, "NameConflict")
    assert KEY.name in harness.conditions()["Stalled"]["message"]


def names(api, namespace, name):
    return api.objects[SERVICES.kind, namespace, name]["status"].get("servedNames")


@pytest.mark.parametrize("restarts", [True, False])
def test_an_older_service_that_adds_a_name_does_not_take_it_from_a_younger_one_that_has_it(restarts):
    harness = Harness()
    harness.api.edit(SERVICES, "ns", "tiny", lambda body: body["metadata"].update(creationTimestamp=NEW))
    harness.settle()
    harness.make_ready()
    assert names(harness.api, "ns", "tiny") == ["tiny"]
    harness.api.put(SERVICES, body("old", "mine", namespace="other"))
    harness.run(Key("other", "old"))
    assert names(harness.api, "other", "old") == ["mine"]
    wants = {"uri": "pvc://m", "servedNames": ["mine", "tiny"]}
    harness.api.edit(SERVICES, "other", "old", lambda body: body["spec"].update(model=wants))
    if restarts:
        harness.restart()
    for _ in range(3):
        harness.run(Key("other", "old"))
        harness.settle()
    assert (names(harness.api, "ns", "tiny"), names(harness.api, "other", "old")) == (["tiny"], ["mine"])
    assert harness.reason() == "Available"
    reported = next(c for c in harness.api.objects[SERVICES.kind, "other", "old"]["status"]["conditions"] if c["type"] == "Stalled")
    assert (reported["reason"], "'tiny' belongs to ns/tiny" in reported["message"]) == ("NameConflict", True)
    del harness.api.objects[SERVICES.kind, "ns", "tiny"]
    harness.run()
    harness.run(Key("other", "old"))
    assert names(harness.api, "other", "old") == ["mine", "tiny"]
