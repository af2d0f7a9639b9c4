"""Operator and gateway that look for the cluster's new keys, and show a token by them, after seconds instead of minutes. Run as a script
with the component's name first."""

from __future__ import annotations

import sys
from importlib import import_module

from pagoda_contracts import bearer

# Half of it is what mounted keys may lag; the rest is for operator, API server and slow machines, two of whose pauses 10 s had room for.
SETTLE_S = 40.0
LOOK_S = 0.5


def main() -> None:
    component = sys.argv.pop(1)
    bearer.SETTLE_S = SETTLE_S  # type: ignore[misc]
    if component == "pagoda_operator":
        keys = import_module("pagoda_operator.keys")
        keys.LOOK_EVERY_S, keys.READ_EVERY_S = LOOK_S, 2 * LOOK_S
    import_module(f"{component}.__main__").main()


if __name__ == "__main__":
    main()
