"""A service whose model cannot be served says what is wrong with it, and a mended one serves."""

import json
import shutil
import time
from datetime import datetime

import pytest
from pagoda_devcluster.demo import install
from pagoda_devcluster.demo.show import watch
from support.kube.services import service

pytestmark = pytest.mark.cluster

MOUNTS = "--field-selector=involvedObject.kind=Pod,reason=FailedMount"


@pytest.fixture
def broken(pagoda, tmp_path):
    """The tiny model, its config naming an architecture that nobody has."""
    shutil.copytree(pagoda.model, tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    (tmp_path / "model/config.json").write_text(json.dumps(config | {"architectures": ["GrandioseForCausalLM"]}))
    tmp_path.chmod(0o755)
    return tmp_path / "model"


def test_the_condition_says_what_is_wrong_and_a_corrected_model_serves(pagoda, namespace, broken):
    line = pagoda.serve(namespace, "broken", broken)
    assert (line.stalled, line.reason) == (True, "ModelRejected")
    assert "GrandioseForCausalLM" in line.message
    install.claim(pagoda.builder, pagoda.cluster, pagoda.model, namespace, "whole")
    patch = json.dumps({"spec": {"model": {"uri": "pvc://whole"}}})
    pagoda.cluster.kubectl("patch", "inferenceservice", "broken", "-n", namespace, "--type=merge", "-p", patch)
    assert pagoda.outcome(namespace, "broken").ready


def test_a_missing_claim_or_secret_is_named_while_it_is_waited_for(pagoda, namespace):
    pagoda.apply(namespace, service("orphan"))
    line = named(pagoda, namespace, "orphan", "spec.model.uri")
    assert "persistentvolumeclaim" in line.message
    model = {"uri": "hf://org/model", "servedNames": ["keyless"], "credential": "hub"}
    pagoda.apply(namespace, service("keyless", model=model, credentials=[{"name": "hub", "secretRef": {"name": "gone"}}]))
    line = named(pagoda, namespace, "keyless", "spec.credentials[0].secretRef.name")
    at = time.time()
    assert (line.reason, 'secret "gone" not found' in line.message) == ("InspectingModel", True)
    first = min(event["firstTimestamp"] for event in pagoda.get("events", "-n", namespace, MOUNTS)["items"] if "gone" in event["message"])
    # The kubelet writes whole seconds.
    print(f"FailedMount has its field {at - datetime.fromisoformat(first).timestamp():.1f} s after the kubelet's first Event")


def named(pagoda, namespace, name, field):
    """The first state of the service that names the field; it is not Stalled."""
    for line in watch(pagoda.cluster, namespace, name, seconds=600):
        if f"({field})" in line.message:
            assert not line.stalled
            return line
    pytest.fail(f"no condition named {field}")
