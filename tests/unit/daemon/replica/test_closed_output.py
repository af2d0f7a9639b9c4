"""`pagoda-daemon serve` behind a pipe whose reader has gone, as under `serve | tee` when Ctrl-C ends both: it still drains and ends."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from support.engine.tiny_model import tiny_model
from support.servers.replica import PATIENCE_S

pytestmark = pytest.mark.deep


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_ends_a_replica_whose_output_is_not_read(number):
    command = [sys.executable, "-P", "-m", "pagoda_daemon", "serve", str(tiny_model()), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as daemon:
        try:
            assert daemon.stdout is not None
            assert any(line.startswith("ready: ") for line in daemon.stdout)
            daemon.stdout.close()
            daemon.send_signal(number)
            assert daemon.wait(PATIENCE_S) == 0, "it drained: a second signal would have ended it with 1"
        finally:
            daemon.kill()
