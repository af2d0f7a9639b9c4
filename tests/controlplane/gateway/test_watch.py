"""The gateway against a real API server, with nothing but the rights it asks for: it follows the objects, and outlives an outage."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from pagoda_contracts.names import (
    API_VERSION,
    GROUP,
    LABEL_SERVICE,
    LABEL_SERVICE_UID,
    PORT_DAEMON_GRPC,
    PORT_DAEMON_HTTP,
)
from pagoda_contracts.pb.daemon_pb2 import Phase, State
from pagoda_contracts.resources.service import INFERENCE_SERVICE
from pagoda_contracts.resources.tenant import TENANT_QUOTA
from support.kube.cluster import Cluster, running_cluster
from support.servers.gateway_process import GatewayProcess, start_gateway
from support.servers.loopback import pod_net
from support.servers.scripted_replica import Replica, running

pytestmark = pytest.mark.cluster

CRDS = str(Path(__file__).parents[3] / "crds")
READ = ["list", "watch"]
# Kubernetes takes a pod into an EndpointSlice only if its node exists.
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "no-kubelet"}}


@dataclass
class Place:
    """A namespace of this test's own, and a kubeconfig with the gateway's rights through a wire that can be cut."""

    cluster: Cluster
    namespace: str

    def service(self, name: str, served: str) -> str:
        """Applies a service; its uid."""
        spec = {
            "model": {"uri": "pvc://none", "servedNames": [served]},
            "accelerators": [{"cpu": {"cores": "1", "memory": "1Gi"}}],
            "replicas": 0,
        }
        document = {"apiVersion": API_VERSION, "kind": "InferenceService", "metadata": {"name": name}, "spec": spec}
        uid = self._create(document)["metadata"]["uid"]
        labels = {LABEL_SERVICE: name, LABEL_SERVICE_UID: uid}
        ports = [{"name": "http", "port": PORT_DAEMON_HTTP}]
        selecting = {"metadata": {"name": name, "labels": labels}, "spec": {"selector": labels, "ports": ports}}
        self._create({"apiVersion": "v1", "kind": "Service"} | selecting)
        return uid

    def pod(self, name: str, service: str, uid: str, ip: str) -> None:
        """A pod that no node runs, with an address nevertheless. It is not Ready."""
        labels = {LABEL_SERVICE: service, LABEL_SERVICE_UID: uid}
        kept = [{"operator": "Exists"}]
        spec = {"nodeName": NODE["metadata"]["name"], "tolerations": kept, "containers": [{"name": "daemon", "image": "none"}]}
        self._create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec})
        status = json.dumps({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}})
        self.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p", status)

    def _create(self, document: dict) -> dict:
        return json.loads(self.kubectl("create", "-o", "json", "-f", "-", input=json.dumps(document)))

    def kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002 - as in subprocess
        return self.cluster.kubectl("-n", self.namespace, *args, input=input)


@dataclass
class Wire:
    """A TCP proxy to the API server."""

    port: int = 0
    up: bool = True
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def cut(self) -> None:
        self.up = False
        for writer in self._writers:
            writer.transport.abort()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
        if not self.up:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection(host, port)
        self._writers |= {writer, far_writer}
        if not self.up:  # cut meanwhile
            self.cut()
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def wire_to(server: str) -> AsyncIterator[Wire]:
    target = urlsplit(server)
    wire = Wire()
    listener = await asyncio.start_server(lambda r, w: wire.carry(r, w, target.hostname, target.port), "127.0.0.1", 0)
    wire.port = listener.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        wire.cut()
        listener.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Never the cluster that PAGODA_TEST_CLUSTER names: what is left of CRDs here would stand in the way of an install there.
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PAGODA_TEST_CLUSTER", raising=False)
        with running_cluster(nodes="control-plane") as running_one:
            running_one.kubectl("apply", "-f", CRDS)
            running_one.kubectl("wait", "--for=condition=Established", "--timeout=300s", f"crd/{INFERENCE_SERVICE.plural}.{GROUP}")
            running_one.kubectl("create", "-f", "-", input=json.dumps(NODE))
            yield running_one


@pytest.fixture
def place(cluster: Cluster) -> Iterator[Place]:
    name = f"gw-{secrets.token_hex(3)}"
    rules = [
        {"apiGroups": [GROUP], "resources": [INFERENCE_SERVICE.plural, TENANT_QUOTA.plural], "verbs": READ},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": READ},
    ]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    cluster.create_namespace(name)
    try:
        cluster.kubectl("create", "serviceaccount", name, "-n", name)
        cluster.kubectl("create", "-f", "-", input=json.dumps(role))
        cluster.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", f"--serviceaccount={name}:{name}")
        yield Place(cluster, name)
    finally:
        cluster.kubectl("delete", "clusterrole,clusterrolebinding", name, "--ignore-not-found")
        cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
async def gateway(place: Place, tmp_path: Path) -> AsyncIterator[tuple[GatewayProcess, Wire]]:
    config = json.loads(place.cluster.kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    async with wire_to(cluster["server"]) as wire:
        cluster |= {"server": f"https://127.0.0.1:{wire.port}", "tls-server-name": urlsplit(cluster["server"]).hostname}
        config["users"][0]["user"] = {"token": place.kubectl("create", "token", place.namespace)}
        file = tmp_path / "kubeconfig"
        file.write_text(json.dumps(config))
        with _off_loop(start_gateway("--kubeconfig", str(file))) as starting:
            yield await starting, wire


@pytest.fixture
def net() -> Iterator[str]:
    with pod_net() as own:
        yield own


@contextmanager
def _off_loop(manager):
    """Enters on a thread: the gateway connects through a proxy that this loop runs."""
    loop = asyncio.get_running_loop()
    try:
        yield loop.run_in_executor(None, manager.__enter__)
    finally:
        manager.__exit__(None, None, None)


async def ask(gateway: GatewayProcess, model: str) -> tuple[int, dict]:
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{gateway.url}/v1/completions", json={"model": model}) as answer,
    ):
        return answer.status, await answer.json()


async def names(gateway: GatewayProcess) -> dict[str, str]:
    """Served name → owner."""
    async with aiohttp.ClientSession() as client, client.get(f"{gateway.url}/v1/models") as answer:
        return {card["id"]: card["owned_by"] for card in (await answer.json()).get("data", ())}


async def until(look, wanted) -> None:
    async with asyncio.timeout(240):
        while True:
            if await look() == wanted:
                return
            await asyncio.sleep(0.05)


def replica(name: str, model: str) -> Replica:
    return Replica(name, state=State(phase=Phase.PHASE_READY, served_names=[model]))


def at(one: Replica, ip: str):
    return running(one, ip, PORT_DAEMON_HTTP, PORT_DAEMON_GRPC)


async def test_a_held_request_is_served_when_the_first_pod_gets_an_address(place, gateway, net):
    process, _ = gateway
    model = place.namespace
    async with at(replica("a", model), f"{net}.1"):
        uid = await asyncio.to_thread(place.service, "s", model)
        held = asyncio.create_task(ask(process, model))
        await until(lambda: asyncio.to_thread(lambda: f'held_requests{{service="{model}/s"}} 1.0' in process.scrape()), True)
        await asyncio.to_thread(place.pod, "a", "s", uid, f"{net}.1")
        assert await asyncio.wait_for(held, 240) == (200, {"replica": "a"})
        assert process.probe("/readyz") == 200


async def test_a_replica_that_drains_is_left_and_taken_back_and_one_that_is_deleted_is_left(place, gateway, net):
    process, _ = gateway
    model = place.namespace
    a, b = replica("a", model), replica("b", model)

    async def seen(**counts: int) -> None:
        lines = [f'endpoints{{service="{model}/s",verdict="{verdict}"}} {count}.0' for verdict, count in counts.items()]
        await until(lambda: asyncio.to_thread(lambda: all(line in process.scrape() for line in lines)), True)

    async with at(a, f"{net}.1"), at(b, f"{net}.2"):
        uid = await asyncio.to_thread(place.service, "s", model)
        for name, ip in (("a", f"{net}.1"), ("b", f"{net}.2")):
            await asyncio.to_thread(place.pod, name, "s", uid, ip)
        await seen(ready=2)
        a.say(phase=Phase.PHASE_DRAINING, served_names=[model])
        await seen(draining=1)
        assert {(await ask(process, model))[1]["replica"] for _ in range(4)} == {"b"}
        a.say(phase=Phase.PHASE_READY, served_names=[model])
        await seen(ready=2)
        answered = set()

        async def both() -> bool:  # one that the machine held up for a moment gets no request meanwhile
            answered.add((await ask(process, model))[1]["replica"])
            return answered == {"a", "b"}

        await until(both, True)
        await asyncio.to_thread(place.kubectl, "delete", "pod", "a", "--wait=false")
        await seen(draining=1)
        assert {(await ask(process, model))[1]["replica"] for _ in range(4)} == {"b"}


async def test_a_name_stays_with_the_oldest_claimer_until_it_is_gone(place, gateway):
    process, _ = gateway
    model = place.namespace
    for name in ("one", "two"):
        await asyncio.to_thread(place.service, name, model)
    objects = json.loads(await asyncio.to_thread(place.kubectl, "get", INFERENCE_SERVICE.plural, "-o", "json"))["items"]
    ages = [(item["metadata"]["creationTimestamp"], item["metadata"]["uid"], item["metadata"]["name"]) for item in objects]
    (_, _, first), (_, _, second) = sorted(ages)  # within one second, the uid decides
    await asyncio.to_thread(place.service, "other", f"{model}-2")
    await until(lambda: _owned(process, model), {model: f"{model}/{first}", f"{model}-2": f"{model}/other"})
    await asyncio.to_thread(place.kubectl, "delete", INFERENCE_SERVICE.plural, first)
    await until(lambda: _owned(process, model), {model: f"{model}/{second}", f"{model}-2": f"{model}/other"})


async def _owned(process: GatewayProcess, prefix: str) -> dict[str, str]:
    return {name: owner for name, owner in (await names(process)).items() if name.startswith(prefix)}


async def test_an_outage_of_the_api_server_changes_nothing_and_after_it_changes_are_seen(place, gateway, net):
    process, wire = gateway
    model = place.namespace
    async with at(replica("a", model), f"{net}.1"), at(replica("b", model), f"{net}.2"):
        uid = await asyncio.to_thread(place.service, "s", model)
        await asyncio.to_thread(place.pod, "a", "s", uid, f"{net}.1")
        assert (await ask(process, model))[0] == 200
        wire.cut()
        await asyncio.to_thread(place.pod, "b", "s", uid, f"{net}.2")
        await asyncio.to_thread(place.kubectl, "delete", "pod", "a", "--force")
        assert await ask(process, model) == (200, {"replica": "a"})
        assert process.probe("/readyz") == 200
        wire.up = True
        await until(lambda: ask(process, model), (200, {"replica": "b"}))
