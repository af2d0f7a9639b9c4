"""The lists of planted faults, and one fault in a copy of the tree for a while."""

from __future__ import annotations

import itertools
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LISTS = Path(__file__).parents[2] / "planted/faults"
TIERS = ("unit", "test")
_changes = itertools.count(1)


@dataclass(frozen=True)
class Fault:
    """`before` stands once in `file`; with `after` in its place the tests are red. `tier`: the cheapest one that shows it."""

    component: str
    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    tier: str
    found: str = "red"  # "green at first": no test saw it when it was planted for the first time

    def __post_init__(self) -> None:
        if self.tier not in TIERS or not self.tests or self.before == self.after:
            raise ValueError(f"{self.component}: {self.name}: a tier of {TIERS}, tests, and a change are needed")


def known_faults() -> list[Fault]:
    """All of them, by component."""
    return [
        Fault(path.stem, **entry | {"tests": tuple(entry["tests"])})
        for path in sorted(LISTS.glob("*.toml"))
        for entry in tomllib.loads(path.read_text())["fault"]
    ]


@contextmanager
def planted(tree: Path, fault: Fault) -> Iterator[None]:
    """The tree has the fault meanwhile."""
    file = tree / fault.file
    healthy = file.read_text()
    if healthy.count(fault.before) != 1:
        raise ValueError(f"{fault.file}: the text that {fault.name!r} changes stands there {healthy.count(fault.before)} times, not once")
    try:
        _write(file, healthy.replace(fault.before, fault.after))
        yield
    finally:
        _write(file, healthy)


def _write(file: Path, text: str) -> None:
    """Bytecode is known by second and size of its source, and two faults may share both."""
    file.write_text(text)
    stamp = file.stat().st_mtime + 10 * next(_changes)
    os.utime(file, (stamp, stamp))
