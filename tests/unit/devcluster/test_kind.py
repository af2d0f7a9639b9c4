"""The kind provider: which provider is chosen, and what it would write and run. Nothing here, or anywhere, has run it on an engine."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from pagoda_devcluster.__main__ import main
from pagoda_devcluster.binaries import build, recipe
from pagoda_devcluster.cluster.errors import MissingPrerequisiteError, NotRunningError, UsageError
from pagoda_devcluster.cluster.settings import Settings
from pagoda_devcluster.cluster.spec import KIND, NATIVE, ClusterSpec, Nodes, to_json
from pagoda_devcluster.gpus import layout
from pagoda_devcluster.kind import render
from pagoda_devcluster.kind import run as kind
from pagoda_devcluster.providers import choice as providers
from pagoda_devcluster.providers import native
from pagoda_devcluster.providers.choice import Asked, Machine, choose
from pagoda_devcluster.providers.status import as_json, status_of
from pagoda_devcluster.render.request import Request
from rich.console import Console

QUIET = Console(quiet=True)
SPEC = ClusterSpec("dev", 0, Nodes.KUBELET, Path("/c/dev"), Path("/b"), provider=KIND)
GPUS = layout.read(recipe.of_checkout().folder / "layouts" / "h100-mixed.yaml")
ENGINE, BARE, MAC = Machine("28.0", linux=True), Machine("", linux=True), Machine("28.0", linux=False)


@pytest.mark.parametrize(
    ("asked", "nodes", "existing", "machine", "expected"),
    [
        (Asked.AUTO, Nodes.KUBELET, "", ENGINE, KIND),
        (Asked.AUTO, Nodes.KUBELET, "", BARE, NATIVE),
        (Asked.AUTO, Nodes.CONTROL_PLANE, "", ENGINE, KIND),
        (Asked.AUTO, Nodes.FAKE, "", ENGINE, NATIVE),
        (Asked.AUTO, Nodes.KUBELET, NATIVE, ENGINE, NATIVE),
        (Asked.AUTO, Nodes.KUBELET, KIND, ENGINE, KIND),
        (Asked.AUTO, Nodes.KUBELET, "", MAC, KIND),
        (Asked.NATIVE, Nodes.KUBELET, "", ENGINE, NATIVE),
        (Asked.NATIVE, Nodes.KUBELET, KIND, ENGINE, NATIVE),
        (Asked.KIND, Nodes.KUBELET, NATIVE, ENGINE, KIND),
    ],
)
def test_auto_is_kind_where_an_engine_answers_and_stays_with_what_is_there(asked, nodes, existing, machine, expected):
    assert choose(asked, nodes, existing, machine) == expected


@pytest.mark.parametrize(
    ("asked", "nodes", "existing", "machine", "error", "words"),
    [
        (Asked.KIND, Nodes.KUBELET, "", BARE, MissingPrerequisiteError, "no Docker engine answers: start one, or use --provider native"),
        (Asked.AUTO, Nodes.KUBELET, KIND, BARE, MissingPrerequisiteError, "no Docker engine"),
        (Asked.KIND, Nodes.FAKE, "", ENGINE, UsageError, "no fake nodes: use --provider native"),
        (Asked.NATIVE, Nodes.KUBELET, "", MAC, MissingPrerequisiteError, "needs Linux"),
        (Asked.AUTO, Nodes.FAKE, "", MAC, MissingPrerequisiteError, "needs Linux"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(asked, nodes, existing, machine, error, words):
    with pytest.raises(error, match=words):
        choose(asked, nodes, existing, machine)


def test_the_engine_is_asked_only_where_its_answer_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    monkeypatch.setattr(kind, "engine", lambda: asked.append("x") or "28.0")
    settings, request = Settings(tmp_path, is_root=True), Request("dev", Nodes.KUBELET)
    assert providers.chosen(Asked.NATIVE, settings, request) == NATIVE
    assert asked == []
    assert providers.chosen(Asked.AUTO, settings, request) == KIND
    assert asked == ["x"]
    cluster = replace(SPEC, root=settings.cluster("dev"), provider=NATIVE)
    cluster.root.mkdir(parents=True)
    cluster.paths.state.write_text(to_json(cluster))
    assert providers.chosen(Asked.AUTO, settings, request) == NATIVE
    assert asked == ["x"]


def test_the_audit_log_lies_where_the_native_one_does_and_the_policy_is_the_same():
    files = render.files(SPEC, None)
    mounted = {one["hostPath"]: one for one in yaml.safe_load(files[Path("/c/dev/config/kind.yaml")])["nodes"][0]["extraMounts"]}
    assert set(mounted) == {"/c/dev/audit.log", "/c/dev/config/audit-policy.yaml"}
    assert not mounted["/c/dev/audit.log"]["readOnly"]
    assert files[SPEC.paths.audit_log] == ""
    assert "Metadata" in files[Path("/c/dev/config/audit-policy.yaml")]


def patches() -> dict[str, dict[str, object]]:
    texts = render.config(SPEC, None)["nodes"][0]["kubeadmConfigPatches"]
    return {patch["apiVersion"]: patch for patch in map(yaml.safe_load, texts)}


def test_the_api_server_is_configured_for_the_audit_log_in_both_formats_of_kubeadm():
    old, new = patches()["kubeadm.k8s.io/v1beta3"]["apiServer"], patches()["kubeadm.k8s.io/v1beta4"]["apiServer"]
    assert old["extraArgs"] == {pair["name"]: pair["value"] for pair in new["extraArgs"]}
    assert old["extraArgs"]["audit-log-mode"] == "blocking"
    mounted = {one.path for one in render.mounts_of(SPEC)}
    assert {volume["hostPath"] for volume in old["extraVolumes"]} == mounted
    assert {old["extraArgs"]["audit-log-path"], old["extraArgs"]["audit-policy-file"]} == mounted


def test_a_label_that_a_kubelet_may_not_give_itself_comes_later():
    played = GPUS.classes[0].model_copy(update={"labels": {"zone": "a", "node.kubernetes.io/x": "b", "team.example/y": "c"}})
    assert render.config(SPEC, played)["nodes"][0]["labels"] == {"zone": "a", "team.example/y": "c"}
    later = render.gpu_objects(SPEC, played)["items"][0]["metadata"]["labels"]
    assert later["node.kubernetes.io/x"] == "b"
    assert later["nvidia.com/mig-3g.40gb.count"] == "2"
    assert "labels" not in render.config(SPEC, None)["nodes"][0]


def test_gpus_are_patched_onto_the_node_that_kind_names():
    apply, patch = render.gpu_commands(SPEC, GPUS.kubelet_class)
    assert patch[:5] == ["/b/kubectl", "--kubeconfig", "/c/dev/kubeconfig", "patch", "node"]
    assert patch[5:8] == ["pagoda-dev-control-plane", "--subresource=status", "--type=merge"]
    offered = json.loads(patch[-1])["status"]
    assert offered["capacity"] == offered["allocatable"]
    assert offered["allocatable"]["nvidia.com/mig-3g.40gb"] == "2"
    assert apply[-2:] == ["-f", "/c/dev/config/gpu-objects.json"]
    document = json.loads(render.files(SPEC, GPUS.kubelet_class)[Path("/c/dev/config/gpu-objects.json")])
    kinds = [item["kind"] for item in document["items"]]
    assert kinds == ["Node", "DeviceClass", "DeviceClass", "DeviceClass", "ResourceSlice"]
    assert "ownerReferences" not in document["items"][-1]["metadata"]


def test_command_lines():
    binary, own = Path("/b/kind-v1"), ["--name", "pagoda-dev"]
    config = ["--kubeconfig", "/c/dev/kubeconfig"]
    create = ["/b/kind-v1", "create", "cluster", *own, "--config", "/c/dev/config/kind.yaml", *config, "--wait", "180s"]
    assert render.create_command(SPEC, binary) == create
    assert render.delete_command(SPEC, binary) == ["/b/kind-v1", "delete", "cluster", *own, *config]
    assert render.load_command(SPEC, binary, Path("/i.tar")) == ["/b/kind-v1", "load", "image-archive", "/i.tar", *own]
    assert render.rename_command(SPEC)[-2:] == ["kind-pagoda-dev", "pagoda-dev"]
    assert render.inspect_command(SPEC)[-1] == "pagoda-dev-control-plane"


@pytest.mark.parametrize(("text", "pid"), [("4711\n", 4711), ("0\n", None), ("", None), ("Error: no such object", None)])
def test_a_container_that_has_ended_has_no_process(text, pid):
    assert render.parse_pid(text) == pid


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a kind, a kubectl and a docker that note what they were asked; `broken` in it lists commands that fail."""
    folder = build.folder_of(recipe.of_checkout(), tmp_path / "bin")
    folder.mkdir(parents=True)
    for file in (folder / "kind-v0.0.1", folder / "kubectl", tmp_path / "docker"):
        file.write_text(SCRIPT.format(home=tmp_path, name=file.name.partition("-")[0]))
        file.chmod(0o755)
    for name in ("helm", kind.kind_binary(recipe.of_checkout().folder).name):
        (folder / name).symlink_to(folder / "kind-v0.0.1")
    (tmp_path / "broken").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PAGODA_DEVCLUSTER_HOME", str(tmp_path))
    monkeypatch.setattr(native.network, "remove_link", lambda _: False)
    return tmp_path


SCRIPT = """#!/bin/sh
echo "{name} $*" >> {home}/asked
grep -qxF "{name} $1" {home}/broken && {{ echo "it does not work" >&2; exit 1; }}
case "{name} $*" in
  "docker version"*) echo 28.0;;
  "docker inspect"*) echo 4711;;
  "kind create"*) touch {home}/clusters/dev/kubeconfig;;
  *"get --raw"*) echo ok;;
  *"get nodes"*) echo '{{"items": [{{"status": {{"conditions": [{{"type": "Ready", "status": "True"}}]}}}}]}}';;
  *"config view"*) echo https://127.0.0.1:40000;;
esac
"""


def asked(home: Path, *tools: str) -> list[str]:
    return [" ".join(line.split()[:3]) for line in (home / "asked").read_text().splitlines() if line.split()[0] in tools]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["pagoda-devcluster", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


def test_the_whole_route_of_up_says_that_it_is_unproven(machine, monkeypatch, capsys):
    file = recipe.of_checkout().folder / "layouts" / "h100-mixed.yaml"
    assert run(monkeypatch, "up", "--gpu-layout", str(file)) == 0
    said = capsys.readouterr()
    assert said.out == f"{machine}/clusters/dev/kubeconfig\n"
    assert "unproven" in said.err
    assert asked(machine, "kind") == ["kind create cluster"]
    assert [line.split()[3] for line in (machine / "asked").read_text().splitlines() if line.startswith("kubectl")][:3] == [
        "config",
        "apply",
        "patch",
    ]
    assert run(monkeypatch, "status", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["provider"], document["server"]) == ("kind", "https://127.0.0.1:40000")
    assert document["node"]["name"] == "pagoda-dev-control-plane"
    assert document["audit_log"] == f"{machine}/clusters/dev/audit.log"
    assert run(monkeypatch, "status") == 0
    assert "unproven" in capsys.readouterr().out


def test_down_deletes_the_containers_and_then_the_files(machine, monkeypatch, capsys):
    assert run(monkeypatch, "up") == 0
    assert run(monkeypatch, "down") == 0
    assert asked(machine, "kind") == ["kind create cluster", "kind delete cluster"]
    assert "removed containers, files" in capsys.readouterr().out
    assert list((machine / "clusters").iterdir()) == []


def test_without_an_engine_the_folder_stays_because_the_containers_may(machine, monkeypatch, capsys):
    assert run(monkeypatch, "up") == 0
    (machine / "broken").write_text("docker version\n")
    assert run(monkeypatch, "down") == 4
    assert "start it, then run this again" in capsys.readouterr().err
    assert run(monkeypatch, "prune") == 0
    assert (machine / "clusters/dev/cluster.json").exists()


def test_a_kind_cluster_that_runs_is_not_pruned_and_one_that_ended_is(machine, monkeypatch, capsys):
    assert run(monkeypatch, "up") == 0
    assert run(monkeypatch, "prune", "--dry-run") == 0
    assert "cluster dev" not in capsys.readouterr().out
    (machine / "broken").write_text("docker inspect\n")
    assert run(monkeypatch, "prune") == 0
    assert "removed cluster dev" in capsys.readouterr().out
    assert asked(machine, "kind")[-1] == "kind delete cluster"


def test_a_create_that_fails_is_one_line_and_down_still_works(machine, monkeypatch, capsys):
    (machine / "broken").write_text("kind create\n")
    assert run(monkeypatch, "up", "--provider", "kind") == 5
    assert capsys.readouterr().err.splitlines()[-1].endswith("create cluster` failed: it does not work")
    assert run(monkeypatch, "down") == 0
    assert not (machine / "clusters/dev").exists()


def test_images_go_in_and_folders_do_not(machine, monkeypatch, capsys):
    assert run(monkeypatch, "up") == 0
    monkeypatch.setattr(kind.images, "names_in", lambda _: ["probe:1"])
    assert run(monkeypatch, "load-image", "x.tar") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "docker.io/library/probe:1"
    assert asked(machine, "kind")[-1] == "kind load image-archive"
    assert run(monkeypatch, "load-model", str(machine), "--claim", "a/b") == 2
    assert "--provider native" in capsys.readouterr().err


def test_a_container_that_is_gone_makes_the_cluster_down(machine, monkeypatch):
    assert run(monkeypatch, "up") == 0
    (machine / "broken").write_text("docker inspect\n")
    found = status_of(Settings(machine, is_root=True), "dev")
    assert not found.up
    assert as_json(found)["processes"] == [{"name": "pagoda-dev-control-plane", "state": "dead", "pid": None}]


def test_help_says_unproven(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    assert run(monkeypatch, "up", "--help") == 0
    assert "unproven" in capsys.readouterr().out


def test_only_clients_and_kind_are_compiled_and_only_when_asked_for(tmp_path: Path):
    found = recipe.of_checkout()
    assert not any(binary.name.startswith("kind") for binary in found.binaries)
    binary = kind.kind_binary(found.folder)
    version = recipe.pinned((found.folder / "kind" / "go.mod").read_text(), "sigs.k8s.io/kind")
    assert (binary.name, binary.module, binary.version_text) == (f"kind-{version}", "kind", version)
    assert build.missing(found, tmp_path, [binary]) == [binary]


def test_a_cluster_whose_kind_was_pruned_says_how_to_get_it_back(tmp_path: Path):
    with pytest.raises(NotRunningError, match="up --provider kind"):
        kind.kind_of(replace(SPEC, bin=tmp_path))
