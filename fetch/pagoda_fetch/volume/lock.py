"""One download at a time per address, over every pod that shares the volume; a dead holder's lock is taken over.

A lock is a file `<name>.<generation>`; the highest generation holds. Made with O_EXCL, so one taker wins; rewritten every few seconds, so
that a silent holder is a dead one, judged by the waiter's own clock (clocks of nodes differ). A holder that was frozen and comes back
sees the higher generation, or that it has not signed for too long, and stops before it writes. Not flock: half of the network
file systems do not carry it between nodes.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from pagoda_fetch.core.errors import LockLost
from pagoda_fetch.core.limits import Limits

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_PROCESSES: Final = Path("/proc/self/ns/pid")


class Holder(NamedTuple):
    """Who holds: the pod (its uid; empty outside of one), the machine's processes, the process."""

    pod: str
    machine: str
    pid: int


def myself(pod: str) -> Holder:
    """This process."""
    try:
        machine = f"{_BOOT.read_text().strip()} {_PROCESSES.readlink()}"
    except OSError:
        machine = ""
    return Holder(pod, machine, os.getpid())


def surely_dead(other: Holder, me: Holder) -> bool:
    """Whether a holder cannot be alive: a process of ours that is gone, or an earlier container of this very pod."""
    if other.machine and other.machine == me.machine:
        return not Path(f"/proc/{other.pid}").exists()
    return bool(other.pod) and other.pod == me.pod


class OwnedLock:
    """A lock that is ours, until it is not."""

    def __init__(self, path: Path, me: Holder, limits: Limits) -> None:
        self._path, self._me, self._limits = path, me, limits
        self._beats = 0
        self._signed = time.monotonic()
        self._lost = False

    def check(self) -> None:
        """LockLost where another may hold it by now."""
        if self._lost or time.monotonic() - self._signed > self._limits.dead_after / 2:
            raise LockLost("another pod has taken over this download")

    def sign(self) -> None:
        """Signs that we live, unless another process took over."""
        newest = _newest(self._path.parent, self._path.stem)
        if newest != self._path:
            self._lost = True
            return
        self._beats += 1
        with suppress(OSError):  # a full disk: check() reports it when it lasts
            _sign(self._path, json.dumps([*self._me, self._beats]))
            self._signed = time.monotonic()

    async def beat(self) -> None:
        """Signs until cancelled."""
        while not self._lost:
            await asyncio.sleep(self._limits.beat)
            await asyncio.to_thread(self.sign)

    def release(self) -> None:
        """Lets the next one in."""
        if not self._lost:
            self._path.unlink(missing_ok=True)


@asynccontextmanager
async def locked(folder: Path, name: str, me: Holder, limits: Limits, waiting: Callable[[], None]) -> AsyncIterator[OwnedLock]:
    """Owns the lock; `waiting` is called while another process does."""
    lock = OwnedLock(await _acquire(folder, name, me, limits, waiting), me, limits)
    lock.sign()
    beat = asyncio.create_task(lock.beat())
    try:
        yield lock
    finally:
        beat.cancel()
        with suppress(asyncio.CancelledError, OSError):  # a volume that is gone: check() has size_text by then
            await beat
        lock.release()


async def _acquire(folder: Path, name: str, me: Holder, limits: Limits, waiting: Callable[[], None]) -> Path:
    seen: tuple[Path | None, str] | None = None
    since = time.monotonic()
    while True:
        newest = _newest(folder, name)
        text = _text(newest)
        if (newest, text) != seen:
            seen, since = (newest, text), time.monotonic()
        if newest is None or _gone(text, me) or time.monotonic() - since > limits.dead_after:
            if (mine := _take(folder, name, newest, me)) is not None:
                return mine
            continue
        waiting()
        await asyncio.sleep(min(limits.beat, 1.0))


def _take(folder: Path, name: str, newest: Path | None, me: Holder) -> Path | None:
    """The next generation, if no other process was faster; the ones before it are removed."""
    mine = folder / f"{name}.{_generation(newest) + 1}"
    try:
        handle = os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return None
    with os.fdopen(handle, "w") as stream:
        stream.write(json.dumps([*me, 0]))
    for old in folder.glob(f"{name}.*"):
        if _generation(old) < _generation(mine):
            old.unlink(missing_ok=True)
    return mine


def _sign(path: Path, text: str) -> None:
    """Writes what is there and makes nothing: a beat may still run, on its thread, when the lock was given back or taken over. A file
    made then would hold everybody else up until it is taken for dead."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_TRUNC), "w") as stream:
        stream.write(text)


def _newest(folder: Path, name: str) -> Path | None:
    return max(folder.glob(f"{name}.*"), key=_generation, default=None)


def _generation(path: Path | None) -> int:
    tail = path.suffix.removeprefix(".") if path is not None else ""
    return int(tail) if tail.isdecimal() else 0


def _text(path: Path | None) -> str:
    try:
        return path.read_text() if path is not None else ""
    except OSError:
        return ""


def _gone(text: str, me: Holder) -> bool:
    """Whether what a lock says names a holder that is surely dead. One that is half written names no owner: it is waited for."""
    try:
        pod, machine, pid, _ = json.loads(text)
        return surely_dead(Holder(str(pod), str(machine), int(pid)), me)
    except (ValueError, TypeError):
        return False
