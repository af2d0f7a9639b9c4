"""Forked workers: every test runs once in one of them, and what fails, prints or ends its process is reported. Before that, two compile."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis.configuration import storage_directory

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
WAITS = """
import os, signal, threading
from pathlib import Path
import pytest
def until(name):
    while not Path(name).exists():
        threading.Event().wait(0.01)
@pytest.fixture(scope="session")
def cluster():
    yield
    Path("cluster ended").write_text("")
def test_waits(cluster):
    Path("begun").write_text("")
    if os.environ["HOW"] == "ctrl-c":
        os.kill(os.getppid(), signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    until("runner waits")
def test_never():
    Path("never").write_text("")
"""
FAILS_LATER = """
import os
from test_waits import until
def test_fails():
    until("begun")
    assert os.environ["HOW"] != "-x"
"""
COMPUTES = """
import torch
MUCH = torch.zeros(1 << 20) + 1
def test_never(): ...
"""
WAITING = """
from pathlib import Path
from support.suite import forked
def told(worker, wait=forked._wait):
    Path("runner waits").write_text("")
    wait(worker)
forked._wait = told
"""

AHEAD = """
from pathlib import Path
from support.suite.ahead import Ahead
def pytest_configure(config):
    config.pluginmanager.register(Ahead([Path("package")]))
"""
READ = """
import os, time
from pathlib import Path
with Path("readers").open("a") as file:
    file.write(f"{os.getpid()} ")
compiled = Path(os.environ["PYTHONPYCACHEPREFIX"])
for _ in range(6_000):
    if Path(__file__).stem != "test_1" or ([*compiled.rglob("test_4*-pytest-*.pyc")] and [*compiled.rglob("module*.pyc")]):
        break
    time.sleep(0.01)
else:
    raise RuntimeError("nobody compiles")
def test_passes(): ...
"""


def played(folder, *more, **environment):
    """pytest on a folder of its own."""
    options = (*more, "-p", "pytest_timeout", "-p", "no:cacheprovider", "-rA", "--timeout", "300", "--basetemp", folder / "temp")
    # No other plugin, and the tables of Unicode that Hypothesis has made already: half of what a run takes.
    quick = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HYPOTHESIS_STORAGE_DIRECTORY": str(storage_directory())}
    environment = {**os.environ, **quick, "PYTHONPATH": str(Path(__file__).parents[1]), **environment}
    command = [sys.executable, "-P", "-m", "pytest", *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.deep
def test_while_tests_are_collected_for_the_first_time_another_process_compiles_them_from_the_last_one_on(tmp_path):
    for name, text in {"conftest.py": AHEAD, "pytest.ini": "[pytest]", **{f"test_{at}.py": READ for at in range(1, 5)}}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "package").mkdir()
    (tmp_path / "package/module.py").write_text("")
    bytecode = {"PYTHONPYCACHEPREFIX": str(tmp_path / "compiled"), "PYTHONDONTWRITEBYTECODE": ""}
    done = played(tmp_path, **bytecode)
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    assert len({*(tmp_path / "readers").read_text().split()}) == 1, "it executes nothing"
    (module,) = (tmp_path / "compiled").rglob("module*.pyc")
    module.rename(tmp_path / "compiled/module.pyc")
    assert "4 passed" in played(tmp_path, **bytecode).stdout
    assert not module.exists(), "all is compiled, nobody helps"


@pytest.mark.deep
def test_what_happens_in_a_worker_is_reported(tmp_path):
    files = {"conftest.py": CONFTEST, "test_sound.py": SOUND, "test_fails.py": FAILS, "test_dies.py": DIES, "pytest.ini": "[pytest]"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = played(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 4 passed, 1 error" in done.stdout, done.stdout
    assert "torn down 0 1 2" in done.stdout
    assert "said before" in done.stdout
    assert "FAILED test_fails.py::test_fails - assert 1 == 2" in done.stdout
    assert "ended with 3: test_dies.py::test_dies." in done.stdout


@pytest.mark.deep
def test_what_is_computed_on_threads_while_tests_are_collected_is_refused(tmp_path):
    for name, text in {"conftest.py": CONFTEST, "test_computes.py": COMPUTES, "pytest.ini": "[pytest]"}.items():
        (tmp_path / name).write_text(text)
    done = played(tmp_path, OMP_NUM_THREADS="2")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "PyTorch computed while tests were collected" in done.stdout + done.stderr


@pytest.mark.deep
@pytest.mark.parametrize(("how", "code"), [("-x", 1), ("ctrl-c", 2)])
def test_a_run_that_stops_early_ends_what_its_fixtures_started(tmp_path, how, code):
    files = {"conftest.py": CONFTEST + WAITING, "test_waits.py": WAITS, "test_fails.py": FAILS_LATER, "pytest.ini": "[pytest]"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = played(tmp_path, *(["-x"] if how == "-x" else []), HOW=how)
    assert done.returncode == code, done.stdout + done.stderr
    assert (tmp_path / "cluster ended").exists(), done.stdout + done.stderr
    assert not (tmp_path / "never").exists()
    assert "Traceback" not in done.stderr, done.stderr
