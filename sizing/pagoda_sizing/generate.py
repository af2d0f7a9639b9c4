"""Writes the tables of docs/sizing.md, or with --check only compares: `python -P -m pagoda_sizing.generate docs/sizing.md`.

Called by `make generate` and `make verify`; the only file here that touches a file outside the package.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pagoda_sizing.tables import updated


def main(arguments: Sequence[str]) -> int:
    """0: up to date now; 1: --check found a difference."""
    paths = [Path(argument) for argument in arguments if argument != "--check"]
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if "--check" not in arguments:
            path.write_text(updated(text), encoding="utf-8")
        elif updated(text) != text:
            sys.stderr.write(f"{path} is out of date: run python -P -m pagoda_sizing.generate {path}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
