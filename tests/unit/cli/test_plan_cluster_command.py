"""`pagoda plan -f` as a user types it, over nodes as a cluster showed them; and its words beside those of the operator's condition."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

import pytest
import yaml
from pagoda_cli.commands import run
from pagoda_cli.plan_cluster import answer, question
from pagoda_cli.snapshot import Snapshot
from pagoda_contracts.resources.service import InferenceService
from pagoda_operator.api.state import CONFIG_MAPS
from pagoda_placement.model import of_config
from pagoda_placement.pools import seen, written
from support.harness.harness import now
from support.harness.inventories import (
    A100_80,
    CPU,
    H100,
    H200,
    LLAMA8,
    LLAMA70,
    TINY,
    claim,
    cut,
    dra_of,
    gpu,
    inventory,
    mig,
    node,
    plain_node,
    pod,
    resource_slice,
    whole,
)
from support.harness.placing import ENGINE, LLAMA_CONFIG, harness
from support.kube.fake_api import profile_body, service_body

LISTED = {"Node": "nodes", "Pod": "pods", "ServingProfile": "servingprofiles.serving.pagoda.dev"}


def service(*accelerators: Any, model: str = LLAMA8, **spec: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"model": {"uri": model}, "accelerators": list(accelerators), "engine": ENGINE} | spec
    meta = {"name": "llama", "namespace": "team"}
    return {"apiVersion": "serving.pagoda.dev/v1alpha1", "kind": "InferenceService", "metadata": meta, "spec": body}


def of_kind(kind: str, *bodies: Any) -> list[dict[str, Any]]:
    return [{"apiVersion": "v1", "kind": kind, **body} for body in bodies]


FULL = of_kind("Node", node("a", H100, whole(2), cut(1, p1g_10gb=7)), node("b", A100_80, whole(2)))
POOLS = written(seen({}, inventory(node("gone", H200, whole(8))).nodes, 0.0))
HELD = of_kind("Pod", pod("a", gpu=1), pod("b", gpu=2))


@pytest.fixture
def ask(capsys, tmp_path):
    """Runs `plan -f` on these documents, with these saved objects; gives exit code, lines and stderr."""

    def call(documents, objects=None, *arguments):
        (tmp_path / "service.yaml").write_text(yaml.safe_dump_all(documents))
        saved = []
        if objects is not None:
            (tmp_path / "nodes.json").write_text(json.dumps({"kind": "List", "items": objects}))
            saved = ["--nodes", str(tmp_path / "nodes.json")]
        code = run(("plan", "-f", str(tmp_path / "service.yaml"), *saved, *arguments))
        printed = capsys.readouterr()
        return code, printed.out.splitlines(), printed.err

    return call


def test_each_entry_has_its_room_or_its_reason(ask):
    entries = (mig("1g.10gb"), gpu("A100", fallbackAfter="5m"), gpu("H100"), CPU, gpu("L4"))
    code, lines, err = ask([service(*entries, replicas=2)], [*FULL, *HELD, *of_kind("ServingProfile", profile_body())])
    assert (code, err) == (0, "")
    assert lines[0].startswith("service team/llama: WaitingForCapacity: waiting for gpu[1] since ")
    assert lines[0].endswith("Z the next entry is chosen")
    assert lines[1:] == [
        "  mig[0]: never: mig-1g.10gb: needs 17.2 GiB for weights + 1 request at 4,096 tokens, has 9.8 GiB",
        "  gpu[1]: no room now: NVIDIA-A100-SXM4-80GB: all 2 devices are in use",
        "  gpu[2]: NVIDIA-H100-80GB-HBM3, 79.6 GiB: room for 1 replica, each with 8 requests of full length",
        "  cpu[3]: fits; the scheduler finds the node",
        "  gpu[4]: not considered: cpu[3] comes first and is waited for without end",
    ]


def test_a_list_of_nodes_is_enough_and_what_was_not_read_is_said(ask):
    code, lines, _ = ask([service(gpu("H100"), replicas=2)], FULL)
    assert (code, lines[0]) == (0, "service team/llama: gpu[0] (NVIDIA-H100-80GB-HBM3, 79.6 GiB): room for 2 replicas, 2 wanted")
    assert lines[-2:] == [
        "note: no pods were read, so all devices count as free",
        "note: ServingProfile 'default' was not read, so its node selector, tolerations, minCuda and devices do not count",
    ]


def test_a_profile_beside_the_service_counts_as_applied(ask):
    profile = of_kind("ServingProfile", profile_body(nodeSelector={"pool": "gold"}))[0] | {"apiVersion": "serving.pagoda.dev/v1alpha1"}
    _, lines, _ = ask([service(gpu("H100")), profile], FULL)
    assert "lacks the label pool=gold, which the profile or podTemplate requires" in lines[0]


def test_fewer_places_than_replicas(ask):
    _, lines, _ = ask([service(gpu("H100"), replicas=3)], [*FULL, *HELD])
    assert lines[0] == "service team/llama: gpu[0] (NVIDIA-H100-80GB-HBM3, 79.6 GiB): room for 1 of 3 replicas"


@pytest.mark.parametrize(
    ("scaling", "wanted"),
    [
        ({"mode": "Auto", "min": 3, "max": 5}, 3),
        ({"mode": "Auto", "min": 0, "max": 1}, 1),
        ({"mode": "Auto", "min": 0, "max": 4}, 2),
        ({"mode": "External"}, 2),
        ({"mode": "Manual", "min": 3, "max": 5}, 2),
    ],
)
def test_scaled_by_load_it_wants_no_fewer_than_min_and_no_more_than_max(ask, scaling, wanted):
    body = service(gpu("H100"), replicas=2, scaling=scaling)
    _, lines, _ = ask([body], FULL, "--json")
    assert json.loads("\n".join(lines))["services"][0]["replicas"] == {"wanted": wanted, "room": 2}


@pytest.mark.parametrize(("cores", "first"), [("4", "cpu[0]: the scheduler finds the node"), ("99", "cpu[0]: room for 0 of 1 replica")])
def test_on_cpu_the_largest_nodes_are_compared(ask, cores, first):
    _, lines, _ = ask([service({"cpu": {"cores": cores, "memory": "32Gi"}})], of_kind("Node", plain_node("n")))
    assert lines[0] == f"service team/llama: {first}"
    assert ("no room now: needs 99 cores on one node, but the largest node has 64 cores" in lines[1]) == (cores == "99")


def test_what_the_service_s_own_pods_use_is_free_to_it_and_where_it_runs_is_said(ask):
    placed = {"status": {"placement": {"chosen": "gpu[0]", "device": "NVIDIA-A100-SXM4-80GB, 80.0 GiB"}}}
    existing = of_kind("InferenceService", {"metadata": {"name": "llama", "namespace": "team", "uid": "mine"}, **placed})
    own = of_kind("Pod", *(pod("a", f"p{number}", uid="mine", gpu=1) for number in range(2)))
    _, lines, _ = ask([service(gpu("H100"))], [*FULL, *own, *existing])
    assert lines[0].endswith("room for 2 replicas, 1 wanted")
    assert lines[1].startswith("  it runs on gpu[0] (NVIDIA-A100-SXM4-80GB, 80.0 GiB) now, and stays there until")


def test_a_model_of_unknown_size_counts_by_its_folder(ask, tmp_path):
    unknown = service(gpu("H100"), model="pvc://models/tiny")
    _, lines, _ = ask([unknown], FULL)
    assert lines[0].startswith("service team/llama: InspectingModel: the model's size is not known yet")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    _, lines, _ = ask([unknown], FULL, "--model", str(tmp_path))
    assert lines[0].endswith("room for 2 replicas, 1 wanted")


def test_for_scripts_it_is_one_object(ask):
    code, lines, _ = ask([service(gpu("H100"))], [*FULL, *HELD], "--json")
    found = json.loads("\n".join(lines))["services"][0]
    assert (code, found["chosen"], found["replicas"], found["reason"]) == (0, "gpu[0]", {"wanted": 1, "room": 1}, None)
    assert [one["verdict"] for one in found["entries"]] == ["fits"]


KUBECTL = """#!/bin/sh
echo "$@" >> "{folder}/log"
cat "{folder}/$2.json" 2>/dev/null || {{ echo 'Error from server (Forbidden): no' >&2; exit 1; }}
"""


def test_it_reads_the_cluster_by_kubectl_and_does_without_what_it_may_not_read(ask, tmp_path, monkeypatch):
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.format(folder=tmp_path))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for kind, bodies in (("Node", FULL), ("Pod", HELD), ("ServingProfile", of_kind("ServingProfile", profile_body()))):
        (tmp_path / f"{LISTED[kind]}.json").write_text(json.dumps({"items": bodies}))
    code, lines, err = ask([service(gpu("H100"))], None, "--kube-context", "prod")
    assert (code, err) == (0, "")
    assert lines == [
        "service team/llama: gpu[0] (NVIDIA-H100-80GB-HBM3, 79.6 GiB): room for 1 replica, 1 wanted",
        "  gpu[0]: NVIDIA-H100-80GB-HBM3, 79.6 GiB: room for 1 replica, each with 8 requests of full length",
    ]
    calls = (tmp_path / "log").read_text().splitlines()
    assert all(call.startswith("get ") and "--context=prod" in call for call in calls)
    (tmp_path / "nodes.json").unlink()
    code, _, err = ask([service(gpu("H100"))])
    assert (code, "kubectl get nodes: Error from server (Forbidden): no" in err) == (2, True)


@pytest.mark.parametrize(("forbidden", "gone"), [("", True), ("--all-namespaces", True), ("configmaps", False)])
def test_node_pools_are_read_in_all_namespaces_or_else_in_the_usual_one(ask, tmp_path, monkeypatch, forbidden, gone):
    program = tmp_path / "kubectl"
    refusal = f'case "$*" in *"configmaps {forbidden}"*) exit 1;; esac\n' if forbidden else ""
    refusal = "case $2 in configmaps) exit 1;; esac\n" if forbidden == "configmaps" else refusal
    program.write_text(KUBECTL.format(folder=tmp_path).replace("cat ", refusal + "cat ", 1))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    kept = {"metadata": {"name": "pagoda-node-pools", "namespace": "serving"}, "data": {"pools.json": POOLS}}
    for name, bodies in (("nodes", FULL), ("configmaps", of_kind("ConfigMap", kept))):
        (tmp_path / f"{name}.json").write_text(json.dumps({"items": bodies}))
    _, lines, _ = ask([service(gpu("H200"))])
    assert ("gone is gone, but its node pool may scale up" in lines[0]) is gone
    calls = [call for call in (tmp_path / "log").read_text().splitlines() if "metadata.name=pagoda-node-pools" in call]
    assert ["--all-namespaces" in call for call in calls] == ([True, False] if forbidden else [True])
    assert all("--namespace=pagoda-system" in call for call in calls[1:])


def test_kinds_that_an_entry_uses_and_that_were_not_read_are_said(ask):
    slices = of_kind("ResourceSlice", resource_slice("c", H200, whole(2)))
    notes = (
        "no ResourceSlices were read, so no device counts",
        "no ResourceClaims were read, so all devices of ResourceSlices count as free",
    )
    for objects, said in ((FULL, notes[0]), ([*FULL, *slices], notes[1])):
        _, lines, _ = ask([service(dra_of("gpu.nvidia.com"))], objects)
        assert [line for line in lines if "note: no Resource" in line and said in line] != []
    _, lines, _ = ask([service(gpu("H100"))], FULL)
    assert not any("note: no Resource" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-f", "FILE", "--device", "h100"), "with --filename, the services say what is wanted"),
        (("-f", "FILE", "--yaml"), "with --filename, the services say what is wanted"),
        (("-f", "FILE", "--nodes", "BAD"), "must be what `kubectl get nodes -o json` prints"),
        (("-f", "FILE", "--nodes", "NONE"), "has no Node"),
        (("-f", "FILE", "--nodes", "ODD"), "a Node cannot be read"),
        (("-f", "NONE",), "no InferenceService in"),
        (("-f", "WRONG",), "InferenceService/llama: spec.replicas: "),
        ((LLAMA8, "--nodes", "FILE"), "--nodes needs --filename"),
        (("/", "--kube-context", "prod"), "config.json: No such file"),
    ],
)  # fmt: skip
def test_what_is_impossible_is_refused_in_one_line(capsys, tmp_path, arguments, words):
    files = {
        "FILE": service(CPU),
        "WRONG": service(CPU, replicas=-1),
        "NONE": {"kind": "List", "items": []},
        "ODD": {"kind": "List", "items": of_kind("Node", {"metadata": {}})},
    }
    for name, body in files.items():
        (tmp_path / name).write_text(json.dumps(body))
    (tmp_path / "BAD").write_text("NAME  STATUS")
    code = run(("plan", *(str(tmp_path / one) if (tmp_path / one).exists() else one for one in arguments)))
    printed = capsys.readouterr()
    assert (code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert words in printed.err


CASES = {
    "too small": ([gpu("H100")], LLAMA70, [node("a", H100, whole(2))], ()),
    "in use": ([gpu("H100")], LLAMA8, [node("a", H100, whole(1))], (pod("a", gpu=1),)),
    "in use, another next": ([gpu("H100", fallbackAfter="5m"), CPU], LLAMA8, [node("a", H100, whole(1))], (pod("a", gpu=1),)),
    "cordoned": ([gpu("H100")], LLAMA8, [node("a", H100, whole(1), cordoned=True)], ()),
    "no such node yet": ([gpu("L4")], TINY, [node("a", H100, whole(1))], ()),
    "a taint": ([gpu("H100")], LLAMA8, [node("a", H100, whole(1), taints=[{"key": "k", "effect": "NoSchedule"}])], ()),
    "unknown slices": ([mig("9g.9gb")], LLAMA8, [node("a", H100, whole(1))], ()),
    "not built": ([gpu("H100", count=2)], LLAMA8, [node("a", H100, whole(2))], ()),
}


@pytest.mark.parametrize(("entries", "model", "nodes", "pods"), CASES.values(), ids=CASES)
def test_the_plan_has_the_words_of_the_operator_s_condition(entries, model, nodes, pods):
    made = harness(*entries, there=inventory(*nodes, pods=pods), model=model)
    made.settle()
    ready = made.conditions()["Ready"]
    body = service_body(accelerators=entries, engine=ENGINE, model={"uri": model})
    cluster, parsed = Snapshot({"Node": nodes, "Pod": pods, "ServingProfile": [profile_body()]}), InferenceService.model_validate(body)
    planned = answer(parsed, question(parsed, cluster, None, now().timestamp()), {})
    assert planned["reason"] == ready["reason"]
    assert planned["message"] in ready["message"]


def test_an_inspected_model_is_known_by_its_report():
    made = harness(gpu("H100"), there=inventory(node("a", H100, whole(1))))
    cluster = Snapshot({"Node": [node("a", H100, whole(1))], "ConfigMap": made.api.of(CONFIG_MAPS)})
    body = service_body(accelerators=[gpu("H100")], engine=ENGINE)
    assert question(InferenceService.model_validate(body), cluster, None, 0.0).model == of_config(LLAMA_CONFIG)


def test_slices_their_claims_and_pools_without_nodes_count(ask):
    sliced = resource_slice("c", H200, whole(2))
    objects = [*FULL, *of_kind("Node", plain_node("c")), *of_kind("ResourceSlice", sliced), *of_kind("ResourceClaim", claim(sliced, 0))]
    _, lines, _ = ask([service(dra_of("gpu.nvidia.com"))], objects)
    assert lines[0].endswith("room for 1 replica, 1 wanted")
    kept = {"metadata": {"name": "pagoda-node-pools", "namespace": "pagoda-system"}, "data": {"pools.json": POOLS}}
    _, lines, _ = ask([service(gpu("H200"))], [*FULL, *of_kind("ConfigMap", kept)])
    assert "gone is gone, but its node pool may scale up for pending pods" in lines[0]
