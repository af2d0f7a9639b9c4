"""Before the only replica goes, a pod of one run shows that image and model of the new revision are there: a real image, a real kubelet."""

import json

import httpx
import pytest
from pydoc_answers import questions
from support.judges.rights import OPERATOR
from support.kube.client import eventually

pytestmark = pytest.mark.cluster

NAME = "only"


def test_a_missing_model_leaves_the_only_replica_untouched_and_a_good_revision_follows(pagoda, namespace):
    assert pagoda.serve(namespace, NAME, pagoda.model, rollout={"strategy": "Replace"}).ready
    (first,) = replicas(pagoda, namespace)
    edit(pagoda, namespace, model={"uri": f"pvc://{NAME}/nowhere"})
    eventually(lambda: condition(pagoda, namespace, "Stalled") == "RolledBack", "the trial refuses a model that is not there")
    assert "nowhere" in reason(pagoda, namespace)
    assert replicas(pagoda, namespace) == [first]
    assert answer(pagoda) == questions()[0].answer
    eventually(lambda: not trials(pagoda, namespace), "nothing is left of the trial")
    edit(pagoda, namespace, model={"uri": f"pvc://{NAME}"}, engine={"maxModelLen": 128})
    eventually(lambda: condition(pagoda, namespace, "Ready") == "Available" and replicas(pagoda, namespace) != [first], "the next revision")
    assert len(made(pagoda, namespace)) == 2, "a trial for each new revision"
    assert answer(pagoda) == questions()[0].answer
    eventually(lambda: not trials(pagoda, namespace), "nothing is left of the trial")


def edit(pagoda, namespace, **spec):
    patch = json.dumps({"spec": spec})
    pagoda.running.kubectl("patch", "inferenceservice", NAME, "-n", namespace, "--type=merge", "-p", patch)


def status(pagoda, namespace):
    return pagoda.get("inferenceservice", NAME, "-n", namespace)["status"]


def condition(pagoda, namespace, kind):
    """Its reason, where it is true."""
    found = next(one for one in status(pagoda, namespace)["conditions"] if one["type"] == kind)
    return found["reason"] if found["status"] == "True" else ""


def reason(pagoda, namespace):
    return status(pagoda, namespace)["rollout"]["reason"]


def replicas(pagoda, namespace):
    return [pod["metadata"]["uid"] for pod in pods(pagoda, namespace, "replica")]


def trials(pagoda, namespace):
    return pods(pagoda, namespace, "trial")


def pods(pagoda, namespace, component):
    return pagoda.get("pods", "-n", namespace, "-l", f"app.kubernetes.io/component={component}")["items"]


def made(pagoda, namespace):
    """The pods that the operator made itself, by the audit log."""
    log = [event for event in pagoda.running.audit(user=OPERATOR) if event["verb"] == "create"]
    refs = [event["objectRef"] for event in log]
    return [ref for ref in refs if ref["resource"] == "pods" and ref["namespace"] == namespace]


def answer(pagoda):
    body = {"model": NAME, "messages": [{"role": "user", "content": questions()[0].question}], "temperature": 0}
    reply = httpx.post(f"{pagoda.url}/chat/completions", json=body, timeout=300)
    return reply.json()["choices"][0]["message"]["content"]
