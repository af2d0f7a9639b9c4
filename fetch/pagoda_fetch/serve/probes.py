"""`/startupz`, `/readyz` and `/livez` of the sidecar on a thread of their own. Startup passes once the service's model is
complete: the daemon's container starts only then. The body says how far it is.
"""

from __future__ import annotations

import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from pagoda_contracts.names import PATH_LIVE, PATH_READY, PATH_STARTUP

from pagoda_fetch.core.listing import size_text
from pagoda_fetch.core.progress import Progress

BEAT: Final = 1.0
_MAX_LAG: Final = 30.0


class Vitals:
    """Written by the event loop, read by the thread; single attribute writes, hence no lock."""

    def __init__(self) -> None:
        self.complete = False
        self.progress = Progress("resolving")
        self.beaten = time.monotonic()

    def beat(self) -> None:
        """The event loop turns."""
        self.beaten = time.monotonic()

    def unready(self, _now: float) -> str | None:
        """How far the model is; None once it is complete."""
        seen = self.progress
        return None if self.complete else f"{seen.phase} {size_text(max(0, seen.done))} of {size_text(seen.total) if seen.total else '?'}"

    def ailment(self, now: float) -> str | None:
        """Why the process should be restarted; None while it is well."""
        lag = now - self.beaten
        return f"event loop silent for {lag:.0f} s" if lag > _MAX_LAG else None


def serve(vitals: Vitals, port: int) -> ThreadingHTTPServer:
    """Start answering; port 0 lets the kernel choose."""
    checks = {PATH_LIVE: vitals.ailment, PATH_READY: vitals.unready, PATH_STARTUP: vitals.unready}

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            check = checks.get(self.path)
            fault = "no such probe" if check is None else check(time.monotonic())
            missing, sick = HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE
            self.send_response(missing if check is None else sick if fault else HTTPStatus.OK)
            self.end_headers()
            self.wfile.write(f"{fault or 'ok'}\n".encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the library's word)
            """Probes come every other second: not worth a line each."""

    server = ThreadingHTTPServer(("", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
    return server
