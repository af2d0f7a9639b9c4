"""Watchdog: a thread that ends a replica which makes no progress, so that its clients hear of it and kubelet starts it anew.

Started by `api/front/process.py` in a real front process, never by a simulated one. It asks the same verdict as /livez, hence kubelet and
it cannot disagree. What is done then is the caller's: if the front's loop still turns, the engine is condemned and clients are answered in
the usual way, else the final errors are written from here. Should the interpreter itself be stuck, no Python runs: a timer of C, wound up
by this thread, writes the stacks and exits.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from pagoda_contracts.pb.daemon_pb2 import Phase

from pagoda_daemon.health.replica import Limits, Replica, Verdict, live

log = structlog.get_logger()

EXIT_STUCK: Final = 1
_GRACE_S: Final = 4.0  # from the verdict to the end of the process, however the orderly way goes
_ENDING_S: Final = 20.0  # twice what flushing streams, closing servers and the engine's own grace may take together
_LOOKS_PER_LIMIT: Final = 8
_LONGEST_LOOK_S: Final = 0.5


@dataclass(frozen=True)
class Ends:
    """The two ways to end. `orderly` is called from this thread and must only ask; `abrupt` does not return."""

    orderly: Callable[[str], None]
    abrupt: Callable[[str], None]


class Watchdog:
    """Watches from construction to `close`."""

    def __init__(self, replica: Replica, limits: Limits, ends: Ends) -> None:
        self._replica = replica
        self._limits = limits
        self._ends = ends
        self._look_s = min(_LONGEST_LOOK_S, limits.heartbeat / _LOOKS_PER_LIMIT)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The end has begun in an orderly way, and must not be cut short."""
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        try:
            while not self._closed.wait(self._look_s):
                if self._replica.phase == Phase.PHASE_STOPPED:
                    self._see_it_end()
                    return
                faulthandler.dump_traceback_later(self._limits.heartbeat, exit=True)
                verdict = live(self._replica, time.monotonic(), self._limits)
                if not verdict.ok:
                    self._end(verdict)
                    return
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _see_it_end(self) -> None:
        """An engine that has ended beats no more, which is not a fault then."""
        faulthandler.dump_traceback_later(_ENDING_S, exit=True)
        if not self._closed.wait(_ENDING_S * 0.75):
            self._ends.abrupt("the end takes too long")

    def _end(self, verdict: Verdict) -> None:
        log.error("no_progress", why=verdict.why, in_flight=self._replica.in_flight)
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        faulthandler.dump_traceback_later(_GRACE_S, exit=True)
        if loop_turns(self._replica, time.monotonic(), self._limits):
            self._ends.orderly(verdict.why)
            if self._closed.wait(_GRACE_S * 0.75):
                return
        self._ends.abrupt(verdict.why)


def loop_turns(replica: Replica, now: float, limits: Limits) -> bool:
    """Whether the front's loop can still be asked for anything."""
    return now - replica.loop_beat <= limits.heartbeat
