"""Processes are found by their mark and by nothing else, and are gone when `end_all` returns."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pagoda_devcluster.cluster import waiting
from pagoda_devcluster.cluster.process import Process, environment
from pagoda_devcluster.machine import processes
from pagoda_devcluster.machine.processes import Running, leader


@pytest.fixture
def sleeper(tmp_path: Path):
    with subprocess.Popen(["sleep", "60"], env=environment(str(tmp_path), "etcd")) as process:
        yield process
        process.kill()


def test_a_process_is_found_by_its_mark_and_ended(sleeper, tmp_path: Path):
    assert processes.of_cluster(tmp_path) == [Running(sleeper.pid, "etcd", "sleep")]
    assert processes.of_cluster(tmp_path / "other") == []
    assert processes.end_all([sleeper.pid]) == []
    # Not reaped by its parent yet, and still not counted as running.
    assert processes.of_cluster(tmp_path) == []
    assert not processes.alive(sleeper.pid)


def test_a_process_in_the_middle_of_its_execve_is_not_overlooked(tmp_path: Path):
    """Its parent goes on before it has its environment: without waiting for that a third of these are not seen."""
    for _ in range(200):
        with subprocess.Popen(["sleep", "60"], env=environment(str(tmp_path), "etcd")) as process:
            try:
                assert processes.environment_of(Path("/proc", str(process.pid))) != b""
            finally:
                process.kill()


def test_a_process_without_a_program_or_an_environment_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(processes, "EXEC_SECONDS", 1e9)
    for file in ("environ", "cmdline"):  # what older kernels show of their own threads and of who has ended
        (tmp_path / file).touch()
    assert processes.environment_of(tmp_path) == b""
    (tmp_path / "exe").symlink_to("/bin/sleep")
    (tmp_path / "cmdline").write_bytes(b"sleep\x0060\x00")
    assert processes.environment_of(tmp_path) == b""


def test_ending_what_has_ended_is_no_error(sleeper):
    processes.end_all([sleeper.pid])
    sleeper.wait()
    assert processes.end_all([sleeper.pid]) == []


def first_child(pid: int) -> int:
    """Once it has one."""

    def children() -> list[str]:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    assert waiting.until(lambda: bool(children()), 20)
    return int(children()[0])


@pytest.fixture
def started() -> Iterator[Callable[..., int]]:
    begun: list[subprocess.Popen[bytes]] = []

    def start(*argv: str) -> int:
        begun.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL))
        return begun[-1].pid

    yield start
    for process in reversed(begun):
        process.kill()
        process.wait()


@pytest.mark.deep
@pytest.mark.skipif(
    subprocess.run(["unshare", "--user", "--map-root-user", "true"], capture_output=True, check=False).returncode != 0,
    reason="no user namespaces here",
)
def test_a_node_ends_though_what_entered_it_is_stopped(started):
    """The kernel ends process 1 only when the parents of all inside have asked for them; an nsenter stops as soon as its child does, and
    nobody tells it to go on when the child does."""
    outside = started("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "sleep", "60")
    init = first_child(outside)
    entered = started("nsenter", "--target", str(init), "--user", "--pid", "--preserve-credentials", "sleep", "60")
    kubelet = first_child(entered)
    os.kill(kubelet, signal.SIGSTOP)
    assert waiting.until(lambda: processes.state_of(Path(f"/proc/{entered}")) == "T", 20)
    os.kill(kubelet, signal.SIGCONT)
    assert processes.end_all([outside, init, entered, kubelet], 20) == []


def test_a_command_name_full_of_parentheses_does_not_hide_the_state(tmp_path: Path):
    (tmp_path / "stat").write_text("7 (a) S (b)) Z 1 2 3")
    assert processes.state_of(tmp_path) == "Z"


def test_an_environment_is_taken_apart_at_the_first_equals_sign():
    assert processes.parse_environment(b"A=1=2\0B=\0\0") == {"A": "1=2", "B": ""}


def test_what_inherited_a_mark_does_not_stand_for_the_process():
    """A shim has containerd's environment and outlives it."""
    containerd = Process("containerd", ["containerd"], inside=True)
    shim, entered = Running(5, "containerd", "containerd-shim"), Running(4, "containerd", "nsenter")
    assert leader([shim], containerd) is None
    assert leader([shim, entered], containerd) == 4


def test_a_long_command_name_is_found_though_the_kernel_cuts_it():
    manager = Process("kube-controller-manager", ["/b/kube-controller-manager"])
    assert leader([Running(9, "kube-controller-manager", "kube-controller")], manager) == 9


def test_of_a_log_the_last_complaints_are_shown():
    log = "E1121 11:36:01 first\nE1121 11:36:02 second\nE1121 11:36:03 third\nI1121 11:36:04 goodbye"
    assert processes.last_lines(log) == "E1121 11:36:02 second | E1121 11:36:03 third"
    assert processes.last_lines("one\ntwo\nthree") == "two | three"
    assert processes.last_lines("") == ""


def test_nothing_of_the_callers_environment_is_inherited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTPS_PROXY", "x")
    argv = [sys.executable, "-c", "import os; print('HTTPS_PROXY' in os.environ)"]
    done = subprocess.run(argv, env=environment("/c", "x"), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
