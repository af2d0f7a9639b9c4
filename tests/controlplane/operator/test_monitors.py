"""What the chart's monitors tell Prometheus to read: each endpoint found as the Prometheus operator finds it, and read over HTTP."""

import asyncio
import base64
from typing import NamedTuple

import httpx
import pytest
import yaml
from pagoda_contracts import gateway_metrics
from pagoda_contracts.launch import DaemonConfig
from pagoda_contracts.names import DAEMON_CONFIG_KEY, JWKS_CONFIG_MAP, JWKS_DIR
from pagoda_gateway.serve.settings import load
from pagoda_operator.api.callers import Callers
from pagoda_operator.api.state import CONFIG_MAPS, Resource
from pagoda_operator.run.settings import Settings
from prometheus_client.parser import text_string_to_metric_families
from support.kube.chart import NAMESPACE, of_kind, rendered, the
from support.kube.client import eventually
from support.kube.operator_process import running_operator
from support.servers.gateway_process import start_gateway, write_fleet
from support.servers.local_front import local_config, local_front
from support.servers.loopback import own_net

pytestmark = pytest.mark.cluster
SECRETS = Resource("v1", "Secret", "secrets")
MONITORS = ("monitoring.serviceMonitor.enabled=true", "monitoring.serviceMonitor.namespaces={watching}")


class Target(NamedTuple):
    """As a scrape configuration has it."""

    port: int
    path: str
    scheme: str
    headers: dict[str, str]


@pytest.fixture
def objects(cluster):
    """The chart with monitors; their account and its Secret are made."""
    found = rendered(cluster, *MONITORS)
    made = [the(found, kind, "pagoda-metrics") for kind in ("ServiceAccount", "Secret")]
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(made))
    yield found
    cluster.kubectl("delete", "--ignore-not-found", "-f", "-", input=yaml.safe_dump_all(made))


def selects(selector, labels):
    """A LabelSelector of the forms that the chart uses."""
    absent = [one["key"] for one in selector.get("matchExpressions", ()) if one["operator"] == "DoesNotExist"]
    assert len(absent) == len(selector.get("matchExpressions", ()))
    return selector["matchLabels"].items() <= labels.items() and not {*absent} & {*labels}


def numbered(name, pod):
    """The port of a pod's containers with this name. Prometheus drops a target whose port has another one, without a word."""
    (port,) = [port["containerPort"] for one in pod["containers"] for port in one.get("ports", ()) if port["name"] == name]
    return port


def target(endpoint, pod, kube, port=None):
    headers = {}
    if "authorization" in endpoint:
        shown = endpoint["authorization"]
        of = shown["credentials"]
        kept = eventually(lambda: kube.get(SECRETS, NAMESPACE, of["name"]).get("data", {}).get(of["key"]), "the cluster writes the token")
        headers = {"authorization": f"{shown.get('type', 'Bearer')} {base64.b64decode(kept).decode()}"}
    return Target(numbered(port or endpoint["port"], pod), endpoint.get("path", "/metrics"), endpoint.get("scheme", "http"), headers)


async def scraped(host, found, port=None):
    """The names of the families with samples; at another port where that one may be another test's."""
    async with httpx.AsyncClient(trust_env=False, timeout=300) as client:
        answer = await client.get(f"{found.scheme}://{host}:{port or found.port}{found.path}", headers=found.headers)
    assert answer.status_code == 200, answer.text
    return {family.name for family in text_string_to_metric_families(answer.text) if family.samples}


def as_mounted(real, pod, folder):
    """The pod's DaemonConfig, with its files in a folder of this machine, an address of it, and no device."""
    (volume,) = [one["configMap"]["name"] for one in pod["spec"]["volumes"] if one["name"] == "config"]
    for name, text in real.kube.get(CONFIG_MAPS, real.namespace, JWKS_CONFIG_MAP)["data"].items():
        (folder / name).write_text(text)
    text = real.kube.get(CONFIG_MAPS, real.namespace, volume)["data"][DAEMON_CONFIG_KEY]
    written = DaemonConfig.model_validate_json(text.replace(JWKS_DIR, str(folder)))
    listen = written.listen.model_copy(update={"host": f"{own_net()}.1", "run_dir": str(folder)})
    engine = written.engine.model_copy(update={"kv_bytes": 2**20, "max_model_len": 512})
    return written.model_copy(update={"listen": listen, "engine": engine, "testing": local_config(folder).testing})


@pytest.fixture
def strict(account, objects, tmp_path):
    """An operator that was told who may call, as the chart tells it."""
    (callers,) = [body["data"]["callers.json"] for body in of_kind(objects, "ConfigMap") if "callers.json" in body.get("data", {})]
    assert Callers.model_validate_json(callers).metrics_namespaces == ("watching",)
    (tmp_path / "callers.json").write_text(callers)
    with running_operator(account, "--resync", "1s", PAGODA_CALLERS=str(tmp_path / "callers.json")) as operator:
        yield operator


async def test_monitors_collect_from_replicas_and_operators_with_the_default_authentication(real, strict, objects, tmp_path):
    def made():
        real.apply()
        (pod,) = real.node.placed(real.namespace, 1)
        monitor = the(objects, "PodMonitor", "pagoda-replicas")["spec"]
        assert (monitor["namespaceSelector"], selects(monitor["selector"], pod["metadata"]["labels"])) == ({"any": True}, True)
        (endpoint,) = monitor["podMetricsEndpoints"]
        return as_mounted(real, pod, tmp_path), target(endpoint, pod["spec"], real.kube)

    config, replica = await asyncio.to_thread(made)
    host = config.listen.host
    async with local_front(config), httpx.AsyncClient(trust_env=False, timeout=300) as client:
        assert await scraped(host, replica) >= {"vllm:num_requests_running", "pagoda_daemon_build_info"}
        url = f"http://{host}:{replica.port}"
        strangers = {"authorization": replica.headers["authorization"][:-9] + "AAAAAAAAA"}
        refused = [(await client.get(url + replica.path, headers=headers)).status_code for headers in ({}, strangers)]
        refused.append((await client.post(f"{url}/v1/completions", headers=replica.headers, json={})).status_code)
    assert refused == [401, 401, 403]
    (endpoint,) = the(objects, "PodMonitor", "pagoda-operator")["spec"]["podMetricsEndpoints"]
    operator = target(endpoint, pod_of(objects, "operator"), real.kube)
    assert operator.port == Settings().metrics_port
    assert "pagoda_operator_reconciles" in await scraped("127.0.0.1", operator, strict.events("serving")[0]["metrics"])


async def test_monitors_collect_from_gateways(cluster, kube, tmp_path):
    objects = rendered(cluster, *MONITORS)
    (monitor,) = of_kind(objects, "ServiceMonitor")
    (service,) = [body for body in of_kind(objects, "Service") if selects(monitor["spec"]["selector"], body["metadata"]["labels"])]
    (endpoint,) = monitor["spec"]["endpoints"]
    (port,) = [port["targetPort"] for port in service["spec"]["ports"] if port["name"] == endpoint["port"]]
    pod = pod_of(objects, "gateway")
    gateway = target(endpoint, pod, kube, port)
    set_to = {one["name"]: one["value"] for one in pod["containers"][0]["env"] if "value" in one}
    assert gateway.port == load([], set_to).metrics_port
    write_fleet(tmp_path / "fleet.json", [])
    with start_gateway("--fleet", str(tmp_path / "fleet.json")) as process:
        assert await scraped("127.0.0.1", gateway, process.metrics) & {family.name for family in gateway_metrics.GATEWAY}


def pod_of(objects, component):
    return the(objects, "Deployment", f"pagoda-{component}")["spec"]["template"]["spec"]
