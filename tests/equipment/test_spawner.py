"""A program as a fork of a process that has imported it is what it is as a process of its own: its words, wires, modules and end."""

import os
import signal
import subprocess
import sys

import pytest
from support.processes import spawner
from support.processes.spawner import Spawner

# In the place of a program's `main`, which a test's variant runs.
SCRIPT = """
import asyncio, atexit, logging, os, signal, sys, threading, warnings
atexit.register(print, "at exit")
from pagoda_gateway.serve import settings
print(settings.__name__, hasattr(settings, "changed"), sys.argv[1:], os.environ["WORD"], [*logging.root.handlers], flush=True)
print("to stderr", file=sys.stderr)
settings.changed = True
how = sys.argv[1]
if how == "serve":
    asyncio.run(asyncio.Event().wait())
if how == "raise":
    raise ValueError("wrong")
if how == "thread":
    threading.Timer(0.01, print, ["of a thread"]).start()
if how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if how != "return":
    sys.exit({"words": "what is wrong", "nothing": None}.get(how, 78))
"""


@pytest.fixture(scope="module", autouse=True)
def forks():
    """This worker's spawner, or one for these tests."""
    if spawner._running:
        yield
        return
    spawner.begin()
    yield
    spawner.end()


@pytest.fixture
def started(tmp_path):
    """Starts the script."""
    (tmp_path / "script.py").write_text(SCRIPT)

    def start(how, fork=True, **streams):
        words = [str(tmp_path / "script.py"), how]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} | streams
        process = spawner.start("pagoda_gateway", words, {**os.environ, "WORD": "told", "PYTHONUNBUFFERED": "1"}, fork=fork, **streams)
        assert isinstance(process, spawner.Fork) == fork
        return process

    return start


def ended(process):
    """Its exit code, and what it said but for the places in tracebacks."""
    with process.stdout:
        said = process.stdout.read().splitlines()
    return process.wait(60), [line for line in said if not line.startswith(" ")]


@pytest.mark.deep
@pytest.mark.parametrize("how", ["return", "nothing", "78", "words", "raise", "thread", "kill"])
def test_it_says_and_ends_as_a_process_of_python_does(started, how):
    assert ended(started(how)) == ended(started(how, fork=False))


def test_what_a_variant_changes_is_not_in_the_next_one(started):
    expected = ["pagoda_gateway.serve.settings False ['return'] told []", "to stderr", "at exit"]
    assert [ended(started("return")) for _ in range(2)] == [(0, expected)] * 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_it_and_who_waits_is_told(started, number):
    process = started("serve", stderr=subprocess.DEVNULL)
    assert "['serve']" in process.stdout.readline()
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(number)
    assert process.wait(60) == -number
    assert process.poll() == process.returncode == -number
    process.kill()
    process.stdout.close()


@pytest.mark.deep
def test_its_end_is_the_workers(tmp_path):
    """And nothing is inherited: the pipe ends with the program, whatever else runs."""
    (tmp_path / "script.py").write_text(SCRIPT)
    own = Spawner()
    environment = {**os.environ, "WORD": "told"}
    order = spawner._Order("pagoda_gateway", [str(tmp_path / "script.py"), "serve"], environment)
    one, other = (own.start(order, subprocess.PIPE, subprocess.DEVNULL) for _ in range(2))
    one.kill()
    assert one.stdout.read().count("\n") <= 1
    assert other.poll() is None
    own.close()
    assert other.wait(60) == -signal.SIGKILL
    for process in (one, other):
        process.stdout.close()
        process.wait()


@pytest.mark.deep
def test_without_one_it_is_a_process_as_anywhere_else(monkeypatch, started):
    monkeypatch.setattr(spawner, "_running", [])
    process = started("return", fork=False)
    assert process.args[:2] == [sys.executable, "-P"]
    assert ended(process)[0] == 0
