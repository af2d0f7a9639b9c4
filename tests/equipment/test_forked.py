"""Forked workers: every test runs once in one of them, and what fails, prints or ends its process is reported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
from support.suite.forked import Forked
def pytest_configure(config):
    config.pluginmanager.register(Forked(2))
"""
SOUND = """
import os, pytest
@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    yield folder
    print("torn down", *sorted(path.name for path in folder.iterdir()))
    assert False
@pytest.mark.parametrize("number", range(3))
def test_works(number, shared):
    (shared / str(number)).write_text(str(os.getpid()))
"""
FAILS = """
def test_fails():
    print("said before")
    assert 1 == 2
def test_behind(): ...
"""
DIES = """
import os
def test_dies():
    os._exit(3)
def test_never(): ...
"""


@pytest.mark.deep
def test_what_happens_in_a_worker_is_reported(tmp_path):
    files = {"conftest.py": CONFTEST, "test_sound.py": SOUND, "test_fails.py": FAILS, "test_dies.py": DIES, "pytest.ini": "[pytest]"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-p",
        "no:schemathesis",
        "-p",
        "no:cacheprovider",
        "-rA",
        "--basetemp",
        tmp_path / "temp",
    ]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 4 passed, 1 error" in done.stdout, done.stdout
    assert "torn down 0 1 2" in done.stdout
    assert "said before" in done.stdout
    assert "FAILED test_fails.py::test_fails - assert 1 == 2" in done.stdout
    assert "ended with 3: test_dies.py::test_dies." in done.stdout
