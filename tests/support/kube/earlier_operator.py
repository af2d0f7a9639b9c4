"""Runs the operator of the version before, as kept in tests/data: `earlier_operator.py FOLDER OPTIONS...` (FOLDER from `unpack`).

It uses today's installed libraries and nothing else of today's project: its own packages come first on the path.
"""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).parents[2] / "data/v0.1/operator.tgz"
# Options that tests give to every operator and that this one does not have, each with a value.
LATER = ("--metrics-port",)


def unpack(folder: Path) -> tuple[str, ...]:
    """The command line that runs it."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return (sys.executable, "-P", str(Path(__file__)), str(folder))


def main() -> None:
    folder, options = Path(sys.argv[1]), sys.argv[2:]
    sys.path[:0] = [str(folder / "operator"), str(folder / "contracts")]
    later = {index for index, option in enumerate(options) if option in LATER}
    sys.argv = ["pagoda-operator", *(option for index, option in enumerate(options) if index not in later and index - 1 not in later)]
    from pagoda_operator import __main__ as door

    if not str(door.__file__).startswith(str(folder)):
        sys.exit(f"{door.__file__} is not the earlier operator")
    door.main()


if __name__ == "__main__":
    main()
