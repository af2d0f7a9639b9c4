"""In a fresh clone both cores compile: while the tests are collected, a second process writes bytecode, of the tests from the last file on.

Of the packages first, then of the tests with their assertions rewritten. It imports nothing of them: whoever imports a module executes it,
which takes longer than to compile it. Where all of it is written this costs nothing.
"""

from __future__ import annotations

import compileall
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _rewrite_test, _write_pyc, assertstate_key, get_cache_dir


class Ahead:
    """A plugin around pytest's own collection. `packages`: folders of what the tests import."""

    def __init__(self, packages: Sequence[Path] = ()) -> None:
        self._packages = packages

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self, session: pytest.Session) -> Iterator[object]:
        files = [file for file in _files(session.config) if not _compiled(file)]
        helper = _fork(session.config, self._packages, files) if files else None
        try:
            return (yield)
        finally:
            if helper is not None:
                os.waitpid(helper, 0)  # it has met this process by now


def _files(config: pytest.Config) -> list[Path]:
    """Of the folders that were named, in the order of the collection."""
    return [file for name in config.args for file in sorted((config.invocation_params.dir / name).rglob("test_*.py"))]


def _bytecode(file: Path) -> Path:
    """Where pytest looks for it."""
    return get_cache_dir(file) / f"{file.stem}{PYC_TAIL}"


def _compiled(file: Path) -> bool:
    return _bytecode(file).exists()


def _fork(config: pytest.Config, packages: Sequence[Path], files: Sequence[Path]) -> int:
    if pid := os.fork():
        return pid
    try:
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        for folder in packages:
            compileall.compile_dir(folder, quiet=2)
        for file in reversed(files):
            with suppress(Exception):  # what is wrong with a file is said by the process that collects it
                if not _compiled(file):
                    _compile(config, file)
    finally:
        os._exit(0)


def _compile(config: pytest.Config, file: Path) -> None:
    """As pytest does it at the import of a test."""
    source, code = _rewrite_test(file, config)
    path = _bytecode(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_pyc(config.stash[assertstate_key], code, source, path)
