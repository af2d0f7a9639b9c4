"""The client of the API server: what it knows of writes that had no answer."""

import asyncio
import json
from contextlib import closing

import pytest
import yaml
from kubernetes.aio.client.configuration import Configuration
from pagoda_operator.api.errors import ClusterError, Unavailable
from pagoda_operator.api.state import CONFIG_MAPS, CONTROLLER_REVISIONS, EVENTS, PODS, Listed
from pagoda_operator.client.cluster import KubeCluster, connect
from pagoda_operator.serve.process import _WORKERS
from pagoda_operator.serve.watches import watch_session
from support.servers.failing_server import kubeconfig

MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "ns"}}


class Server:
    """Takes one request and says what it is told to, or nothing."""

    def __init__(self, answer, status="201 Created"):
        self.answer, self.status, self.asked = answer, status, asyncio.Event()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        configuration = Configuration(host=f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}")
        self.cluster = KubeCluster(configuration, timeout=60.0)
        return self

    async def __aexit__(self, *_):
        await self.cluster.close()
        self.server.close()

    async def serve(self, reader, writer):
        with closing(writer):  # also where the test is over before the client's end was seen
            await reader.readuntil(b"\r\n\r\n")
            self.asked.set()
            if self.answer:
                body = self.answer if isinstance(self.answer, bytes) else self.answer.encode()
                head = f"HTTP/1.1 {self.status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
            else:
                await reader.read()


async def test_answered_writes_and_unanswered_reads_leave_nothing_open():
    async with Server('{"kind": "ConfigMap", "metadata": {"name": "a"}}') as server:
        await server.cluster.create(CONFIG_MAPS, MAP, "m")
        assert server.cluster.answered
    async with Server("") as server:
        reading = asyncio.create_task(server.cluster.list(PODS, "ns", "a"))
        await server.asked.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert server.cluster.answered


@pytest.mark.parametrize(("resource", "answered"), [(CONFIG_MAPS, False), (EVENTS, True)])
async def test_an_interrupted_write_may_be_done_unless_it_is_an_event(resource, answered):
    """An Event holds no device; with one under way at each end of a leader its successor let nothing grow for a minute."""
    async with Server("") as server:
        writing = asyncio.create_task(server.cluster.create(resource, MAP, "m"))
        await server.asked.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert server.cluster.answered == answered


@pytest.mark.parametrize(
    ("status", "answered"),
    [
        ("500 x", False),
        ("502 x", False),
        ("503 x", False),
        ("504 x", False),
        ("409 x", True),
        ("422 x", True),
        ("403 x", True),
        ("429 x", True),
    ],
)
async def test_a_write_with_a_server_error_may_be_done_and_a_refused_one_is_not(status, answered):
    async with Server('{"kind": "Status", "message": "m"}', status) as server:
        with pytest.raises(ClusterError):
            await server.cluster.create(CONFIG_MAPS, MAP, "m")
        assert server.cluster.answered == answered
    async with Server('{"kind": "Status", "message": "m"}', status) as server:
        with pytest.raises(ClusterError):
            await server.cluster.list(PODS, "ns", "a")
        assert server.cluster.answered


async def test_a_write_whose_connection_breaks_may_be_done():
    async with Server("") as server:
        server.server.close()
        with pytest.raises(Unavailable):
            await server.cluster.create(CONFIG_MAPS, MAP, "m")
        assert not server.cluster.answered


async def test_requests_ignore_the_environments_proxy(monkeypatch, tmp_path):
    """Looking it up took two threads at each request."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    async with Server('{"kind": "ConfigMap", "metadata": {"name": "a"}}') as server:
        address = f"http://127.0.0.1:{server.server.sockets[0].getsockname()[1]}"
        cluster = KubeCluster(await connect(kubeconfig(tmp_path, address)), timeout=60.0)
        assert (await cluster.create(CONFIG_MAPS, MAP, "m"))["kind"] == "ConfigMap"
        await cluster.close()


async def test_a_list_has_its_version_and_its_items_their_kind():
    items = [{"metadata": {"name": "a", "namespace": "n", "resourceVersion": "7"}}]
    async with Server(json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": items}), "200 OK") as server:
        found = await server.cluster.listed(PODS, "n", label="l")
    assert found == Listed([{"apiVersion": "v1", "kind": "Pod", **items[0]}], "9")


LATIN = b'{"message": "Zeit\xfcberschreitung"}'


@pytest.mark.parametrize("answer", ["<html>", LATIN, '{"message": NaN}', ""])
async def test_a_proxys_page_is_an_error_of_ours(answer):
    async with Server(answer or " ", "502 Bad Gateway") as server:
        with pytest.raises(Unavailable, match="502"):
            await server.cluster.get(PODS, "ns", "a")


@pytest.mark.parametrize(
    ("answer", "status"), [("<html>", "200 OK"), (LATIN, "200 OK"), ('{"items": []}', "200 OK"), ('{"message": "later"}', "503 x")]
)
async def test_a_body_that_is_no_list_is_an_error(answer, status):
    """Else all that the caches have would be gone at once."""
    async with Server(answer, status) as server:
        with pytest.raises(Unavailable):
            await server.cluster.listed(PODS, "n", label="l")


@pytest.mark.parametrize(("status", "accepted"), [("200 OK", ["/pods"]), ("403 x", []), ("500 x", [])])
async def test_a_watch_that_is_refused_is_no_sign_of_life(status, accepted):
    reported = []
    async with Server("{}", status) as server:
        host = server.cluster._api.configuration.host
        session = watch_session(server.cluster._api.configuration, lambda path, _: reported.append(path))
        async with session, session.get(f"{host}/pods?watch=true") as response:
            await response.read()
    assert reported == accepted


_LIST = b'{"metadata": {"resourceVersion": "1"}, "items": []}'
_HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
EMPTY = _HEAD % len(_LIST) + _LIST


async def test_concurrent_writes_are_bounded_and_delay_no_read():
    """Each connection is one request; the server answers none before it is let."""
    asked, let, most = [], asyncio.Event(), asyncio.Semaphore(0)

    async def serve(reader, writer):
        asked.append((await reader.readuntil(b"\r\n\r\n")).split()[0].decode())
        most.release()
        await let.wait()
        writer.write(EMPTY)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    cluster = KubeCluster(Configuration(host=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), timeout=600.0)
    writes = [asyncio.create_task(cluster.create(CONFIG_MAPS, MAP, "m")) for _ in range(40)]
    for _ in range(32):
        await most.acquire()
    read = asyncio.create_task(cluster.list(PODS, "ns", "a"))
    await most.acquire()
    assert (asked.count("POST"), asked.count("GET")) == (32, 1)
    let.set()
    await asyncio.gather(read, *writes)
    assert asked.count("POST") == 40
    await cluster.close()
    server.close()


class Reader(Server):
    """Keeps what it is sent."""

    async def serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(int(line.split(":")[1]) for line in head.splitlines() if line.startswith("content-length"))
        self.kind = next(line.split(": ")[1] for line in head.splitlines() if line.startswith("content-type"))
        self.body = (await reader.readexactly(length)).decode()
        body = b'{"metadata": {}}'
        writer.write(f"HTTP/1.1 201 Created\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()


async def test_a_controller_revision_is_sent_as_yaml():
    data = {"b": ["<&>", "é\u2028\x7f\x85\ufeff\U0001f600", 'a\nb\t"q\\'], "a": {"y": 1.5, "x": None}}
    async with Reader("") as server:
        await server.cluster.create(CONTROLLER_REVISIONS, MAP | {"data": data}, "m")
    assert server.kind == "application/yaml"
    assert yaml.safe_load(server.body)["data"] == data


async def test_reads_leave_connections_for_writes(tmp_path):
    """A request's time includes that wait: a write that never left would pass for one that may be done."""
    wrote, let = asyncio.Event(), asyncio.Event()

    async def serve(reader, writer):
        if (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST"):
            wrote.set()
        await let.wait()
        writer.write(EMPTY)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    cluster = KubeCluster(await connect(kubeconfig(tmp_path, url)), timeout=600.0)
    runs = [asyncio.create_task(cluster.list(PODS, "ns", "a")) for _ in range(4 * _WORKERS)]
    runs.append(asyncio.create_task(cluster.create(CONFIG_MAPS, MAP, "m")))
    await asyncio.wait_for(wrote.wait(), 60)
    let.set()
    await asyncio.gather(*runs)
    await cluster.close()
    server.close()
