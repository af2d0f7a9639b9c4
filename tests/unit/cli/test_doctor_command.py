"""`pagoda doctor` as a user types it: over saved nodes, and over objects that a kubectl prints."""

from __future__ import annotations

import json
import stat
from typing import Any

import pytest
from pagoda_cli.commands import run
from pagoda_cli.doctor import component_findings, kinds_finding
from pagoda_contracts.crds.crdgen import KINDS
from pagoda_contracts.names import LABEL_CUDA, LABEL_DRIVER
from support.harness.inventories import H100, H200, cut, node, plain_node, whole
from support.kube.fake_api import profile_body

OLD = {"driver": "550.90.07", "cuda": "12.4"}
UNLABELLED = {"labels": {f"{name}.{part}": None for name in (*LABEL_DRIVER, *LABEL_CUDA) for part in ("major", "minor", "revision", "rev")}}
TOO_OLD = "driver 550.90.07 supports CUDA 12.4, but the daemon needs 13.0, which driver 580.65.06 or a newer one supports"
NOT_SAID = "no label says the driver. The daemon needs CUDA 13.0, and says so when it starts if the driver is too old"


@pytest.fixture
def ask(capsys, tmp_path):
    """Runs `doctor` over saved nodes; gives exit code and lines."""

    def call(*objects: dict[str, Any], arguments: tuple[str, ...] = ()):
        saved = [{"apiVersion": "v1", "kind": "Node", **one} if "kind" not in one else one for one in objects]
        (tmp_path / "nodes.json").write_text(json.dumps({"kind": "List", "items": saved}))
        code = run(("doctor", "--nodes", str(tmp_path / "nodes.json"), *arguments))
        return code, capsys.readouterr().out.splitlines()

    return call


PROFILE = {"kind": "ServingProfile", **profile_body()}


def test_a_driver_that_is_too_old_is_named_with_the_one_that_would_do(ask):
    code, lines = ask(PROFILE, node("a", H100, whole(2), **OLD), node("b", H100, whole(2)))
    assert code == 1
    assert lines == [
        "ok       NVIDIA-H100-80GB-HBM3 on b: driver 580.95.05 supports CUDA 13.0, and the daemon needs 13.0",
        f"wrong    NVIDIA-H100-80GB-HBM3 on a: {TOO_OLD}",
    ]


def test_a_profile_for_older_cuda_takes_an_older_driver(ask):
    profile = {"kind": "ServingProfile", **profile_body(minCuda="12.4")}
    code, lines = ask(profile, node("a", H100, whole(2), **OLD))
    assert (code, lines) == (0, ["ok       NVIDIA-H100-80GB-HBM3 on a: driver 550.90.07 supports CUDA 12.4, and the daemon needs 12.4"])


def test_equal_nodes_are_one_line_and_what_nothing_says_is_unknown(ask):
    code, lines = ask(PROFILE, *(node(f"n{number}", H100, whole(8), **UNLABELLED) for number in range(5)))
    assert code == 0
    assert lines == [
        f"unknown  NVIDIA-H100-80GB-HBM3 on n0, n1, n2 and 2 more: {NOT_SAID}",
    ]


def bare(labels: dict[str, str]) -> dict[str, Any]:
    """A node that offers no device."""
    body = plain_node("a")
    return body | {"metadata": {**body["metadata"], "labels": labels}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (bare({"nvidia.com/gpu.present": "true"}), "the labels say that there are GPUs, and the node offers none"),
        (bare({"cloud.google.com/gke-accelerator": "nvidia-l4"}), "the node offers none"),
        (node("a", H200, whole(1), taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}]), "taint team=x:NoSchedule is not"),
        (node("a", H100, cut(1, p1g_10gb=7), state="failed"), "MIG configuration"),
        (node("a", H200, whole(1), cordoned=True), "cordoned"),
        (node("a", H200, whole(8), gone={"nvidia.com/gpu": 1}), "1 of 8 devices are not allocatable"),
        (node("a", H200, whole(8), **OLD), TOO_OLD),
    ],
)
def test_what_keeps_replicas_off_a_node_is_wrong(ask, body, words):
    code, lines = ask(PROFILE, body)
    assert (code, len(lines)) == (1, 1)
    assert lines[0].startswith("wrong ")
    assert words in lines[0]


def test_without_gpus_and_without_a_profile(ask):
    code, lines = ask(plain_node("a"))
    assert code == 0
    assert lines == [
        "unknown  ServingProfile default: was not read: nodes are judged by Pagoda's defaults",
        "unknown  devices: no node has a GPU, and none of its labels says so. Services run on CPU only",
    ]


def crd(name: str, established: str = "True") -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Established", "status": established}]}}


def test_a_kind_that_is_missing_or_not_served_is_wrong():
    names = [kind.resource for kind in KINDS]
    assert kinds_finding([crd(name) for name in names]).verdict == "ok"
    assert names[0] in kinds_finding([crd(name) for name in names[1:]]).words
    assert kinds_finding([crd(names[0], "False"), *(crd(name) for name in names[1:])]).verdict == "wrong"


def deployment(component: str, ready: int, label: str = "0.2.0") -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "pagoda", "app.kubernetes.io/component": component, "app.kubernetes.io/version": label}
    meta = {"name": f"pagoda-{component}", "namespace": "pagoda-system", "labels": labels}
    return {"metadata": meta, "spec": {"replicas": 2}, "status": {"readyReplicas": ready} if ready else {}}


def test_components_are_judged_by_their_ready_pods():
    found = list(component_findings([deployment("operator", 2), deployment("gateway", 0, "0.1.0")], "0.2.0"))
    assert [tuple(one) for one in found] == [
        ("ok", "operator pagoda-system/pagoda-operator", "2 of 2 pods are ready; version 0.2.0"),
        ("wrong", "gateway pagoda-system/pagoda-gateway", "0 of 2 pods are ready; version 0.1.0, and this command is of 0.2.0"),
    ]


def test_no_operator_is_wrong():
    assert [one.words for one in component_findings([], "0.2.0")] == [
        "no Deployment of Pagoda's chart is an operator: services get no pods"
    ]


def test_it_reads_the_cluster_by_kubectl_and_says_what_it_may_not_read(capsys, tmp_path, monkeypatch):
    program = tmp_path / "kubectl"
    nodes = json.dumps({"items": [node("a", H200, whole(1))]})
    program.write_text(
        f"#!/bin/sh\ncase \"$2\" in nodes) echo '{nodes}';; *) echo 'Error from server (Forbidden): no' >&2; exit 1;; esac\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    code = run(("doctor", "--json"))
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [(one["verdict"], one["subject"]) for one in found] == [
        ("unknown", "kinds"),
        ("unknown", "operator"),
        ("unknown", "ServingProfile default"),
        ("ok", "NVIDIA-H200 on a"),
    ]
