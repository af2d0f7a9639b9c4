"""Compiles what is missing, one binary at a time: a killed build goes on where it was, and a finished one is never repeated."""

import os
import re
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from pagoda_devcluster.binaries.recipe import Binary, Recipe
from pagoda_devcluster.cluster.errors import BuildError, MissingPrerequisiteError
from pagoda_devcluster.cluster.locks import exclusive

OLDEST_GO = (1, 25)
PACKAGE_LINE = re.compile(r"[\w.~-]+(/[\w.~-]+)*")


def folder_of(recipe: Recipe, binaries: Path) -> Path:
    return binaries / recipe.key


def missing(recipe: Recipe, binaries: Path, wanted: list[Binary] | None = None) -> list[Binary]:
    """A file under its final name was verified before it got that name."""
    return [one for one in wanted or recipe.binaries if not (folder_of(recipe, binaries) / one.name).exists()]


def ensure(recipe: Recipe, binaries: Path, console: Console, wanted: list[Binary] | None = None) -> Path:
    """The folder with all binaries of the recipe, or with those `wanted`, in it."""
    target = folder_of(recipe, binaries)
    if missing(recipe, binaries, wanted):
        with alone(binaries, console):
            build_all(recipe, missing(recipe, binaries, wanted), target, console)
    return target


def alone(binaries: Path, console: Console) -> AbstractContextManager[None]:
    """No other process compiles into this folder, or removes from it."""
    return exclusive(binaries / "build.lock", lambda: console.print("another build is running: waiting for it"))


def build_all(recipe: Recipe, wanted: list[Binary], target: Path, console: Console) -> None:
    if not wanted:
        return
    check_toolchain()
    target.mkdir(parents=True, exist_ok=True)
    for stale in target.glob(".*.part"):
        stale.unlink()
    names = ", ".join(binary.name for binary in wanted)
    console.print(f"compiling {names} into {target} (about 7 minutes for all on 2 cores, once)")
    with Progress(*columns(), console=console, disable=not console.is_terminal) as progress:
        bar = Bar(progress)
        groups = [bar.planned(binary.name, packages(recipe, binary)) for binary in wanted]
        for binary, dependencies in zip(wanted, groups, strict=True):
            build_one(recipe, binary, target, bar.seen)
            bar.finish(dependencies)
            size = (target / binary.name).stat().st_size >> 20
            console.print(f"  {binary.name:<24} {size:>4} MiB  {bar.lap():>4.0f} s")


def columns() -> tuple[TextColumn, BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn]:
    return TextColumn("compiling"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[package]}"), TimeElapsedColumn()


class Bar:
    """Counts packages over all binaries: what two of them share is compiled, and counted, once."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._all: set[str] = set()
        self._done: set[str] = set()
        # Without a total the bar only moves: modules are being fetched, and their size is unknown.
        self._task: TaskID = progress.add_task("build", total=None, package="fetching modules")
        self._lap = time.monotonic()

    def planned(self, binary: str, dependencies: set[str]) -> set[str]:
        self._all |= dependencies
        self._progress.update(self._task, package=f"fetched what {binary} needs")
        return dependencies

    def seen(self, package: str) -> None:
        self._done.add(package)
        self._progress.update(self._task, total=len(self._all), completed=len(self._done), package=package[-60:])

    def finish(self, dependencies: set[str]) -> None:
        self._done |= dependencies
        self._progress.update(self._task, total=len(self._all), completed=len(self._done))

    def lap(self) -> float:
        before, self._lap = self._lap, time.monotonic()
        return self._lap - before


def build_one(recipe: Recipe, binary: Binary, target: Path, on_package: Callable[[str], None]) -> None:
    # A compiler that outlived its killed parent still writes: not into our file.
    part = target / f".{binary.name}.{os.getpid()}.part"
    argv = binary.build_argv(part)
    tail: deque[str] = deque(maxlen=5)
    with subprocess.Popen(argv, cwd=recipe.folder / binary.module, stderr=subprocess.PIPE, text=True, env=go_environment()) as compiler:
        try:
            for line in compiler.stderr or []:
                tail.append(line.strip())
                if PACKAGE_LINE.fullmatch(line.strip()):
                    on_package(line.strip())
        except BaseException:
            # Ctrl-C: the compiler must not go on if no process waits for it.
            compiler.kill()
            part.unlink(missing_ok=True)
            raise
    if compiler.returncode:
        raise BuildError(f"{binary.name} did not compile: {' | '.join(tail)}")
    verify(binary, part)
    part.rename(target / binary.name)


def verify(binary: Binary, file: Path) -> None:
    if not binary.version_text:
        return
    done = subprocess.run([str(file), *binary.version_arguments], capture_output=True, text=True, check=False)
    if binary.version_text not in done.stdout + done.stderr:
        raise BuildError(f"{binary.name} says {done.stdout.strip()[:80]!r} instead of {binary.version_text}")


def packages(recipe: Recipe, binary: Binary) -> set[str]:
    """Also fetches the modules; a failure here is the one that an unreachable module proxy gives."""
    done = subprocess.run(
        binary.list_argv(), cwd=recipe.folder / binary.module, capture_output=True, text=True, check=False, env=go_environment()
    )
    if done.returncode:
        raise BuildError(f"the modules of {binary.name} cannot be had: {' | '.join(done.stderr.strip().splitlines()[-2:])}")
    return set(done.stdout.split())


def go_environment() -> dict[str, str]:
    """No cgo: the binaries then need nothing of the machine they run on."""
    return dict(os.environ) | {"CGO_ENABLED": "0", "GOWORK": "off"}


def check_toolchain() -> None:
    wanted = ".".join(map(str, OLDEST_GO))
    if not shutil.which("go"):
        raise MissingPrerequisiteError(f"no `go` on PATH: install Go {wanted} or newer, then run this again")
    version = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout.strip()
    if parse_go_version(version) < OLDEST_GO:
        raise MissingPrerequisiteError(f"{version} is too old: install Go {wanted} or newer, then run this again")


def parse_go_version(text: str) -> tuple[int, int]:
    """`go1.26.8` → (1, 26); a development version counts as new."""
    with suppress(ValueError):
        major, minor = text.removeprefix("go").split(".")[:2]
        return int(major), int(re.split(r"\D", minor)[0])
    return OLDEST_GO
