"""What a run reads: nothing where it asks for nothing or writes at a version that it saw; all of a service where it makes or removes."""

from __future__ import annotations

import pytest
from pagoda_contracts.names import LABEL_SERVICE_UID
from pagoda_operator.api.errors import Conflict
from pagoda_operator.api.state import CONFIG_MAPS, DEPLOYMENTS, DISRUPTION_BUDGETS, PODS, PROFILES, SERVICES
from pagoda_operator.run import reconcile
from pagoda_operator.watch.kept import OWN
from support.harness.cached import Cached, get_ready
from support.harness.harness import KEY
from support.kube.fake_api import profile_body

ALL = {resource.kind for resource in OWN}
HOLDINGS = {DEPLOYMENTS.kind, PODS.kind}


@pytest.fixture
def harness() -> Cached:
    made = Cached()
    made.settle()
    made.make_ready()
    return made


def asked(harness: Cached) -> set[str]:
    """The kinds that one run reads, once the watches have caught up."""
    harness.show()
    begun = len(harness.api.kinds_read)
    harness.run()
    return set(harness.api.kinds_read[begun:])


def plans(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each plan that is made."""
    made: list[None] = []
    plan = reconcile.plan
    monkeypatch.setattr(reconcile, "plan", lambda observed: [made.append(None), plan(observed)][1])
    return made


def test_a_run_at_rest_reads_nothing_and_plans_once(harness: Cached, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plans(monkeypatch)
    assert asked(harness) == set()
    assert len(made) == 1


def test_the_first_run_of_a_new_process_reads_nothing(harness: Cached) -> None:
    harness.restart()
    written = len(harness.api.journal)
    assert asked(harness) == set()
    assert len(harness.api.journal) == written


def test_scaling_plans_once_and_writes_at_the_observed_version(harness: Cached, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.edit(replicas=2)
    made = plans(monkeypatch)
    assert asked(harness) == set()
    assert len(made) == 1
    assert harness.api.of(DEPLOYMENTS)[0]["spec"]["replicas"] == 2


def test_a_replica_that_becomes_ready_costs_only_a_status(harness: Cached) -> None:
    harness.edit(replicas=2)
    harness.settle()
    harness.api.control()
    for pod in harness.api.of(PODS):
        get_ready(harness, pod)
    assert asked(harness) == set()
    assert harness.conditions()["Ready"]["status"] == "True"


@pytest.mark.parametrize("resource", [CONFIG_MAPS, DISRUPTION_BUDGETS])
def test_a_missing_child_is_verified_before_it_is_created(harness: Cached, resource) -> None:
    (body,) = [body for body in harness.api.of(resource) if LABEL_SERVICE_UID in body["metadata"]["labels"]]
    del harness.api.objects[resource.kind, "ns", body["metadata"]["name"]]
    assert asked(harness) >= ALL
    assert harness.names(resource) == [body["metadata"]["name"]]


@pytest.mark.parametrize("resource", [CONFIG_MAPS, DEPLOYMENTS])
def test_a_child_without_its_owner_is_adopted_only_if_the_service_is_verified_to_stay(harness: Cached, resource) -> None:
    """As the garbage collector leaves it if the service is deleted with `--cascade=orphan`, and the cache of services is late."""
    (body,) = [body for body in harness.api.of(resource) if LABEL_SERVICE_UID in body["metadata"]["labels"]]
    name = body["metadata"]["name"]

    def strip(child):
        child["metadata"].pop("ownerReferences")

    harness.api.edit(resource, "ns", name, strip)
    assert asked(harness) >= ALL
    assert "ownerReferences" in harness.api.objects[resource.kind, "ns", name]["metadata"], "a person's edit is undone"
    harness.api.edit(SERVICES, "ns", KEY.name, lambda service: service["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
    harness.api.edit(resource, "ns", name, strip)
    harness.show(resource)
    harness.run()
    assert "ownerReferences" not in harness.api.objects[resource.kind, "ns", name]["metadata"]


def test_a_new_revision_is_planned_on_verified_objects(harness: Cached) -> None:
    harness.edit(engine={"maxModelLen": 64})
    assert asked(harness) >= ALL


def test_a_plan_on_an_outdated_cache_is_not_carried_out_and_the_next_run_reads_first(
    harness: Cached, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Deployment is there, and the watch has said that it went."""
    (name,) = harness.names(DEPLOYMENTS)
    key = next(iter(harness.caches.of(DEPLOYMENTS).values()))
    harness.caches.of(DEPLOYMENTS)._forget(key)
    made, written = plans(monkeypatch), len(harness.api.journal)
    assert harness.run().again == 0
    assert (len(made), len(harness.api.journal)) == (1, written)
    begun = len(harness.api.kinds_read)
    harness.run()
    assert (len(made), harness.names(DEPLOYMENTS)) == (2, [name])
    assert set(harness.api.kinds_read[begun:]) == ALL
    assert [entry for entry in harness.api.journal[written:] if entry[1] == "Deployment"] == []


@pytest.mark.parametrize("spec", [{"engine": {"maxModelLen": 64}}, {"replicas": 0}])
def test_what_makes_or_removes_objects_is_planned_once(harness: Cached, monkeypatch: pytest.MonkeyPatch, spec) -> None:
    """The quorum reads show what was observed, so the plan that was made of it is carried out."""
    harness.edit(**spec)
    made, written, runs = plans(monkeypatch), len(harness.api.journal), 0
    for runs in range(1, 12):
        harness.show()
        harness.run()
        assert len(made) == runs
    assert len(harness.api.journal) > written


def test_after_a_conflict_the_next_run_reads_first(harness: Cached) -> None:
    (name,) = harness.names(DEPLOYMENTS)
    harness.edit(replicas=3)
    harness.show(SERVICES)
    harness.api.edit(DEPLOYMENTS, "ns", name, lambda body: body["metadata"].setdefault("annotations", {}).update(by="somebody"))
    with pytest.raises(Conflict):
        harness.run()
    harness.run()
    assert harness.api.of(DEPLOYMENTS)[0]["spec"]["replicas"] == 3


def test_a_status_is_written_at_the_observed_version(harness: Cached) -> None:
    """Of an edit that was not shown yet it says nothing."""
    for pod in harness.api.of(PODS):
        pod["status"] = {}
        harness.api._touch(pod)
    harness.edit(replicas=3)  # nobody has shown this yet
    harness.show(PODS)
    with pytest.raises(Conflict):
        harness.run()
    assert harness.api.of(SERVICES)[0]["status"]["observedGeneration"] < harness.api.of(SERVICES)[0]["metadata"]["generation"]
    harness.run()
    assert harness.api.of(DEPLOYMENTS)[0]["spec"]["replicas"] == 3


def test_a_profile_that_is_not_cached_yet_is_not_reported_missing(harness: Cached) -> None:
    harness.api.put(PROFILES, profile_body("p2"))
    harness.edit(profileRef={"name": "p2"}, engine={"maxModelLen": 99})
    harness.show(SERVICES)
    harness.run()
    assert harness.conditions()["Stalled"]["status"] != "True"


def test_a_problem_is_verified_once_and_not_in_each_run(harness: Cached) -> None:
    harness.edit(profileRef={"name": "nobody's"})
    harness.settle()
    assert harness.conditions()["Stalled"]["status"] == "True"
    assert asked(harness) == set()


def test_constantly_changing_pods_do_not_repeat_the_verification(harness: Cached, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted until nothing changed between two reads, it would be read for ever."""
    listed = harness.api.listed

    async def moving(resource, namespace, *, label="", name=""):
        if resource == PODS:
            for pod in harness.api.of(PODS):
                pod["status"]["podIP"] = f"10.0.0.{len(harness.api.kinds_read)}"
                harness.api._touch(pod)
        return await listed(resource, namespace, label=label, name=name)

    harness.edit(engine={"maxModelLen": 64})
    harness.show()
    monkeypatch.setattr(harness.api, "listed", moving)
    begun, before = len(harness.api.kinds_read), harness.names(DEPLOYMENTS)
    for _ in range(4):
        harness.run()
    assert harness.names(DEPLOYMENTS) != before
    assert harness.api.kinds_read[begun:].count(PODS.kind) <= 4


def test_an_event_during_a_verification_counts(harness: Cached, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read then finds nothing that the caches do not know: the plan is another one all the same."""
    listed = harness.api.listed

    async def overtaken(resource, namespace, *, label="", name=""):
        if resource == PROFILES:
            harness.show(PROFILES)
        return await listed(resource, namespace, label=label, name=name)

    harness.api.put(PROFILES, profile_body("p2"))
    harness.edit(profileRef={"name": "p2"}, engine={"maxModelLen": 99})
    harness.show(SERVICES)
    monkeypatch.setattr(harness.api, "listed", overtaken)
    harness.run()
    assert harness.conditions()["Stalled"]["status"] != "True"
