"""A service on CPU, from its object to its pods: what is told where it fits nowhere or has no room, and that who serves is left alone."""

import random
from datetime import timedelta

import pytest
from fake_api import running
from fleets import CPU, LLAMA8, fleet, plain, plain_node
from operator_world import World
from pagoda_operator.placement.cores import Loads, held_by
from pagoda_operator.placement.fleet import Fleet
from pagoda_operator.placement.place import GROWS_S
from pagoda_operator.placement.pods import parse_occupant
from pagoda_operator.placement.view import View
from pagoda_operator.state import DEPLOYMENTS, NODES, PODS, PROFILES
from pagoda_operator.world import World as Mirrored
from pagoda_operator.world_parsers import PARSERS
from placing import ENGINE, bind, placement, template

SMALL = {"cpu": {"cores": "4", "memory": "16Gi"}}
FULL = fleet(plain_node("a", "8"), pods=(plain("a", cpu="1"),))
LONG_AGO = "2025-06-01T00:00:00Z"


def world(*accelerators, there=(), **spec):
    made = World(accelerators=list(accelerators), engine=ENGINE, **spec)
    made.fleet = there if isinstance(there, Fleet) else fleet(*there)
    return made


def old(name, cpu):
    """A node that is no autoscaler's of today."""
    body = plain_node(name, cpu)
    body["metadata"]["creationTimestamp"] = LONG_AGO
    return body


def test_what_no_node_can_hold_stalls_with_a_reason_and_a_larger_node_cures_it():
    made = world({"cpu": {"cores": "1000", "memory": "1Gi"}}, there=(plain_node("a"),))
    made.settle()
    assert made.reason() == "NoAccelerator"
    assert made.conditions()["Stalled"]["message"].endswith("cpu[0]: needs 1,000 cores on one node, the largest has 64 cores")
    assert made.api.of(DEPLOYMENTS) == []
    made.fleet = fleet(plain_node("a"), plain_node("b", "1024"))
    made.settle()
    bind(made)
    assert (placement(made)["chosen"], placement(made)["rejected"], made.reason()) == ("cpu[0]", [], "Available")


def test_cores_in_use_are_waited_for_with_pods_made_and_without_a_write_per_tick():
    made = world(CPU, there=FULL)
    made.settle()
    assert (made.reason(), placement(made)["waiting"]["accelerator"], len(made.api.of(PODS))) == ("WaitingForCapacity", "cpu[0]", 1)
    assert "no node has 8 cores and 32.0 GiB free of 1 that could hold it" in made.conditions()["Reconciling"]["message"]
    made.api.journal.clear()
    for cores in ("2", "3", "4"):
        made.tick()
        made.fleet = fleet(plain_node("a", "8"), pods=(plain("a", cpu=cores),))
        made.restart()
        made.run()
    assert made.api.journal == []
    bind(made)
    assert (made.reason(), "waiting" in placement(made)) == ("Available", False)


def test_an_entry_on_cpu_that_has_no_room_is_left_after_its_patience():
    made = world(CPU | {"fallbackAfter": "5m"}, SMALL, there=fleet(plain_node("a", "8"), plain_node("b", "4"), pods=(plain("a", cpu="5"),)))
    made.settle()
    assert (placement(made)["chosen"], made.run().again) == ("cpu[0]", 300)
    made.later += timedelta(minutes=5)
    made.settle()
    bind(made)
    assert (placement(made)["chosen"], made.reason()) == ("cpu[1]", "Available")
    assert placement(made)["rejected"][0]["why"] == "no node has 8 cores and 32.0 GiB free of 1 that could hold it"


@pytest.mark.parametrize("there", [fleet(), FULL, fleet(plain_node("a", "1")), fleet(plain_node("a", cordoned=True))])
def test_who_serves_is_not_judged_anew(there):
    made = world(CPU, there=(plain_node("a"),))
    made.settle()
    bind(made)
    made.api.journal.clear()
    made.fleet = there
    made.restart()
    made.settle()
    assert (made.api.journal, made.reason()) == ([], "Available")


def test_who_was_placed_before_sizes_were_asked_for_is_not_judged_by_his_when_he_comes_back(monkeypatch):
    made = world(CPU, there=(plain_node("a"),), model={"uri": LLAMA8})
    made.api.edit(PROFILES, "", "default", lambda body: body["spec"]["images"].update(fetch="localhost/fetch:1"))
    with monkeypatch.context() as patch:
        patch.setattr("pagoda_operator.placement.cpu.why_not_on_cores", lambda *_: "")
        made.edit(engine=ENGINE | {"maxConcurrency": 1000})
        made.settle()
        bind(made)
    before = made.names(DEPLOYMENTS)
    for body in made.api.of(PODS):
        body["status"] = {"phase": "Pending"}
    made.settle()
    assert (made.names(DEPLOYMENTS), made.conditions()["Stalled"]["status"]) == (before, "False")
    made.edit(engine=ENGINE | {"maxConcurrency": 999})
    made.settle()
    assert "for weights + 999 requests at 4,096 tokens, has 32.0 GiB" in made.conditions()["Stalled"]["message"]


def test_the_sidecar_that_fetches_needs_room_too():
    made = world(CPU, there=(plain_node("a", "8"),), model={"uri": LLAMA8})
    made.api.edit(PROFILES, "", "default", lambda body: body["spec"]["images"].update(fetch="localhost/fetch:1"))
    made.settle()
    assert "needs 8.05 cores on one node, the largest has 8 cores" in made.conditions()["Stalled"]["message"]
    made.fleet = fleet(plain_node("a", "8050m"))
    made.settle()
    (fetching,) = template(made)["initContainers"]
    assert fetching["resources"]["requests"] == {"cpu": "50m", "memory": "128Mi"}


@pytest.mark.parametrize(
    ("node", "strategy"),
    [(old("a", "16"), "Surge"), (old("a", "15"), "Replace"), (plain_node("a", "15"), "Surge"), (old("a", None), "Surge")],
)
def test_a_rollout_replaces_at_once_where_no_node_has_room_beside_and_none_comes_by_itself(node, strategy):
    assert GROWS_S == 24 * 3600
    if node["metadata"].get("creationTimestamp") is None:
        node["metadata"]["creationTimestamp"] = "2025-12-31T20:00:00Z"
    made = world(CPU, there=(node,))
    made.settle()
    bind(made)
    made.fleet = fleet(node, pods=(plain("a", uid=made.observed().meta.uid, cpu="8", memory="32Gi"),))
    made.edit(engine=ENGINE | {"maxModelLen": 2048})
    made.run()
    assert made.plan().rollout.record.strategy == strategy


# What the sums say, and what they cost


def test_sums_that_follow_every_change_are_those_of_all_pods():
    for seed in range(50):
        chance, loads, there = random.Random(seed), Loads(), {}
        for _ in range(200):
            name = f"p{chance.randrange(20)}"
            before = there.pop(name, None)
            if chance.random() < 0.7:
                asked = {"cpu": f"{chance.randrange(4)}", "memory": f"{chance.randrange(3)}Gi"}
                there[name] = plain(f"n{chance.randrange(4)}", name, chance.choice(["", "a", "b"]), **asked)
            loads.heard(*(parse_occupant(body) if body else None for body in (before, there.get(name))))
        assert loads.held() == held_by(pod for body in there.values() if (pod := parse_occupant(body)))


def test_sums_that_were_given_out_do_not_change():
    loads = Loads()
    one, two = (parse_occupant(plain("n", name, "a", cpu="1")) for name in "xy")
    loads.heard(None, one)
    given = loads.held()
    loads.heard(None, two)
    assert (given.by_node, given.own) == ({"n": (1000, 0)}, {"a": {"n": (1000, 0)}})


def test_a_pod_that_comes_or_goes_asks_nothing_of_the_nodes_again():
    loads = Loads()
    mirrored = Mirrored(PARSERS, lambda: 0.0, {PODS: loads.heard})
    view = View(mirrored, loads)
    for number in range(3):
        mirrored.put(NODES, plain_node(f"n{number}"))
    before = view.cores(), view()
    mirrored.put(PODS, plain("n0", cpu="2"))
    after = view.cores(), view()
    assert [one.held.by_node for one in after] == [{"n0": (2000, 0)}] * 2
    assert all(one.held.by_node == {} for one in before)
    assert len({id(one.ground) for one in (*before, *after)}) == 1
    assert (after[1].occupants, view.cores() is after[0], view() is after[1]) == ((), True, True)
    mirrored.put(NODES, plain_node("n3"))
    assert len(view.cores().ground.nodes) == 4


def test_places_are_counted_no_further_than_they_are_wanted():
    looked = []

    class Sums(dict):
        def get(self, name, default=None):
            looked.append(name)
            return super().get(name, default)

    there = fleet(*(plain_node(f"n{number:03}") for number in range(200)))
    made = world(CPU, there=there, replicas=9)
    object.__setattr__(there.held, "by_node", Sums())
    made.settle()
    assert placement(made)["chosen"] == "cpu[0]"
    assert set(looked) <= {"n000", "n001"}


def test_pods_that_run_make_no_service_wait():
    """Its own, of an older revision too, are no others'."""
    made = world(CPU, there=(plain_node("a", "8"),))
    made.settle()
    uid = made.observed().meta.uid
    for body in made.api.of(PODS):
        body["status"] = running(ready=True)
    made.fleet = fleet(plain_node("a", "8"), pods=(plain("a", uid=uid, cpu="8", memory="32Gi"),))
    made.settle()
    assert made.reason() == "Available"
