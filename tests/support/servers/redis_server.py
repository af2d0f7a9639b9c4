"""A real Redis or Valkey for tests, on a Unix socket in a folder of its own. It keeps nothing on disk.

`pagoda-devcluster up --install` brings Debian's redis-tools. Its redis-check-rdb is the whole server, which goes by the name that it is
called by. The package redis-server adds a link of that name, and a service that the machine would start.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

PATIENCE_S = 300.0
PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server") or shutil.which("redis-check-rdb")
MISSING = "no Redis or Valkey server: apt-get install redis-tools"


@dataclass
class RedisServer:
    """`url` is the setting of a gateway."""

    socket: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.socket.unlink(missing_ok=True)

    def again(self) -> None:
        """Starts it anew, empty."""
        self.process = _started(self.socket)


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    socket = folder / "redis.sock"
    server = RedisServer(socket, _started(socket))
    try:
        yield server
    finally:
        server.kill()


def _started(socket: Path) -> subprocess.Popen[bytes]:
    assert PROGRAM is not None, MISSING
    options = {"port": "0", "unixsocket": str(socket), "save": "", "appendonly": "no", "dir": str(socket.parent)}
    command = ["redis-server", *(word for name, value in options.items() for word in (f"--{name}", value))]
    process = subprocess.Popen(command, executable=PROGRAM, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with redis.Redis(unix_socket_path=str(socket)) as client:
                client.ping()
                return process
        except redis.ConnectionError:
            assert process.poll() is None
            assert time.monotonic() < deadline, "redis-server does not answer"
            time.sleep(0.01)
