"""What is read of an InferenceService and of a replica's pod, and how the gateway's cache follows them."""

import asyncio
import json
from collections.abc import AsyncIterator

import msgspec
import pytest
from pagoda_contracts.names import (
    ANNOTATION_DEVICE_FAULT,
    ANNOTATION_DRAIN_DEADLINE,
    LABEL_CLASS,
    LABEL_REVISION,
    LABEL_SERVICE,
    LABEL_SERVICE_UID,
)
from pagoda_gateway.watch.cache import EndpointCache
from pagoda_gateway.watch.cluster import PODS, SERVICES, PodObject, ServiceObject, classed, watch
from pagoda_gateway.watch.quotas import QUOTAS
from pagoda_gateway.watch.services import Hold, Replica, Service
from support.servers.scripted_api import Held, Script, event, page, scripted_api


def pod(name: str, **metadata) -> dict:
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "ns", "resourceVersion": "1", "unknown": 1} | metadata}


def parsed(**document):
    return msgspec.convert(pod("p", labels={LABEL_SERVICE: "s", LABEL_SERVICE_UID: "u"}) | document, PodObject).parsed()


def test_a_pod_with_an_address_is_a_replica():
    replica = parsed(status={"phase": "Running", "podIP": "10.0.0.7"})
    assert replica == Replica("ns/p", "ns/s", "u", "10.0.0.7:8000", "10.0.0.7:9000", draining=False)
    assert parsed(status={"podIP": "fd00::7"}).http == "[fd00::7]:8000"


@pytest.mark.parametrize(
    "status", [{}, {"phase": "Pending"}, {"phase": "Failed", "podIP": "10.0.0.7"}, {"phase": "Succeeded", "podIP": "10.0.0.7"}]
)
def test_a_pod_without_address_or_that_ended_is_no_replica(status):
    assert parsed(status=status) is None


@pytest.mark.parametrize("going", [{"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"annotations": {ANNOTATION_DRAIN_DEADLINE: "1"}}])
def test_a_pod_that_is_deleted_or_told_to_drain_is_draining(going):
    document = pod("p", labels={LABEL_SERVICE: "s"}, **going)
    assert parsed(metadata=document["metadata"], status={"podIP": "10.0.0.7"}).draining


def test_a_service_of_a_newer_version_is_read_as_far_as_it_is_known():
    document = {
        "metadata": {"name": "s", "namespace": "ns", "uid": "u", "creationTimestamp": "t"},
        "spec": {"new": 1, "model": {"uri": "x"}},
    }
    assert msgspec.convert(document, ServiceObject).parsed() == Service("ns/s", "u", "t", ("s",))
    document["spec"]["model"]["servedNames"] = ["a", "b"]
    assert msgspec.convert(document, ServiceObject).parsed().served_names == ("a", "b")
    document["status"] = {"conditions": [{"type": "Serving", "status": "False", "reason": "NotServedYet"}]}
    assert not msgspec.convert(document, ServiceObject).parsed().served


def test_a_services_adapters_are_names_of_it_and_have_their_parent():
    document = {
        "metadata": {"name": "s", "namespace": "ns", "uid": "u", "creationTimestamp": "t"},
        "status": {"servedNames": ["s"], "adapterNames": ["pirate"]},
    }
    service = msgspec.convert(document, ServiceObject).parsed()
    assert service.adapters == ("pirate",)
    cache = EndpointCache()
    cache.put_service(service)
    # An older service that wants the name does not get it: traffic never moves.
    cache.put_service(Service("ns/old", "0", "a", ("pirate",)))
    assert cache.resolve("pirate") == service
    assert cache.is_adapter("pirate")
    assert (cache.parent("pirate"), cache.parent("s")) == ("s", "")
    assert [model.name for model in cache.models()] == ["pirate", "s"]


@pytest.mark.parametrize(
    ("condition", "stalled"),
    [
        ({"type": "Stalled", "status": "True", "reason": "ModelRejected"}, "ModelRejected: m"),
        ({"type": "Stalled", "status": "False", "reason": "ModelRejected"}, ""),
        ({"type": "Ready", "status": "False", "reason": "ModelRejected"}, ""),
        ({"type": "Stalled", "status": "True", "reason": "OfANewerOperator"}, ""),
    ],
)
def test_a_service_is_stalled_by_a_reason_that_only_a_person_ends(condition, stalled):
    document = {"metadata": {"name": "s"}, "status": {"conditions": [condition | {"message": "m", "lastTransitionTime": "t"}]}}
    assert msgspec.convert(document, ServiceObject).parsed().stalled == stalled


@pytest.mark.parametrize(
    ("routing", "hold"),
    [
        ({"hold": {"timeout": "90s", "maxRequests": 7}}, Hold(90.0, 7)),
        ({"hold": {"maxRequests": 0}}, Hold(None, 0)),
        ({"hold": {"timeout": "soon"}}, Hold()),
        ({"policy": "LeastLoad"}, Hold()),
    ],
)
def test_a_service_says_how_its_requests_are_held(routing, hold):
    document = {"metadata": {"name": "s"}, "spec": {"routing": routing}, "status": {"readyExpectedAt": "2026-11-24T12:00:00Z"}}
    service = msgspec.convert(document, ServiceObject).parsed()
    assert (service.hold, service.ready_at_ms) == (hold, 1795521600000)
    assert msgspec.convert(document | {"status": {"readyExpectedAt": "soon"}}, ServiceObject).parsed().ready_at_ms == 0


def test_a_services_status_has_the_weights_and_a_pods_annotation_says_that_its_device_is_faulty():
    revisions = [{"hash": "a", "replicas": 1, "readyReplicas": 1, "weight": 90}, {"hash": "b", "weight": 0}, {"hash": "c"}]
    body = {"metadata": {"name": "s", "namespace": "ns"}, "status": {"revisions": revisions}}
    assert msgspec.convert(body, ServiceObject).parsed().weights == (("a", 90), ("b", 0))
    meta = {"name": "p", "namespace": "ns", "labels": {LABEL_REVISION: "a"}, "annotations": {ANNOTATION_DEVICE_FAULT: "Xid 79"}}
    replica = msgspec.convert({"metadata": meta, "status": {"podIP": "10.0.0.1"}}, PodObject).parsed()
    assert (replica.revision, replica.device_fault) == ("a", "Xid 79")


class Followed:
    """A cache that follows a scripted API server."""

    def __init__(self, services: Script, pods: Script) -> None:
        self.cache, self.services, self.pods = EndpointCache(), services, pods
        self.gone: asyncio.Queue[str] = asyncio.Queue()
        self.cache.on_replica_removed = self.gone.put_nowait

    def addresses(self, model: str) -> dict[str, str]:
        service = self.cache.resolve(model)
        return {endpoint.name: endpoint.address for endpoint in self.cache.endpoints(service)} if service else {}


@pytest.fixture
async def followed(tmp_path) -> AsyncIterator[Followed]:
    async with scripted_api() as (url, scripts):
        named = {"name": "it", "context": {"cluster": "it", "user": "it"}, "cluster": {"server": url}, "user": {"token": "t"}}
        config = {"current-context": "it", "contexts": [named], "clusters": [named], "users": [named]}
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        made = Followed(scripts[SERVICES.path], scripts[PODS.path])
        task = asyncio.create_task(watch(made.cache, tmp_path / "kubeconfig"))
        yield made
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def service(name: str, version: str = "1") -> dict:
    return {"metadata": {"name": name, "namespace": "ns", "uid": "u", "resourceVersion": version}}


def replica(name: str, version: str = "1", ip: str = "10.0.0.7") -> dict:
    return pod(name, labels={LABEL_SERVICE: "s"}, resourceVersion=version) | {"status": {"podIP": ip}}


async def test_it_is_synced_after_the_first_whole_lists_of_both_kinds(followed):
    followed.services.say(page(service("s")))
    await followed.services.next_query()
    assert "watch" in await followed.services.next_query()
    followed.pods.say(page(replica("a"), more="next"))
    assert (await followed.pods.next_query())["labelSelector"] == f"{LABEL_SERVICE},!{LABEL_CLASS}"
    assert "continue" in await followed.pods.next_query()
    assert (followed.cache.synced, followed.addresses("s")) == (False, {})
    followed.pods.say(page(replica("b", ip="10.0.0.8")))
    assert "watch" in await followed.pods.next_query()
    assert (followed.cache.synced, followed.addresses("s")) == (True, {"ns/a": "10.0.0.7:8000", "ns/b": "10.0.0.8:8000"})


async def test_a_pod_that_ends_loses_its_address_or_is_deleted_is_no_endpoint_any_more(followed):
    events = Held()
    followed.services.say(page(service("s")))
    followed.pods.say(page(replica("a"), replica("b"), replica("c"), replica("d")), events)
    ended = replica("a", "11")
    ended["status"]["phase"] = "Failed"
    for line in (event("MODIFIED", ended), event("MODIFIED", replica("b", "12", ip="")), event("DELETED", replica("c", "13"))):
        events.put_nowait(line)
    assert [await asyncio.wait_for(followed.gone.get(), 60) for _ in range(3)] == ["ns/a", "ns/b", "ns/c"]
    assert followed.addresses("s") == {"ns/d": "10.0.0.7:8000"}


async def test_while_the_api_server_is_away_the_last_state_stays_in_use_and_its_end_brings_the_news(followed):
    followed.services.say(page(service("s")), 503, 503)
    followed.pods.say(page(replica("a")), 503, 503)
    for script in (followed.services, followed.pods):
        assert ["watch" in await script.next_query() for _ in range(4)] == [False, True, False, False]
    assert (followed.cache.synced, followed.addresses("s")) == (True, {"ns/a": "10.0.0.7:8000"})
    followed.services.say(page(service("s"), service("t", "21"), version="30"))
    followed.pods.say(page(replica("b", "22", ip="10.0.0.8"), version="30"))
    for script in (followed.services, followed.pods):
        assert "watch" in await script.next_query()
    assert followed.cache.resolve("t").key == "ns/t"
    assert followed.addresses("s") == {"ns/b": "10.0.0.8:8000"}


@pytest.mark.parametrize(("service_class", "term"), [("", f"!{LABEL_CLASS}"), ("blue", f"{LABEL_CLASS}=blue")])
def test_services_quotas_and_pods_of_one_class_are_followed(service_class, term):
    queries = [classed(kind, service_class).query for kind in (SERVICES, QUOTAS, PODS)]
    assert queries == [(("labelSelector", wanted),) for wanted in (term, term, f"{LABEL_SERVICE},{term}")]
