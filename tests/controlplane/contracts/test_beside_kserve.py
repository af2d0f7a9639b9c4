"""KServe's kind has the plain name `inferenceservices` here. Each command of a document, and each command of `pagoda`, reaches ours."""

import json
import os
from datetime import UTC, datetime

import pytest
import typer
from pagoda_cli.commands import application, run
from pagoda_contracts.crds.crdgen import KINDS
from pagoda_contracts.names import GROUP
from pagoda_contracts.resources.service import INFERENCE_SERVICE
from support.kube import kserve
from support.kube.object_table import Row
from support.suite.documented import kinds

pytestmark = pytest.mark.cluster
NAMESPACE = "contracts"
TAKEN = ("inferenceservices", "inferenceservice", "isvc")


@pytest.fixture
def objects(cluster):
    """One of each kind of ours, and one of KServe's, all with one name."""

    def call(*args, **options):
        return cluster.kubectl("-n", NAMESPACE, *args, **options)

    bodies = [Row(kind.kind, ()).body("llama") for kind in KINDS]
    call(
        "create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": [*bodies, json.loads(kserve.service("llama"))]})
    )
    yield call
    call("delete", *(f"{resource}/llama" for resource in (*(kind.resource for kind in KINDS), kserve.NAME)))


def test_each_kind_that_a_document_names_to_kubectl_is_ours_or_one_of_kubernetes(objects):
    words = kinds()
    assert {*(kind.resource for kind in KINDS), *INFERENCE_SERVICE.short_names, "pagoda", "tenantquota", "nodes"} <= words.keys()
    found = objects("get", ",".join(sorted(words)), "-A", "-o", "name").split()
    assert {f"{kind.kind.lower()}.{GROUP}/llama" for kind in KINDS} <= set(found)
    assert [name for name in found if kserve.GROUP in name] == [], {word: pages for word, pages in words.items() if word in TAKEN}


@pytest.mark.parametrize("word", TAKEN)
def test_the_plain_names_are_kserves(objects, word):
    assert objects("get", word, "-o", "name").split() == [f"inferenceservice.{kserve.GROUP}/llama"]


def test_what_kubectl_prints_as_a_name_is_a_name_of_ours(objects):
    """docs/operations/upgrade.md goes on with it."""
    (name,) = objects("get", INFERENCE_SERVICE.resource, "-o", "name").split()
    objects("patch", name, "--type=merge", "-p", json.dumps({"spec": {"profileRef": {"adopt": "2026-11-21"}}}))
    assert json.loads(objects("get", INFERENCE_SERVICE.resource, "llama", "-o", "json"))["spec"]["profileRef"]["adopt"] == "2026-11-21"


@pytest.fixture
def pagoda(cluster, monkeypatch, capsys):
    """Runs the command line as in a shell; returns what it prints."""
    monkeypatch.setenv("PATH", f"{cluster.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setenv("KUBECACHEDIR", str(cluster.kubeconfig.parent / "kubectl"))

    def call(*words, inside=("-n", NAMESPACE), expected=0):
        code = run([*words, *inside])
        out, err = capsys.readouterr()
        assert code == expected, (words, out, err)
        return out

    return call


def asking():
    """Commands that ask a cluster: those that take a kubeconfig."""
    group = typer.main.get_command(application())
    commands = [((name,), one) for name, one in group.commands.items()]
    commands += [((*path, name), one) for path, outer in commands for name, one in getattr(outer, "commands", {}).items()]
    return {path for path, one in commands if "kubeconfig" in {option.name for option in one.params}}


def test_every_command_of_ours_that_asks_a_cluster_reaches_our_kinds(cluster, objects, pagoda, tmp_path):
    status = {"observedGeneration": 1, "outdated": "podTemplate.spec"}
    objects("patch", f"{INFERENCE_SERVICE.resource}/llama", "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    file = tmp_path / "llama.json"
    file.write_text(json.dumps(Row("InferenceService", ()).body("llama")))
    since, done = datetime.now(UTC), set()

    def call(*words, command=1):
        done.add(words[:command])
        return pagoda(*words)

    for target in ("llama", "service/llama", f"{INFERENCE_SERVICE.resource}/llama", "pisvc/llama"):
        assert json.loads(call("why", target, "-o", "json"))["outdated"] == "podTemplate.spec"
    call("plan", "-f", str(file), "--json")
    call("key", "create", "--tenant", "team", command=2)
    (first,) = json.loads(call("key", "list", "-o", "json", command=2))
    call("key", "rotate", first["id"], command=2)
    call("key", "revoke", first["id"], command=2)
    # No operator runs here, which is wrong.
    done.add(("doctor",))
    found = {one["subject"]: one["verdict"] for one in json.loads(pagoda("doctor", "--json", inside=(), expected=1))}
    assert (found["kinds"], found["operator"]) == ("ok", "wrong")
    assert done == asking()
    asked = [event["objectRef"] for event in cluster.audit(user="kubernetes-admin", since=since, verbs="all") if "objectRef" in event]
    of_groups = {ref["resource"] for ref in asked if ref.get("apiGroup") in (GROUP, kserve.GROUP)}
    assert of_groups == {"inferenceservices", "servingprofiles", "tenantquotas"}
    assert [ref for ref in asked if ref.get("apiGroup") == kserve.GROUP] == []
