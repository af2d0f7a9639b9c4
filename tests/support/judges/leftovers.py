"""What replicas leave behind: processes, files and sockets of their run directory, listeners, shared memory."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

from support.servers.replica import PATIENCE_S, Replica


def held_by_nobody() -> set[str]:
    """Shared memory that no process has mapped: others test here too, and theirs is in use."""
    names = set(map(str, Path("/dev/shm").iterdir()))  # noqa: S108  it is the place that is looked at
    used: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            used |= {name for name in names if name in maps.read_text()}
        except OSError:
            continue
    return names - used


async def gives_back_all_but(before: set[str]) -> None:
    """Looked at until it holds: what others make or remove while all processes are looked at seems to be nobody's."""
    deadline = time.monotonic() + PATIENCE_S
    while left := await asyncio.to_thread(held_by_nobody) - before:
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.1)


def processes_of(run_dir: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(run_dir) in line and int(process.name) != os.getpid():
            found.append(process.name)
    return found


def sockets_of(run_dir: Path) -> list[str]:
    """Bound below it, whether or not their file is still there."""
    return [line for line in Path("/proc/net/unix").read_text().splitlines() if str(run_dir) in line]


def listens(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as client:
        client.settimeout(10)
        return client.connect_ex((host, int(port))) == 0


async def ends_clean(replica: Replica, *codes: int) -> None:
    """With one of the codes, which is 0 where none is given, and nothing is left. Whom the kernel ends with its parent it ends a moment
    after it, and with him his sockets."""
    assert await asyncio.to_thread(replica.wait) in (codes or (0,))
    deadline = time.monotonic() + PATIENCE_S
    while left := processes_of(replica.run_dir) + sockets_of(replica.run_dir):
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.05)
    assert sorted(path.name for path in replica.run_dir.iterdir()) == ["daemon.json"]
    assert not any(listens(address) for address in (replica.http, replica.grpc, replica.probes) if address)
