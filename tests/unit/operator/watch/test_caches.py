"""Our own objects are read again as they came, by service; what is written is known at once; verifying finds what no watch has shown."""

import asyncio

import pytest
from pagoda_contracts.names import LABEL_CLASS, LABEL_SERVICE
from pagoda_operator.api.state import CONFIG_MAPS, DEPLOYMENTS, NODES, PODS, PROFILES, QUOTAS, SERVICES, Key, Listed
from pagoda_operator.watch.caches import KINDS, Caches, InventoryView, item
from support.harness.inventories import pod

TINY = Key("ns", "tiny")


def labelled(name, version, service="tiny", **more):
    meta = {"name": name, "namespace": "ns", "resourceVersion": version, "labels": {LABEL_SERVICE: service}, "managedFields": [{}]}
    return {"metadata": meta, **more}


def of(caches, resource, service="tiny"):
    return asyncio.run(caches.list(resource, "ns", f"{LABEL_SERVICE}={service}"))


def test_a_cached_child_is_as_it_came_with_its_newest_version():
    caches = Caches()
    caches.event(DEPLOYMENTS, labelled("d", "5", spec={"replicas": 1}), gone=False)
    caches.event(DEPLOYMENTS, labelled("d", "6", spec={"replicas": 1}), gone=False)
    (body,) = of(caches, DEPLOYMENTS)
    assert (body["kind"], body["apiVersion"], body["metadata"]["resourceVersion"]) == ("Deployment", "apps/v1", "6")
    assert "managedFields" not in body["metadata"]


def test_a_child_keeps_its_managed_fields_while_another_manager_owns_a_part_of_its_spec():
    caches, entry = Caches(), {"manager": "kubectl-edit", "fieldsV1": {"f:spec": {"f:paused": {}}}}
    body = labelled("d", "5", spec={"paused": True})
    body["metadata"]["managedFields"] = [{"manager": "pagoda-operator", "fieldsV1": {"f:spec": {}}}, entry]
    caches.event(DEPLOYMENTS, body, gone=False)
    assert of(caches, DEPLOYMENTS)[0]["metadata"]["managedFields"][1] == entry
    caches.event(DEPLOYMENTS, labelled("d", "6", spec={"paused": True}), gone=False)
    assert "managedFields" not in of(caches, DEPLOYMENTS)[0]["metadata"]


def test_a_child_follows_its_service_label():
    caches = Caches()
    caches.event(CONFIG_MAPS, labelled("c", "5"), gone=False)
    caches.event(CONFIG_MAPS, labelled("c", "6", service="other"), gone=False)
    assert (of(caches, CONFIG_MAPS), len(of(caches, CONFIG_MAPS, "other"))) == ([], 1)
    caches.event(CONFIG_MAPS, {"metadata": {"name": "c", "namespace": "ns", "resourceVersion": "7"}}, gone=False)
    assert of(caches, CONFIG_MAPS, "other") == []


def test_only_decisive_fields_of_a_pod_are_kept():
    caches, container = Caches(), {"name": "daemon", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}, "env": [1]}
    status = {"phase": "Running", "containerStatuses": [{"name": "daemon", "imageID": "sha", "restartCount": 2}]}
    caches.event(PODS, labelled("p", "5", spec={"nodeName": "n", "containers": [container], "volumes": [1]}, status=status), gone=False)
    (body,) = of(caches, PODS)
    assert body["spec"] == {"nodeName": "n", "containers": [{"name": "daemon", "resources": container["resources"]}]}
    assert body["status"]["containerStatuses"] == [{"name": "daemon", "restartCount": 2}]


def test_a_writes_answer_is_cached_and_outlasts_older_events():
    caches = Caches()
    caches.event(DEPLOYMENTS, labelled("d", "5", spec={"replicas": 1}), gone=False)
    caches.wrote(DEPLOYMENTS, "patch", labelled("d", "9", spec={"replicas": 2}))
    caches.event(DEPLOYMENTS, labelled("d", "7", spec={"replicas": 1}), gone=False)
    assert of(caches, DEPLOYMENTS)[0]["spec"] == {"replicas": 2}
    caches.wrote(DEPLOYMENTS, "delete", {"metadata": {"name": "d", "namespace": "ns", "resourceVersion": "9"}})
    caches.event(DEPLOYMENTS, labelled("d", "9", spec={"replicas": 2}), gone=False)
    assert of(caches, DEPLOYMENTS) == []


def test_a_terminating_replica_stays_cached():
    """Its devices are in use: another one would not find them free."""
    caches = Caches()
    caches.event(PODS, labelled("p", "5"), gone=False)
    going = labelled("p", "6")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    caches.wrote(PODS, "delete", going)
    (body,) = of(caches, PODS)
    assert body["metadata"]["deletionTimestamp"]
    caches.event(PODS, labelled("p", "7"), gone=True)
    assert of(caches, PODS) == []


def test_writes_of_uncached_kinds_are_ignored():
    caches = Caches()
    caches.wrote(NODES._replace(kind="Event", plural="events"), "create", {"metadata": {"name": "e"}})
    assert caches.changes(*KINDS) == 0


class Server:
    """Lists what it is given, at a version."""

    def __init__(self, version, *items):
        self.answer, self.asked = Listed(items, version), []

    async def listed(self, resource, namespace, *, label="", name=""):
        self.asked.append((resource.plural, namespace, label, name))
        return self.answer


def verify(caches, server, resource):
    return asyncio.run(caches.verify(server, resource, TINY, "fast"))


def test_verifying_finds_changed_and_missing_objects():
    caches = Caches()
    caches.event(DEPLOYMENTS, labelled("gone", "5"), gone=False)
    caches.event(DEPLOYMENTS, labelled("other", "5", service="another"), gone=False)
    server = Server("9", labelled("new", "8"))
    assert verify(caches, server, DEPLOYMENTS) == 2
    assert [body["metadata"]["name"] for body in of(caches, DEPLOYMENTS)] == ["new"]
    assert len(of(caches, DEPLOYMENTS, "another")) == 1
    assert verify(caches, server, DEPLOYMENTS) == 0
    assert server.asked[0] == ("deployments", "ns", f"{LABEL_SERVICE}=tiny", "")


def test_a_service_and_its_profile_are_verified_by_name():
    caches = Caches()
    caches.event(SERVICES, {"metadata": {"name": "tiny", "namespace": "ns", "resourceVersion": "5"}}, gone=False)
    server = Server("9")
    assert (verify(caches, server, SERVICES), verify(caches, server, PROFILES)) == (1, 0)
    assert server.asked == [("inferenceservices", "ns", "", "tiny"), ("servingprofiles", "", "", "fast")]
    assert asyncio.run(caches.get(SERVICES, "ns", "tiny")) is None


def test_a_list_older_than_an_event_undoes_nothing():
    caches = Caches()
    caches.event(DEPLOYMENTS, labelled("d", "5", spec={"replicas": 1}), gone=False)

    class Slow(Server):
        async def listed(self, *asked, **more):
            caches.event(DEPLOYMENTS, labelled("d", "12", spec={"replicas": 3}), gone=False)
            return await super().listed(*asked, **more)

    assert verify(caches, Slow("9", labelled("d", "8", spec={"replicas": 2})), DEPLOYMENTS) == 0
    assert of(caches, DEPLOYMENTS)[0]["spec"] == {"replicas": 3}


def test_a_late_event_does_not_bring_a_deleted_object_back():
    caches = Caches()
    caches.event(DEPLOYMENTS, labelled("d", "10"), gone=False)
    assert verify(caches, Server("20"), DEPLOYMENTS) == 1
    caches.event(DEPLOYMENTS, labelled("d", "15"), gone=False)
    assert of(caches, DEPLOYMENTS) == []


def test_a_delete_answered_without_a_version_counts():
    caches = Caches()
    caches.of(DEPLOYMENTS).take_list([item(DEPLOYMENTS, labelled("d", "10"))], "20", 0)
    caches.wrote(DEPLOYMENTS, "delete", {"metadata": labelled("d", "10")["metadata"]})
    assert of(caches, DEPLOYMENTS) == []


def test_each_quota_is_at_its_newest_version():
    """What a quota says of itself is compared by nobody, and is written anew at the version of the last word."""
    caches = Caches()
    for version in range(2):
        for number in range(250):
            meta = {"name": f"q{number}", "resourceVersion": str(version * 250 + number + 1)}
            caches.event(QUOTAS, {"metadata": meta, "spec": {"subjects": {"namespaces": ["n"]}}, "status": {"v": version}}, gone=False)
        assert {quota.status["v"] for quota in caches.all(QUOTAS)} == {version}


def test_an_error_in_the_change_handler_does_not_stop_other_objects():
    reported = []

    def listen(_resource, key, _before, _after):
        reported.append(key.name)
        raise RuntimeError("a bug")

    caches = Caches(listen)
    for name in ("a", "b"):
        caches.event(DEPLOYMENTS, labelled(name, "5"), gone=False)
    assert (reported, len(of(caches, DEPLOYMENTS))) == (["a", "b"], 2)


def test_objects_are_sorted_again_only_after_a_change():
    caches = Caches()
    for number in range(300):
        caches.event(NODES, {"metadata": {"name": f"n{number:03}", "resourceVersion": str(number + 1)}, "status": {}}, gone=False)
    found = caches.all(NODES)
    assert ([node.name for node in found] == [f"n{number:03}" for number in range(300)], caches.all(NODES) is found) == (True, True)
    caches.event(NODES, {"metadata": {"name": "n000", "resourceVersion": "900"}}, gone=True)
    assert len(caches.all(NODES)) == 299


@pytest.mark.parametrize(("mine", "theirs"), [("", "blue"), ("blue", ""), ("blue", "green")])
def test_of_another_class_only_the_devices_are_kept_and_a_service_that_changes_its_class_is_gone(mine, theirs):
    container, caches = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}, Caches(service_class=mine)
    for resource in (SERVICES, DEPLOYMENTS, PODS):
        for name, version, service_class in (("theirs", "5", theirs), ("mine", "6", mine), ("moved", "7", mine), ("moved", "8", theirs)):
            body = labelled(name, version, spec={"nodeName": "n", "containers": [container]})
            body["metadata"]["labels"] |= {LABEL_CLASS: service_class} if service_class else {}
            caches.event(resource, body, gone=False)
        found = {name: asyncio.run(caches.get(resource, "ns", name)) is not None for name in ("theirs", "mine", "moved")}
        assert found == {"theirs": False, "mine": True, "moved": False}
    assert len(caches.all(PODS)) == 3


def test_with_a_list_of_namespaces_only_their_objects_are_kept_and_everybodys_devices():
    seen = []
    caches = Caches(lambda resource, key, *_: seen.append((resource, key.namespace)), ("ns", "two"))
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    for namespace in ("ns", "else"):
        for resource in (SERVICES, DEPLOYMENTS, PODS):
            body = labelled("x", "5", spec={"nodeName": "n", "containers": [container]})
            body["metadata"] |= {"namespace": namespace}
            caches.event(resource, body, gone=False)
            caches.wrote(resource, "patch", body)
    assert [asyncio.run(caches.get(resource, "else", "x")) for resource in (SERVICES, DEPLOYMENTS, PODS)] == [None] * 3
    assert seen == [(SERVICES, "ns"), (DEPLOYMENTS, "ns"), (PODS, "ns"), (PODS, "else")]
    assert len(caches.all(PODS)) == 2, "devices of both count"
    assert len(of(caches, DEPLOYMENTS)) == 1
    assert [scope for resource, scope, _ in caches.each() if resource == DEPLOYMENTS] == ["ns", "two"]
    assert [scope for resource, scope, _ in caches.each() if resource == NODES] == [""]


def test_the_view_of_the_inventory_is_rebuilt_only_after_a_change():
    caches, held = Caches(), pod("a", "a", gpu=1)
    view = InventoryView(caches)
    caches.event(PODS, held, gone=False)
    first = view()
    caches.event(PODS, held, gone=False)
    assert view() is first
    caches.event(PODS, held, gone=True)
    assert (view().occupants, len(first.occupants)) == ((), 1)
