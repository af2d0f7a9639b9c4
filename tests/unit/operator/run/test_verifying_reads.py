"""What a run reads: nothing where it asks for nothing or writes at a version that it saw; all of a service where it makes or removes."""

from __future__ import annotations

import pytest
from pagoda_contracts.names import LABEL_SERVICE_UID
from pagoda_operator.api.errors import Conflict
from pagoda_operator.api.state import CONFIG_MAPS, DEPLOYMENTS, DISRUPTION_BUDGETS, PODS, PROFILES, SERVICES
from pagoda_operator.run import reconcile
from pagoda_operator.watch.kept import OWN
from support.kube.fake_api import profile_body
from support.worlds.cached import Cached, get_ready
from support.worlds.world import KEY

ALL = {resource.kind for resource in OWN}
HOLDINGS = {DEPLOYMENTS.kind, PODS.kind}


@pytest.fixture
def world() -> Cached:
    made = Cached()
    made.settle()
    made.make_ready()
    return made


def asked(world: Cached) -> set[str]:
    """The kinds that one run reads, once the watches have caught up."""
    world.show()
    begun = len(world.api.kinds_read)
    world.run()
    return set(world.api.kinds_read[begun:])


def plans(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each plan that is made."""
    made: list[None] = []
    plan = reconcile.plan
    monkeypatch.setattr(reconcile, "plan", lambda observed: [made.append(None), plan(observed)][1])
    return made


def test_a_run_at_rest_reads_nothing_and_plans_once(world: Cached, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plans(monkeypatch)
    assert asked(world) == set()
    assert len(made) == 1


def test_the_first_run_of_a_new_process_reads_nothing(world: Cached) -> None:
    world.restart()
    written = len(world.api.journal)
    assert asked(world) == set()
    assert len(world.api.journal) == written


def test_scaling_plans_once_and_writes_at_the_observed_version(world: Cached, monkeypatch: pytest.MonkeyPatch) -> None:
    world.edit(replicas=2)
    made = plans(monkeypatch)
    assert asked(world) == set()
    assert len(made) == 1
    assert world.api.of(DEPLOYMENTS)[0]["spec"]["replicas"] == 2


def test_a_replica_that_becomes_ready_costs_only_a_status(world: Cached) -> None:
    world.edit(replicas=2)
    world.settle()
    world.api.control()
    for pod in world.api.of(PODS):
        get_ready(world, pod)
    assert asked(world) == set()
    assert world.conditions()["Ready"]["status"] == "True"


@pytest.mark.parametrize("resource", [CONFIG_MAPS, DISRUPTION_BUDGETS])
def test_a_missing_child_is_verified_before_it_is_created(world: Cached, resource) -> None:
    (body,) = [body for body in world.api.of(resource) if LABEL_SERVICE_UID in body["metadata"]["labels"]]
    del world.api.objects[resource.kind, "ns", body["metadata"]["name"]]
    assert asked(world) >= ALL
    assert world.names(resource) == [body["metadata"]["name"]]


@pytest.mark.parametrize("resource", [CONFIG_MAPS, DEPLOYMENTS])
def test_a_child_without_its_owner_is_adopted_only_if_the_service_is_verified_to_stay(world: Cached, resource) -> None:
    """As the garbage collector leaves it if the service is deleted with `--cascade=orphan`, and the cache of services is late."""
    (body,) = [body for body in world.api.of(resource) if LABEL_SERVICE_UID in body["metadata"]["labels"]]
    name = body["metadata"]["name"]

    def strip(child):
        child["metadata"].pop("ownerReferences")

    world.api.edit(resource, "ns", name, strip)
    assert asked(world) >= ALL
    assert "ownerReferences" in world.api.objects[resource.kind, "ns", name]["metadata"], "a person's edit is undone"
    world.api.edit(SERVICES, "ns", KEY.name, lambda service: service["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
    world.api.edit(resource, "ns", name, strip)
    world.show(resource)
    world.run()
    assert "ownerReferences" not in world.api.objects[resource.kind, "ns", name]["metadata"]


def test_a_new_revision_is_planned_on_verified_objects(world: Cached) -> None:
    world.edit(engine={"maxModelLen": 64})
    assert asked(world) >= ALL


def test_a_plan_on_an_outdated_cache_is_not_carried_out_and_the_next_run_reads_first(world: Cached, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Deployment is there, and the watch has said that it went."""
    (name,) = world.names(DEPLOYMENTS)
    key = next(iter(world.caches.kinds[DEPLOYMENTS].values()))
    world.caches.kinds[DEPLOYMENTS]._forget(key)
    made, written = plans(monkeypatch), len(world.api.journal)
    assert world.run().again == 0
    assert (len(made), len(world.api.journal)) == (1, written)
    begun = len(world.api.kinds_read)
    world.run()
    assert (len(made), world.names(DEPLOYMENTS)) == (2, [name])
    assert set(world.api.kinds_read[begun:]) == ALL
    assert [entry for entry in world.api.journal[written:] if entry[1] == "Deployment"] == []


@pytest.mark.parametrize("spec", [{"engine": {"maxModelLen": 64}}, {"replicas": 0}])
def test_what_makes_or_removes_objects_is_planned_once(world: Cached, monkeypatch: pytest.MonkeyPatch, spec) -> None:
    """The quorum reads show what was observed, so the plan that was made of it is carried out."""
    world.edit(**spec)
    made, written, runs = plans(monkeypatch), len(world.api.journal), 0
    for runs in range(1, 12):
        world.show()
        world.run()
        assert len(made) == runs
    assert len(world.api.journal) > written


def test_after_a_conflict_the_next_run_reads_first(world: Cached) -> None:
    (name,) = world.names(DEPLOYMENTS)
    world.edit(replicas=3)
    world.show(SERVICES)
    world.api.edit(DEPLOYMENTS, "ns", name, lambda body: body["metadata"].setdefault("annotations", {}).update(by="somebody"))
    with pytest.raises(Conflict):
        world.run()
    world.run()
    assert world.api.of(DEPLOYMENTS)[0]["spec"]["replicas"] == 3


def test_a_status_is_written_at_the_observed_version(world: Cached) -> None:
    """Of an edit that was not shown yet it says nothing."""
    for pod in world.api.of(PODS):
        pod["status"] = {}
        world.api._touch(pod)
    world.edit(replicas=3)  # nobody has shown this yet
    world.show(PODS)
    with pytest.raises(Conflict):
        world.run()
    assert world.api.of(SERVICES)[0]["status"]["observedGeneration"] < world.api.of(SERVICES)[0]["metadata"]["generation"]
    world.run()
    assert world.api.of(DEPLOYMENTS)[0]["spec"]["replicas"] == 3


def test_a_profile_that_is_not_cached_yet_is_not_reported_missing(world: Cached) -> None:
    world.api.put(PROFILES, profile_body("p2"))
    world.edit(profileRef={"name": "p2"}, engine={"maxModelLen": 99})
    world.show(SERVICES)
    world.run()
    assert world.conditions()["Stalled"]["status"] != "True"


def test_a_problem_is_verified_once_and_not_in_each_run(world: Cached) -> None:
    world.edit(profileRef={"name": "nobody's"})
    world.settle()
    assert world.conditions()["Stalled"]["status"] == "True"
    assert asked(world) == set()


def test_constantly_changing_pods_do_not_repeat_the_verification(world: Cached, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted until nothing changed between two reads, it would be read for ever."""
    listed = world.api.listed

    async def moving(resource, namespace, *, label="", name=""):
        if resource == PODS:
            for pod in world.api.of(PODS):
                pod["status"]["podIP"] = f"10.0.0.{len(world.api.kinds_read)}"
                world.api._touch(pod)
        return await listed(resource, namespace, label=label, name=name)

    world.edit(engine={"maxModelLen": 64})
    world.show()
    monkeypatch.setattr(world.api, "listed", moving)
    begun, before = len(world.api.kinds_read), world.names(DEPLOYMENTS)
    for _ in range(4):
        world.run()
    assert world.names(DEPLOYMENTS) != before
    assert world.api.kinds_read[begun:].count(PODS.kind) <= 4


def test_an_event_during_a_verification_counts(world: Cached, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read then finds nothing that the caches do not know: the plan is another one all the same."""
    listed = world.api.listed

    async def overtaken(resource, namespace, *, label="", name=""):
        if resource == PROFILES:
            world.show(PROFILES)
        return await listed(resource, namespace, label=label, name=name)

    world.api.put(PROFILES, profile_body("p2"))
    world.edit(profileRef={"name": "p2"}, engine={"maxModelLen": 99})
    world.show(SERVICES)
    monkeypatch.setattr(world.api, "listed", overtaken)
    world.run()
    assert world.conditions()["Stalled"]["status"] != "True"
