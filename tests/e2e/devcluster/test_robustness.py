"""Whatever goes wrong, there is one line that says what to do, and `down` (or `up` itself) leaves nothing. Every test starts its own."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from pagoda_devcluster.binaries import recipe
from pagoda_devcluster.cluster import waiting
from pagoda_devcluster.cluster.errors import EXIT_STOPPED
from pagoda_devcluster.cluster.spec import Addresses, preferred_slots
from pagoda_devcluster.machine import network, slots
from support.kube import cluster as support
from support.kube.machine_leftovers import HOME, alive, in_namespaces_of, inventory, marked, tool, up_command

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(os.geteuid() != 0, reason="a kubelet node needs root")]
FULL = (pytest.mark.sweep, pytest.mark.full)

# As `up` announces them, each before it begins.
PHASES = ("files and keys", "namespaces and link", "etcd and API server", "controllers", "node")
BASE_PHASES = ("files and keys", "etcd and API server", "controllers")
ANNOUNCED = {"control-plane": BASE_PHASES, "kubelet": PHASES, "fake:2 --serve": (*BASE_PHASES, "fake nodes")}
CONTROL_PLANE = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
GPUS = recipe.of_checkout().folder / "layouts" / "h100-mixed.yaml"


def complaint(stderr: str) -> str:
    """The one line of an error; what comes before it is progress."""
    lines = stderr.splitlines()
    assert [line for line in lines if line.startswith("pagoda-devcluster: ")] == lines[-1:], stderr
    assert "Traceback" not in stderr
    return lines[-1]


def phase_of(line: str) -> str:
    return line.strip().removesuffix(" …") if line.rstrip().endswith("…") else ""


@contextmanager
def starting(name: str, *argv: str, home: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """`up` in a session of its own, as in a terminal, where Ctrl-C reaches what it runs as well."""
    env = os.environ | ({"PAGODA_DEVCLUSTER_HOME": str(home)} if home else {})
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A shell has what it runs in the background ignore Ctrl-C, and that is inherited: tests may well run there, a terminal's `up` not.
    command = ["env", "--default-signal=INT", *up_command(name, *argv)]
    with subprocess.Popen(command, start_new_session=True, env=env, **pipes) as process:
        yield process
        process.kill()


def read_until(process: subprocess.Popen[str], phase: str) -> None:
    assert process.stderr
    assert any(phase_of(line) == phase for line in process.stderr), f"never announced: {phase}"


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_in_any_phase_leaves_nothing(name: str, phase: str):
    before = inventory(name)
    with starting(name) as process:
        read_until(process, phase)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert process.returncode == EXIT_STOPPED
    assert out == ""
    assert "stopped, and what had begun" in complaint(err)
    assert inventory(name) == before


def test_ctrl_c_while_fake_nodes_start_takes_their_route_away_too(name: str):
    before = inventory(name)
    with starting(name, "--nodes", "fake:2", "--serve") as process:
        read_until(process, "fake nodes")
        slot = json.loads((HOME / "clusters" / name / "cluster.json").read_text())["slot"]
        assert waiting.until(lambda: slots.conflicts(Addresses(slot), network.occupied()), 300)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert process.returncode == EXIT_STOPPED, err
    assert not slots.conflicts(Addresses(slot), network.occupied())
    assert inventory(name) == before


def test_a_second_ctrl_c_stops_the_removal_and_down_ends_it(name: str):
    with starting(name) as process:
        read_until(process, "node")
        os.killpg(process.pid, signal.SIGINT)
        read_until(process, f"removing what had begun of {name}")
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert process.returncode == EXIT_STOPPED
    # Whether the second one came in time is the machine's affair; that nothing is left after `down` is the fixture's.
    assert complaint(err).startswith("pagoda-devcluster: stopped")


def processes_of(name: str) -> dict[str, int | None]:
    return {one["name"]: one["pid"] for one in json.loads(tool("status", "--json", "--name", name).stdout)["processes"]}


def kill_process(pid: int) -> None:
    """What does the work: below an nsenter or an unshare that is its first child, and a kill of 1 ends a whole node."""
    with suppress(OSError, IndexError):
        if Path(f"/proc/{pid}/comm").read_text().strip() in ("nsenter", "unshare"):
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("nodes", "rounds"),
    [
        ("control-plane", [("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")]),
        pytest.param("kubelet", [("coredns", "kube-proxy", "kubelet", "containerd"), ("node-init",)], marks=FULL),
        pytest.param("fake:2 --serve", [("fake-kubelet", "fronts")], marks=FULL),
    ],
)
def test_every_process_that_is_killed_is_named_and_up_restores_it(name: str, nodes: str, rounds: list[tuple[str, ...]]):
    """Those of a round one after the other, then one `up`: 10 s for each process on its own would be two minutes more."""
    how = ["--name", name, "--nodes", *nodes.split()]
    up = tool("up", *how)
    assert tuple(filter(None, map(phase_of, up.stderr.splitlines()))) == ANNOUNCED[nodes]
    # So that a process that is added one day is killed here too.
    beside = set() if nodes == "control-plane" else CONTROL_PLANE
    assert {victim for victims in rounds for victim in victims} == set(processes_of(name)) - beside
    for victims in rounds:
        for victim in victims:
            pid = processes_of(name)[victim]
            assert pid, f"{victim} ended before it was killed"
            kill_process(pid)
            assert waiting.until(lambda victim=victim: victim in missed(name), 300), f"{victim} is not missed"
        again = tool("up", *how)
        assert again.returncode == 0, again.stderr
        assert all(victim in again.stderr.splitlines()[0] for victim in victims), again.stderr
        assert tool("status", "--name", name).returncode == 0


def missed(name: str) -> str:
    """What the first line of `status` says of a cluster that is down."""
    said = tool("status", "--name", name)
    return said.stdout.splitlines()[0] if said.returncode == 3 else ""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A home on a file system of its own, of so many MiB; the binaries stay where they are."""
    home = tmp_path / "small"
    home.mkdir()

    def mount(mebibytes: int) -> Path:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(home)], check=True)
        (home / "bin").symlink_to(HOME / "bin")
        return home

    yield mount
    subprocess.run(["umount", str(home)], check=False)
    assert not os.path.ismount(home)


def test_a_disk_with_too_little_room_is_refused_before_anything_starts(small_disk):
    home = small_disk(8)
    refused = tool("up", "--name", "rob-small", "--nodes", "control-plane", home=home)
    assert refused.returncode == 4
    assert "MiB are free" in complaint(refused.stderr)
    assert "set PAGODA_DEVCLUSTER_HOME" in complaint(refused.stderr)
    assert tool("down", "--name", "rob-small", home=home).returncode == 0
    assert list((home / "clusters").iterdir()) == []


def test_a_disk_that_fills_while_a_cluster_starts_is_named_and_down_cleans(small_disk):
    home = small_disk(300)
    with starting("rob-full", "--nodes", "control-plane", home=home) as process:
        read_until(process, PHASES[0])
        # It stands still meanwhile: to write 300 MiB takes a busy machine longer than the store takes to have its files.
        os.killpg(process.pid, signal.SIGSTOP)
        fill(home / "filler")
        os.killpg(process.pid, signal.SIGCONT)
        _, err = process.communicate(timeout=300)
    assert process.returncode in (1, 5)
    assert f"the disk of {home} is full: free some, or set PAGODA_DEVCLUSTER_HOME" in complaint(err)
    # Also while the disk is still full.
    assert tool("down", "--name", "rob-full", home=home).returncode == 0
    assert list((home / "clusters").iterdir()) == []
    assert str(home) not in "".join(environments())


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as target, suppress(OSError):
        while True:
            target.write(bytes(1 << 20))


def environments() -> Iterator[str]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield (folder / "environ").read_text(errors="replace") if folder.name != str(os.getpid()) else ""


# In a network of its own: on the machine's, another cluster's listeners would not let this one listen on every address.
TAKEN = """
import socket, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
with socket.create_server(("0.0.0.0", int(sys.argv[1]))):
    sys.exit(subprocess.run(sys.argv[2:]).returncode)
"""


def test_a_port_that_another_program_has_on_every_address_is_named(name: str):
    argv = ["unshare", "--net", sys.executable, "-c", TAKEN, "10259", *up_command(name, "--nodes", "control-plane")]
    refused = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    assert refused.returncode == 5
    assert "port 10259 is in use on every address" in complaint(refused.stderr)
    assert "'sport = :10259'" in complaint(refused.stderr)
    assert marked(name) == []


def test_a_port_that_is_taken_on_one_address_moves_the_cluster_to_another(name: str):
    first = str(Addresses(preferred_slots(name)[0]).loopback)
    with ExitStack() as stack:
        # Another cluster may have it already; then it is taken all the same.
        with suppress(OSError):
            stack.enter_context(socket.create_server((first, 10259)))
        assert tool("up", "--name", name, "--nodes", "control-plane").returncode == 0
        assert first not in json.loads(tool("status", "--json", "--name", name).stdout)["server"]


@pytest.mark.parametrize(("package", "file"), [("runc", "/usr/sbin/runc"), ("containernetworking-plugins", "/usr/lib/cni")])
def test_a_missing_package_is_named_with_the_line_that_installs_it(name: str, package: str, file: str):
    """Hidden in a mount namespace of its own: the machine keeps it."""
    hide = f"mount --bind /dev/null {file}" if Path(file).is_file() else f"mount -t tmpfs tmpfs {file}"
    argv = ["unshare", "--mount", "sh", "-ec", f'{hide}; exec "$@"', "sh", *up_command(name)]
    refused = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    assert refused.returncode == 4
    assert f"missing Debian packages: {package}. Run `apt-get install " in complaint(refused.stderr)
    assert not list((HOME / "clusters").glob(f"{name}*"))


# A user namespace: somebody who owns these files and has no right beyond that.
SOMEBODY = ["unshare", "--user"]


def test_without_root_a_node_is_refused_and_a_control_plane_runs(name: str):
    refused = subprocess.run([*SOMEBODY, *up_command(name)], capture_output=True, text=True, check=False, timeout=300)
    assert refused.returncode == 4
    assert "needs root: use sudo, or --nodes control-plane" in complaint(refused.stderr)
    own = [support.devcluster(), "status", "--name", name]
    up = up_command(name, "--nodes", "control-plane")
    script = f'"$@" && {" ".join(own)} && {support.devcluster()} down --name {name}'
    done = subprocess.run([*SOMEBODY, "sh", "-c", script, "sh", *up], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert f"{name}: up" in done.stdout
    assert f"{name}: removed 4 processes, files" in done.stdout


def test_down_leaves_no_process_of_the_node_no_route_and_no_namespace(name: str, archives, new_namespace):
    """The pods' processes too, which carry no mark; and with GPUs, whose plugin is one process more."""
    assert tool("up", "--name", name, "--gpu-layout", str(GPUS)).returncode == 0
    running = support.existing(name, "kubelet")
    running.tool("load-image", str(archives.docker("pagoda-probe:1")))
    new_namespace(running).server("web")
    spec = json.loads((Path(running.status["folder"]) / "cluster.json").read_text())
    unshare = processes_of(name)["node-init"]
    init = int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()[0])
    inside = in_namespaces_of(init)
    assert len(inside) > 8
    assert slots.conflicts(Addresses(spec["slot"]), network.occupied())
    assert tool("down", "--name", name).returncode == 0
    assert inside & alive() == set()
    assert not slots.conflicts(Addresses(spec["slot"]), network.occupied())
