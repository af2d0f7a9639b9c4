"""How soon the operator acts, against a real API server; prints one JSON object.

`python -P bench/reaction.py [--services 24] [--rounds 3]`. Needs root and compiled binaries. *Decision*: a gateway of the bench's own tells
of held requests (0 → 1), a queue, and a full KV, at no particular moment; it ends when a watch shows the Deployment's replicas (of a spec
that is refused: the service's condition). *Health*: real daemons and a real gateway; a replica freezes, its canary goes wrong, or its
device is called faulty; it is unrouted when the gateway says so, replaced when another pod exists. Goals: decision 2 s; unrouted 5 s,
replaced 10 s from there; `missed` names what missed one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]
from pagoda_contracts.launch import Fault
from pagoda_contracts.names import ANNOTATION_DEVICE_FAULT, LABEL_SERVICE
from pagoda_operator.api.state import DEPLOYMENTS, PODS, SERVICES, Resource
from support.kube.client import Body, Kube, eventually
from support.kube.cluster import Cluster, running_cluster
from support.kube.daemon_processes import DaemonProcesses, endpoints
from support.kube.fake_api import is_ready, service_body
from support.kube.namespace import NAME, Real
from support.kube.operator_process import NodeWithoutKubelet, install_role, kubeconfig, running_operator
from support.servers.gateway_process import GatewayProcess, start_gateway
from support.servers.scripted_gateway import MultiServiceGateway, ScriptedGateway, Traffic, serving

GOALS: Final = {"decision": 2.0, "unrouted": 5.0, "replaced": 10.0}
BIN_S: Final = 5.0
CPU: Final = [{"cpu": {"cores": "10m", "memory": "1Gi"}}]
SCALING: Final = {"mode": "Auto", "min": 0, "max": 8, "idleAfter": "1h", "targets": {"queueDepth": 1, "kvUtilization": 0.8}}
CALM: Final = Traffic(rate=0.2, running=1)
STRIKES: Final = {"queue": Traffic(rate=1.0, running=16, waiting=200), "kv": Traffic(rate=0.2, running=2, kv=0.97)}


class Watched:
    """Objects of one kind in a namespace as a watch tells of them, and when."""

    def __init__(self, kube: Kube, resource: Resource, namespace: str) -> None:
        self._kube, self._what = kube, (resource, namespace)
        self.bodies: dict[str, Body] = {}
        self._reported: list[tuple[float, Body]] = []
        self._news = threading.Condition()
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        with suppress(httpx.HTTPError), self._kube.stream(*self._what, {"watch": "1", "timeoutSeconds": "3600"}) as lines:
            for line in lines:  # to the cluster's end
                self._take(json.loads(line))

    def _take(self, event: Body) -> None:
        body, now = event["object"], time.monotonic()
        with self._news:
            if event["type"] == "DELETED":
                self.bodies.pop(body["metadata"]["name"], None)
            else:
                self.bodies[body["metadata"]["name"]] = body
                self._reported.append((now, body))
            self._news.notify_all()

    def when(self, wanted: Callable[[Body], bool], since: float, seconds: float = 60) -> float:
        """When (monotonic), from `since` on, an object of that kind was told of first."""

        def found() -> float | None:
            return next((at for at, body in self._reported if at >= since and wanted(body)), None)

        with self._news:
            at = self._news.wait_for(found, seconds)
        assert at is not None, "nothing of the kind was told"
        return at


@contextmanager
def control_plane(nodes: str) -> Iterator[tuple[Cluster, Kube, Path]]:
    """A cluster with the operator's role and a kubeconfig of its account."""
    with running_cluster(nodes) as cluster, tempfile.TemporaryDirectory() as folder:
        install_role(cluster)
        kube = Kube(cluster.kubeconfig)
        yield cluster, kube, kubeconfig(kube, Path(folder))
        kube.close()


class Decisions:
    """Services that sleep, and a gateway that tells of each what the bench wants."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.kube, self.namespace = kube, namespace
        self.deployments = Watched(kube, DEPLOYMENTS, namespace)
        self.pods = Watched(kube, PODS, namespace)
        self.objects = Watched(kube, SERVICES, namespace)
        self.multi_gateway = MultiServiceGateway()
        self.services: dict[str, ScriptedGateway] = {}

    def add(self, name: str) -> None:
        more = {"replicas": 0, "engine": {"maxConcurrency": 16}, "scaling": SCALING, "accelerators": CPU}
        self.kube.create(SERVICES, self.namespace, service_body(name, self.namespace, profileRef={"name": self.namespace}, **more))
        self.services[name] = self.multi_gateway.add(self.namespace, name, lambda: self.ready(name))

    def ready(self, name: str) -> list[str]:
        pods = list(self.pods.bodies.values())
        return [pod["metadata"]["name"] for pod in pods if _service(pod) == name and is_ready(pod)]

    def asleep(self) -> bool:
        reported = [item.get("status", {}).get("conditions", []) for item in self.kube.list(SERVICES, self.namespace)]
        return sum(any(c["reason"] == "ScaledToZero" for c in conditions) for conditions in reported) == len(self.services)

    def replicas(self, name: str) -> int:
        return sum(body["spec"]["replicas"] for body in list(self.deployments.bodies.values()) if _service(body) == name)

    def strike(self, name: str, traffic: Traffic) -> float:
        """Seconds from the gateway's word until more replicas were written."""
        time.sleep(random.uniform(0, 3))  # at no particular moment of a bin
        count, began = self.replicas(name), time.monotonic()
        self.services[name].report(traffic)
        return self.deployments.when(lambda body: _service(body) == name and body["spec"]["replicas"] > count, began) - began

    def wake(self, name: str) -> float:
        """The same at zero; then its one replica serves a calm flow."""
        took = self.strike(name, Traffic(held=1))
        eventually(lambda: self.ready(name), f"{name} serves")
        self.services[name].report(CALM)
        return took

    def spoil(self, name: str) -> float:
        """Seconds from an edit that makes the service invalid until its status says so."""
        edited = time.monotonic()
        self.kube.merge(SERVICES, self.namespace, name, {"spec": {"podTemplate": {"spec": {"hostNetwork": True}}}})
        return self.objects.when(lambda body: body["metadata"]["name"] == name and _stalled(body), edited) - edited


def _stalled(body: Body) -> bool:
    conditions = body.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Stalled" and condition["status"] == "True" for condition in conditions)


def _service(body: Body) -> str:
    return str(body["metadata"]["labels"].get(LABEL_SERVICE, ""))


def decisions(count: int) -> dict[str, list[float]]:
    """Held requests at all services; then a queue at every other one and a full KV at the rest; then a spec that is refused."""
    with control_plane("fake:2") as (cluster, kube, account):
        ready = {"podTemplate": {"metadata": {"annotations": {"devcluster.pagoda.dev/ready-after": "0"}}}}
        Real(cluster, kube, NodeWithoutKubelet(kube), "bench").prepare(**ready)
        harness = Decisions(kube, "bench")
        with serving(harness.multi_gateway) as address, running_operator(account, "--gateways", address):
            for number in range(count):
                harness.add(f"s{number}")
            eventually(harness.asleep, "all services sleep")
            names = list(harness.services)
            found = {"held": [harness.wake(name) for name in names]}
            time.sleep(3 * BIN_S)
            assert {harness.replicas(name) for name in names} == {1}, "calm is calm"
            for offset, (kind, traffic) in enumerate(STRIKES.items()):
                found[kind] = [harness.strike(name, traffic) for name in names[offset :: len(STRIKES)]]
            return found | {"invalid": [harness.spoil(name) for name in names]}


class UnhealthyReplica:
    """One replica of two goes bad, once per service: a second replacement would have to wait two minutes."""

    def __init__(self, real: Real, gateway: GatewayProcess, processes: DaemonProcesses) -> None:
        self.real, self.gateway, self.processes = real, gateway, processes
        self.pods = Watched(real.kube, PODS, real.namespace)

    def able(self) -> int:
        """Replicas that the gateway sends requests to."""
        return sum(endpoints(self.gateway, verdict, f"{self.real.namespace}/{NAME}") for verdict in ("ready", "suspect"))

    def silent(self, pod: str) -> None:
        self.processes.freeze(pod)

    def device(self, pod: str) -> None:
        patch = {"metadata": {"annotations": {ANNOTATION_DEVICE_FAULT: "Xid 79"}}}
        self.real.kube.merge(PODS, self.real.namespace, pod, patch)

    def canary(self, _pod: str) -> None:
        body = {"model": NAME, "prompt": "x", "max_tokens": 2}
        for _ in range(10):  # its steps break the device
            httpx.post(f"{self.gateway.url}/v1/completions", json=body, timeout=60, trust_env=False)

    def run(self, kind: str) -> tuple[float, float]:
        """Seconds until it was unrouted, and from there until its replacement existed."""
        self.real.apply(replicas=2)
        first, *_ = both = self.processes.admit(2, *([Fault(kind="wrong", at_step=5)] if kind == "canary" else []))
        self.real.reported(Ready="Available")
        eventually(lambda: self.able() == 2, "both are heard")
        struck = time.monotonic()
        getattr(self, kind)(first)
        eventually(lambda: self.able() < 2, f"one of {kind} is not asked any more")
        unrouted = time.monotonic()
        replaced = self.pods.when(lambda body: body["metadata"]["name"] not in both, struck)
        return unrouted - struck, max(0.0, replaced - unrouted)


def health(rounds: int) -> dict[str, list[tuple[float, float]]]:
    """`rounds` services per kind, one after another."""
    found: dict[str, list[tuple[float, float]]] = {"silent": [], "canary": [], "device": []}
    with control_plane("control-plane") as (cluster, kube, account), ExitStack() as stack:
        node_without_kubelet = NodeWithoutKubelet(kube)
        node_without_kubelet.register()
        stack.callback(node_without_kubelet.leave)
        gateway = stack.enter_context(start_gateway("--kubeconfig", str(cluster.kubeconfig)))
        stack.enter_context(running_operator(account, "--resync", "5m", "--gateways", f"127.0.0.1:{gateway.demand}"))
        for kind in rounds * list(found):
            with ExitStack() as daemons:
                folder = Path(daemons.enter_context(tempfile.TemporaryDirectory()))
                real = Real(cluster, kube, node_without_kubelet, f"bench-{uuid.uuid4().hex[:8]}")
                real.prepare()
                found[kind].append(UnhealthyReplica(real, gateway, DaemonProcesses(real, folder, daemons)).run(kind))
                real.clean()
    return found


def spread(values: list[float]) -> dict[str, float]:
    """Of so few the 95th percentile is the worst but for chance."""
    ordered = sorted(values)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    return {"n": len(ordered), "p50": round(statistics.median(ordered), 2), "p95": round(p95, 2), "max": round(ordered[-1], 2)}


def main() -> None:
    """Both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=24, help="decisions: each is woken, then struck once")
    parser.add_argument("--rounds", type=int, default=3, help="of each kind of sickness; 0 leaves health out")
    options = parser.parse_args()
    figures: dict[str, Any] = {"decision": {}, "unrouted": {}, "replaced": {}}
    for kind, taken in decisions(options.services).items() if options.services else ():
        figures["decision"][kind] = spread(taken)
    for kind, pairs in health(options.rounds).items() if options.rounds else ():
        figures["unrouted"][kind], figures["replaced"][kind] = (spread(list(part)) for part in zip(*pairs, strict=True))
    missed = [f"{part} {kind}" for part, goal in GOALS.items() for kind, reported in figures[part].items() if reported["max"] > goal]
    print(json.dumps({"bench": "reaction", "cores": os.cpu_count(), "load": os.getloadavg()[0], **figures, "missed": missed}))


if __name__ == "__main__":
    main()
