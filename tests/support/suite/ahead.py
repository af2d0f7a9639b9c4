"""In a fresh clone both cores compile: while the tests are collected, a second process imports them from the last file on.

Bytecode is written once, of the tests with their assertions rewritten, of the packages, and of what they import. Whoever comes second to a
module reads it. Where all of it is written this costs nothing.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, get_cache_dir
from _pytest.pathlib import import_path


class Ahead:
    """A plugin around pytest's own collection."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self, session: pytest.Session) -> Iterator[object]:
        files = [file for file in _files(session.config) if not _compiled(file)]
        helper = _fork(files, session.config.rootpath) if files else None
        try:
            return (yield)
        finally:
            if helper is not None:
                os.waitpid(helper, 0)  # it has met this process by now


def _files(config: pytest.Config) -> list[Path]:
    """Of the folders that were named, in the order of the collection."""
    return [file for name in config.args for file in sorted((config.invocation_params.dir / name).rglob("test_*.py"))]


def _compiled(file: Path) -> bool:
    return (get_cache_dir(file) / f"{file.stem}{PYC_TAIL}").exists()


def _fork(files: list[Path], root: Path) -> int:
    if pid := os.fork():
        return pid
    try:
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        gc.disable()
        for file in reversed(files):
            with suppress(BaseException):  # what is wrong with a file is said by the process that collects it
                if not _compiled(file):
                    import_path(file, mode="importlib", root=root, consider_namespace_packages=False)
    finally:
        os._exit(0)
