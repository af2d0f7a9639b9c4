"""Whose fault the end of a process was that a grammar was compiled or followed in. Pure; asked by `pool` and `worker`."""

from __future__ import annotations

import signal
from typing import Final

from pagoda_daemon.structured import limits

BY_MISTAKE: Final = (0, -signal.SIGKILL, -signal.SIGTERM)
LOST: Final = "its worker was lost"


def blame(code: int, *, late: bool, trial: bool = False) -> str | None:
    """Why a process that exited with `code`, or was `late`, did so, in words for the request that it worked for last; None if that one is
    not to be blamed."""
    if late:
        return f"it is not understood within {limits.PATIENCE_S:g} s"
    if code in BY_MISTAKE:
        return None
    if code == -signal.SIGPROF:
        return f"it takes more than {limits.COMPILE_CPU_S if trial else limits.CPU_S:g} s of CPU time"
    return f"it needs more than {limits.MEMORY_BYTES >> 20} MiB, or breaks the parser"
