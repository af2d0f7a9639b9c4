"""Writes the tables of docs/sizing.md, or with --check only compares: `python -P -m pagoda_sizing.generate docs/sizing.md`.

Called by `make generate` and `make verify`; what it does with files is `pagoda_contracts.marked`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pagoda_contracts import marked

from pagoda_sizing.tables import updated


def main(arguments: Sequence[str]) -> int:
    """0: up to date now; 1: --check found a difference."""
    return marked.main(arguments, updated, "pagoda_sizing.generate")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
