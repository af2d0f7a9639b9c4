"""The entry point: registers one module per command, runs it, and turns what is refused into one line on stderr and exit code 2."""

from __future__ import annotations

import sys

EXTRA = "cli"
EXIT_REFUSED = 2
EXIT_MISSING = 3


def main() -> None:
    """Console script `pagoda`."""
    try:
        from pagoda_cli import commands
    except ModuleNotFoundError as missing:
        print(f"pagoda: {missing.name} is not installed; in a checkout: pip install '.[{EXTRA}]'", file=sys.stderr)
        sys.exit(EXIT_MISSING)
    sys.exit(commands.run(sys.argv[1:]))


if __name__ == "__main__":
    main()
