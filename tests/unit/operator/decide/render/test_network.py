"""A service's NetworkPolicy by what it lets through: a table of flows, judged by judges/network_rules.py; and when it is written."""

import asyncio

import pytest
from pagoda_contracts.resources.profile import Egress, ServingProfileSpec
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_operator.api.callers import Callers
from pagoda_operator.api.state import DEPLOYMENTS, NETWORK_POLICIES, PODS, PROFILES, SERVICES
from pagoda_operator.decide.render.children import Owner, inspection_policy, network_policy
from pagoda_operator.decide.render.inspection import inspect_pod
from pagoda_operator.run.reconcile import Reconciler
from pagoda_operator.run.settings import Settings
from support.harness.harness import KEY, now
from support.harness.inventories import CPU, TINY, gpu, inventory, mig
from support.harness.placing import ENGINE, MIXED
from support.harness.stubs import dependencies_with
from support.judges.network_rules import Network, Peer, selected
from support.kube.fake_api import FakeApi, profile_body, service_body

OURS = Callers(
    gateway="pagoda/pagoda-gateway",
    operator="pagoda/pagoda-operator",
    metrics=("monitoring/prometheus",),
    metrics_namespaces=("watching",),
    metrics_from=("192.0.2.0/28", "2001:db8:7::/64"),
    proxies=("envoys",),
)
OWNER = Owner("team-a", "llama", "uid-1")
EGRESS = (
    Egress(cidr="198.51.100.0/24", ports=(443, 9000)),
    Egress(cidr="2001:db8:51::/48"),
    Egress(namespace="storage", ports=(9000,)),
)
FETCHING = [network_policy(OWNER, OURS, EGRESS), inspection_policy(OWNER, EGRESS)]
LOCAL = [network_policy(OWNER, OURS, ()), inspection_policy(OWNER, ())]
SPACES = {
    name: {"kubernetes.io/metadata.name": name}
    for name in ("team-a", "team-b", "pagoda", "monitoring", "kube-system", "storage", "envoys", "watching")
}


def ours(component):
    return {"app.kubernetes.io/name": "pagoda", "app.kubernetes.io/component": component}


REPLICA = Peer("10.1.0.2", "team-a", OWNER.labels)
REPLICA6 = Peer("fd00:1::2", "team-a", OWNER.labels)
INSPECTED = InferenceServiceSpec.model_validate(service_body()["spec"])
INSPECTING = ServingProfileSpec.model_validate(profile_body(images={"daemon": "daemon:1", "fetch": "fetch:1"})["spec"])
INSPECTOR = Peer("10.1.0.5", "team-a", inspect_pod(OWNER, INSPECTED, INSPECTING)["metadata"]["labels"])
NEIGHBOUR = Peer("10.1.0.3", "team-a", OWNER._replace(name="other", uid="uid-2").labels)
PREDECESSOR = Peer("10.1.0.4", "team-a", OWNER._replace(uid="uid-0").labels)
STRANGER = Peer("10.1.0.9", "team-a", {"app": "notebook"})
GATEWAY = Peer("10.1.0.20", "pagoda", ours("gateway"))
GATEWAY6 = Peer("fd00:1::20", "pagoda", ours("gateway"))
OPERATOR = Peer("10.1.0.21", "pagoda", ours("operator"))
IN_OUR_SPACE = Peer("10.1.0.22", "pagoda", {"app": "redis"})
ENVOY = Peer("10.1.0.23", "envoys", {"app": "envoy"})
PRETENDER = Peer("10.1.0.30", "team-b", ours("gateway"))
PROMETHEUS = Peer("10.1.0.40", "monitoring", {"app": "prometheus"})
COLLECTOR = Peer("10.1.0.41", "watching", {"app": "prometheus"})
SCRAPER, NOT_SCRAPER = Peer("192.0.2.7"), Peer("192.0.2.16")
SCRAPER6, NOT_SCRAPER6 = Peer("2001:db8:7::9"), Peer("2001:db8:8::9")
KUBELET = Peer("10.0.0.5", node=True)
OUTSIDE, OUTSIDE6 = Peer("203.0.113.5"), Peer("2001:db8:ffff::1")
DNS, DNS6 = Peer("10.1.0.53", "kube-system", {"k8s-app": "kube-dns"}), Peer("fd00:1::53", "kube-system", {"k8s-app": "kube-dns"})
NODE_DNS = Peer("169.254.20.10")
STORE, STORE6, STORE_POD = Peer("198.51.100.7"), Peer("2001:db8:51::7"), Peer("10.1.0.60", "storage", {"app": "minio"})
METADATA = Peer("169.254.169.254")
API_SERVER = Peer("10.0.0.1")

# sender, receiver, port, protocol, whether it passes where models are fetched, whether where they come from a claim.
FLOWS = [
    (GATEWAY, REPLICA, 8000, "TCP", True, True),
    (GATEWAY, REPLICA, 9000, "TCP", True, True),
    (GATEWAY6, REPLICA6, 8000, "TCP", True, True),
    (ENVOY, REPLICA, 8000, "TCP", True, True),
    (ENVOY, REPLICA, 9000, "TCP", False, False),
    (OPERATOR, REPLICA, 9000, "TCP", True, True),
    (GATEWAY, REPLICA, 8081, "TCP", False, False),
    (GATEWAY, REPLICA, 5557, "TCP", False, False),
    (GATEWAY, REPLICA, 9001, "TCP", False, False),
    (GATEWAY, REPLICA, 8000, "UDP", False, False),
    (KUBELET, REPLICA, 8081, "TCP", True, True),
    (IN_OUR_SPACE, REPLICA, 8000, "TCP", False, False),
    (PRETENDER, REPLICA, 8000, "TCP", False, False),
    (STRANGER, REPLICA, 8000, "TCP", False, False),
    (STRANGER, REPLICA, 9000, "TCP", False, False),
    (NEIGHBOUR, REPLICA, 9000, "TCP", False, False),
    (REPLICA, NEIGHBOUR, 8000, "TCP", False, False),
    (STRANGER, PREDECESSOR, 8000, "TCP", True, True),  # a predecessor's pods are not this service's
    (PROMETHEUS, REPLICA, 8000, "TCP", True, True),
    (PROMETHEUS, REPLICA, 9000, "TCP", False, False),
    (COLLECTOR, REPLICA, 8000, "TCP", True, True),
    (COLLECTOR, REPLICA, 9000, "TCP", False, False),
    (SCRAPER, REPLICA, 8000, "TCP", True, True),
    (SCRAPER, REPLICA, 9000, "TCP", False, False),
    (NOT_SCRAPER, REPLICA, 8000, "TCP", False, False),
    (SCRAPER6, REPLICA6, 8000, "TCP", True, True),
    (NOT_SCRAPER6, REPLICA6, 8000, "TCP", False, False),
    (OUTSIDE, REPLICA, 8000, "TCP", False, False),
    (OUTSIDE6, REPLICA6, 8000, "TCP", False, False),
    (REPLICA, DNS, 53, "UDP", True, False),
    (REPLICA, DNS, 53, "TCP", True, False),
    (REPLICA6, DNS6, 53, "UDP", True, False),
    (REPLICA, NODE_DNS, 53, "UDP", True, False),
    (REPLICA, DNS, 9153, "TCP", False, False),
    (REPLICA, OUTSIDE, 53, "UDP", False, False),
    (REPLICA, STORE, 443, "TCP", True, False),
    (REPLICA, STORE, 9000, "TCP", True, False),
    (REPLICA, STORE, 80, "TCP", False, False),
    (REPLICA6, STORE6, 443, "TCP", True, False),
    (REPLICA6, STORE6, 9000, "TCP", False, False),
    (REPLICA, STORE_POD, 9000, "TCP", True, False),
    (REPLICA, STORE_POD, 443, "TCP", False, False),
    (REPLICA, OUTSIDE, 443, "TCP", False, False),
    (REPLICA6, OUTSIDE6, 443, "TCP", False, False),
    (REPLICA, METADATA, 80, "TCP", False, False),
    (REPLICA, API_SERVER, 443, "TCP", False, False),
    (REPLICA, GATEWAY, 8080, "TCP", False, False),
    (GATEWAY, INSPECTOR, 8000, "TCP", False, False),  # a pod that has the model's credential and serves nobody
    (OPERATOR, INSPECTOR, 9000, "TCP", False, False),
    (PROMETHEUS, INSPECTOR, 8000, "TCP", False, False),
    (STRANGER, INSPECTOR, 8000, "TCP", False, False),
    (REPLICA, INSPECTOR, 8000, "TCP", False, False),
    (INSPECTOR, REPLICA, 8000, "TCP", False, False),
    (INSPECTOR, DNS, 53, "UDP", True, False),
    (INSPECTOR, STORE, 443, "TCP", True, False),
    (INSPECTOR, STORE_POD, 9000, "TCP", True, False),
    (INSPECTOR, STORE, 80, "TCP", False, False),
    (INSPECTOR, OUTSIDE, 443, "TCP", False, False),
    (INSPECTOR, METADATA, 80, "TCP", False, False),
    (INSPECTOR, API_SERVER, 443, "TCP", False, False),
    (STRANGER, OUTSIDE, 443, "TCP", True, True),  # others of the namespace are not fenced in
    (OUTSIDE, STRANGER, 80, "TCP", True, True),
]


@pytest.mark.parametrize(("sender", "receiver", "port", "protocol", "fetching", "local"), FLOWS)
def test_network_policy_allows_exactly_these_flows(sender, receiver, port, protocol, fetching, local):
    assert Network(FETCHING, SPACES).allows(sender, receiver, port, protocol) is fetching
    assert Network(LOCAL, SPACES).allows(sender, receiver, port, protocol) is local


def test_services_of_one_namespace_cannot_reach_each_other():
    both = Network([*LOCAL, network_policy(OWNER._replace(name="other", uid="uid-2"), OURS, ())], SPACES)
    assert not both.allows(REPLICA, NEIGHBOUR, 8000)
    assert both.allows(GATEWAY, NEIGHBOUR, 8000)


def test_clients_with_keys_reach_replicas_from_the_services_own_namespace_alone():
    opened = Network([network_policy(OWNER, OURS, (), clients=True), inspection_policy(OWNER, ())], SPACES)
    flows = [(STRANGER, 8000), (STRANGER, 9000), (PRETENDER, 8000), (OUTSIDE, 8000), (GATEWAY, 9000)]
    assert [opened.allows(sender, REPLICA, port) for sender, port in flows] == [True, False, False, False, True]
    assert not opened.allows(STRANGER, INSPECTOR, 8000)


def test_without_metrics_readers_only_gateway_and_operator_have_access():
    alone = Callers(gateway=OURS.gateway, operator=OURS.operator)
    assert len(network_policy(OWNER, alone, ())["spec"]["ingress"]) == 1


def test_the_evaluator_reads_policies_as_the_api_does():
    """Cases of the API's own documentation, so that a table that passes means something."""
    meta = {"namespace": "team-a"}
    web = {"app": "web"}
    pod, other = Peer("10.0.0.1", "team-a", web, {"http": 8080}), Peer("10.0.0.2", "team-b", {"app": "db"})

    def judge(port=80, sender=other, **spec):
        return Network([{"metadata": meta, "spec": {"podSelector": {}, **spec}}], SPACES).allows(sender, pod, port)

    assert not judge(policyTypes=["Ingress"])  # default deny
    assert not judge(policyTypes=["Ingress"], ingress=[])
    assert judge(ingress=[{}])  # allow all
    assert judge(policyTypes=["Egress"])  # says nothing of what comes in
    assert not judge(ingress=[{"from": [{"podSelector": {}}]}])  # its own namespace only
    assert judge(ingress=[{"from": [{"namespaceSelector": {}}]}])
    assert not judge(ingress=[{"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": web}}]}])
    assert judge(ingress=[{"from": [{"podSelector": {"matchLabels": web}}, {"namespaceSelector": {}}]}])  # or, not and
    assert judge(ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}])
    assert not judge(ingress=[{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.2/32"]}}]}])
    assert judge(8080, ingress=[{"ports": [{"port": "http"}]}])
    assert not judge(8081, ingress=[{"ports": [{"port": "http"}]}])
    assert judge(8085, ingress=[{"ports": [{"port": 8080, "endPort": 8090}]}])
    terms = [{"key": "app", "operator": "NotIn", "values": ["db"]}, {"key": "app", "operator": "Exists"}]
    assert not judge(ingress=[{"from": [{"namespaceSelector": {}, "podSelector": {"matchExpressions": terms}}]}])


def harness(**spec):
    api = FakeApi()
    api.put(PROFILES, profile_body(egress=[{"cidr": "0.0.0.0/0"}]))
    api.put(SERVICES, service_body(**spec))
    return api


def run(api, callers, times=6):
    operator = Reconciler(api, Settings(callers=callers), now, dependencies_with(api))
    for _ in range(times):
        asyncio.run(operator.reconcile(KEY))


def test_policy_exists_before_the_first_replica_and_follows_the_profile():
    api = harness()
    run(api, OURS)
    kinds = [kind for verb, kind, _ in api.journal if verb == "create"]
    assert kinds.index("NetworkPolicy") < kinds.index("Deployment")
    (policy,) = api.of(NETWORK_POLICIES)
    assert policy["spec"]["egress"] == []  # the model comes from a claim
    written = len(api.journal)
    run(api, OURS)
    assert len(api.journal) == written
    run(api, OURS.model_copy(update={"metrics_from": ()}))
    assert len(api.of(NETWORK_POLICIES)[0]["spec"]["ingress"][1]["from"]) == 1


def test_manual_edit_is_undone_and_disabled_policies_are_deleted():
    api = harness()
    run(api, OURS)
    api.edit(NETWORK_POLICIES, "ns", "tiny", lambda body: body["spec"].update(ingress=[{}]))
    run(api, OURS)
    assert len(api.of(NETWORK_POLICIES)[0]["spec"]["ingress"]) == 3
    run(api, OURS.model_copy(update={"network_policy": False}))
    assert api.of(NETWORK_POLICIES) == []


def test_policy_of_another_owner_is_not_taken_over():
    api = harness()
    api.put(NETWORK_POLICIES, {"metadata": {"name": "tiny", "namespace": "ns"}, "spec": {"podSelector": {}}})
    run(api, OURS)
    assert api.of(NETWORK_POLICIES)[0]["spec"] == {"podSelector": {}}
    assert api.of(SERVICES)[0]["status"]["conditions"][2]["reason"] == "ObjectExists"


def test_revision_that_fetches_keeps_its_egress_until_it_is_gone():
    """Else a replica of it that is made anew, or a rollout that is turned back, has no model."""
    api = harness(model={"uri": TINY}, accelerators=[CPU])
    api.edit(PROFILES, "", "default", lambda body: body["spec"]["images"].update(fetch="localhost/fetch:1"))
    run(api, OURS)
    assert api.of(NETWORK_POLICIES)[0]["spec"]["egress"]
    api.edit(SERVICES, "ns", "tiny", lambda body: body["spec"].update(model={"uri": "pvc://models"}))
    run(api, OURS)
    assert len(api.of(DEPLOYMENTS)) == 2
    assert api.of(NETWORK_POLICIES)[0]["spec"]["egress"]
    for deployment in api.of(DEPLOYMENTS):
        deployment["status"] = {"observedGeneration": deployment["metadata"]["generation"], "replicas": 0}
    run(api, OURS)
    assert len(api.of(DEPLOYMENTS)) == 1
    assert api.of(NETWORK_POLICIES)[0]["spec"]["egress"] == []


def test_profile_that_closes_egress_applies_to_a_service_that_cannot_be_placed():
    api = harness(model={"uri": TINY}, accelerators=[CPU])
    api.edit(PROFILES, "", "default", lambda body: body["spec"]["images"].update(fetch="localhost/fetch:1"))
    run(api, OURS)
    api.edit(SERVICES, "ns", "tiny", lambda body: body["spec"].update(accelerators=[mig("1g.11gb")]))
    api.edit(PROFILES, "", "default", lambda body: body["spec"].update(egress=[]))
    run(api, OURS)
    assert (api.of(SERVICES)[0]["status"]["conditions"][2]["reason"], len(api.of(DEPLOYMENTS))) == ("NoAccelerator", 1)
    assert api.of(NETWORK_POLICIES)[0]["spec"]["egress"] == []


def inspected(uri="hf://org/model"):
    """A service whose model is read by a pod before it is placed."""
    api = harness(model={"uri": uri}, accelerators=[mig(least="1Gi")], engine=ENGINE)
    api.edit(PROFILES, "", "default", lambda body: body["spec"]["images"].update(fetch="localhost/fetch:1"))
    return api


def look(api, callers=OURS, times=3):
    operator = Reconciler(api, Settings(callers=callers), now, dependencies_with(api, inventory=lambda: inventory(MIXED)))
    for _ in range(times):
        asyncio.run(operator.reconcile(KEY))


@pytest.mark.parametrize(("uri", "ways"), [("hf://org/model", 2), ("pvc://models/tiny", 0)])
def test_inspection_policy_exists_from_before_its_pod_until_the_pod_is_gone(uri, ways):
    api = inspected(uri)
    look(api)
    made = [(kind, name) for verb, kind, name in api.journal if verb == "create"]
    pod = next(name for kind, name in made if kind == "Pod")
    assert made.index(("NetworkPolicy", "tiny.inspect")) < made.index(("Pod", pod))
    (policy,) = [body for body in api.of(NETWORK_POLICIES) if body["metadata"]["name"] == "tiny.inspect"]
    assert (policy["spec"]["ingress"], len(policy["spec"]["egress"])) == ([], ways)
    assert selected(policy["spec"]["podSelector"], api.of(PODS)[0]["metadata"]["labels"])
    written = len(api.journal)
    look(api)
    assert len(api.journal) == written
    api.edit(SERVICES, "ns", "tiny", lambda body: body["spec"].update(accelerators=[CPU], model={"uri": TINY}))
    look(api, times=6)
    gone = [(kind, name) for verb, kind, name in api.journal if verb == "delete"]
    assert gone.index(("Pod", pod)) < gone.index(("NetworkPolicy", "tiny.inspect"))
    assert [body["metadata"]["name"] for body in api.of(NETWORK_POLICIES)] == ["tiny"]


def test_inspection_policy_stays_while_the_pod_terminates():
    api = inspected()
    look(api)
    api.of(PODS)[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    api.edit(SERVICES, "ns", "tiny", lambda body: body["spec"].update(accelerators=[CPU]))
    look(api, times=6)
    assert "tiny.inspect" in [body["metadata"]["name"] for body in api.of(NETWORK_POLICIES)]


def test_disabled_policies_delete_the_inspection_policy():
    api = inspected()
    look(api)
    look(api, OURS.model_copy(update={"network_policy": False}))
    assert api.of(NETWORK_POLICIES) == []


def test_inspection_is_cleaned_up_and_profile_followed_while_nothing_can_be_placed():
    api = inspected()
    look(api)
    (pod,) = api.of(PODS)
    nowhere = gpu("A1000")
    api.edit(SERVICES, "ns", "tiny", lambda body: body["spec"].update(accelerators=[nowhere], model={"uri": TINY}))
    api.edit(PROFILES, "", "default", lambda body: body["spec"].update(egress=[{"cidr": "192.0.2.0/24"}]))
    look(api, times=6)
    assert {reported["reason"] for reported in api.of(SERVICES)[0]["status"]["conditions"] if reported["type"] == "Stalled"} == {
        "NoAccelerator"
    }
    gone = [(kind, name) for verb, kind, name in api.journal if verb == "delete"]
    assert gone == [("Pod", pod["metadata"]["name"]), ("NetworkPolicy", "tiny.inspect")]
    (policy,) = api.of(NETWORK_POLICIES)
    assert "192.0.2.0/24" in str(policy["spec"]["egress"])
    written = len(api.journal)
    look(api)
    assert len(api.journal) == written
