"""Which LoraAdapters a service's replicas should have, why others are refused, and what each status says."""

from dataclasses import replace

import pytest
from pagoda_contracts.conditions import adapter as reasons
from pagoda_contracts.name_owners import NOTHING_RESERVED, read_reserved
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_operator.api.adapters import Entry, Namespace, Phase, Progress
from pagoda_operator.api.state import Key
from pagoda_operator.decide.adapters.catalogue import Host, catalogue, entry_of
from pagoda_operator.decide.adapters.places import Replica, place
from pagoda_operator.decide.adapters.status import Replicas, refused_status, status
from support.kube.lora_adapters import adapter

KEY = Key("ns", "tiny")
NOW, LATER = "2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z"
DIGEST, OTHER = (f"sha256:{letter * 64}" for letter in "ab")
HAS, LOADS = Progress(Phase.LOADED, DIGEST), Progress(Phase.FETCHING)
FAILS = Progress(Phase.FAILED, reason="NotFound: no such folder")


def host(adapters=None, owner=lambda _name: None, namespace="ns", namespaces=(), reserved=NOTHING_RESERVED, **spec):
    body = {"model": {"uri": "pvc://models"}, "accelerators": [{"cpu": {"cores": "1", "memory": "1Gi"}}]} | spec
    if adapters is not None:
        body["adapters"] = adapters
    return Host(Key(namespace, "tiny"), InferenceServiceSpec.model_validate(body), ("tiny",), owner, namespaces, reserved)


def why(one, here):
    (found,) = catalogue(here, [one]).refused
    return found[1].reason, found[1].message


def conditions(said):
    return {one["type"]: (one["status"], one["reason"], one["message"]) for one in said["conditions"]}


def test_adapters_of_the_service_are_its_catalogue_in_the_order_of_their_age():
    young = adapter("b", "two", age=2, modelName="pirate", source={"uri": "s3://bucket/b", "credential": "keys", "digest": DIGEST})
    here = host({}, credentials=[{"name": "keys", "secretRef": {"name": "s"}}])
    found = catalogue(here, [young, adapter("a", age=1, pinned=True)])
    assert found.names == ("a", "pirate")
    assert tuple(map(entry_of, found.accepted)) == (
        Entry("a", "pvc://models/one", "", "", True),
        Entry("pirate", "s3://bucket/b", DIGEST, "keys", False),
    )


def test_a_digest_that_the_first_replica_found_is_kept_until_the_spec_changes():
    found = {"observedGeneration": 3, "digest": DIGEST}
    same, edited = adapter("a", generation=3, status=found), adapter("a", generation=4, status=found)
    assert [one.digest for one in catalogue(host({}), [same]).accepted] == [DIGEST]
    assert [one.digest for one in catalogue(host({}), [edited]).accepted] == [""]


@pytest.mark.parametrize(
    ("one", "here", "reason", "words"),
    [
        (adapter("a"), None, reasons.NO_SERVICE, "no InferenceService tiny in ns"),
        (adapter("a"), host(), reasons.NOT_ENABLED, "no spec.adapters"),
        (adapter("a", serviceRef={"name": "tiny", "namespace": "big"}), host({}, namespace="big"), reasons.NOT_ALLOWED, "namespace ns"),
        (adapter("a", source={"uri": "pvc://other/x"}), host({}), reasons.INVALID, "claim 'other' is not mounted"),
        (adapter("a", source={"uri": "hf://x/y", "credential": "k"}), host({}), reasons.INVALID, "'k' is not a name"),
        (adapter("tiny"), host({}), reasons.NAME_TAKEN, "the name of the service's model"),
        (adapter("a"), host({}, lambda _name: Key("ns", "big")), reasons.NAME_TAKEN, "a name of service ns/big"),
        (adapter("a", source={}), host({}), reasons.INVALID, "source.uri"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_reason(one, here, reason, words):
    found = why(one, here)
    assert found[0] is reason
    assert words in found[1]


@pytest.mark.parametrize(("rules", "accepted"), [('{"a": ["big"]}', False), ('{"a": ["ns"]}', False), ('{"a": ["big", "ns"]}', True)])
def test_a_reserved_name_needs_both_namespaces_that_of_the_adapter_and_that_of_its_service(rules, accepted):
    here = host(
        {"allowFrom": {"namespaces": "Selector", "selector": {"matchLabels": {"a": "b"}}}},
        namespace="big",
        namespaces=(Namespace("ns", frozenset({("a", "b")})),),
        reserved=read_reserved(rules),
    )
    found = catalogue(here, [adapter("a", serviceRef={"name": "tiny", "namespace": "big"})])
    assert [one.served_name for one in found.accepted] == ["a"] * accepted
    assert [(one.reason, "is reserved for namespaces" in one.message) for _, one in found.refused] == [(reasons.NAME_RESERVED, True)] * (
        not accepted
    )


def test_a_claim_that_the_service_names_is_one_to_come_from():
    assert catalogue(host({"claims": ["other"]}), [adapter("a", source={"uri": "pvc://other/x"})]).names == ("a",)


def test_an_adapter_of_another_namespace_is_taken_if_the_service_allows_its_labels():
    one = adapter("a", serviceRef={"name": "tiny", "namespace": "big"})
    selector = {"allowFrom": {"namespaces": "Selector", "selector": {"matchLabels": {"team": "blue"}}}}
    labels = frozenset({("team", "blue"), ("x", "y")})
    for known, accepted in ((Namespace("ns", labels), True), (Namespace("ns", frozenset()), False), (Namespace("other", labels), False)):
        found = catalogue(host(selector, namespace="big", namespaces=(known,)), [one])
        assert bool(found.accepted) is accepted
    assert catalogue(host(selector), [adapter("a")]).accepted  # its own namespace needs no label


def test_a_name_that_the_service_holds_for_the_adapter_stays_its_own():
    assert catalogue(host({}, lambda _name: KEY), [adapter("a")]).names == ("a",)


def test_the_oldest_adapters_have_the_name_and_the_places():
    first, second = adapter("a", age=1, modelName="x"), adapter("b", age=2, modelName="x")
    third, fourth = adapter("c", age=3), adapter("d", age=4)
    found = catalogue(host({"maxLoaded": 2}), [fourth, second, third, first])
    assert found.names == ("x", "c")
    assert [(one.meta.name, refusal.reason) for one, refusal in found.refused] == [("b", reasons.NAME_TAKEN), ("d", reasons.TOO_MANY)]


def test_an_adapter_that_is_being_deleted_is_in_no_catalogue():
    body = adapter("a")
    gone = type(body)(*(getattr(body, name) for name in ("service", "uid", "generation", "created", "spec", "invalid")), deleting=True)
    assert catalogue(host({}), [gone]) == ((), ())


def test_it_is_ready_when_every_ready_replica_has_it():
    said = status(adapter("a"), {"p": HAS, "q": HAS}, Replicas(2, 2), NOW)
    assert conditions(said)["Ready"] == ("True", "Resident", "loaded on 2 of 2 replicas")
    assert (said["digest"], said["loaded"], said["observedGeneration"]) == (DIGEST, 2, 1)
    assert said["endpoints"] == [{"pod": "p", "state": "Loaded"}, {"pod": "q", "state": "Loaded"}]


def test_while_it_loads_the_status_says_where_and_what_failed():
    said = status(adapter("a"), {"p": HAS, "q": LOADS, "r": FAILS}, Replicas(3, 3), NOW)
    expected = "loaded on 1 of 3 replicas; r: NotFound: no such folder"
    assert conditions(said) == {
        "Ready": ("Unknown", "Loading", expected),
        "Reconciling": ("True", "Loading", expected),
        "Stalled": ("False", "NotStalled", ""),
    }
    assert said["endpoints"][2] == {"pod": "r", "state": "Failed", "reason": "NotFound: no such folder"}


def test_it_is_stalled_only_when_no_replica_can():
    stalled = conditions(status(adapter("a"), {"p": FAILS, "q": FAILS}, Replicas(2, 2), NOW))
    assert stalled["Stalled"][:2] == ("True", "AdapterRejected")
    assert stalled["Ready"][0] == "False"
    assert conditions(status(adapter("a"), {"p": FAILS, "q": LOADS}, Replicas(2, 2), NOW))["Stalled"][0] == "False"


def test_without_replicas_it_waits_or_sleeps_with_its_service():
    assert conditions(status(adapter("a"), {}, Replicas(0, 1), NOW))["Reconciling"][:2] == ("True", "WaitingForReplicas")
    assert conditions(status(adapter("a"), {}, Replicas(0, 0), NOW))["Ready"][:2] == ("True", "ScaledToZero")


def test_a_replica_that_is_added_does_not_make_it_unready_and_an_edit_does():
    before = status(adapter("a"), {"p": HAS}, Replicas(1, 1), NOW)
    added = status(adapter("a", status=before), {"p": HAS, "q": LOADS}, Replicas(2, 2), LATER)
    assert conditions(added)["Ready"][0] == "True"
    assert added["conditions"][0]["lastTransitionTime"] == NOW
    edited = status(adapter("a", generation=2, status=before), {"p": Progress(Phase.LOADED, OTHER), "q": LOADS}, Replicas(2, 2), LATER)
    assert conditions(edited)["Ready"][0] == "Unknown"
    assert edited["digest"] == OTHER


def test_a_refused_adapter_says_so_and_names_no_replica():
    (found,) = catalogue(host(), [adapter("a")]).refused
    said = refused_status(*found, NOW)
    assert conditions(said)["Stalled"][:2] == ("True", "AdaptersNotEnabled")
    assert said["loaded"] == 0
    assert said["endpoints"] == []


def spread(names, copies, nodes="", has=()):
    """Which replicas an adapter `a` on so many goes to."""
    placement = {"mode": "Replicas", "replicas": copies}
    nodes = nodes or names
    replicas = [Replica(name, f"uid-{name}", node, frozenset("a" if name in has else "")) for name, node in zip(names, nodes, strict=True)]
    return place([adapter("a", placement=placement)], replicas, 1)


def test_an_adapter_on_n_replicas_keeps_them_when_others_come_and_moves_only_from_one_that_leaves():
    before = set(spread("pqrst", 2).replicas["uid-a"])
    assert len(before) == 2
    for gone in "pqrst":
        after = set(spread("pqrst".replace(gone, ""), 2).replicas["uid-a"])
        assert len(after) == 2
        assert len(after & before) == (1 if gone in before else 2)
    assert len(spread("p", 2).replicas["uid-a"]) == 1


def test_it_goes_to_different_nodes_if_it_can():
    for uneven in ("11112", "12222", "11211"):
        chosen = spread("pqrst", 2, uneven).replicas["uid-a"]
        assert {uneven["pqrst".index(name)] for name in chosen} == {"1", "2"}


def test_a_replica_that_it_leaves_keeps_it_until_it_is_loaded_elsewhere():
    (target,) = spread("pqr", 1).replicas["uid-a"]
    other = next(name for name in "pqr" if name != target)
    moving = spread("pqr", 1, has=other)
    assert {uid for uid, entries in moving.entries.items() if entries} == {f"uid-{target}", f"uid-{other}"}
    moved = spread("pqr", 1, has=other + target)
    assert {uid for uid, entries in moved.entries.items() if entries} == {f"uid-{target}"}


def test_older_adapters_have_the_places_of_a_replica_and_the_others_say_that_there_is_none():
    everywhere, one, none = adapter("a"), adapter("b", placement={"mode": "Replicas", "replicas": 1}), adapter("c", age=9)
    found = place([everywhere, one, none], [Replica("p", "p"), Replica("q", "q")], 2)
    assert {len(entries) for entries in found.entries.values()} == {2}
    assert (len(found.replicas["uid-b"]), len(found.replicas["uid-c"])) == (1, 1)
    (place_of_c,) = found.replicas["uid-c"]
    partly = conditions(status(none, {place_of_c: HAS}, Replicas(2, 2), NOW))
    assert partly["Ready"][1:] == ("Loading", "loaded on 1 of 2 replicas; 1 have no place left")
    assert conditions(status(none, {}, Replicas(2, 2), NOW))["Stalled"][1] == "TooManyAdapters"


def test_what_a_request_loads_is_on_every_disk_shares_a_place_and_is_ready_without_being_loaded():
    everywhere, waiting = adapter("a"), adapter("b", placement={"mode": "OnDemand"})
    found = place([everywhere, waiting], [Replica("p", "p"), Replica("q", "q")], 2)
    assert {uid: [entry.on_demand for entry in entries] for uid, entries in found.entries.items()} == {
        "p": [False, True],
        "q": [False, True],
    }
    here = {"p": Progress(Phase.ON_DISK, DIGEST), "q": HAS}
    said = status(waiting, here, Replicas(2, 2), NOW)
    assert conditions(said)["Ready"] == ("True", "Resident", "on the disk of 2 of 2 replicas")
    assert (said["loaded"], said["digest"]) == (0, DIGEST)  # each request may change which ones have it in memory
    assert [one["state"] for one in said["endpoints"]] == ["OnDisk", "OnDisk"]


def on_demand(name, **fields):
    return adapter(name, placement={"mode": "OnDemand"}, **fields)


@pytest.mark.parametrize(
    ("adapters", "accepted"),
    [
        ([on_demand("a"), on_demand("b"), on_demand("c")], "abc"),
        ([on_demand("a"), adapter("b"), adapter("c")], "ab"),
        ([adapter("a"), adapter("b"), on_demand("c")], "ab"),
        ([on_demand("a", pinned=True), on_demand("b"), adapter("c")], "ab"),
    ],
)
def test_those_that_share_places_have_one_at_least(adapters, accepted):
    aged = [replace(one, created=f"2026-01-0{age}") for age, one in enumerate(adapters, 1)]
    found = catalogue(host({"maxLoaded": 2}), aged)
    assert "".join(one.served_name for one in found.accepted) == accepted
    assert {why.reason for _, why in found.refused} <= {reasons.TOO_MANY}


@pytest.mark.parametrize(
    ("uri", "model", "words"),
    [
        ("oci://evil.example/x", "oci://registry.example/m", "not to oci://evil.example"),
        ("oci://registry.example/x", "oci://registry.example/m", ""),
        ("s3://bucket/x", "pvc://models", ""),
    ],
)
def test_a_secret_goes_to_no_registry_of_the_adapters_choice(uri, model, words):
    here = host({}, model={"uri": model}, credentials=[{"name": "reg", "secretRef": {"name": "s"}}])
    found = catalogue(here, [adapter("a", source={"uri": uri, "credential": "reg"})])
    assert [words in why.message for _, why in found.refused] == ([True] if words else [])
