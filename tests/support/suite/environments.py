"""Environments of suites that are not ours: each has its own, made from the hash-pinned lock requirements/clients/SUITE.txt.

An environment is kept in Pagoda's cache folder under the hash of its lock, so it is made once per machine. A program runs in it by that
environment's interpreter, and its last line is the JSON that a test judges: the suite itself never meets our packages.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[3]
LOCKS: Final = ROOT / "requirements" / "clients"
PROGRAMS: Final = ROOT / "tests" / "clients" / "programs"
UV: Final = Path(sys.executable).parent / "uv"
PATIENCE_S: Final = 900.0
_COMPLETE: Final = "complete"


def interpreter(suite: str) -> Path:
    """The Python of the suite's environment, which is made if it does not exist. Safe from several processes at once."""
    lock = LOCKS / f"{suite}.txt"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache_folder() / f"{suite}-{_digest(lock)}-py{version}"
    with _held(folder.with_suffix(".lock")):
        if not (folder / _COMPLETE).exists():
            _make(folder, lock)
    return folder / "bin" / "python"


def node_folder(suite: str) -> Path:
    """The same for a package of Node: the folder with `node_modules`, as requirements/clients/SUITE/package-lock.json has it."""
    source = LOCKS / suite
    folder = cache_folder() / f"{suite}-{_digest(source / 'package-lock.json')}"
    with _held(folder.with_suffix(".lock")):
        if not (folder / _COMPLETE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(source, folder)
            _checked(["npm", "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)])
            (folder / _COMPLETE).touch()
    return folder


def run_node(suite: str, *arguments: str) -> Any:
    """What tests/clients/programs/SUITE.mjs prints in its last line, read as JSON. Its first argument is the folder of its packages."""
    program = PROGRAMS / f"{suite.replace('-', '_')}.mjs"
    return json.loads(_run(["node", str(program), str(node_folder(suite)), *arguments]).splitlines()[-1])


def cache_folder() -> Path:
    """Where environments are kept. It may be deleted at any time when no test runs."""
    home = Path(os.environ.get("PAGODA_CACHE") or Path.home() / ".cache" / "pagoda")
    folder = home / "clients"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run_program(suite: str, *arguments: str, program: str = "", env: Mapping[str, str] | None = None) -> Any:
    """What a program of tests/clients/programs prints in its last line, read as JSON. Its name is the suite's, if not `program`."""
    path = PROGRAMS / f"{program or suite.replace('-', '_')}.py"
    return json.loads(run_in(suite, "-I", str(path), *arguments, env=env).splitlines()[-1])


def run_in(suite: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """The standard output of the suite's interpreter with these arguments; AssertionError has its last words if it fails."""
    return _run([str(interpreter(suite)), *arguments], env)


def _digest(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes()).hexdigest()[:16]


def _run(argv: list[str], env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=environment_of() | dict(env or {}))
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout


def environment_of() -> dict[str, str]:
    """The variables of a foreign program: none of Python's or of a proxy, no hub, few threads."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON") and not name.lower().endswith("_proxy")}
    given = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "OPENAI_API_KEY": "unused", "NO_PROXY": "*", "NO_COLOR": "1", "TERM": "dumb"}
    return {name: value for name, value in kept.items() if name != "VIRTUAL_ENV"} | given


@contextmanager
def _held(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(folder: Path, lock: Path) -> None:
    """Offline first: a registry is asked only for what uv's cache lacks."""
    shutil.rmtree(folder, ignore_errors=True)
    _uv("venv", "--quiet", "--offline", "--python", sys.executable, str(folder))
    sync = ("pip", "sync", "--quiet", "--require-hashes", "--python", str(folder / "bin" / "python"), str(lock))
    if subprocess.run([str(UV), *sync, "--offline"], capture_output=True, check=False).returncode:
        _uv(*sync)
    (folder / _COMPLETE).touch()


def _uv(*arguments: str) -> None:
    _checked([str(UV), *arguments])


def _checked(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}\n{done.stderr[-4000:]}"
