"""`--fork N`: N workers that are forked once the tests are collected, and take a file of tests at a time.

A worker of xdist collects for itself, which takes 8 s (tests on a cluster) to 18 s of CPU each, most of it imports. Here it is done once,
and what was imported is shared memory. A thread that was started while tests were collected is not in a worker, so there may be none.

A worker that is to stop (Ctrl-C, -x, a runner that is no more) ends its test's fixtures first, as they may be clusters.
"""

from __future__ import annotations

import gc
import itertools
import os
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.suite.pool import group_of, longest_first

_MORE = None  # what a worker sends for the next group
_NOTABLE_S = 0.1  # --durations shows what took that long


class _Worker:
    """The runner's end of one. `running` is the test that it is at."""

    def __init__(self, name: str, pid: int, connection: Connection) -> None:
        self.name, self.pid, self.connection, self.running = name, pid, connection, ""


class Forked:
    """A plugin in the place of pytest's own loop over the tests."""

    def __init__(self, count: int) -> None:
        self._count = count

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly or session.testsfailed:
            return None  # pytest says why nothing runs
        if len(threads := threading.enumerate()) > 1:
            raise pytest.UsageError(f"--fork: no worker would have the threads that were started while tests were collected: {threads}")
        if (found := len(list(Path("/proc/self/task").iterdir()))) > (
            known := int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
        ):
            # NumPy's pool forks with care. PyTorch's is OpenMP's, for which a worker would wait for ever, or crash.
            raise pytest.UsageError(
                f"--fork: {found} threads run, {known} are NumPy's and ours: PyTorch computed while tests were collected"
            )
        groups = deque(_groups(session.items))
        _tables()
        gc.freeze()  # a collection in a worker would copy the pages of all that was imported
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  one for all
        workers: list[_Worker] = []
        try:
            for _ in range(self._count):
                _fork(session, workers)
            _collect(session, workers, groups)
        finally:
            for worker in workers:
                worker.connection.close()
            for worker in workers:
                _wait(worker)
        return True


@given(st.text())
@settings(max_examples=1, database=None)
def _tables(_text: str) -> None:
    """Hypothesis makes tables of Unicode at the first text that it draws, in a fresh clone for a second: each worker would for itself."""


def _groups(items: Sequence[pytest.Item]) -> list[list[int]]:
    """Places of the tests of each file, or of what must share a worker; what has most tests first."""
    key = longest_first([item.nodeid for item in items])
    places = sorted(range(len(items)), key=lambda place: key(items[place].nodeid))
    return [list(group) for _, group in itertools.groupby(places, lambda place: group_of(items[place].nodeid))]


def _collect(session: pytest.Session, workers: list[_Worker], groups: deque[list[int]]) -> None:
    """Until the last report came."""
    at_work = {worker.connection: worker for worker in workers}
    while at_work:
        for connection in wait(list(at_work)):
            worker = at_work[connection]  # type: ignore[index]
            try:
                _take(session, worker, worker.connection.recv(), groups)
            except (EOFError, ConnectionError):
                del at_work[worker.connection]
                _ended(session, worker)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)


def _take(session: pytest.Session, worker: _Worker, message: Any, groups: deque[list[int]]) -> None:
    if message is _MORE:
        worker.connection.send(groups.popleft() if groups else [])
    elif isinstance(message, str):
        worker.running = message
    else:
        worker.running = ""
        for data in message:
            report = session.config.hook.pytest_report_from_serializable(config=session.config, data=data)
            session.config.hook.pytest_runtest_logreport(report=report)


def _wait(worker: _Worker) -> None:
    """One that is still at work finds its connection closed when it has a test's reports, and ends what its fixtures started."""
    with suppress(ChildProcessError):
        os.waitpid(worker.pid, 0)


def _ended(session: pytest.Session, worker: _Worker) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
    if code == 0 and not worker.running:
        return
    test = worker.running or "between two tests"
    why = f"{worker.name} ended with {code}: {test}. The tests of its file that were left did not run."
    report = pytest.TestReport(test, (test.partition("::")[0], None, test), {}, "failed", why, "call")
    session.config.hook.pytest_runtest_logreport(report=report)


# The worker


def _fork(session: pytest.Session, workers: list[_Worker]) -> None:
    """One more."""
    name = f"gw{len(workers)}"
    ours, theirs = Pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: NumPy has a pool of threads, which forks with care
        pid = os.fork()
    if pid:
        theirs.close()
        workers.append(_Worker(name, pid, ours))
        return
    code = 1
    try:
        for end in (ours, *(worker.connection for worker in workers)):
            end.close()
        _work(session, theirs, name)
        code = 0
    except (KeyboardInterrupt, ConnectionError, EOFError):
        pass  # the runner says why all end
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)


def _work(session: pytest.Session, connection: Connection, name: str) -> None:
    """Runs tests until there are none."""
    _move_in(session.config, name)
    session.config.pluginmanager.register(_Reports(session.config, connection))
    try:
        _play(session, _given(session.items, connection))
    finally:
        session._setupstate.teardown_exact(None)


def _play(session: pytest.Session, tests: Iterator[pytest.Item]) -> None:
    test = next(tests, None)
    while test is not None and not session.shouldfail:
        following = next(tests, None)
        session.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        test = following


def _move_in(config: pytest.Config, name: str) -> None:
    """Its own files for what tests write, its own folder for theirs; only the runner writes to the terminal."""
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    capture.start_global_capturing()
    capture.suspend_global_capture()
    factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    folder: Path = factory.getbasetemp() / name
    folder.mkdir()
    factory._basetemp = folder


def _given(items: Sequence[pytest.Item], connection: Connection) -> Iterator[pytest.Item]:
    """Group after group. The next one is asked for before the last test of this one, whose end depends on what follows it."""
    while True:
        connection.send(_MORE)
        group: list[int] = connection.recv()
        if not group:
            return
        yield from (items[place] for place in group)


class _Reports:
    """Sends what happens to the runner: which test begins, and how it ended. A setup or teardown that passed at once, and said nothing, is
    the most of all reports, and nobody reads it."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config, self._connection = config, connection
        self._reports: list[Any] = []

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._connection.send(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed or report.sections or report.duration > _NOTABLE_S:
            self._reports.append(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_runtest_logfinish(self) -> None:
        self._connection.send(self._reports)
        self._reports = []
