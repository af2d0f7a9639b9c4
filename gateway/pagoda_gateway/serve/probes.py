"""/startupz /livez /readyz on a thread and socket of their own, so that a busy event loop still answers its kubelet.

Live: the event loop turned within the last 10 s. Started: it turned once. Ready: discovery looked at everything and no SIGTERM came.
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
        self.turned_at: float | None = None
        self.ready = ready

    def turn(self) -> None:
        """The event loop is alive."""
        self.turned_at = time.monotonic()

    def answers(self) -> dict[str, Callable[[], bool]]:
        """Path → whether it says yes."""
        return {
            PATH_STARTUP: lambda: self.turned_at is not None,
            PATH_LIVE: lambda: self.turned_at is not None and time.monotonic() - self.turned_at < _STUCK_AFTER_S,
            PATH_READY: self.ready,
        }


class Probes:
    """The probes' server; `port` is the one bound."""

    def __init__(self, health: Health, host: str, port: int) -> None:
        self._server = ThreadingHTTPServer((host, port), _handler(health))
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="probes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Frees the socket."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(health: Health) -> type[BaseHTTPRequestHandler]:
    answers = health.answers()

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            ask = answers.get(self.path)
            self.send_response(404 if ask is None else 200 if ask() else 503)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            """A probe every second is no news."""

    return Handler
