"""Pods without a kubelet whose daemons are real processes of this machine: they can freeze, and a real gateway hears them."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

from pagoda_contracts.launch import AuthConfig, Fault, HealthConfig, Listen
from pagoda_contracts.names import LABEL_REVISION, PORT_DAEMON_GRPC, PORT_DAEMON_HTTP, PORT_PROBES
from prometheus_client.parser import text_string_to_metric_families
from support.kube.fake_api import running
from support.kube.namespace import NAME, Real
from support.servers.gateway_process import GatewayProcess
from support.servers.loopback import pod_net
from support.servers.replica import Replica, replica_config, start_replica

# A canary that takes longer than this is late, and its replica gets no requests: a busy machine must not be late.
OFTEN = HealthConfig(deep_probe_every="10s")


class DaemonProcesses:
    """The pods of one service on a node without a kubelet, one address each."""

    def __init__(self, real: Real, folder: Path, stack: ExitStack, auth: AuthConfig | None = None) -> None:
        self.real, self.folder, self.stack, self.auth = real, folder, stack, auth
        self.net = stack.enter_context(pod_net())
        self.daemons: dict[str, Replica] = {}

    def admit(self, count: int, *faults: Fault) -> list[str]:
        """Starts a daemon for every pod that has none (the first of them with faults), and tells the API server what a kubelet would."""
        pods = self.real.node.placed(self.real.namespace, count)
        for pod in pods:
            if pod["metadata"]["name"] in self.daemons:
                continue
            host = f"{self.net}.{len(self.daemons) + 1}"
            config = replica_config(
                self.folder, names=(NAME,), revision=pod["metadata"]["labels"][LABEL_REVISION], faults=faults, health=OFTEN, auth=self.auth
            )
            faults = ()
            listen = Listen(host=host, http=PORT_DAEMON_HTTP, grpc=PORT_DAEMON_GRPC, probes=PORT_PROBES, run_dir=config.listen.run_dir)
            self.daemons[pod["metadata"]["name"]] = self.stack.enter_context(start_replica(config.model_copy(update={"listen": listen})))
            self.real.node.report(pod, running(ready=True) | {"podIP": host, "podIPs": [{"ip": host}]})
        return [pod["metadata"]["name"] for pod in pods]

    def freeze(self, pod: str) -> str:
        os.kill(self.daemons[pod].process.pid, signal.SIGSTOP)
        return self.daemons[pod].http

    def names(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.real.pods() if "deletionTimestamp" not in pod["metadata"]}

    def deleted(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.real.pods() if "deletionTimestamp" in pod["metadata"]}


def endpoints(gateway: GatewayProcess, verdict: str, service: str = "") -> int:
    """How many the gateway sees so, of that service (namespace/name) or of all."""
    samples = [sample for family in text_string_to_metric_families(gateway.scrape()) for sample in family.samples]
    reported = [s for s in samples if s.name == "pagoda_gateway_endpoints" and s.labels["verdict"] == verdict]
    return sum(int(sample.value) for sample in reported if service in ("", sample.labels["service"]))
