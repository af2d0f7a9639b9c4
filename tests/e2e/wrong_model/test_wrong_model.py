"""A service whose model cannot be served says what is wrong with it, and a mended one serves."""

import json
import shutil

import pytest
from pagoda_devcluster.demo import install
from pagoda_devcluster.demo.show import watch
from support.kube.services import service

pytestmark = pytest.mark.cluster


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


def test_a_missing_claim_is_named_while_it_is_waited_for(pagoda, namespace):
    pagoda.apply(namespace, service("orphan"))
    for line in watch(pagoda.cluster, namespace, "orphan", seconds=600):
        if "orphan" in line.message and "persistentvolumeclaim" in line.message:
            assert not line.stalled
            return
    pytest.fail("no condition named the missing claim")
