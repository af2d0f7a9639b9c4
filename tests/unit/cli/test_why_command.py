"""`pagoda why NAME` as a user types it, over objects as a cluster showed them; kubectl is a script that prints them."""

import json
import os
import stat

import pytest
from pagoda_cli.commands import run
from pagoda_cli.kubectl import refusal
from pagoda_cli.why import answer, named
from pagoda_cli.why_text import text

WHEN = "2026-01-01T10:00:00Z"
STATUS = {
    "observedGeneration": 3,
    "replicas": 2,
    "readyReplicas": 1,
    "conditions": [
        {
            "type": "Ready",
            "status": "False",
            "reason": "WaitingForCapacity",
            "message": "1 of 2 replicas ready",
            "lastTransitionTime": WHEN,
        },
        {"type": "Reconciling", "status": "True", "reason": "WaitingForCapacity", "message": "gpu[0] is full", "lastTransitionTime": WHEN},
        {"type": "Stalled", "status": "False", "reason": "NotStalled", "message": "", "lastTransitionTime": WHEN},
        {"type": "Serving", "status": "False", "reason": "NoReplica", "message": "", "lastTransitionTime": WHEN},
    ],
    "placement": {
        "chosen": "mig[1]",
        "device": "mig-3g.40gb, 39.5 GiB",
        "rejected": [{"accelerator": "gpu[0]", "why": "NVIDIA-H100-80GB-HBM3: all 8 devices are in use"}],
        "waiting": {"accelerator": "mig[1]", "entry": "ab", "since": WHEN, "why": "mig-3g.40gb: all 2 devices are in use"},
        "warnings": ["node-7: 1 of 8 nvidia.com/gpu are unhealthy"],
    },
    "scaling": {
        "desired": 2,
        "reason": "queue 9",
        "lastDecisions": [{"time": WHEN, "desired": 2, "reason": "9 requests wait, 4 a replica"}],
    },
    "revisions": [{"hash": "0123456789", "replicas": 2, "readyReplicas": 1, "weight": 10}],
    "outdated": "podTemplate.spec.containers[daemon].image",
    "lastStart": {
        "pod": "chat-a",
        "createdAt": WHEN,
        "readyAt": "2026-01-01T10:01:15Z",
        "scheduledSeconds": 2,
        "imageSeconds": 18,
        "fetchSeconds": 40,
        "loadSeconds": 11,
        "warmSeconds": 4,
    },
}
SERVICE = {"metadata": {"name": "chat", "namespace": "team", "generation": 3}, "status": STATUS}
PODS = [
    {
        "metadata": {"name": "chat-a"},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    },
    {
        "metadata": {"name": "chat-b"},
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/4 nodes have room"}]},
    },
]
QUOTAS = [
    {
        "metadata": {"name": "blue"},
        "spec": {"subjects": {"namespaces": ["team"]}},
        "status": {
            "usage": {
                "gpus": 8,
                "gpuProducts": [{"product": "L4", "used": 3, "left": 1}],
                "migSlices": [{"profile": "3g.40gb", "count": 2}],
            },
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "Exhausted", "message": "8 of 8 GPUs are charged", "lastTransitionTime": WHEN}
            ],
        },
    },
    {"metadata": {"name": "green"}, "spec": {"subjects": {"namespaces": ["other"]}}},
]
KUBECTL = """#!/bin/sh
echo "$@" >> "{log}"
case "$2" in
inferenceservices*) cat "{folder}/service.json" ;;
pods) cat "{folder}/pods.json" ;;
*) cat "{folder}/quotas.json" 2>/dev/null || {{ echo 'Error from server (Forbidden): no' >&2; exit 1; }} ;;
esac
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A kubectl that shows these objects; returns its log of calls."""
    (tmp_path / "service.json").write_text(json.dumps(SERVICE))
    (tmp_path / "pods.json").write_text(json.dumps({"items": PODS}))
    (tmp_path / "quotas.json").write_text(json.dumps({"items": QUOTAS}))
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.format(log=tmp_path / "log", folder=tmp_path))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.fixture
def ask(capsys):
    def call(*arguments):
        code = run(("why", *arguments))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def test_it_prints_all_that_the_operator_said(ask, cluster):
    code, out, err = ask("service/chat", "-n", "team")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "service team/chat: 1 of 2 replicas ready",
        f"  Ready is False since {WHEN}: WaitingForCapacity",
        "    1 of 2 replicas ready",
        f"  Reconciling is True since {WHEN}: WaitingForCapacity",
        "    gpu[0] is full",
        f"  Serving is False since {WHEN}: NoReplica",
        "placement",
        "  chosen: mig[1] (mig-3g.40gb, 39.5 GiB)",
        f"  waiting for mig[1] since {WHEN}: mig-3g.40gb: all 2 devices are in use",
        "  not gpu[0]: NVIDIA-H100-80GB-HBM3: all 8 devices are in use",
        "  warning: node-7: 1 of 8 nvidia.com/gpu are unhealthy",
        "scaling",
        "  desired: 2 (queue 9)",
        f"  {WHEN}  2 replicas: 9 requests wait, 4 a replica",
        "revisions",
        "  0123456789: 1 of 2 ready, 10 % of requests",
        "  would be rendered differently now: podTemplate.spec.containers[daemon].image; a new value in spec.profileRef.adopt rolls it out",
        "pods that are not ready",
        "  chat-b: Pending: 0/4 nodes have room",
        "last start",
        "  chat-a: Ready at 2026-01-01T10:01:15Z, after 75 s",
        "    scheduled 2 s, image 18 s, fetch 40 s, load 11 s, warm 4 s",
        "quota",
        "  blue: gpus 8, gpuProducts.L4 used 3, left 1, migSlices.3g.40gb count 2",
        "    Exhausted: 8 of 8 GPUs are charged",
    ]


def test_scripts_get_one_object(ask, cluster):
    code, out, _ = ask("service/chat", "-o", "json")
    answer = json.loads(out)
    assert (code, answer["service"], answer["placement"]) == (0, "team/chat", STATUS["placement"])
    assert [quota["name"] for quota in answer["quotas"]] == ["blue"]


def test_kubectl_is_asked_with_the_users_words(ask, cluster):
    ask("service/chat", "-n", "team", "--context", "prod", "--kubeconfig", "k.yaml")
    first, second, _ = (cluster / "log").read_text().splitlines()
    assert first == "get inferenceservices.serving.pagoda.dev chat --output=json --namespace=team --context=prod --kubeconfig=k.yaml"
    assert second.startswith("get pods --selector=serving.pagoda.dev/service=chat ")


def test_quotas_that_may_not_be_read_are_said_to_be_so(ask, cluster):
    (cluster / "quotas.json").unlink()
    code, out, _ = ask("service/chat")
    assert (code, out.splitlines()[-1]) == (0, "quota: you are not allowed to read TenantQuotas")


def test_kubectls_refusal_is_passed_on(ask, cluster):
    (cluster / "service.json").unlink()
    code, out, err = ask("service/chat")
    assert (code, out) == (2, "")
    assert err.startswith("pagoda: kubectl get inferenceservices.serving.pagoda.dev chat: ")


def test_without_a_cluster_the_refusal_says_what_to_do_and_shows_no_log():
    log = 'E1124 19:45:57.345274   13233 memcache.go:265] "Unhandled Error" err="couldn\'t get current server API group list"\n'
    last = "The connection to the server localhost:8080 was refused - did you specify the right host or port?"
    assert refusal(log * 5 + last + "\n") == (f"no cluster answers. Check KUBECONFIG, --kubeconfig and the context. kubectl says: {last}")
    assert refusal(log + 'services "chat" not found') == 'services "chat" not found'


def test_a_missing_kubectl_is_named(ask, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert ask("service/chat") == (2, "", "pagoda: kubectl is not on the PATH; the cluster is read through it\n")


@pytest.mark.parametrize(
    "target",
    ["chat"]
    + [f"{kind}/chat" for kind in ("inferenceservice", "inferenceservices", "pisvc")]
    + [f"{kind}.serving.pagoda.dev/chat" for kind in ("inferenceservice", "inferenceservices")],
)
def test_a_service_is_named_alone_or_as_kubectl_prints_it(target):
    assert named(target) == "chat"


@pytest.mark.parametrize(
    "target",
    ["", "--all", "pod/chat", "isvc/chat", "inferenceservice.serving.kserve.io/chat", "service/", "service/--all", "service/a/b", "/chat"],
)
def test_other_targets_are_refused(ask, target):
    code, _, err = ask("--", target)
    assert code == 2
    assert "must be NAME, service/NAME or request/ID" in err


@pytest.mark.parametrize(
    ("seen", "says"), [(None, "has not seen this service yet"), (2, "has not seen the newest spec yet (generation 3, seen 2)")]
)
def test_a_stale_status_is_called_stale(seen, says):
    status = {key: value for key, value in (STATUS | {"observedGeneration": seen}).items() if value is not None}
    assert says in text(answer(SERVICE | {"status": status}, [], []))


def test_a_service_without_status_has_a_page_too():
    page = text(answer({"metadata": {"name": "chat", "namespace": "team", "generation": 1}}, [], []))
    assert page.splitlines() == [
        "service team/chat: 0 of 0 replicas ready",
        "  the operator has not seen this service yet; check that the operator runs",
    ]


def test_words_of_others_move_no_cursor():
    status = STATUS | {"conditions": [STATUS["conditions"][0] | {"message": "bad\x1b[2Jmodel\nnew line"}]}
    assert "    bad [2Jmodel new line" in text(answer(SERVICE | {"status": status}, [], []))


@pytest.mark.parametrize("char", ["\x7f", "\x9b", "\u202e", "\u200b"], ids=["delete", "8-bit CSI", "right to left", "zero width"])
def test_a_control_character_above_ascii_does_not_reach_the_terminal(char):
    status = STATUS | {"conditions": [STATUS["conditions"][0] | {"message": f"bad{char}31m"}]}
    assert "    bad 31m" in text(answer(SERVICE | {"status": status}, [], []))
