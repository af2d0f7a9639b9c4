"""Gives memory back that a peak left behind. Begun by parts.py.

A cold start reads every service's children within seconds; what glibc's allocator holds free after it lies below what is still used, and
stays the process's: 11 of 135 MB with 200 services. malloc_trim(3) gives whole free pages back, also from the middle.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from typing import Final

import structlog

# Of 170 MB in pieces the first took 21 ms of CPU and the next 16, on a thread of its own; who needs memory from malloc meanwhile waits.
EVERY_S: Final = 30.0


def trimmer() -> Callable[[], object] | None:
    """None where the C library has no such call (musl)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return None if trim is None else lambda: trim(ctypes.c_size_t(0))


async def keep_small(trim: Callable[[], object], every: float = EVERY_S) -> None:
    """Until cancelled."""
    while True:
        await asyncio.sleep(every)
        try:
            await asyncio.to_thread(trim)
        except RuntimeError as error:  # no thread to be had: nobody ends for that
            structlog.get_logger().warning("memory_kept", error=str(error))
