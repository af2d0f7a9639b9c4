"""Rollouts on a real API server: canaries that gateways' counters end, a strategy that free devices choose, a trial of a bad image."""

import asyncio
from collections import Counter

import httpx
import pytest
from pagoda_contracts.launch import Fault
from pagoda_contracts.names import GRPC_SET_STATE, HEADER_ROUTE, LABEL_REVISION, PORT_DAEMON_HTTP, ROLE_OPERATOR
from pagoda_contracts.route import parse_route
from pagoda_daemon.api.access.caller import ROLE_ANYBODY
from pagoda_daemon.api.access.roles import METHODS
from pagoda_operator.api.state import DEPLOYMENTS, PROFILES
from support.harness.fake_nodes import MIXED, WHOLE, device_node, inspected, replicas, tolerate
from support.harness.inventories import gpu
from support.harness.placing import ENGINE
from support.kube.client import eventually
from support.kube.fake_api import is_ready, is_trial, passed, running, waiting
from support.kube.fake_kubelet import fake_kubelet, in_loop
from support.kube.namespace import NAME
from support.kube.operator_process import OperatorProcess, running_operator
from support.servers.gateway_process import start_gateway
from support.servers.local_front import NAME as MODEL
from support.servers.scripted_gateway import ScriptedGateway, Traffic, serving

pytestmark = [pytest.mark.cluster]
# Every step of a request that such a replica computes: each of its answers is an error, and it stays up.
BAD = tuple(Fault(kind="nan", at_step=step) for step in range(20_000))
CANARY = {"canary": {"steps": [{"weight": 50, "hold": "1h"}], "abortOn": {"errorRate": "10%"}}}
PATIENCE_S = 300


def revision(body):
    return body["metadata"]["labels"][LABEL_REVISION]


def staying(real):
    """Replicas."""
    return [pod for pod in real.pods() if "deletionTimestamp" not in pod["metadata"] and not is_trial(pod)]


def deployments(real):
    return {revision(body): body for body in real.kube.list(DEPLOYMENTS, real.namespace)}


def ready(real):
    status = real.service().get("status", {})
    if status.get("observedGeneration") != real.service()["metadata"]["generation"]:
        return "", ""
    line = next(found for found in status["conditions"] if found["type"] == "Ready")
    return line["reason"], line["message"]


def weights(real):
    return {one["hash"]: one.get("weight") for one in real.service()["status"].get("revisions", [])}


async def until(look, what):
    async with asyncio.timeout(PATIENCE_S):
        while not (found := await asyncio.to_thread(look)):
            await asyncio.sleep(0.1)
    assert found, what
    return found


async def ask(client):
    """The status of an answer, and who gave it."""
    answer = await client.post("/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 2})
    return answer.status_code, parse_route(answer.headers[HEADER_ROUTE]).endpoint


async def clients(url, over):
    """Asks one request after another until it is over; how many of each answer came from where."""
    reported = Counter()
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, trust_env=False) as client:
        while not over.is_set():
            reported[await ask(client)] += 1
    return reported


async def start(pod, ip, folder):
    """Only the revision that tells itself by its labels is sound; the labels are the pod template's."""
    return await in_loop(pod, ip, folder, faults=() if pod["metadata"]["labels"].get("sound") == "yes" else BAD)


async def test_a_canary_that_answers_errors_is_ended_by_the_gateway_s_counters(real, account, tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, GRPC_SET_STATE, frozenset((ROLE_ANYBODY, ROLE_OPERATOR)))
    model = {"uri": "pvc://models", "servedNames": [MODEL]}
    template = {"metadata": {"labels": {"sound": "yes"}}}
    await asyncio.to_thread(real.apply, replicas=2, model=model, rollout=CANARY, podTemplate=template)
    with start_gateway("--kubeconfig", str(real.cluster.kubeconfig)) as gateway:
        operator = await asyncio.to_thread(OperatorProcess, account, "--resync", "5m", "--gateways", f"127.0.0.1:{gateway.demand}")
        try:
            async with fake_kubelet(real, tmp_path, start) as kubelet:
                await until(lambda: ready(real)[0] == "Available", "the old revision serves")
                await aborted(real, kubelet, gateway.url)
        finally:
            await asyncio.to_thread(operator.stop)
        assert operator.events("reconcile_bug") == []


async def aborted(real, kubelet, url):
    ((old, before),) = (await asyncio.to_thread(deployments, real)).items()
    mine = {pod["metadata"]["uid"] for pod in await asyncio.to_thread(staying, real)}
    good = {f"{kubelet.containers[uid].ip}:{PORT_DAEMON_HTTP}" for uid in mine}
    await asyncio.to_thread(real.edit, podTemplate={"metadata": {"labels": {"sound": "no"}}})

    over = asyncio.Event()
    asking = asyncio.create_task(clients(url, over))
    try:
        _, why = await until(lambda: (found := ready(real))[0] == "RolledBack" and found, "the canary is over")
    finally:
        over.set()
        reported = await asking
    # Who told: the gateway, of requests that the new revision failed.
    assert "requests failed within a minute, abortOn.errorRate is 10%" in why
    assert why.startswith("canary at 50 %: ")
    assert {code for code, endpoint in reported if endpoint in good} == {200}
    assert min(code for code, endpoint in reported if endpoint not in good) == 500
    # Back: all requests to the old one, nothing of the new one left.
    (new,) = (await asyncio.to_thread(deployments, real)).keys() - {old}
    assert await asyncio.to_thread(weights, real) == {old: 100, new: 0}
    await until(lambda: {pod["metadata"]["uid"] for pod in real.pods()} == mine, "the new revision's replica is gone")
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, trust_env=False) as client:
        after = [await ask(client) for _ in range(20)]
    assert {code for code, _ in after} == {200}
    assert {endpoint for _, endpoint in after} <= good
    # The old one was never touched: its Deployment's spec is the one of before, and its pods are the same.
    assert (await asyncio.to_thread(deployments, real))[old]["metadata"]["generation"] == before["metadata"]["generation"]
    status = (await asyncio.to_thread(real.service))["status"]
    assert (status["rollout"]["phase"], status["rollout"]["reason"]) == ("RolledBack", why.partition(";")[0])


def late(limit, hold="1h"):
    return {"canary": {"steps": [{"weight": 50, "hold": hold}], "abortOn": {"ttftP95": limit}}}


def test_a_canary_whose_first_tokens_are_late_is_ended_by_the_ratio_that_a_gateway_reports(real, account):
    gateway = ScriptedGateway(real.namespace, NAME, lambda: [pod["metadata"]["name"] for pod in real.pods() if is_ready(pod)])
    with serving(gateway) as address, running_operator(account, "--resync", "1s", "--gateways", address) as operator:
        real.apply(replicas=2, rollout=late("1.5x"))
        mine = {pod["metadata"]["uid"] for pod in real.serve(2)}
        real.reported(Ready="Available")
        (old,) = deployments(real)
        real.edit(engine={"maxModelLen": 128})
        real.serve(3)
        real.reported(Ready="Canary")
        (new,) = deployments(real).keys() - {old}
        assert weights(real) == {old: 50, new: 50}
        gateway.report(Traffic(revisions={old: (100, 1000), new: (100, 1400)}))
        real.edit(rollout=late("1.5x", hold="50m"))  # answered by a look at what the gateway tells
        real.reported(Ready="Canary")
        gateway.report(Traffic(revisions={old: (100, 1000), new: (100, 1600)}))
        reported = real.reported(Stalled="RolledBack")["Stalled"]
        why = "canary at 50 %: the first token took 1.60 s (p95 of 100 requests), abortOn.ttftP95 is 1.5x of the old one's 1.00 s"
        assert reported["message"].startswith(why)
        assert weights(real) == {old: 100, new: 0}
        assert real.service()["status"]["rollout"]["reason"] == why
        eventually(lambda: not real.end_pods() and {pod["metadata"]["uid"] for pod in real.pods()} == mine, "the old replicas alone")
    assert operator.events("reconcile_bug") == []


@pytest.fixture
def operator(account):
    with running_operator(account, "--resync", "1s") as process:
        yield process
    assert process.events("reconcile_bug") == []


def serve(real, fake, count):
    """So many replicas have a node, and get ready."""
    pods = replicas(real, fake, count)
    for pod in pods:
        real.node.report(pod, running(ready=True))
    return pods


def asked(real):
    """Replicas by revision."""
    return {name: body["spec"]["replicas"] for name, body in deployments(real).items()}


def sides(real, fake):
    """Replicas by revision as they stand on the node: what the Deployments ask for may be ahead of that."""
    return Counter(revision(pod) for pod in staying(real) if pod["spec"].get("nodeName") == fake.name)


def settled(real, fake, old, count):
    """Plays the kubelet until the service has arrived."""

    def look():
        for pod in staying(real):
            if pod["spec"].get("nodeName") == fake.name and pod["status"]["phase"] == "Pending":
                real.node.report(pod, running(ready=True))
        real.end_pods()
        now = sides(real, fake)
        return ready(real)[0] == "Available" and old not in now and now.total() == count == len(real.pods())

    eventually(look, "the new revision alone")


def strategy(real):
    return real.service()["status"].get("rollout", {}).get("strategy")


def first_revision(real, fake):
    tolerate(real)
    real.apply(accelerators=[gpu("H100")], engine=ENGINE, replicas=2)
    inspected(real)
    serve(real, fake, 2)
    real.reported(Ready="Available")
    (old,) = deployments(real)
    real.edit(engine={"maxModelLen": 2048})
    return old


def test_auto_replaces_where_no_device_is_free(real, operator):
    with device_node(real.kube, MIXED, "h100-a") as fake:  # two whole GPUs
        old = first_revision(real, fake)
        # Held here until the test says that the new one is ready: an old replica made room for it, and the last old one stays.
        eventually(lambda: not real.end_pods() and sorted(sides(real, fake).values()) == [1, 1], "one of each")
        assert sorted(asked(real).values()) == [1, 1]
        assert asked(real)[old] == 1
        eventually(lambda: strategy(real) == "Replace", "the strategy is told")  # after it was acted on
        assert sides(real, fake)[old] == 1
        settled(real, fake, old, 2)


def test_auto_surges_where_devices_are_free(real, operator):
    with device_node(real.kube, WHOLE, "h100-b") as fake:  # eight whole GPUs
        old = first_revision(real, fake)
        # Held here until the test says that the new ones are ready: both beside both.
        pods = replicas(real, fake, 4)
        assert sorted(asked(real).values()) == [2, 2]
        assert [revision(pod) for pod in pods].count(old) == 2
        eventually(lambda: strategy(real) == "Surge", "the strategy is told")
        settled(real, fake, old, 2)


def on_trial(real):
    """The trial's pod that stays, where it has a node."""
    found = [pod for pod in real.pods() if is_trial(pod) and pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]]
    return found[0] if found else None


def try_out(real, daemon, length):
    """Another revision with that image; its trial's pod."""
    real.kube.merge(PROFILES, "", real.namespace, {"spec": {"images": {"daemon": daemon}}})
    real.edit(engine={"maxModelLen": length})
    return eventually(lambda: on_trial(real), "a trial on a node")


def test_a_trial_keeps_a_bad_image_from_the_only_replica_on_the_only_device(real, operator):
    with device_node(real.kube, WHOLE, "h100-c", **{"nvidia.com/gpu": "1"}) as fake:
        tolerate(real)
        real.apply(accelerators=[gpu("H100")], engine=ENGINE, replicas=1, rollout={"strategy": "Replace"})
        inspected(real)
        (old,) = serve(real, fake, 1)
        real.reported(Ready="Available")

        def served():
            (pod,) = [pod for pod in real.pods() if not is_trial(pod)]
            return pod["metadata"]["uid"] == old["metadata"]["uid"] and is_ready(pod) and "deletionTimestamp" not in pod["metadata"]

        pod = try_out(real, "localhost/daemon:nope", 2048)
        # Pod Security `restricted` let it in; it is where the image is needed, though the device there is in use.
        assert pod["spec"]["nodeName"] == fake.name
        reported = real.reported(Reconciling="RollingOut")["Reconciling"]["message"]
        assert "the old replica stays until the trial of the new revision has passed" in reported
        assert served()
        real.node.report(pod, waiting("ImagePullBackOff", 'Back-off pulling image "localhost/daemon:nope": not found'))
        reported = real.reported(Stalled="RolledBack")["Stalled"]["message"]
        assert "localhost/daemon:nope" in reported
        assert reported.endswith("1 ready replica of an older revision continues to serve")
        eventually(lambda: not real.end_pods() and len(real.pods()) == 1, "the trial is gone")
        assert served()
        assert len(deployments(real)) == 1

        pod = try_out(real, "localhost/daemon:2", 1024)
        assert served()
        real.node.report(pod, passed())
        settled(real, fake, revision(old), 1)
        (new,) = real.pods()
        assert [container["image"] for container in new["spec"]["containers"]] == ["localhost/daemon:2"]
        assert real.service()["status"].get("rollout") is None
