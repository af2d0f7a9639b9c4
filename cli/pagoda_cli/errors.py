"""What the CLI itself refuses; the arithmetic has its own tree in pagoda_sizing.errors."""

from __future__ import annotations


class CliError(Exception):
    """One line for stderr; exit code 2."""
