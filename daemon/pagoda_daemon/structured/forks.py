"""Work in a fork of this process, which may be killed by it. Called by `worker`, which has one thread: the fork inherits no held lock."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from pagoda_daemon.process.parent import belong_to_parent


def in_fork(work: Callable[[], bytes]) -> tuple[bytes, int]:
    """What `work` says, nothing if the fork died before; and how it ended, a signal being negative."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        _work(work, theirs)
    os.close(theirs)
    with os.fdopen(ours, "rb") as said:
        found = said.read()
    return found, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _work(work: Callable[[], bytes], said: int) -> None:
    """Never returns: what this process was in the middle of is its parent's."""
    code = 1
    try:
        belong_to_parent()
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        os.write(said, work())
        code = 0
    finally:
        os._exit(code)
