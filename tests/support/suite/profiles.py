"""How many examples a property is tried on: a number for every day, and more of them, drawn anew, in `make test-full`."""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

DAILY: Final = "daily"
FULL: Final = "full"
_MORE: Final = 10


def register() -> None:
    """Daily: the same examples in every run. Full: others in each run (`--hypothesis-seed` says which), and more of them.

    No example is judged by the wall clock of a busy machine.
    """
    common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile(DAILY, derandomize=True, **common)
    settings.register_profile(FULL, derandomize=False, print_blob=True, max_examples=100 * _MORE, **common)
    settings.load_profile(DAILY)
    # Hypothesis draws constants of the modules that are imported: other examples for each choice of test files, and seconds to find them.
    providers._get_local_constants = lambda: providers._local_constants


def examples(daily: int) -> int:
    """What `max_examples` is to be in the profile that is loaded: pytest's `--hypothesis-profile` names it."""
    return daily * _MORE if settings.get_current_profile_name() == FULL else daily
