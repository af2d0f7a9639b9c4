"""`helm upgrade` and `helm rollback` with operators that run: services serve on, nothing of theirs is written, the new leader obeys."""

import json
import threading
import time

import httpx
import pytest
from pagoda_devcluster.demo.install import NAMESPACE, RELEASE
from pydoc_answers import questions
from support.judges.rights import OPERATOR
from support.kube.client import eventually

pytestmark = pytest.mark.cluster

NAME = "steady"
CALM_SECONDS = 10


@pytest.fixture
def helm(pagoda):
    """The release's operators replaced, with the chart of this tree; afterwards all is as it was."""

    def upgrade(cpu):
        words = ("--reset-then-reuse-values", "--set", f"operator.resources.requests.cpu={cpu}")
        chart = str(pagoda.builder.root / "charts/pagoda")
        pagoda.cluster.helm("upgrade", RELEASE, chart, "--namespace", NAMESPACE, *words, "--wait", "--timeout", "10m")

    before = json.loads(pagoda.cluster.helm("history", RELEASE, "--namespace", NAMESPACE, "-o", "json"))[-1]["revision"]

    def rollback():
        pagoda.cluster.helm("rollback", RELEASE, str(before), "--namespace", NAMESPACE, "--wait", "--timeout", "10m")

    yield upgrade, rollback
    rollback()


class Asking:
    """One question after another until it is left; whoever is refused or gets another answer is remembered."""

    def __init__(self, url):
        self.answered, self.wrong, self._end = 0, [], threading.Event()
        self._thread = threading.Thread(target=self._ask, args=(url,))

    def _ask(self, url):
        known = questions()[0]
        body = {"model": NAME, "messages": [{"role": "user", "content": known.question}], "temperature": 0}
        with httpx.Client(timeout=300) as client:
            while not self._end.is_set():
                reply = client.post(f"{url}/chat/completions", json=body)
                if reply.status_code != 200 or reply.json()["choices"][0]["message"]["content"] != known.answer:
                    self.wrong.append(reply.text)
                self.answered += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()


def test_operators_are_upgraded_and_rolled_back_under_requests(pagoda, namespace, helm):
    upgrade, rollback = helm
    assert pagoda.serve(namespace, NAME, pagoda.model).ready
    eventually(lambda: not written(pagoda, namespace, time.time() - CALM_SECONDS), "no write for a while")
    before, since, first = replicas(pagoda, namespace), time.time(), operators(pagoda)
    assert before
    with Asking(pagoda.url) as asking:
        upgrade("60m")
        second = led_by_new(pagoda, first)
        rollback()
        led_by_new(pagoda, first | second)
        asked = asking.answered
        eventually(lambda: asking.answered > asked, "an answer after all of it")
    assert asking.wrong == []
    assert replicas(pagoda, namespace) == before
    assert pagoda.running.audit(user=OPERATOR, since=since), "not even the Lease: the audit log counts nothing"
    assert written(pagoda, namespace, since) == []
    pagoda.running.kubectl("scale", "inferenceservice", NAME, "-n", namespace, "--replicas=2")
    eventually(lambda: len(replicas(pagoda, namespace)) == 2, "the new leader obeys")


def led_by_new(pagoda, old):
    """The operators' pods, none of them an old one, once one of them leads."""

    def leads():
        lease = pagoda.get("lease", "pagoda-operator", "-n", NAMESPACE)
        return lease["spec"].get("holderIdentity") in operators(pagoda) - old

    eventually(leads, "a new operator leads")
    eventually(lambda: not operators(pagoda) & old, "the old ones are gone")
    return operators(pagoda)


def operators(pagoda):
    """Names of their pods."""
    return {pod["metadata"]["name"] for pod in pods(pagoda, NAMESPACE, "operator")}


def replicas(pagoda, namespace):
    """Each pod of the service, and how often its containers were started anew."""
    found = {}
    for pod in pods(pagoda, namespace, "replica"):
        found[pod["metadata"]["uid"]] = [one["restartCount"] for one in pod.get("status", {}).get("containerStatuses", [])]
    return found


def pods(pagoda, namespace, component):
    return pagoda.get("pods", "-n", namespace, "-l", f"app.kubernetes.io/component={component}")["items"]


def written(pagoda, namespace, since):
    """By the operators in the service's namespace."""
    found = [(event["verb"], event["objectRef"]) for event in pagoda.running.audit(user=OPERATOR, since=since)]
    return [what for what in found if what[1].get("namespace") == namespace]
