"""The command line of a person who has read nothing yet."""

import subprocess
import sys

import pytest
from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.process import settings


def test_without_a_configuration_the_way_to_do_without_is_named(tmp_path):
    with pytest.raises(ConfigRejected, match=r"none\.json: No such file or directory; outside of a pod: pagoda-daemon serve MODEL"):
        settings.resolve(["--config", str(tmp_path / "none.json")])


@pytest.mark.parametrize("port", ["65536", "-1", "http"])
def test_what_is_no_port_is_refused_before_anything_starts(tmp_path, capsys, port):
    with pytest.raises(SystemExit):
        settings.resolve(["serve", str(tmp_path), f"--port={port}"])
    assert f"must be a port from 0 to 65535, got {port}" in capsys.readouterr().err


def test_ctrl_c_while_it_still_imports_is_no_traceback():
    code = "import os, signal; from pagoda_daemon import __main__ as main; main._end_quietly(); os.kill(os.getpid(), signal.SIGINT)"
    ended = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file or directory"),
        ("{", "the file: Invalid JSON"),
        ('{"model": {"path": "/m", "servedNames": ["m"]}, "drainTimeout": "soon"}', "drainTimeout: "),
    ],
)
def test_asked_for_its_version_it_reports_what_it_cannot_read(tmp_path, text, message):
    path = tmp_path / "daemon.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigRejected, match=message):
        settings.resolve(["--config", str(path), "--version"])


@pytest.mark.parametrize("given", [True, False])
def test_asked_for_its_version_it_prints_that_and_ends(tmp_path, capsys, given):
    path = tmp_path / "daemon.json"
    path.write_text('{"model": {"path": "/nowhere", "servedNames": ["m"]}}')
    with pytest.raises(SystemExit) as ended:
        settings.resolve([*(["--config", str(path)] if given else []), "--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"pagoda-daemon {settings.VERSION}\n")
