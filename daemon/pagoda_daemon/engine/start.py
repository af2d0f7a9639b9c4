"""start_engine: the engine's process, and the sockets to it. Called by `api/front/process.py` and by `offline`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from pagoda_daemon.core.errors import ConfigRejected

_MAX_IPC_PATH: Final = 107  # sun_path of a Unix socket, less its NUL
# Compute threads that spin starve a 500 ms heartbeat on two cores. glibc gives every freed megabyte back to the kernel, on the device's
# thread more eagerly than on the main one, and the next step faults it in page by page: with these, temporaries of up to 32 MiB (the most
# that it takes) stay, and sampling 32 rows of 32k takes 0.7 instead of 2.2 ms of CPU greedily and 2.4 instead of 5.3 with a temperature.
ENGINE_ENV: Final = {
    "GOMP_SPINCOUNT": "1000",
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
}


class Wires(NamedTuple):
    """Socket addresses, named from the engine's side."""

    inbox: str
    outbox: str


def wires(run_dir: Path) -> Wires:
    """Addresses below the run directory; ConfigRejected where the kernel could not bind them."""
    paths = [run_dir / "to-engine.sock", run_dir / "from-engine.sock"]
    too_long = [str(path) for path in paths if len(os.fsencode(path)) > _MAX_IPC_PATH]
    if too_long:
        raise ConfigRejected(f"listen.runDir: {too_long[0]!r} is longer than the {_MAX_IPC_PATH} bytes of a socket path")
    return Wires(*(f"ipc://{path}" for path in paths))


def start_engine(config_path: Path, addresses: Wires) -> subprocess.Popen[bytes]:
    """Starts the engine by exec, in its own session so that Ctrl-C reaches the front alone.

    To be called from the main thread before zmq or gRPC exist: the engine's parent-death signal fires when the *thread* that
    started it ends.
    """
    argv = [sys.executable, "-P", "-m", "pagoda_daemon.engine", "--config", str(config_path), "--parent", str(os.getpid())]
    env = {**ENGINE_ENV, **os.environ}
    return subprocess.Popen([*argv, "--inbox", addresses.inbox, "--outbox", addresses.outbox], env=env, start_new_session=True)
