"""Polling with a deadline: for readiness that no file descriptor announces."""

import time
from collections.abc import Callable

from pagoda_devcluster.cluster.errors import StartError


def until(condition: Callable[[], bool], seconds: float, every: float = 0.05) -> bool:
    """Whether `condition` became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every)
    return True


def require(condition: Callable[[], bool], seconds: float, complaint: Callable[[], str]) -> None:
    """Wait for `condition` or fail with what `complaint` says by then."""
    if not until(condition, seconds):
        raise StartError(f"{complaint()} (waited {seconds:.0f} s)")
