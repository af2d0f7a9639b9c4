"""One process of a test's own control plane: killed, stopped, started again as it was; and its store, compacted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from pagoda_devcluster.machine.processes import end_all, marked
from support.kube.client import Kube, eventually
from support.kube.cluster import Cluster

API_SERVER, STORE = "kube-apiserver", "etcd"
# Who watches too, and is started again with a restored store, as its manual says.
WATCHERS = ("kube-controller-manager", "kube-scheduler", "fake-kubelet")
_PROC = Path("/proc")


class Part:
    """`name`: the process's, as its cluster calls it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._name = cluster, name
        proc = _PROC / str(self.pid)
        self.argv = (proc / "cmdline").read_text().rstrip("\0").split("\0")
        self._environment = dict(line.split("=", 1) for line in (proc / "environ").read_text().rstrip("\0").split("\0"))
        self._folder, self._log = (proc / "cwd").readlink(), (proc / "fd/1").readlink()

    @property
    def pid(self) -> int:
        (found,) = [one.pid for folder, one in marked() if Path(folder).name == self._cluster.name and one.name == self._name]
        return found

    def option(self, name: str) -> str:
        """What it was started with."""
        (value,) = [word.partition("=")[2] for word in self.argv if word.startswith(f"--{name}=")]
        return value

    def kill(self) -> None:
        """Until its last thread has ended: a killed process is a zombie before, whose port is taken (32 of 40 times, on busy cores)."""
        left = end_all([self.pid], seconds=300)
        assert not left, f"{self._name} does not end"

    def start(self) -> None:
        """As before. Not a child of this process, which would have to wait for it."""
        with self._log.open("ab") as log:
            argv = ["setsid", "--fork", *self.argv]
            subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, env=self._environment)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


@contextmanager
def away(server: Part, kube: Kube) -> Iterator[None]:
    """The API server is killed, and afterwards there again and ready."""
    server.kill()
    try:
        yield
    finally:
        server.start()
        eventually(kube.ready, "the API server is back")


def copied(cluster: Cluster, folder: Path) -> Path:
    """The store as a snapshot of its disk would have it, taken while it stands still."""
    store = Part(cluster, STORE)
    with store.stopped():
        return Path(shutil.copytree(store.option("data-dir"), folder / "store"))


def restore(cluster: Cluster, kube: Kube, copy: Path) -> None:
    """The store goes on from that copy: its versions go back."""
    store, server, watchers = Part(cluster, STORE), Part(cluster, API_SERVER), [Part(cluster, name) for name in WATCHERS]
    for part in (*watchers, server, store):
        part.kill()
    shutil.rmtree(store.option("data-dir"))
    shutil.copytree(copy, store.option("data-dir"))
    store.start()
    server.start()
    eventually(kube.ready, "the API server is back")
    for part in watchers:
        part.start()


def compact(server: Part, version: int) -> None:
    """The store forgets all that was before a version: who asks for it is told 410."""
    files = (server.option(f"etcd-{name}") for name in ("cafile", "keyfile", "certfile"))
    credentials = grpc.ssl_channel_credentials(*(Path(file).read_bytes() for file in files))
    with grpc.secure_channel(server.option("etcd-servers").removeprefix("https://"), credentials) as channel:
        ask = channel.unary_unary("/etcdserverpb.KV/Compact", request_serializer=lambda number: b"\x08" + _varint(number) + b"\x10\x01")
        ask(version, timeout=300, wait_for_ready=True)


def _varint(number: int) -> bytes:
    rest, low = number >> 7, number & 127
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])
