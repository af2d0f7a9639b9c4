"""Upgrades are quiet: to an operator that renders pods otherwise and back, no pod of twelve services rolls until asked."""

import os

import pytest
from pagoda_contracts.metrics import OPERATOR_RECONCILES
from pagoda_contracts.names import LABEL_SERVICE
from pagoda_devcluster.client import audit
from pagoda_operator.api.state import CONFIG_MAPS, CONTROLLER_REVISIONS, DEPLOYMENTS, PODS, PROFILES, SERVICES
from support.kube.client import eventually
from support.kube.fake_api import running, service_body
from support.kube.operator_process import USER, OperatorProcess, running_operator
from support.kube.operator_under_test import under_test

pytestmark = pytest.mark.cluster
SERVICES_COUNT = 12  # each variant twice
RUNS = f"{OPERATOR_RECONCILES.name}_total"
NAMES = [f"s{number:02}" for number in range(SERVICES_COUNT)]
# What a service may ask for in ways that were rendered differently at some time: each kind of word once.
VARIANTS = (
    {},
    {"engine": {"maxModelLen": 128, "kvCache": {"size": "64Mi"}}},
    {"drain": {"timeout": "2m"}},
    {"podTemplate": {"metadata": {"labels": {"team": "blue"}}}},
    {"model": {"uri": "pvc://models/sub", "servedNames": []}},
    {"health": {"progressTimeout": "10m"}, "slo": {"ttft": "800ms"}},
)


OTHER_VERSION = under_test(otherwise_rendered=True)


@pytest.fixture
def fleet(real, account):
    """Services that an operator of another version has made and that serve."""
    with_earlier = OperatorProcess(account, "--resync", "10s", program=OTHER_VERSION)
    try:
        for number, name in enumerate(NAMES):
            spec = {"profileRef": {"name": real.namespace}} | VARIANTS[number % len(VARIANTS)]
            real.kube.create(SERVICES, real.namespace, service_body(name, real.namespace, **spec))
        for pod in real.node.placed(real.namespace, SERVICES_COUNT):
            real.node.report(pod, running(ready=True))
        eventually(lambda: settled(real), "all serve under the other version")
    finally:
        with_earlier.stop()
    assert with_earlier.events("applied")
    yield real
    for name in NAMES:
        real.kube.delete(SERVICES, real.namespace, name)
    eventually(lambda: not real.end_pods() and not real.pods(), "all pods go")


def settled(real):
    """Whether every service is Ready and settled, by the word of an operator that has seen its newest generation."""
    return all(is_settled(body) for body in real.kube.list(SERVICES, real.namespace))


def is_settled(body):
    status = body.get("status", {})
    lines = {line["type"]: line["status"] for line in status.get("conditions", [])}
    fresh = status.get("observedGeneration") == body["metadata"]["generation"]
    return fresh and (lines.get("Ready"), lines.get("Reconciling")) == ("True", "False")


def running_state(real):
    """What must not change: templates and their Deployments, pods, and what pins and configures them."""
    kept = {}
    for resource in (DEPLOYMENTS, CONTROLLER_REVISIONS, CONFIG_MAPS, PODS):
        for body in real.kube.list(resource, real.namespace, LABEL_SERVICE):
            content = body.get("data") or body["spec"].get("template") or body["metadata"]["uid"]
            kept[resource.kind, body["metadata"]["name"]] = (body["metadata"]["uid"], content)
    return kept


def look_at_all(real, operator):
    """Waits until this operator has looked at every service three times since its last write: a look at rest reads nothing, so that only
    its count tells."""
    since, log = operator.counted(RUNS), real.cluster.audit_log
    with log.open() as lines:
        lines.seek(0, os.SEEK_END)  # the log is long: only what is new is parsed
        rest = ""

        def quiet():
            nonlocal since, rest
            *whole, rest = (rest + lines.read()).split("\n")  # the last one is being written
            events = audit.select(whole, USER, None, "all")
            if any(event["verb"] in audit.WRITES for event in events if event.get("objectRef", {}).get("namespace") == real.namespace):
                since = operator.counted(RUNS)
            return operator.counted(RUNS) - since >= 3 * SERVICES_COUNT

        eventually(quiet, "three looks at each without a write")
    assert operator.events("reconcile_bug") == []


@pytest.mark.timeout(1800)
def test_to_a_version_that_renders_otherwise_and_back_no_pod_rolls_until_asked(fleet, account):
    before = running_state(fleet)
    assert len(before) == 4 * SERVICES_COUNT
    with running_operator(account, "--resync", "5s") as now:
        look_at_all(fleet, now)
        assert running_state(fleet) == before
        assert settled(fleet)
        reported = {body["status"].get("outdated") for body in fleet.kube.list(SERVICES, fleet.namespace)}
        assert reported == {"podTemplate.spec.containers[daemon].env"}, "what would be rendered otherwise now is said of each"
        image = {"spec": {"images": {"daemon": "localhost/daemon:2"}}}
        fleet.kube.merge(PROFILES, "", fleet.namespace, image)
        look_at_all(fleet, now)
        assert running_state(fleet) == before
    back = OperatorProcess(account, "--resync", "5s", program=OTHER_VERSION)
    try:
        look_at_all(fleet, back)
        assert running_state(fleet) == before
        assert settled(fleet)
    finally:
        back.stop()
    with running_operator(account, "--resync", "5s") as again:
        look_at_all(fleet, again)
        assert running_state(fleet) == before
        asked(fleet, before)


def asked(fleet, before):
    """One service asks for what the profile says now: it rolls, the others do not."""
    fleet.kube.merge(SERVICES, fleet.namespace, NAMES[0], {"spec": {"profileRef": {"adopt": "2"}}})
    fresh = eventually(lambda: [pod for pod in fleet.pods() if pod["spec"]["containers"][0]["image"].endswith(":2")], "a new pod")
    assert [pod["metadata"]["labels"][LABEL_SERVICE] for pod in fresh] == [NAMES[0]]
    placed = fleet.node.placed(fleet.namespace, 2, f"{LABEL_SERVICE}={NAMES[0]}")
    for pod in placed:
        fleet.node.report(pod, running(ready=True))
    eventually(lambda: not fleet.end_pods() and len(fleet.pods()) == SERVICES_COUNT, "the old pod goes")
    eventually(lambda: settled(fleet), "all settled")
    reported = {body["metadata"]["name"]: body["status"].get("outdated") for body in fleet.kube.list(SERVICES, fleet.namespace)}
    assert [name for name, paths in reported.items() if not paths] == [NAMES[0]]
    others = {key: value for key, value in before.items() if not key[1].startswith(f"{NAMES[0]}-")}
    assert others.items() <= running_state(fleet).items()
