"""Pages with a generated part between two marks: renews the part, and is the command line of the generators
of docs/sizing.md and docs/api.md."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def renewed(document: str, begin: str, end: str, part: str) -> str:
    """`document` with `part` between the marks; ValueError unless each stands there once, in order."""
    if document.count(begin) != 1 or document.count(end) != 1 or document.index(begin) > document.index(end):
        raise ValueError(f"the document needs one line {begin!r} and after it one {end!r}")
    head, _, rest = document.partition(begin)
    return f"{head}{begin}\n\n{part}\n{end}{rest.partition(end)[2]}"


def main(arguments: Sequence[str], updated: Callable[[str], str], module: str) -> int:
    """`python -P -m MODULE [--check] FILE…`: 0, up to date now; 1, --check found a difference."""
    for path in (Path(argument) for argument in arguments if argument != "--check"):
        text = path.read_text(encoding="utf-8")
        if "--check" not in arguments:
            path.write_text(updated(text), encoding="utf-8")
        elif updated(text) != text:
            sys.stderr.write(f"{path} is out of date: run python -P -m {module} {path}\n")
            return 1
    return 0
