"""What is read of an InferenceService, and how the gateway's cache follows them."""

import asyncio
import json
from collections.abc import AsyncIterator

import msgspec
import pytest
from pagoda_contracts.names import LABEL_CLASS, LABEL_SERVICE, LABEL_SERVICE_UID
from pagoda_gateway.watch.cache import EndpointCache
from pagoda_gateway.watch.cluster import SERVICES, ServiceObject, classed, watch
from pagoda_gateway.watch.quotas import QUOTAS
from pagoda_gateway.watch.services import Hold, Service
from pagoda_gateway.watch.slices import SLICES
from support.servers.scripted_api import Held, Script, event, page, scripted_api

SELECTED = f"{LABEL_SERVICE},endpointslice.kubernetes.io/managed-by=endpointslice-controller.k8s.io"


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


def test_a_services_status_has_the_weights_and_says_whose_device_is_faulty():
    revisions = [{"hash": "a", "replicas": 1, "readyReplicas": 1, "weight": 90}, {"hash": "b", "weight": 0}, {"hash": "c"}]
    body = {"metadata": {"name": "s", "namespace": "ns"}, "status": {"revisions": revisions, "faultyReplicas": ["p"]}}
    service = msgspec.convert(body, ServiceObject).parsed()
    assert (service.weights, service.faulty) == ((("a", 90), ("b", 0)), {"ns/p"})


class Followed:
    """A cache that follows a scripted API server."""

    def __init__(self, services: Script, slices: Script) -> None:
        self.cache, self.services, self.slices = EndpointCache(), services, slices
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
        made = Followed(scripts[SERVICES.path], scripts[SLICES.path])
        task = asyncio.create_task(watch(made.cache, tmp_path / "kubeconfig"))
        yield made
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def service(name: str, version: str = "1") -> dict:
    return {"metadata": {"name": name, "namespace": "ns", "uid": "u", "resourceVersion": version}}


def endpoint(pod: str, ip: str = "10.0.0.7", **conditions: bool) -> dict:
    return {"addresses": [ip], "conditions": conditions, "targetRef": {"kind": "Pod", "name": pod}}


def of_service(name: str, *endpoints: dict, version: str = "1") -> dict:
    labels = {LABEL_SERVICE: "s", LABEL_SERVICE_UID: "u", "kubernetes.io/service-name": "s"}
    meta = {"name": name, "namespace": "ns", "resourceVersion": version, "labels": labels}
    return {"kind": "EndpointSlice", "metadata": meta, "addressType": "IPv4", "endpoints": list(endpoints)}


async def test_it_is_synced_after_the_first_whole_lists_of_both_kinds(followed):
    followed.services.say(page(service("s")))
    await followed.services.next_query()
    assert "watch" in await followed.services.next_query()
    followed.slices.say(page(of_service("s-1", endpoint("a")), more="next"))
    assert (await followed.slices.next_query())["labelSelector"] == f"{SELECTED},!{LABEL_CLASS}"
    assert "continue" in await followed.slices.next_query()
    assert (followed.cache.synced, followed.addresses("s")) == (False, {})
    followed.slices.say(page(of_service("s-2", endpoint("b", "10.0.0.8"))))
    assert "watch" in await followed.slices.next_query()
    assert (followed.cache.synced, followed.addresses("s")) == (True, {"ns/a": "10.0.0.7:8000", "ns/b": "10.0.0.8:8000"})


async def test_a_pod_that_leaves_its_slice_or_whose_slice_is_deleted_is_no_endpoint_any_more(followed):
    events = Held()
    followed.services.say(page(service("s")))
    followed.slices.say(page(of_service("s-1", endpoint("a"), endpoint("b")), of_service("s-2", endpoint("c"))), events)
    events.put_nowait(event("MODIFIED", of_service("s-1", endpoint("b"), version="11")))
    events.put_nowait(event("DELETED", of_service("s-2", endpoint("c"), version="12")))
    assert [await asyncio.wait_for(followed.gone.get(), 60) for _ in range(2)] == ["ns/a", "ns/c"]
    assert followed.addresses("s") == {"ns/b": "10.0.0.7:8000"}


async def test_while_the_api_server_is_away_the_last_state_stays_in_use_and_its_end_brings_the_news(followed):
    followed.services.say(page(service("s")), 503, 503)
    followed.slices.say(page(of_service("s-1", endpoint("a"))), 503, 503)
    for script in (followed.services, followed.slices):
        assert ["watch" in await script.next_query() for _ in range(4)] == [False, True, False, False]
    assert (followed.cache.synced, followed.addresses("s")) == (True, {"ns/a": "10.0.0.7:8000"})
    followed.services.say(page(service("s"), service("t", "21"), version="30"))
    followed.slices.say(page(of_service("s-1", endpoint("b", "10.0.0.8"), version="22"), version="30"))
    for script in (followed.services, followed.slices):
        assert "watch" in await script.next_query()
    assert followed.cache.resolve("t").key == "ns/t"
    assert followed.addresses("s") == {"ns/b": "10.0.0.8:8000"}


@pytest.mark.parametrize(("service_class", "term"), [("", f"!{LABEL_CLASS}"), ("blue", f"{LABEL_CLASS}=blue")])
def test_services_quotas_and_slices_of_one_class_are_followed(service_class, term):
    queries = [classed(kind, service_class).query for kind in (SERVICES, QUOTAS, SLICES)]
    assert queries == [(("labelSelector", wanted),) for wanted in (term, term, f"{SELECTED},{term}")]
