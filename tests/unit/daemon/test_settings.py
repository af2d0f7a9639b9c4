"""The command line of a person who has read nothing yet."""

import subprocess
import sys

import pytest
from pagoda_daemon import settings
from pagoda_daemon.errors import ConfigRejected


def test_without_a_configuration_the_way_to_do_without_is_named(tmp_path):
    with pytest.raises(ConfigRejected, match=r"none\.json: No such file or directory; outside of a pod: pagoda-daemon serve MODEL_DIR"):
        settings.resolve(["--config", str(tmp_path / "none.json")])


@pytest.mark.parametrize("port", ["65536", "-1", "http"])
def test_what_is_no_port_is_refused_before_anything_starts(tmp_path, capsys, port):
    with pytest.raises(SystemExit):
        settings.resolve(["serve", str(tmp_path), f"--port={port}"])
    assert f"{port} is no port, accepted are 0 to 65535" in capsys.readouterr().err


def test_ctrl_c_while_it_still_imports_is_no_traceback():
    code = "import os, signal; from pagoda_daemon import __main__ as door; door._end_quietly(); os.kill(os.getpid(), signal.SIGINT)"
    ended = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")
