"""The entry point: runs the command, or names the missing extra."""

from __future__ import annotations

import sys


def main() -> None:
    """Console script `pagoda-replay`."""
    try:
        from pagoda_replay.command import main as replay
    except ModuleNotFoundError as missing:
        sys.exit(f"pagoda-replay: {missing.name} is not installed; in a checkout: pip install '.[operator]'")
    sys.exit(replay(sys.argv[1:]))


if __name__ == "__main__":
    main()
