"""/startupz /livez /readyz on a thread and socket of their own, so that a busy event loop still answers its kubelet.

Live: the event loop beat within the last 10 s. Started: it beat once. Ready: discovery has listed everything, and no SIGTERM came.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from pagoda_contracts.names import PATH_LIVE, PATH_READY, PATH_STARTUP

_STUCK_AFTER_S: Final = 10.0


class Health:
    """Written by the event loop, read by the probes' thread: single attributes, no lock."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self.beat_at: float | None = None
        self.ready = ready

    def beat(self) -> None:
        """Records that the event loop is alive."""
        self.beat_at = time.monotonic()

    def answers(self) -> dict[str, Callable[[], bool]]:
        """Returns path → the check behind it."""
        return {
            PATH_STARTUP: lambda: self.beat_at is not None,
            PATH_LIVE: lambda: self.beat_at is not None and time.monotonic() - self.beat_at < _STUCK_AFTER_S,
            PATH_READY: self.ready,
        }


class Probes:
    """The probes' server. `port` is the bound port."""

    def __init__(self, health: Health, host: str, port: int) -> None:
        self._server = ThreadingHTTPServer((host, port), _handler(health))
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="probes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops the server and frees its socket."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(health: Health) -> type[BaseHTTPRequestHandler]:
    answers = health.answers()

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            check = answers.get(self.path)
            self.send_response(404 if check is None else 200 if check() else 503)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            """Logs nothing: a probe comes every second."""

    return Handler
