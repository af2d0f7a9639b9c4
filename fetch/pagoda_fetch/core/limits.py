"""What a fetch may cost, and how patient it is. Frozen; made by `settings`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of one fetch. There is none on its whole time: a large model over a thin line is slow and moves."""

    max_bytes: int = 4 * 2**40
    max_files: int = 4096
    # Left free on the volume, for others and for the file system's own needs.
    reserve: int = 64 * 2**20
    # A window of so many seconds must bring so many bytes; a connection may be silent as long.
    silence: float = 60.0
    floor: int = 64 * 2**10
    # Tries in a row that bring less than `floor`, and the pause before the second (doubled each time).
    attempts: int = 6
    pause: float = 0.5
    # Files fetched at the same time.
    parallel: int = 4
    # A lock's holder signs so often; one that is silent as long is dead.
    beat: float = 5.0
    dead_after: float = 60.0
