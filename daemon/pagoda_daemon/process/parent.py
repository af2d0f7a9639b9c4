"""What a child process of the daemon owes its parent: it ends with it, leaves signals to it, and shows its stacks when asked.

Called first thing by every process that the front starts (the engine, workers of a pool), before anything heavy is imported. Linux only.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
from typing import Final

DUMP_STACKS: Final = signal.SIGUSR1
_PR_SET_PDEATHSIG: Final = 1


def belong_to_parent(parent: int | None = None) -> int:
    """Die with the parent and ignore the signals that are its to judge; the parent's process id. `parent` is the id it must have, if the
    starter passed it on: one that has died in the meantime would never send the signal asked for here."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    found = os.getppid()
    if parent is not None and found != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return found


def dump_stacks_on_signal() -> None:
    """DUMP_STACKS writes every thread's stack to stderr, without Python's help: it works in a process that is stuck."""
    faulthandler.register(DUMP_STACKS, all_threads=True)
