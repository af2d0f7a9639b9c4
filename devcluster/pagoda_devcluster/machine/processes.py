"""Starts, finds and ends a cluster's processes. They are found by the mark in their environment, so that no crash can lose one."""

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from pagoda_devcluster.cluster.errors import StartError
from pagoda_devcluster.cluster.process import CLUSTER_MARK, PROCESS_MARK, Process, environment
from pagoda_devcluster.cluster.spec import ClusterSpec

PROC = Path("/proc")
LOG_LINES = 2
# The process that is waited for is in an execve, which a slow disk or a busy machine may hold up for seconds.
EXEC_SECONDS = 5.0
COMPLAINT = re.compile(r'^[EF]\d{4} |level=(error|fatal)|"level":"(error|fatal)"|^(panic|Error):')


@dataclass(frozen=True)
class Running:
    """A live process that carries a mark."""

    pid: int
    name: str
    command: str


def spawn(spec: ClusterSpec, process: Process, init: int | None = None) -> int:
    """Start detached, its output in the cluster's logs."""
    argv = [*enter(init), *process.argv] if process.inside and init else process.argv
    with spec.paths.log(process.name).open("ab") as log:
        started = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=spec.root,
            env=environment(str(spec.root), process.name),
        )
    return started.pid


def enter(init: int) -> list[str]:
    return ["nsenter", "--target", str(init), "--net", "--mount", "--pid"]


def inside(spec: ClusterSpec, init: int, argv: list[str], stdin: Path | None = None) -> str:
    """Run a short command in the node and return its output; nothing of it stays."""
    with ExitStack() as stack:
        source = stack.enter_context(stdin.open("rb")) if stdin else subprocess.DEVNULL
        done = subprocess.run(
            [*enter(init), *argv],
            stdin=source,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env=environment(str(spec.root), "command"),
        )
    if done.returncode:
        raise StartError(f"{' '.join(argv[:4])} failed in the node: {last_lines(done.stderr)}")
    return done.stdout


def of_cluster(root: Path) -> list[Running]:
    return [running for cluster, running in marked() if cluster == str(root)]


def marked() -> Iterator[tuple[str, Running]]:
    """Every live process with a mark, and the cluster folder it names."""
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        # A process may end between two reads; then it is not running.
        with suppress(OSError):
            marks = parse_environment(environment_of(folder))
            if CLUSTER_MARK in marks and state_of(folder) not in "ZX":
                command = (folder / "comm").read_text().strip()
                yield marks[CLUSTER_MARK], Running(int(folder.name), marks.get(PROCESS_MARK, ""), command)


def environment_of(folder: Path) -> bytes:
    """What it was started with. A process in the middle of an execve has neither environment nor arguments, and it is so already when its
    parent knows that the execve will succeed: looked at right after Popen, 1,087 of 3,000 had none yet."""
    deadline = time.monotonic() + EXEC_SECONDS
    while not (found := (folder / "environ").read_bytes()) and time.monotonic() < deadline:
        if not in_execve(folder):
            return (folder / "environ").read_bytes()  # it may have ended between the two looks
        time.sleep(0.001)
    return found


def in_execve(folder: Path) -> bool:
    """Or a program that removed its own arguments. The kernel's threads and processes that have ended run no program."""
    try:
        (folder / "exe").readlink()
    except FileNotFoundError:
        return False
    return not (folder / "cmdline").read_bytes()


def alive(pid: int) -> bool:
    try:
        return state_of(PROC / str(pid)) not in "ZX"
    except OSError:
        return False


def parse_environment(raw: bytes) -> dict[str, str]:
    pairs = (entry.decode(errors="replace").partition("=") for entry in raw.split(b"\0") if entry)
    return {key: value for key, _, value in pairs}


def state_of(folder: Path) -> str:
    """R, S, D, Z, …; the command name before it may hold any character, parentheses included."""
    return (folder / "stat").read_text().rpartition(")")[2].split()[0]


def leader(running: Iterable[Running], process: Process) -> int | None:
    """The process that stands for `process`: what we spawned, not what inherited its environment (containerd's shims do)."""
    command = "nsenter" if process.inside else Path(process.argv[0]).name[:15]
    return next((one.pid for one in running if one.name == process.name and one.command == command), None)


def init_of(running: Iterable[Running]) -> int | None:
    """Process 1 of the node, by its number outside."""
    return next((one.pid for one in running if one.name == "node-init" and one.command == "pause"), None)


def end_all(pids: Iterable[int], seconds: float = 20) -> list[int]:
    """Kill all, in their order, then wait for the end of each. Returns the processes that are left: those stuck in the kernel.

    Not one after the other: process 1 of a namespace ends only once the parents of those inside have asked for them, and a parent that
    is stopped (an nsenter stops with its child) asks for nothing until it is killed itself.
    """
    deadline = time.monotonic() + seconds
    with ExitStack() as stack:
        descriptors: dict[int, int] = {}
        for pid in pids:
            with suppress(ProcessLookupError):
                descriptors[pid] = os.pidfd_open(pid)
                stack.callback(os.close, descriptors[pid])
                signal.pidfd_send_signal(descriptors[pid], signal.SIGKILL)
        return [pid for pid, descriptor in descriptors.items() if not _ended(descriptor, deadline - time.monotonic())]


def _ended(descriptor: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(max(0.0, seconds) * 1000))


def log_tail(spec: ClusterSpec, process: str) -> str:
    log = spec.paths.log(process)
    return last_lines(log.read_text(errors="replace")) if log.exists() else "no log"


def last_lines(text: str) -> str:
    """The last that complain, in the four log formats of a cluster's processes; else just the last."""
    lines = text.strip().splitlines()
    return " | ".join(([line for line in lines if COMPLAINT.search(line)] or lines)[-LOG_LINES:])
