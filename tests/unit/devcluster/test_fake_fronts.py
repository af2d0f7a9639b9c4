"""Which pods of fake nodes answer, and what becomes of a pod's front as the pod's life goes on."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from pagoda_devcluster.client.watching import CONFLICT
from pagoda_devcluster.cluster.errors import ApiError, UsageError
from pagoda_devcluster.fake import fronts, plays, pods
from pagoda_devcluster.fake.fronts import Fronts, Source, Wish

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def replica(*arguments: str, items: list[dict[str, str]] | None = None, **meta: Any) -> dict[str, Any]:
    held: dict[str, Any] = {"name": "settings"} | ({"items": items} if items else {})
    container = {"name": "daemon", "args": list(arguments), "volumeMounts": [{"name": "config", "mountPath": "/etc/pagoda/"}]}
    volumes = [{"name": "config", "configMap": held}, {"name": "run", "emptyDir": {}}]
    metadata = {"namespace": "d", "name": "p", "uid": "u"} | meta
    return {"metadata": metadata, "spec": {"nodeName": "n", "containers": [container], "volumes": volumes}, "status": {}}


POD = replica("--config", "/etc/pagoda/daemon.json")


def context(pod: dict[str, Any] = POD, **changes: Any) -> plays.PodContext:
    made = plays.pod_context(pod, {"metadata": {}}, 3.0, ("10.1.0.2", "10.1.0.1"))
    return plays.PodContext(**made.__dict__ | changes)


@pytest.mark.parametrize(
    ("pod", "source"),
    [
        (POD, Source("settings", "daemon.json")),
        (replica("--config", "/etc/pagoda/a.json", items=[{"key": "b", "path": "a.json"}]), Source("settings", "b")),
        (replica("--config", "/elsewhere/daemon.json"), None),
        (replica("serve"), None),
        (replica("--config"), None),
    ],
)
def test_a_replica_is_a_pod_whose_configuration_comes_from_a_config_map(pod, source):
    assert fronts.source_of(pod) == source


def leaving(seconds: float) -> dict[str, Any]:
    return replica(deletionTimestamp=pods.write_time(NOW + timedelta(seconds=seconds)), deletionGracePeriodSeconds=30)


@pytest.mark.parametrize(
    ("pod", "changes", "wish"),
    [
        (POD, {}, Wish.RUN),
        (leaving(20), {}, Wish.STOP),
        (leaving(0), {}, Wish.KILL),
        (POD, {"plays": frozenset({"crash-loop"})}, Wish.KILL),
        (POD, {"plays": frozenset({"image-pull-backoff"})}, Wish.KILL),
        (POD, {"plays": frozenset({"never-ready"})}, Wish.RUN),
        (POD, {"complaint": "unknown play"}, Wish.KILL),
        (POD | {"status": {"phase": "Succeeded"}}, {}, Wish.KILL),
        (leaving(0), {"node_down": True}, Wish.LEAVE),
    ],
)
def test_a_front_starts_and_ends_as_its_container_would(pod, changes, wish):
    assert fronts.wish(pod, context(pod, **changes), NOW) == wish


def test_a_served_pod_is_ready_when_its_front_says_so_and_not_by_the_clock():
    pod = POD | {"status": {"phase": "Pending", "conditions": []}}
    for front, ready in ((None, False), (plays.NOT_READY, False), (plays.READY, True)):
        verdict = pods.decide(pod, context(serves=True, front=front), NOW + timedelta(hours=1))
        pod["status"] |= verdict.status or {}
        assert (pods.is_true(pod, "Ready"), verdict.wake) == (ready, None)


def test_a_deleted_pod_stays_while_its_front_drains_and_no_longer_than_its_grace():
    pod = leaving(20)
    draining = pods.decide(pod, context(pod, serves=True, front=plays.NOT_READY), NOW)
    assert (draining.delete, draining.wake) == (False, 20)
    assert pods.decide(pod, context(pod, serves=True), NOW).delete
    assert pods.decide(pod, context(pod, serves=True, front=plays.NOT_READY), NOW + timedelta(seconds=20)).delete


class Api:
    """Of the API server only its ConfigMaps."""

    def __init__(self, data: dict[str, str] | None) -> None:
        self._data = data

    async def get(self, path: str) -> dict[str, Any] | None:
        assert path == "/api/v1/namespaces/d/configmaps/settings"
        return None if self._data is None else {"data": self._data}


class Process:
    """The other end of the socket: answers with `status`, and keeps what it was asked."""

    def __init__(self, status: int = 200, answer: Any = None) -> None:
        self.asked: list[str] = []
        self.status, self.answer = status, answer if answer is not None else {"ready": False, "failure": ""}

    def client(self, api: Any, seen: dict[str, Any] | None = None) -> Fronts:
        made = Fronts(Path("/none"), api)
        made._http = httpx.AsyncClient(transport=httpx.MockTransport(self._handle), base_url="http://fronts")
        made._seen = seen or {}
        return made

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.raw_path.decode()} {request.content.decode()}".strip())
        return httpx.Response(self.status, json=self.answer)


async def test_a_pod_gets_its_front_once_with_address_configuration_and_drawn_time():
    process = Process()
    client = process.client(Api({"daemon.json": '{"a": 1}'}))
    for _ in range(2):
        reported = await client.tend(POD, context(), NOW)
    assert process.asked == ['PUT /replicas/u {"address":"10.1.0.2","config":{"a":1},"load_s":3.0}']
    assert (reported.serves, reported.front) == (True, plays.NOT_READY)


async def test_a_pod_without_a_replica_in_it_is_left_alone():
    process = Process()
    assert await process.client(Api({})).tend(replica("serve"), context(), NOW) == context()
    assert process.asked == []


async def test_what_is_wrong_with_a_configuration_stands_on_the_pod():
    refused = Process(422, {"reason": "ConfigRejected", "message": "config.model: Field required"})
    assert (await refused.client(Api({"daemon.json": "{}"})).tend(POD, context(), NOW)).complaint == "config.model: Field required"
    assert "JSONDecodeError" in (await Process().client(Api({"daemon.json": "{"})).tend(POD, context(), NOW)).complaint
    assert "KeyError: 'daemon.json'" in (await Process().client(Api({})).tend(POD, context(), NOW)).complaint


@pytest.mark.parametrize(("process", "api"), [(Process(409), Api({"daemon.json": "{}"})), (Process(), Api(None))])
async def test_what_may_pass_is_tried_again(process, api):
    with pytest.raises(ApiError) as raised:
        await process.client(api).tend(POD, context(), NOW)
    assert raised.value.code == CONFLICT


async def test_a_front_that_was_killed_is_not_ready_by_its_last_look_and_starts_anew_once_it_is_gone():
    process = Process(answer={"u": {"ready": True, "failure": ""}})
    client = process.client(Api({"daemon.json": "{}"}), {"u": {"ready": True, "failure": ""}})
    assert (await client.tend(POD, context(plays=frozenset({"crash-loop"})), NOW)).front is None
    for _ in range(2):
        with pytest.raises(ApiError, match="killed front of d/p still closes") as raised:
            await client.tend(POD, context(), NOW)
        assert raised.value.code == CONFLICT
        await client.look(lambda _uids: None)
    process.answer = {}
    await client.look(lambda _uids: None)
    process.answer = {"ready": False, "failure": ""}
    assert (await client.tend(POD, context(), NOW)).front == plays.NOT_READY


async def test_fronts_of_pods_that_are_gone_are_killed_and_changes_are_reported():
    process = Process(answer={"a": {"ready": True}, "b": {"ready": False}})
    client = process.client(Api({}), {"a": {"ready": False}, "b": {"ready": False}, "c": {}})
    reported: list[set[str]] = []
    await client.look(reported.append)
    await client.keep({"a"})
    assert reported == [{"a", "c"}]
    assert process.asked[1:] == ["DELETE /replicas/b?kill=true"]


def test_only_nodes_that_pretend_are_served():
    from pagoda_devcluster.__main__ import request_of

    assert request_of("x", "fake:3", install=False, gpu_layout=None, serve=True).serve
    with pytest.raises(UsageError, match="--nodes fake:N"):
        request_of("x", "kubelet", install=False, gpu_layout=None, serve=True)
