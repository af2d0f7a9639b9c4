"""SIGTERM ends the process before it leads, also as the first process of a container."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

OPERATOR = Path(sys.executable).parent / "pagoda-operator"
NOWHERE = {
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "none"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}


@pytest.mark.deep
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a process namespace of its own")
def test_sigterm_ends_the_process_while_the_api_server_is_silent(tmp_path):
    config = tmp_path / "kubeconfig"
    config.write_text(json.dumps(NOWHERE))
    options = ["--kubeconfig", str(config), "--probes-port", "0", "--metrics-port", "0"]
    isolated = ["unshare", "--pid", "--fork", "--kill-child", str(OPERATOR)]
    with subprocess.Popen([*isolated, *options], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert any("api_server_silent" in line for line in process.stderr)
            (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(child), signal.SIGTERM)
            assert process.wait(300) == 0
        finally:
            process.kill()
