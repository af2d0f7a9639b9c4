"""Programs of Pagoda as forks of a process that has imported them: processes of their own, without the 2 s of CPU that imports take.

Each worker of `--fork` has a spawner, which is forked before the first test, while the worker has one thread. A test's variant of a program
(`gateway_under_test.py`) changes modules before others read them, so its package is imported anew; what the package imports is there.
Without `--fork`, and if a test measures memory, a program is started as anywhere else.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import logging
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any, NamedTuple

from _pytest.assertion.rewrite import AssertionRewritingHook

# What a program's process imports after its arguments are read.
_IMPORTS = {
    "pagoda_daemon": "pagoda_daemon.api.front.process",
    "pagoda_gateway": "pagoda_gateway.serve.process",
    "pagoda_operator": "pagoda_operator.serve.process",
}
_MOST = 2**17  # bytes of an order: a program's words and its environment
_running: list[Spawner] = []  # at most one


class _Order(NamedTuple):
    package: str
    words: list[str]  # what follows `python -P`
    environment: dict[str, str]


class Fork:
    """What tests ask of a Popen."""

    returncode: int | None = None

    def __init__(self, pid: int, status: int, stdout: IO[str] | None, stderr: IO[str] | None) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr
        self._status, self._lock = os.fdopen(status, "rb"), threading.Lock()

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code."""
        if not self._status.closed and not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        with self._lock:
            if self.returncode is None:
                self.returncode = int(self._status.read())
                self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process = subprocess.Popen[str] | Fork


def start(
    package: str, words: Sequence[str], environment: dict[str, str], stdout: int | None = None, stderr: int | None = None, fork: bool = True
) -> Process:
    """`python -P WORDS`, a program of this package, with text in its pipes."""
    if _running and fork:
        return _running[0].start(_Order(package, [*words], environment), stdout, stderr)
    return subprocess.Popen([sys.executable, "-P", *words], stdout=stdout, stderr=stderr, text=True, env=environment)


def begin() -> None:
    """From now on this process's programs are forks."""
    _running[:] = [Spawner()]


def end() -> None:
    """Its programs end, and what they used counts as this process's."""
    _running.pop().close()


class Spawner:
    """The end of who orders."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wire, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._wire.close()
                _serve(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def close(self) -> None:
        self._wire.close()
        os.waitpid(self._pid, 0)

    def start(self, order: _Order, stdout: int | None, stderr: int | None) -> Fork:
        output, told = _opened(stdout, 1)
        errors, shown = (None, os.dup(told)) if stderr == subprocess.STDOUT else _opened(stderr, 2)
        status, ended = os.pipe()
        with self._lock:
            socket.send_fds(self._wire, [pickle.dumps(order)], [told, shown, ended])
            pid = int(self._wire.recv(100))
        for descriptor in (told, shown, ended):
            os.close(descriptor)
        return Fork(pid, status, output, errors)


def _opened(wanted: int | None, own: int) -> tuple[IO[str] | None, int]:
    """What the test reads, and what the program writes to. `wanted`: as a Popen takes it."""
    if wanted == subprocess.PIPE:
        read, write = os.pipe()
        return os.fdopen(read), write
    return None, os.open(os.devnull, os.O_WRONLY) if wanted == subprocess.DEVNULL else os.dup(own if wanted is None else wanted)


# The spawner


def _serve(wire: socket.socket) -> None:
    """Forks what is ordered, and tells how it ended, until the worker is no more."""
    ended: dict[int, int] = {}  # by process id, where its exit code is to be written
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready = select.select([wire, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _reap(ended)
        if wire in ready:
            data, descriptors, _, _ = socket.recv_fds(wire, _MOST, 3)
            if not data:
                break
            order: _Order = pickle.loads(data)  # noqa: S301 - our own
            importlib.import_module(_IMPORTS[order.package])
            if (pid := os.fork()) == 0:
                for number in (wire.fileno(), woken, wake, *ended.values(), descriptors[2]):
                    os.close(number)
                _become(order, descriptors)
            ended[pid] = descriptors[2]
            for number in descriptors[:2]:
                os.close(number)
            wire.send(str(pid).encode())
    for pid in ended:
        os.kill(pid, signal.SIGKILL)
    _reap(ended, 0)


def _reap(ended: dict[int, int], options: int = os.WNOHANG) -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, options))[0]:
            with suppress(BrokenPipeError), os.fdopen(ended.pop(found[0]), "wb") as told:
                told.write(str(os.waitstatus_to_exitcode(found[1])).encode())


# The program


def _become(order: _Order, descriptors: Sequence[int]) -> None:
    """Runs the program as Python does, and does not return."""
    code: Any = 1
    try:
        _settle(order, descriptors)
        code = _run(order.words)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        os._exit(code)


def _settle(order: _Order, descriptors: Sequence[int]) -> None:
    """Nothing is left of pytest but what it has imported."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, own in ((os.open(os.devnull, os.O_RDONLY), 0), (descriptors[0], 1), (descriptors[1], 2)):
        os.dup2(number, own)
        os.close(number)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(own, mode, buffering=1, closefd=False) for own, mode in enumerate("rww"))
    os.environ.clear()
    os.environ.update(order.environment)
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AssertionRewritingHook)]
    logging.root.handlers.clear()
    atexit._clear()
    gc.set_threshold(700, 10, 10)
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)
    if order.words[0] != "-m":
        for name in [name for name in sys.modules if name.partition(".")[0] == order.package]:
            del sys.modules[name]


def _run(words: Sequence[str]) -> int:
    """The exit code."""
    sys.argv = [*words[1:]] if words[0] == "-m" else [*words]
    code: Any = None
    try:
        if words[0] == "-m":
            importlib.import_module(f"{words[1]}.__main__").main()
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
    except Exception:  # noqa: BLE001 - Python's own way to end with it
        traceback.print_exc()
        code = 1
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return code or 0 if isinstance(code, int | None) else 1
