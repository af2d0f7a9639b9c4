"""What `prune` takes and what it leaves, and what `logs` shows of a cluster that died."""

import io
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pagoda_devcluster import maintenance
from pagoda_devcluster.__main__ import main
from pagoda_devcluster.binaries import build
from pagoda_devcluster.cluster.locks import exclusive, is_held
from pagoda_devcluster.cluster.process import environment
from pagoda_devcluster.cluster.settings import Settings
from pagoda_devcluster.cluster.spec import ClusterSpec, Nodes, to_json
from pagoda_devcluster.providers import choice as providers
from pagoda_devcluster.providers import native
from pagoda_devcluster.providers.prune import Cluster, Found, Prunable, decide, remove
from rich.console import Console

CURRENT, OLD, OLDER = Path("/bin/current"), Path("/bin/old"), Path("/bin/older")


def cluster(name: str, alive: bool = False, busy: bool = False, folder: Path | None = CURRENT) -> Cluster:
    return Cluster(name, alive, busy, folder)


def test_only_unused_things_are_removed():
    found = Found((cluster("dead"), cluster("busy", busy=True), cluster("lives", alive=True, folder=OLD)), (CURRENT, OLD, OLDER))
    assert decide(found, CURRENT) == Prunable(("dead",), (OLDER,))


def test_binaries_that_another_command_starts_a_cluster_from_stay():
    assert decide(Found((cluster("starts", busy=True, folder=OLD),), (OLD, OLDER)), CURRENT) == Prunable((), (OLDER,))


def test_binaries_of_a_dead_cluster_go_with_it():
    assert decide(Found((cluster("dead", folder=OLD),), (OLD, CURRENT)), CURRENT).binaries == (OLD,)


def test_without_a_checkout_nobody_knows_which_binaries_are_old():
    assert decide(Found((), (CURRENT, OLD)), None).binaries == ()


def test_a_lock_is_held_only_while_somebody_holds_it(tmp_path: Path):
    lock = tmp_path / "lock"
    assert not is_held(lock)
    with exclusive(lock, lambda: None):
        assert is_held(lock)
    assert not is_held(lock)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGODA_DEVCLUSTER_HOME", str(tmp_path))
    monkeypatch.setattr(native.network, "remove_link", lambda _: False)
    monkeypatch.setattr(maintenance, "current_binaries", lambda settings: settings.binaries / "current")
    for folder in ("current", "old"):
        (tmp_path / "bin" / folder).mkdir(parents=True)
    return tmp_path


def made(home: Path, name: str, binaries: str = "current") -> ClusterSpec:
    spec = ClusterSpec(name, 0, Nodes.CONTROL_PLANE, home / "clusters" / name, home / "bin" / binaries)
    spec.paths.logs.mkdir(parents=True)
    spec.paths.state.write_text(to_json(spec))
    return spec


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["pagoda-devcluster", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


def test_a_cluster_with_a_live_process_stays_and_a_dead_one_goes(home, monkeypatch, capsys):
    lives, dead = made(home, "p-lives"), made(home, "p-dead")
    argv = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, env=environment(str(lives.root), "etcd")) as process:
        assert run(monkeypatch, "prune", "--dry-run") == 0
        assert dead.root.exists()
        assert "would remove cluster p-dead" in capsys.readouterr().out
        assert run(monkeypatch, "prune") == 0
        process.kill()
    assert "p-lives" not in capsys.readouterr().out
    assert sorted(path.name for path in home.rglob("*") if path.is_dir() and path.parent.name in ("bin", "clusters")) == [
        "current",
        "p-lives",
    ]


def test_what_somebody_took_into_use_since_is_left_alone_and_not_said_to_be_gone(home, monkeypatch, capsys):
    """Between the look and the removal a cluster came up from the old binaries."""
    made(home, "p-back")
    down_if_dead = providers.down_if_dead

    def started(settings: Settings, name: str, console: Console) -> list[str]:
        spec = made(home, "p-new", "old")
        with subprocess.Popen(["sleep", "60"], env=environment(str(spec.root), "etcd")) as process:
            try:
                assert down_if_dead(settings, "p-new", console) == []
            finally:
                process.kill()
        return []

    monkeypatch.setattr(providers, "down_if_dead", started)
    assert run(monkeypatch, "prune") == 0
    assert "removed" not in capsys.readouterr().out
    assert (home / "bin" / "old").is_dir()


def test_binaries_are_not_taken_from_under_a_build(home):
    settings, waited, done = Settings(home, is_root=False), threading.Event(), threading.Event()
    console = Console(file=Noticing(waited))

    def pruned() -> None:
        remove(settings, Prunable((), (home / "bin" / "old",)), console)
        done.set()

    thread = threading.Thread(target=pruned)
    with build.alone(settings.binaries, console):
        thread.start()
        assert waited.wait(60)
        assert (home / "bin" / "old").is_dir()
    assert done.wait(60)
    thread.join()
    assert not (home / "bin" / "old").exists()


class Noticing(io.StringIO):
    """A console that tells when something was said."""

    def __init__(self, said: threading.Event) -> None:
        super().__init__()
        self._said = said

    def write(self, text: str) -> int:
        self._said.set()
        return super().write(text)


def test_nothing_to_prune_is_said(home, monkeypatch, capsys):
    (home / "bin" / "old").rmdir()
    assert run(monkeypatch, "prune") == 0
    assert capsys.readouterr().out == "nothing to prune\n"


def test_logs_of_a_dead_cluster_are_still_read(home, monkeypatch, capsys):
    spec = made(home, "p-dead")
    spec.paths.log("etcd").write_text("one\ntwo\nthree\n")
    assert run(monkeypatch, "logs", "etcd", "-n", "2", "--name", "p-dead") == 0
    assert capsys.readouterr().out == "two\nthree\n"
    spec.paths.log("kube-scheduler").write_text("fine\nE1121 cannot bind\nfine\n")
    assert run(monkeypatch, "logs", "--name", "p-dead") == 0
    assert "  E1121 cannot bind\n" in capsys.readouterr().out


def test_a_process_that_is_none_is_refused_with_those_that_are(home, monkeypatch, capsys):
    made(home, "p-dead")
    assert run(monkeypatch, "logs", "kubelet", "--name", "p-dead") == 2
    assert "Its processes are etcd, kube-apiserver" in capsys.readouterr().err
    assert run(monkeypatch, "logs", "etcd", "--name", "p-dead") == 3
    assert "has not been started" in capsys.readouterr().err
