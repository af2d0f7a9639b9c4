"""Both sides of an inspection held against each other: what the operator's pod starts is the real `pagoda-fetch`, and what that leaves for
the kubelet goes back into the operator. The hub is a double on loopback."""

import json
import os
import subprocess
import sys

import pytest
from pagoda_fetch import __main__ as main_module
from pagoda_operator.api.state import CONFIG_MAPS, PODS, PROFILES
from pagoda_placement.model import of_config
from pagoda_sizing.families import parse_model
from support.clients.fetching import model_files
from support.harness.harness import Harness
from support.harness.inventories import gpu, inventory, mig
from support.harness.placing import ENGINE, LLAMA_CONFIG, MIXED, placement
from support.servers.fetch_hub import COMMIT, running_hub

FILES = model_files(size=200_000)
# What a hub's file holds beside what is counted.
LONG = {"id2label": {str(n): f"LABEL_{n}" for n in range(2000)}, "rope_scaling": {"factor": 8.0}, "architectures": ["LlamaForCausalLM"]}


@pytest.fixture
def hub():
    with running_hub(FILES | {"config.json": json.dumps(LLAMA_CONFIG | LONG).encode()}) as running:
        yield running


def harness(hub, *accelerators, **spec):
    """The profile says where the hub is, as an administrator does: for the sidecar."""
    made = Harness(accelerators=list(accelerators or [mig(least="1Gi")]), engine=ENGINE, model={"uri": "hf://org/model"}, **spec)
    sidecar = {"name": "fetch", "env": [{"name": "HF_ENDPOINT", "value": hub.url}]}
    template = {"spec": {"initContainers": [sidecar]}}
    made.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(podTemplate=template))
    made.inventory = inventory(MIXED)
    made.settle()
    return made


def container(made):
    (pod,) = [body for body in made.api.of(PODS) if "inspect" in body["metadata"]["name"]]
    return pod, pod["spec"]["containers"][0]


def played(made, tmp_path, run):
    """The kubelet's part: runs the container with what its pod gives it and tells how it ended."""
    pod, body = container(made)
    message = tmp_path / "termination-log"
    message.write_text("")
    environment = {entry["name"]: entry["value"] for entry in body.get("env", [])} | {"PAGODA_TERMINATION_LOG": str(message)}
    code = run([*body["args"], "--silence", "60s", "--attempts", "1"], environment)
    ended = {"terminated": {"exitCode": code, "message": message.read_text()}}
    state = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended} if code else {"state": ended}
    pod["status"] = {"phase": "Running" if code else "Succeeded", "containerStatuses": [{"name": "inspect", **state}]}
    made.settle()
    return code


@pytest.fixture
def fetch(monkeypatch, tmp_path):
    """The command in this process; its log lines would go to stderr in a form of their own."""
    monkeypatch.setattr(main_module, "_log_to_stderr", lambda: None)

    def run(argv, environment):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["pagoda-fetch", *argv])
            for name, value in environment.items():
                patch.setenv(name, value)
            try:
                main_module.main()
            except SystemExit as end:
                return end.code
            return 0

    return lambda made: played(made, tmp_path, run)


def as_a_process(argv, environment):
    command = [sys.executable, "-P", "-m", "pagoda_fetch", *argv]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, check=False, timeout=250).returncode


@pytest.mark.deep
def test_report_of_the_real_fetch_program_is_sized_and_placed(hub, tmp_path):
    made = harness(hub)
    assert played(made, tmp_path, as_a_process) == 0
    (kept,) = [body["data"]["model.json"] for body in made.api.of(CONFIG_MAPS) if body["metadata"]["name"] == "tiny-model"]
    assert of_config(json.loads(kept)["config"]).shape == parse_model(LLAMA_CONFIG)
    assert (json.loads(kept)["revision"], len(kept) < 4096) == (COMMIT, True)
    assert placement(made)["device"] == "mig-1g.10gb, 9.8 GiB"
    assert set(hub.sent) == {"config.json"}


def test_a_hub_that_asks_for_a_credential_stalls_and_a_repaired_one_is_asked_again(hub, fetch):
    hub.token = "secret"
    made = harness(hub)
    assert fetch(made) == 78
    reported = made.conditions()["Stalled"]
    assert (reported["status"], reported["reason"]) == ("True", "ModelRejected")
    assert f"Forbidden: org/model at {hub.url} does not exist, or asks for a credential" in reported["message"]
    hub.token = ""
    assert fetch(made) == 0  # the kubelet's next try of the same pod
    assert placement(made)["chosen"] == "mig[0]"


def test_model_without_a_config_stalls_with_the_message_of_fetch(hub, fetch):
    del hub.files["config.json"]
    made = harness(hub)
    assert fetch(made) == 78
    assert (made.reason(), "no model there: needs config.json" in made.conditions()["Stalled"]["message"]) == ("ModelRejected", True)


def test_a_config_too_long_for_a_termination_message_stalls(hub, fetch):
    hub.files["config.json"] = json.dumps({f"key{n}": n for n in range(2000)}).encode()
    made = harness(hub)
    assert fetch(made) == 78
    assert "at most 4000" in made.conditions()["Stalled"]["message"]


def test_a_hub_that_is_away_is_waited_for(hub, fetch):
    hub.status = 503
    made = harness(hub)
    assert fetch(made) == 1
    assert made.reason() == "InspectingModel"
    assert "the last attempt failed and will be repeated: Unreachable: " in made.conditions()["Reconciling"]["message"]
    hub.status = None
    assert fetch(made) == 0
    assert placement(made)["chosen"] == "mig[0]"


def test_an_adapter_is_no_model(hub, fetch):
    """Its adapter_config.json is reported as a model's config would be: sizing must not take it for one."""
    hub.files = {"adapter_config.json": b'{"peft_type": "LORA", "r": 8}', "adapter_model.safetensors": b"\0" * 64}
    made = harness(hub, gpu("H100"))
    assert fetch(made) == 0
    assert made.conditions()["Stalled"]["status"] == "True"
    assert "cannot be sized" in placement(made)["rejected"][0]["why"]
