"""`/startupz /livez /readyz` on a thread and socket of their own: a blocked event loop must not answer for itself.

`Liveness` is written by the loop and the watches and read by the thread; single attribute writes, hence no lock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from pagoda_contracts.names import PATH_LIVE, PATH_READY, PATH_STARTUP

_BEAT: Final = 1.0
# A watch that is silent for 75 s is begun anew: one without even a connection for so long is dead (a Kopf whose watch died silently looks
# idle). Missed bookmarks prove nothing, and what a watch keeps back is found by the next list.
MAX_WATCH_AGE: Final = 180.0
MAX_LOOP_LAG: Final = 5.0
# Requests end after 30 s and retries come after 60 s: what waits longer waits for ever.
MAX_QUEUE_AGE: Final = 180.0
# A leader ends itself after 10 s; one that did not is beside itself.
MAX_LEASE_AGE: Final = 12.0


class Liveness:
    """Signs of life."""

    def __init__(self, queue_age: Callable[[], float], lease_age: Callable[[], float | None] = lambda: None) -> None:
        # None until it is known what this cluster has.
        self._kinds: int | None = None
        self._queue_age = queue_age
        self._lease_age = lease_age
        self._queue_seconds = 0.0
        self._beat = time.monotonic()
        self._watches: dict[str, float] = {}

    def watched(self, path: str, now: float) -> None:
        """A list, a fresh connection of a watch, or a word of it."""
        self._watches[path] = now

    def expect(self, kinds: int) -> None:
        """So many kinds will be watched."""
        self._kinds = kinds

    def ages(self, now: float) -> dict[str, float]:
        """Seconds since each watch's last sign of life, by path."""
        return {path: now - seen for path, seen in self._watches.copy().items()}

    async def beat(self) -> None:
        """Runs on the event loop until cancelled."""
        while True:
            self._beat = time.monotonic()
            self._queue_seconds = self._queue_age()
            await asyncio.sleep(_BEAT)

    def failure(self, now: float) -> str | None:
        """Why the process should be restarted; None while it is well."""
        if (lag := now - self._beat - _BEAT) > MAX_LOOP_LAG:
            return f"event loop silent for {lag:.0f} s"
        if self._queue_seconds > MAX_QUEUE_AGE:
            return f"a service waits for {self._queue_seconds:.0f} s"
        if (age := self._lease_age()) is not None and age > MAX_LEASE_AGE:
            return f"Lease not renewed for {age:.0f} s"
        silent = [path for path, seconds in self.ages(now).items() if seconds > MAX_WATCH_AGE]
        return f"watch silent: {', '.join(silent)}" if silent else None

    def unready(self, now: float) -> str | None:
        """Why it does no work yet; None once every kind is watched."""
        if self._kinds is None:
            return "the API server has not answered yet"
        if len(self._watches) < self._kinds:
            return f"{len(self._watches)} of {self._kinds} kinds watched"
        return self.failure(now)


def serve(liveness: Liveness, port: int) -> ThreadingHTTPServer:
    """Start answering on a daemon thread; port 0 lets the kernel choose."""
    checks = {PATH_LIVE: liveness.failure, PATH_READY: liveness.unready, PATH_STARTUP: liveness.unready}

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            check = checks.get(self.path)
            fault = "no such probe" if check is None else check(time.monotonic())
            missing, unavailable = HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE
            self.send_response(missing if check is None else unavailable if fault else HTTPStatus.OK)
            self.end_headers()
            self.wfile.write(f"{fault or 'ok'}\n".encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the library's word)
            """Probes come every second: not worth a line each."""

    server = ThreadingHTTPServer(("", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
    return server
