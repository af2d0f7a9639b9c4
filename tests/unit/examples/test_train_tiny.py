"""The tiny model's cache: what its key depends on, what a second call costs, what becomes of a failed training."""

import fcntl
import os
import shutil
import subprocess
import sys

import pytest
import train_tiny
from pydoc_answers import TOPICS
from support.engine import tiny_model


def test_the_key_changes_with_the_text():
    changed = {**TOPICS, "if": TOPICS["if"].replace("conditional", "unconditional")}
    assert train_tiny.cache_key(train_tiny.python_text(changed)) != train_tiny.cache_key(train_tiny.python_text())


def test_the_key_is_the_same_in_another_process():
    code = "import train_tiny as t; print(t.cache_key(t.python_text()))"
    env = {**os.environ, "PYTHONHASHSEED": "4711"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tiny_model.EXAMPLES, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == train_tiny.cache_key(train_tiny.python_text())


def test_the_key_changes_with_the_training_code(tmp_path, monkeypatch):
    (tmp_path / "learn.py").write_text("seed = 1\n")
    monkeypatch.setattr(train_tiny, "TRAINING_CODE", tmp_path)
    before = train_tiny.cache_key(train_tiny.python_text())
    (tmp_path / "learn.py").write_text("seed = 2\n")
    assert train_tiny.cache_key(train_tiny.python_text()) != before


@pytest.fixture
def cached(tmp_path):
    """A cache that has a model already."""
    folder = tmp_path / "models" / f"tiny-{train_tiny.cache_key(train_tiny.python_text())}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def run(tmp_path, *arguments):
    """The script, where importing torch is an error."""
    code = "import sys, runpy; sys.modules['torch'] = None; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, tiny_model.EXAMPLES / "train_tiny.py", *arguments]
    env = {**os.environ, "PAGODA_CACHE": str(tmp_path), "PYTHONPATH": str(tiny_model.EXAMPLES)}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_a_cached_model_is_found_without_torch_and_its_directory_is_all_that_is_printed(tmp_path, cached):
    done = run(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{cached}\n", "")


def test_without_a_cached_model_the_same_call_needs_torch(tmp_path):
    done = run(tmp_path)
    assert done.returncode != 0
    assert "torch" in done.stderr


def test_out_copies_the_model(tmp_path, cached):
    done = run(tmp_path, "--out", tmp_path / "copy")
    assert done.stdout == f"{tmp_path / 'copy'}\n"
    assert (tmp_path / "copy" / "config.json").read_text() == "{}"


def test_out_never_writes_over_something(tmp_path, cached):
    done = run(tmp_path, "--out", tmp_path)
    assert done.returncode == 2
    assert f"{tmp_path}: exists already" in done.stderr


def test_a_training_that_fails_leaves_nothing_that_looks_like_a_model(tmp_path, monkeypatch):
    import tiny.train

    def fails(folder, *_):
        (folder / "config.json").write_text("{}")
        raise RuntimeError("out of steps")

    monkeypatch.setattr(tiny.train, "train", fails)
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path))
    with pytest.raises(RuntimeError, match="out of steps"):
        train_tiny.cached_model(quiet=True)
    assert [path for path in (tmp_path / "models").iterdir() if path.is_dir()] == []


def test_the_trainer_holds_the_lock_and_a_process_that_waited_for_it_does_not_train_again(tmp_path, monkeypatch):
    import tiny.train

    trained = []

    def train(folder, *_):
        (lock,) = (tmp_path / "models").glob("*.lock")
        with lock.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        trained.append(folder)
        return {}

    def waits_while_another_trains(*_):
        (tmp_path / "models" / f"tiny-{key}").mkdir()

    key = train_tiny.cache_key(train_tiny.python_text())
    monkeypatch.setattr(tiny.train, "train", train)
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path))
    target = train_tiny.cached_model(quiet=True)
    assert len(trained) == 1
    shutil.rmtree(target)
    monkeypatch.setattr(train_tiny.fcntl, "flock", waits_while_another_trains)
    assert train_tiny.cached_model(quiet=True) == target
    assert len(trained) == 1
