"""The real kind reads what we render for it, up to the moment where it would need a Docker engine: a stand-in notes what it would run.

That a node then starts is shown nowhere: the provider is unproven.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pagoda_devcluster.binaries import build, recipe
from pagoda_devcluster.cluster.spec import KIND, ClusterSpec, Nodes
from pagoda_devcluster.gpus import layout
from pagoda_devcluster.kind import render
from pagoda_devcluster.kind import run as kind

# Ends at `kubeadm init`: by then kind has merged our patches into the configuration it wrote into the node.
DOCKER = """#!{python}
import json, pathlib, sys
home, argv = pathlib.Path({home!r}), sys.argv[1:]
line = " ".join(argv)
text = sys.stdin.read() if "/dev/stdin" in argv else ""
with (home / "calls").open("a") as calls:
    calls.write(json.dumps([argv, text]) + "\\n")
ran = (home / "ran").exists()
if argv[0] == "run":
    (home / "ran").touch()
elif argv[0] == "ps" and ran:
    print("pagoda-dev-control-plane")
elif argv[0] == "logs":
    print("Reached target Multi-User System.")
elif argv[0] == "info":
    print("{{}}")
elif argv[0] == "inspect" and "role" in line:
    print("control-plane")
elif argv[0] == "inspect" and "Networks" in line:
    print("172.18.0.2,")
elif "/kind/version" in argv:
    print({version!r})
elif "kubeadm" in argv:
    sys.exit("no engine here")
"""


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled and verified as `up --provider kind` does it."""
    found, folder = recipe.of_checkout(), tmp_path_factory.mktemp("kind")
    wanted = kind.kind_binary(found.folder)
    build.build_one(found, wanted, folder, lambda _: None)
    return folder / wanted.name


def stand_in(folder: Path, version: str) -> None:
    (folder / "docker").write_text(DOCKER.format(python=sys.executable, home=str(folder), version=version))
    (folder / "docker").chmod(0o755)


def calls(folder: Path) -> list[tuple[list[str], str]]:
    return [tuple(json.loads(line)) for line in (folder / "calls").read_text().splitlines()]


def created(binary: Path, folder: Path, version: str) -> tuple[ClusterSpec, str]:
    """What kind said after it was given the files of a cluster with GPUs."""
    spec = ClusterSpec("dev", 0, Nodes.KUBELET, folder / "c", folder / "bin", provider=KIND)
    played = layout.read(recipe.of_checkout().folder / "layouts" / "h100-mixed.yaml").kubelet_class
    spec.paths.config.mkdir(parents=True)
    labelled = played.model_copy(update={"labels": {"team.example/rack": "a1"}})
    for file, text in render.files(spec, labelled).items():
        file.write_text(text)
    stand_in(folder, version)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("KIND_", "DOCKER_"))}
    environment |= {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(
        render.create_command(spec, binary), capture_output=True, text=True, check=False, env=environment, cwd=folder, timeout=300
    )
    assert done.returncode == 1
    return spec, done.stderr


def kubeadm(folder: Path) -> dict[str, dict[str, Any]]:
    (text,) = [text for argv, text in calls(folder) if "/kind/kubeadm.conf" in argv]
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def arguments(extra: Any) -> dict[str, str]:
    """A map up to Kubernetes 1.35, a list of pairs from 1.36 on."""
    return extra if isinstance(extra, dict) else {pair["name"]: pair["value"] for pair in extra}


@pytest.mark.parametrize(("version", "spelling"), [("v1.35.0", dict), ("v1.36.1", list)])
def test_kind_takes_our_configuration_and_the_audit_log_reaches_kubeadm(binary: Path, tmp_path: Path, version: str, spelling: type):
    spec, said = created(binary, tmp_path, version)
    assert "no engine here" in said
    configuration = kubeadm(tmp_path)["ClusterConfiguration"]
    extra = configuration["apiServer"]["extraArgs"]
    assert isinstance(extra, spelling)
    assert arguments(extra) | arguments(render.audit_patches(spec)[0]["apiServer"]["extraArgs"]) == arguments(extra)
    assert [volume["mountPath"] for volume in configuration["apiServer"]["extraVolumes"]] == [one.path for one in render.mounts_of(spec)]
    assert configuration["networking"] == {"podSubnet": "10.144.0.0/16", "serviceSubnet": "10.96.0.0/16"}
    assert (
        arguments(kubeadm(tmp_path)["InitConfiguration"]["nodeRegistration"]["kubeletExtraArgs"])["node-labels"] == "team.example/rack=a1"
    )


def test_the_container_gets_the_mounts_and_the_name_that_we_ask_for_later(binary: Path, tmp_path: Path):
    spec, _ = created(binary, tmp_path, "v1.36.1")
    (run,) = [argv for argv, _ in calls(tmp_path) if argv[0] == "run"]
    assert run[run.index("--name") + 1] == render.node_name(spec)
    assert f"--volume={spec.paths.audit_log}:{render.AUDIT_LOG}" in run
    assert f"--volume={spec.paths.config}/audit-policy.yaml:{render.POLICY}:ro" in run


def test_kind_refuses_a_field_that_it_does_not_know(binary: Path, tmp_path: Path):
    """So that the tests above would notice a misspelt one."""
    file = tmp_path / "kind.yaml"
    spec = ClusterSpec("dev", 0, Nodes.KUBELET, tmp_path, tmp_path, provider=KIND)
    file.write_text(yaml.safe_dump(render.config(spec, None) | {"netwerking": {}}))
    done = subprocess.run([str(binary), "create", "cluster", "--config", str(file)], capture_output=True, text=True, check=False)
    assert "netwerking" in done.stderr
