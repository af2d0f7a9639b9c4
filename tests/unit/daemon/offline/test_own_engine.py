"""The offline engine's own process: nothing of it is left, however the program ends that made it."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pagoda_contracts.launch import DaemonConfig
from pagoda_daemon.core.errors import ConfigRejected, EngineDied, ModelRejected
from pagoda_daemon.offline import Engine, Sampling
from pagoda_daemon.offline.own_engine import OwnEngine, config_of
from support.engine.toy_model import tiny_model_dir
from support.servers.local_replica import local_config

PATIENCE_S = 120.0
SCRIPT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
from pagoda_contracts.launch import DaemonConfig
from pagoda_daemon.offline import Engine, Sampling
engine = Engine.of(DaemonConfig.model_validate_json(sys.argv[1]))
backing = engine._session._backing
print(backing._process.pid, backing._folder, flush=True)
engine.generate(["a", "b"], Sampling(max_tokens=4))
{end}
"""


def test_the_configuration_is_that_of_serve(tmp_path):
    folder = tiny_model_dir(tmp_path / "toy")
    config = config_of(folder, {"dtype": "float32", "max_model_len": 128})
    assert (config.model.path, config.model.served_names) == (str(folder), ("toy",))
    assert (config.engine.dtype, config.engine.max_model_len) == ("float32", 128)


def test_the_parsers_that_are_named_read_the_answers(tmp_path):
    config = config_of(tiny_model_dir(tmp_path / "toy"), {"tool_parser": "hermes", "reasoning_parser": "none"})
    text = OwnEngine(config).text()
    assert (text.tool_parser, text.reasoning_parser) == ("hermes", "none")


@pytest.mark.parametrize(
    ("given", "said"),
    [({"dtype": "float8"}, "engine.dtype"), ({"max_modellen": 5}, "engine.max_modellen"), ({"token_budget": 1}, "engine.token_budget")],
)
def test_a_field_that_cannot_be_is_refused_by_its_name(tmp_path, given, said):
    with pytest.raises(ConfigRejected, match=said):
        config_of(tiny_model_dir(tmp_path), given)


def test_a_model_that_is_nowhere_is_refused(tmp_path):
    with pytest.raises(ConfigRejected, match="is not a directory"):
        Engine(tmp_path / "absent")


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Temporary files of this test and of what it starts. A short path, because a socket's has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def config(tmp_path: Path, scratch: Path, monkeypatch: Any) -> DaemonConfig:
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    return local_config(tiny_model_dir(tmp_path / "toy"), {})


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.deep
def test_close_leaves_no_process_no_thread_and_no_file(config, scratch):
    before = set(threading.enumerate())
    with Engine.of(config) as engine:
        assert len(engine.generate("a", Sampling(max_tokens=4))[0].token_ids) == 4
        process = engine._session._backing._process
        assert sorted(path.name for path in next(scratch.iterdir()).iterdir())
    assert process.poll() == 0, "it was asked to end, and not killed"
    assert list(scratch.iterdir()) == []
    assert set(threading.enumerate()) <= before


@pytest.mark.deep
def test_a_killed_engine_is_reported_and_leaves_nothing(config, scratch):
    with Engine.of(config) as engine:
        engine._session._backing._process.kill()
        with pytest.raises(EngineDied, match="signal 9"):
            engine.generate("a" * 10, Sampling(max_tokens=400, ignore_eos=True))
        with pytest.raises(EngineDied, match="signal 9"):
            engine.generate("a")
    assert list(scratch.iterdir()) == []


@pytest.mark.deep
def test_a_model_that_cannot_be_loaded_is_reported_and_leaves_nothing(scratch, config):
    real = config.model_copy(update={"testing": None})
    with pytest.raises(ModelRejected, match="num_hidden_layers"):
        Engine.of(real)
    assert list(scratch.iterdir()) == []


@pytest.mark.deep
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),  # a program that forgets to close
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
    ],
    ids=["forgotten", "ctrl-c"],
)
def test_a_program_that_ends_takes_its_engine_along(config, tmp_path, end, code):
    done = _program(config, end)
    assert done.returncode == code, done.stderr
    pid, folder = done.stdout.split()
    assert gone(int(pid))
    assert not Path(folder).exists()


@pytest.mark.deep
def test_a_killed_program_takes_its_engine_along(config):
    done = _program(config, "os.kill(os.getpid(), signal.SIGKILL)")
    pid, folder = done.stdout.split()
    deadline = time.monotonic() + PATIENCE_S
    while not gone(int(pid)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert [path.suffix for path in Path(folder).iterdir()], "nobody was left to remove the folder"


def _program(config: DaemonConfig, end: str) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(end=end)
    argv = [sys.executable, "-P", "-c", script, config.model_dump_json(by_alias=True, exclude_none=True)]
    restore = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs inherit that it is ignored
    )
    argv[3] = restore + script
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
