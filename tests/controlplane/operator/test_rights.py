"""The role that the chart grants is the one that the operator uses: no verb less, none more; after a run through all that it does."""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import httpx
import pytest
import yaml
from pagoda_contracts.names import ANNOTATION_DEVICE_FAULT, DEFAULT_PROFILE, JWKS_CONFIG_MAP, LEASE_OPERATOR
from pagoda_operator.api.state import (
    ADAPTERS,
    CONFIG_MAPS,
    CORE_SERVICES,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    EVENTS,
    NETWORK_POLICIES,
    PODS,
    PROFILES,
    QUOTAS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_QUOTAS,
    SERVICES,
)
from support.harness.fake_nodes import MIXED, device_driver, device_node, inspected, templates_gone, tolerate
from support.harness.inventories import dra_of
from support.harness.placing import ENGINE
from support.judges.rights import Right, forbidden, granted, refused, used
from support.kube.chart import CHART, NAMESPACE, RELEASE
from support.kube.client import eventually
from support.kube.fake_api import crashed, mount_failure, running, unmounted
from support.kube.namespace import NAME
from support.kube.operator_process import LEASES, USER, OperatorProcess, kubeconfig
from support.servers.gateway_process import start_gateway

pytestmark = pytest.mark.cluster
# Asked by admission (OwnerReferencesPermissionEnforcement), never by a request of ours.
BY_ADMISSION = {Right(SERVICES.api_version.partition("/")[0], "inferenceservices/finalizers", "update")}
CPU = {"cpu": {"cores": "1", "memory": "4Gi"}}  # the model that is inspected takes 2.8 GiB
GATEWAY = "pagoda-gateway"
OPTIONS = ("--resync", "1s", "--namespace", NAMESPACE, "--identity", "rights")


@pytest.fixture
def roles(cluster):
    """By whom they are granted: "operator" and "gateway". Nobody else has an account of the chart's, a replica none that it could show."""
    text = cluster.helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE)
    found = [body for body in yaml.safe_load_all(text) if body and body["kind"] in ("ClusterRole", "Role")]
    whose = {}
    for role in found:
        whose.setdefault(role["metadata"]["name"].removeprefix(f"{RELEASE}-"), []).append(role)
    assert sorted(whose) == ["gateway", "operator"]
    return whose


@pytest.fixture
def life(real, account, tmp_path):
    """An operator with all that the chart gives it, from its first moment on: no Lease and no default profile exist."""
    real.kube.delete(LEASES, NAMESPACE, LEASE_OPERATOR)
    real.kube.delete(PROFILES, "", DEFAULT_PROFILE)
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"images": {"daemon": "localhost/daemon:1"}}))
    callers = tmp_path / "callers.json"
    callers.write_text(json.dumps({"gateway": f"{NAMESPACE}/pagoda-gateway", "operator": f"{NAMESPACE}/pagoda-operator"}))
    environment = {"PAGODA_DEFAULT_PROFILE": str(profile), "PAGODA_CALLERS": str(callers)}
    operator = OperatorProcess(account, *OPTIONS, **environment)
    try:
        yield operator
    finally:
        operator.stop()
        real.kube.delete(PROFILES, "", DEFAULT_PROFILE)


def everything(real, operator):
    """Through the life of a service, and what vandals do to it."""
    eventually(lambda: real.kube.get(PROFILES, "", DEFAULT_PROFILE), "the default profile is made")
    real.apply()
    (pod,) = real.node.placed(real.namespace, 1)
    for status, reason in 2 * ((crashed(code=1, message="boom"), "CrashLooping"), (running(), "LoadingModel")):
        real.node.report(pod, status)
        real.reported(Reconciling=reason)
    eventually(lambda: [e for e in real.kube.list(EVENTS, real.namespace) if "series" in e], "a word told twice is a series")
    miss_a_secret(real, pod)
    real.serve()
    real.reported(Ready="Available")
    vandalise(real)
    meter(real)
    adapt(real)
    replace_a_sick_one(real)
    real.edit(engine={"maxModelLen": 128})
    fresh = next(pod for pod in real.node.placed(real.namespace, 2) if pod["status"]["phase"] == "Pending")
    real.node.report(fresh, running(ready=True))
    eventually(lambda: not real.end_pods() and len(real.children()) == 7, "the old revision goes")
    real.reported(Ready="Available", Reconciling="Settled")
    use_devices(real)
    assert operator.events("reconcile_bug") == []


def miss_a_secret(real, pod):
    """The kubelet says in an Event only which volume it cannot mount."""
    words = 'MountVolume.SetUp failed for volume "credential-0" : secret "hub" not found'
    real.kube.create(EVENTS, real.namespace, mount_failure(pod, words, "2026-01-01T00:00:00.000000Z"))
    real.node.report(pod, unmounted("2026-01-01T00:00:00Z"))
    assert 'secret "hub" not found' in real.reported(Reconciling="FailedMount")["Reconciling"]["message"]


def use_devices(real):
    """The model is inspected, its slice claimed; somebody edits the claims' template; and back to cores."""
    tolerate(real)
    with device_node(real.kube, MIXED, "h100-r") as fake, device_driver(real.kube, MIXED, "h100-r"):
        real.edit(accelerators=[dra_of("mig.nvidia.com")], engine=ENGINE)
        inspector = inspected(real)
        (replica,) = [pod for pod in eventually(lambda: claimants(real), "a pod with a claim") if fake.name == pod["spec"].get("nodeName")]
        assert {pod["spec"]["automountServiceAccountToken"] for pod in (inspector, replica)} == {False}
        spoil(real, RESOURCE_CLAIM_TEMPLATES)
        real.edit(accelerators=[CPU])
        eventually(lambda: templates_gone(real), "no template left")
        eventually(lambda: not real.end_pods() and not claimants(real), "its pod ends")


def claimants(real):
    """Pods that hold devices and have a node."""
    return [pod for pod in real.pods() if "resourceClaims" in pod["spec"] and "nodeName" in pod["spec"]]


def meter(real):
    """A tenant with a native ResourceQuota behind its own; changed, and gone."""
    spec = {"subjects": {"namespaces": [real.namespace]}, "devices": {"gpus": 4, "resourceQuota": True}}
    real.kube.create(
        QUOTAS, "", {"apiVersion": QUOTAS.api_version, "kind": QUOTAS.kind, "metadata": {"name": real.namespace}, "spec": spec}
    )
    eventually(lambda: capped(real) == ["4"], "the ResourceQuota is made")
    real.kube.merge(QUOTAS, "", real.namespace, {"spec": {"devices": {"gpus": 3}}})
    eventually(lambda: capped(real) == ["3"], "it follows")
    real.kube.merge(QUOTAS, "", real.namespace, {"spec": {"devices": {"resourceQuota": False}}})
    eventually(lambda: capped(real) == [], "it goes")
    real.kube.delete(QUOTAS, "", real.namespace)


def adapt(real):
    """An adapter of a service that takes none is told so."""
    spec = {"serviceRef": {"name": NAME}, "source": {"uri": "pvc://models/adapter"}}
    body = {"apiVersion": ADAPTERS.api_version, "kind": ADAPTERS.kind, "metadata": {"name": "adapter"}, "spec": spec}
    real.kube.create(ADAPTERS, real.namespace, body)
    eventually(lambda: (real.kube.get(ADAPTERS, real.namespace, "adapter") or {}).get("status", {}).get("conditions"), "its status")
    real.kube.delete(ADAPTERS, real.namespace, "adapter")


def capped(real):
    """GPUs that ResourceQuotas of the namespace allow."""
    return [body["spec"]["hard"]["requests.nvidia.com/gpu"] for body in real.kube.list(RESOURCE_QUOTAS, real.namespace)]


def replace_a_sick_one(real):
    """A faulty device: another replica is made beside it, and once that one serves the unhealthy one goes."""
    (unhealthy,) = real.pods()
    annotation = {"metadata": {"annotations": {ANNOTATION_DEVICE_FAULT: "Xid 79"}}}
    real.kube.merge(PODS, real.namespace, unhealthy["metadata"]["name"], annotation)
    fresh = next(pod for pod in real.node.placed(real.namespace, 2) if pod["metadata"]["uid"] != unhealthy["metadata"]["uid"])
    real.node.report(fresh, running(ready=True))
    eventually(real.end_pods, "the unhealthy one is deleted")
    real.reported(Ready="Available", Reconciling="Settled")


def vandalise(real):
    """Every child loses a label, which is put back; a ControllerRevision takes no patch from anybody."""
    for resource in (DEPLOYMENTS, CONFIG_MAPS, CORE_SERVICES, DISRUPTION_BUDGETS, NETWORK_POLICIES):
        spoil(real, resource)
    real.kube.merge(PROFILES, "", DEFAULT_PROFILE, {"spec": {"images": {"daemon": "else"}}})
    restored = {"daemon": "localhost/daemon:1"}
    eventually(lambda: (real.kube.get(PROFILES, "", DEFAULT_PROFILE) or {})["spec"]["images"] == restored, "the default profile is kept")
    assert real.service()["metadata"]["name"] == NAME


def spoil(real, resource):
    ours = [body for body in real.kube.list(resource, real.namespace) if "ownerReferences" in body["metadata"]]
    (child,) = [body for body in ours if body["metadata"]["name"] != JWKS_CONFIG_MAP]
    label = "app.kubernetes.io/managed-by"
    real.kube.merge(resource, real.namespace, child["metadata"]["name"], {"metadata": {"labels": {label: "somebody"}}})
    eventually(partial(labelled, real, resource, child["metadata"]["name"], label), f"{resource.kind} is as it was")


def labelled(real, resource, name, label):
    return (real.kube.get(resource, real.namespace, name) or {})["metadata"]["labels"].get(label) == "pagoda-operator"


def without_policies(real, account, folder):
    """An installation that wants no NetworkPolicies any more."""
    callers = folder / "callers.json"
    callers.write_text(json.dumps(json.loads(callers.read_text()) | {"networkPolicy": False}))
    operator = OperatorProcess(account, *OPTIONS, PAGODA_CALLERS=str(callers))
    try:
        eventually(lambda: not real.kube.list(NETWORK_POLICIES, real.namespace), "the policy goes")
    finally:
        operator.stop()


def test_every_right_is_used_and_no_other_is_asked_for(real, life, roles, account, tmp_path):
    since = time.time()
    everything(real, life)
    life.stop()  # a watch is in the log once it has ended
    without_policies(real, account, tmp_path)

    def log():
        return real.cluster.audit(user=USER, since=since - 60, verbs="all")

    # A watch is in the log once the API server has seen its end, which is after the operator's.
    watched = {right for right in granted(roles["operator"]) if right.verb == "watch"}
    eventually(lambda: watched <= used(log(), everybodys=True), "ended watches")
    events = log()
    assert [(event["verb"], event["requestURI"]) for event in events if forbidden(event)] == []
    assert sorted(used(events) - granted(roles["operator"])) == []
    assert sorted(granted(roles["operator"]) - used(events, everybodys=True) - BY_ADMISSION) == []


def test_the_gateway_too_has_every_right_that_it_uses_and_no_other(real, operator, kube, roles, tmp_path):
    """It follows services, EndpointSlices and API keys from its start, and is told of what changes."""
    since = time.time()
    with start_gateway("--kubeconfig", str(kubeconfig(kube, tmp_path, GATEWAY)), "--keys-namespace", NAMESPACE) as gateway:
        a_key_lives(real.cluster, gateway)
        real.apply()
        real.serve()
        real.reported(Ready="Available")
        eventually(lambda: f'service="{real.namespace}/{NAME}"' in gateway.scrape(), "the gateway knows the service")
        gateway.terminate()
        assert gateway.wait() == 0
    log = partial(real.cluster.audit, user=f"system:serviceaccount:{NAMESPACE}:{GATEWAY}", since=since - 60)
    # A watch is in the log once the API server has seen its end, which is after the gateway's.
    followed = {"endpointslices", "inferenceservices", "secrets"}
    eventually(lambda: {event["objectRef"]["resource"] for event in log(verbs=["watch"])} >= followed, "ended watches")
    events = log(verbs="all")
    assert [(event["verb"], event["requestURI"]) for event in events if forbidden(event)] == []
    assert sorted(used(events)) == sorted(granted(roles["gateway"]))


def a_key_lives(cluster, gateway):
    """As an admin and a client see it: made, rotated and revoked by `pagoda key`; each time the gateway hears of it."""

    def pagoda(*words):
        path = f"{cluster.bin}{os.pathsep}{os.environ['PATH']}"
        argv = [Path(sys.executable).parent / "pagoda", "key", *words, f"--kubeconfig={cluster.kubeconfig}", f"--namespace={NAMESPACE}"]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300, env={**os.environ, "PATH": path})
        return done.stdout.splitlines()

    def status(key):
        return httpx.get(f"{gateway.url}/v1/models", headers={"authorization": f"Bearer {key}"}, timeout=300).status_code

    (first,) = pagoda("create", "--tenant", "team-a")
    eventually(lambda: status(first) == 200, "the key is known")
    (key_id,) = (row["id"] for row in json.loads("".join(pagoda("list", "--output", "json"))) if row["tenant"] == "team-a")
    second = pagoda("rotate", key_id, "--grace", "1ms")[0]
    eventually(lambda: (status(first), status(second)) == (401, 200), "the key is rotated")
    pagoda("revoke", key_id)
    (other,) = (row["id"] for row in json.loads("".join(pagoda("list", "--output", "json"))) if row["tenant"] == "team-a")
    pagoda("revoke", other)
    eventually(lambda: status(second) == 401, "the key is revoked")


def test_a_right_that_is_missing_would_be_seen(real, roles):
    """The comparison itself: an account without rights is forbidden, and what it asked for is not counted as used."""
    real.cluster.kubectl("create", "serviceaccount", "nobody", "-n", real.namespace)
    account = f"system:serviceaccount:{real.namespace}:nobody"
    with pytest.raises(RuntimeError, match="Forbidden"):
        real.cluster.kubectl("get", "secrets", "-n", real.namespace, "--as", account)
    events = [e for e in real.cluster.audit(verbs=["list"]) if e.get("impersonatedUser", {}).get("username") == account]
    assert [forbidden(event) for event in events] == [True]
    assert [what.partition(" ")[0] for what in refused(events)] == ["list"]
    assert used(events) == set()
    everything = {right for found in roles.values() for right in granted(found)}
    assert not any("*" in right for right in everything)
    assert {right.verb for right in everything if right.resource == "secrets"} == {"list", "watch"}
    assert not any(right.resource == "secrets" for right in granted(roles["operator"]))
