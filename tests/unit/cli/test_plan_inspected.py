"""`pagoda plan hf://NAME` of a model that the operator of a cluster inspected. A script stands for kubectl."""

from __future__ import annotations

import json
import os
import stat

import pytest
from pagoda_cli.commands import run
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_placement.model import source_of
from pagoda_sizing.families import parse_model
from support.harness.placing import LLAMA_CONFIG
from support.kube.fake_api import service_body

TINY = "hf://org/tiny"
KUBECTL = """#!/bin/sh
echo "$@" >> "{folder}/log"
cat "{folder}/$2.json"
"""
REPORT = json.dumps({"config": LLAMA_CONFIG, "bytes": 7})


@pytest.mark.parametrize(
    ("kept", "kubeconfig", "says"),
    [
        ({"uri": TINY}, True, ""),
        ({"uri": TINY, "revision": "v2"}, True, ""),
        ({"uri": "hf://org/other"}, True, "the cluster that kubectl reads shows no inspection of it"),
        (None, True, "the cluster that kubectl reads shows no inspection of it"),
        ({"uri": TINY}, False, "no cluster was asked for an inspection of it"),
    ],
)
def test_a_model_that_the_operator_inspected_is_known_by_its_address(capsys, tmp_path, monkeypatch, kept, kubeconfig, says):
    """`kept`: the model whose report there is; None for one of an earlier address of the same service."""
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.format(folder=tmp_path))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / ("kubectl" if kubeconfig else "none")))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    body = service_body(model=kept or {"uri": TINY})
    source = source_of(InferenceServiceSpec.model_validate(body["spec"])) if kept else "another"
    report = {"metadata": {"name": "tiny-model", "namespace": "ns"}, "data": {"source": source, "model.json": REPORT}}
    for name, bodies in (("inferenceservices.serving.pagoda.dev", [body]), ("configmaps", [report])):
        (tmp_path / f"{name}.json").write_text(json.dumps({"items": bodies}))
    code = run(("plan", TINY, "--device", "l4", "--json", "--kube-context", "prod"))
    printed = capsys.readouterr()
    assert (code, says in printed.err) == (2 if says else 0, True)
    if not says:
        assert json.loads(printed.out)["model"]["weight_bytes"] == parse_model(LLAMA_CONFIG).weight_bytes("bf16")
        calls = (tmp_path / "log").read_text().splitlines()
        assert "--all-namespaces" in calls[0]
        assert "--field-selector=metadata.name=tiny-model" in calls[1]
        assert "--namespace=ns --context=prod" in calls[1]
