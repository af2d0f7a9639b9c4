"""The command line: refusals, exit codes, and what a script can rely on."""

import dataclasses
import json
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from pagoda_devcluster.__main__ import main
from pagoda_devcluster.cluster import errors
from pagoda_devcluster.cluster.errors import DevClusterError, MissingPrerequisiteError, UsageError, exit_code
from pagoda_devcluster.cluster.locks import exclusive
from pagoda_devcluster.cluster.settings import Settings
from pagoda_devcluster.cluster.spec import ClusterSpec, Nodes, to_json
from pagoda_devcluster.machine import limits, packages
from pagoda_devcluster.providers import choice as providers
from pagoda_devcluster.providers import native
from pagoda_devcluster.providers import status as status_module
from pagoda_devcluster.providers.status import Status
from pagoda_devcluster.render.request import Request
from rich.console import Console


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGODA_DEVCLUSTER_HOME", str(tmp_path))
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["pagoda-devcluster", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


def test_a_cluster_that_is_not_there_is_down(home, monkeypatch, capsys):
    assert run(monkeypatch, "status", "--json") == 3
    assert json.loads(capsys.readouterr().out) == {"name": "dev", "up": False}


@pytest.mark.parametrize("command", [["kubeconfig"], ["load-image", "x.tar"], ["load-model", "/", "--claim", "a/b"]])
def test_commands_that_need_a_cluster_say_how_to_get_one(home, monkeypatch, capsys, command):
    assert run(monkeypatch, *command) == 3
    assert "pagoda-devcluster up --name dev" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["up", "down", "status"])
def test_a_bad_name_is_refused_everywhere(home, monkeypatch, capsys, command):
    assert run(monkeypatch, command, "--name", "../etc") == 2
    assert "cluster name" in capsys.readouterr().err


def test_taking_down_what_is_not_there_is_no_error(home, monkeypatch, capsys):
    monkeypatch.setattr(native.network, "remove_link", lambda _: False)
    assert run(monkeypatch, "down", "--name", "never-started") == 0
    assert "nothing to remove" in capsys.readouterr().out
    assert list((home / "clusters").iterdir()) == []


def test_dead_processes_are_listed_and_the_cluster_is_down(home, monkeypatch, capsys):
    spec = ClusterSpec("dev", 0, Nodes.KUBELET, home / "clusters" / "dev", home / "bin")
    spec.root.mkdir(parents=True)
    spec.paths.state.write_text(to_json(spec))
    assert run(monkeypatch, "status", "--json") == 3
    document = json.loads(capsys.readouterr().out)
    assert {process["state"] for process in document["processes"]} == {"dead"}
    assert document["audit_log"] == str(spec.paths.audit_log)
    assert run(monkeypatch, "load-image", "x.tar") == 3
    assert "not running: etcd" in capsys.readouterr().err


def test_a_busy_cluster_is_given_time_and_a_dead_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spec = ClusterSpec("dev", 0, Nodes.CONTROL_PLANE, tmp_path, tmp_path)
    busy, well, dead = (
        Status("dev", spec, pids, ready) for pids, ready in (({"etcd": 1}, False), ({"etcd": 1}, True), ({"etcd": None}, False))
    )
    for sequence, expected in (([busy, busy, well], well), ([busy, dead], dead), ([dead], dead), ([well], well)):
        answers = iter(sequence)
        monkeypatch.setattr(status_module, "status_of", lambda *_, answers=answers: next(answers))
        monkeypatch.setattr(status_module.waiting, "until", lambda condition, *_, **__: any(condition() for _ in range(9)))
        assert status_module.settled(Settings(tmp_path, is_root=True), "dev") is expected


def test_what_runs_is_not_replaced_by_something_else_of_its_name():
    runs = Status("dev", ClusterSpec("dev", 0, Nodes.KUBELET, Path("/c"), Path("/b")))
    providers.refuse_another(runs, Request("dev", Nodes.KUBELET), "native")
    for other in ((Request("dev", Nodes.CONTROL_PLANE), "native"), (Request("dev", Nodes.KUBELET), "kind")):
        with pytest.raises(UsageError, match="down --name dev` first"):
            providers.refuse_another(runs, *other)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": "dev"}', '{"name": "dev", "nodes": "x", "slot": 1, "root": "/", "bin": "/"}'])
def test_state_of_a_killed_run_counts_as_none(tmp_path: Path, text: str):
    (tmp_path / "cluster.json").write_text(text)
    assert status_module.load_spec(tmp_path) is None


@pytest.mark.parametrize("dead", ["etcd", "kube-scheduler", "kubelet", "coredns"])
def test_a_cluster_that_misses_any_process_is_not_up_and_says_which(dead: str):
    spec = ClusterSpec("dev", 0, Nodes.KUBELET, Path("/c"), Path("/b"))
    pids = {process.name: None if process.name == dead else 7 for process in status_module.all_processes(spec)}
    found = Status("dev", spec, pids, api_ready=True, node_ready=True)
    assert (found.up, found.undecided) == (False, False)
    assert status_module.trouble(found) == f"not running: {dead}"


def test_every_error_has_an_exit_code_of_its_own():
    def tree(kind: type[DevClusterError]) -> list[type[DevClusterError]]:
        return [kind, *(below for child in kind.__subclasses__() for below in tree(child))]

    kinds = tree(DevClusterError)
    codes = [exit_code(kind("x", 1) if kind is errors.ApiError else kind("x")) for kind in kinds]
    assert len(set(codes)) == len(kinds)
    assert all(f"{kind.__name__} " in (errors.__doc__ or "") for kind in kinds)


def test_missing_packages_are_named_with_the_line_that_installs_them(monkeypatch):
    monkeypatch.setattr(packages, "present", lambda file: file not in ("runc", "nft"))
    with pytest.raises(MissingPrerequisiteError, match=r"runc nftables.*apt-get install .*runc nftables`, or add --install"):
        packages.ensure(Nodes.KUBELET, install=False, is_root=True)
    assert packages.ensure(Nodes.CONTROL_PLANE, install=False, is_root=False) == []


def test_a_route_to_played_pods_needs_what_makes_routes(monkeypatch):
    monkeypatch.setattr(packages, "present", lambda file: file != "ip")
    assert packages.ensure(Nodes.FAKE, install=False, is_root=True) == []
    with pytest.raises(MissingPrerequisiteError, match="missing Debian packages: iproute2"):
        native.prepare(Settings(Path("/x"), is_root=True), Request("dev", Nodes.FAKE, serve=True), Console(quiet=True))


def test_what_images_and_tests_need_comes_with_install_and_a_cluster_does_without(monkeypatch):
    monkeypatch.setattr(packages, "present", lambda file: file not in ("buildah", "mmdebstrap", "redis-check-rdb"))
    installed: list[list[str]] = []
    monkeypatch.setattr(packages, "_install", installed.append)
    assert packages.ensure(Nodes.KUBELET, install=False, is_root=True) == []
    assert packages.ensure(Nodes.CONTROL_PLANE, install=True, is_root=True) == []
    assert packages.ensure(Nodes.KUBELET, install=True, is_root=True) == ["buildah", "mmdebstrap", "redis-tools"]
    assert installed == [["buildah", "mmdebstrap", "redis-tools"]]


def test_installing_needs_root(monkeypatch):
    monkeypatch.setattr(packages, "present", lambda file: file != "runc")
    with pytest.raises(MissingPrerequisiteError, match="needs root"):
        packages.ensure(Nodes.KUBELET, install=True, is_root=False)


def test_a_node_without_root_is_refused_before_anything_is_built(tmp_path: Path):
    request = Request("dev", Nodes.KUBELET)
    with pytest.raises(MissingPrerequisiteError, match="--nodes control-plane"):
        native.prepare(Settings(tmp_path, is_root=False), request, Console(quiet=True))


def test_missing_inotify_instances_are_reported_before_a_kubelet_fails_for_lack_of_them(monkeypatch):
    monkeypatch.setattr(limits, "inotify_available", lambda wanted: wanted - 1)
    with pytest.raises(MissingPrerequisiteError, match=r"sysctl -w fs\.inotify\.max_user_instances"):
        limits.check_inotify(Nodes.KUBELET)


def inotify_descriptors() -> set[str]:
    """And no others: threads and garbage of earlier tests in this process open and close theirs at any moment."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found |= {descriptor.name} if str(descriptor.readlink()) == "anon_inode:inotify" else set()
    return found


def test_counting_inotify_instances_uses_none_up():
    before = inotify_descriptors()
    assert 0 <= limits.inotify_available(3) <= 3
    assert inotify_descriptors() == before


def test_a_full_disk_is_reported_before_anything_starts_and_after_anything_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(limits.shutil, "disk_usage", lambda _: usage._replace(free=255 << 20))
    with pytest.raises(MissingPrerequisiteError, match=r"255 MiB are free .* needs 256 MiB: free some, or set PAGODA_DEVCLUSTER_HOME"):
        limits.check_disk(tmp_path, Nodes.CONTROL_PLANE)
    assert limits.disk_hint(tmp_path) == ""
    monkeypatch.setattr(limits.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert "is full: free some" in limits.disk_hint(tmp_path)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("where", "words"), [("prepare", "before anything of dev was started"), ("begin", "what had begun of dev is removed")]
)
def test_ctrl_c_says_what_is_left(home, monkeypatch, capsys, where, words):
    monkeypatch.setattr(native.network, "remove_link", lambda _: False)

    def begin(settings: Settings, *_: object) -> None:
        settings.cluster("dev").mkdir()
        interrupt()

    steps = providers.Steps(prepare=lambda *_: None, binaries=lambda *_: home, begin=begin)
    monkeypatch.setitem(providers.STEPS, "native", dataclasses.replace(steps, **({where: interrupt} if where == "prepare" else {})))
    assert run(monkeypatch, "up", "--provider", "native") == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert words in last
    left = [path.name for path in (home / "clusters").iterdir()]
    assert left == ([".dev.lock"] if where == "prepare" else [])


def test_ctrl_c_of_down_says_that_something_is_left(home, monkeypatch, capsys):
    monkeypatch.setattr(native, "clear", interrupt)
    assert run(monkeypatch, "down") == 130
    assert capsys.readouterr().err == (
        "pagoda-devcluster: stopped before all of dev was removed: run `pagoda-devcluster down --name dev`\n"
    )


def test_an_error_of_many_lines_is_printed_as_one(home, monkeypatch, capsys):
    def fail(*_: object) -> None:
        raise errors.StartError("etcd ended:\n  first\n  second")

    monkeypatch.setattr(native, "clear", fail)
    assert run(monkeypatch, "down") == 5
    assert capsys.readouterr().err == "pagoda-devcluster: etcd ended: first second\n"


def test_a_lock_whose_file_was_removed_while_waiting_is_taken_anew(tmp_path: Path):
    """Otherwise the one who waited and the one who comes later would both hold it."""
    lock, waiting, entered = tmp_path / "lock", threading.Event(), threading.Event()

    def second() -> None:
        with exclusive(lock, waiting.set):
            assert lock.exists()
            entered.set()

    thread = threading.Thread(target=second)
    with exclusive(lock, lambda: None, remove=True):
        thread.start()
        assert waiting.wait(60)
        assert not entered.is_set()
    thread.join(60)
    assert entered.is_set()


def test_home_defaults_to_the_users_cache(monkeypatch):
    monkeypatch.delenv("PAGODA_DEVCLUSTER_HOME", raising=False)
    monkeypatch.setenv("HOME", "/somebody")
    from pagoda_devcluster.cluster.settings import from_environment

    assert from_environment() == Settings(Path("/somebody/.cache/pagoda/devcluster"), os.geteuid() == 0)
