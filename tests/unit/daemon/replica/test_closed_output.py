"""`pagoda-daemon serve` behind a pipe whose reader has gone, as under `serve | tee` when Ctrl-C ends both: it still drains and ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.engine.toy_model import VOCAB, tiny_model_dir
from support.servers.replica import PATIENCE_S

pytestmark = pytest.mark.deep

SIMULATED = ("--set", "testing.simulated.stepMs=1", "--set", f"testing.simulated.vocabSize={VOCAB}")  # without torch: 5 s of CPU less


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_ends_a_replica_whose_output_is_not_read(number: signal.Signals, tmp_path: Path) -> None:
    model = tiny_model_dir(tmp_path / "model")
    command = [sys.executable, "-P", "-m", "pagoda_daemon", "serve", str(model), "--port", "0", *SIMULATED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as daemon:
        try:
            assert daemon.stdout is not None
            assert any(line.startswith("ready: ") for line in daemon.stdout), "it ended before it was ready"
            daemon.stdout.close()
            daemon.send_signal(number)
            assert daemon.wait(PATIENCE_S) == 0, "it drained: a second signal would have ended it with 1"
        finally:
            daemon.kill()
