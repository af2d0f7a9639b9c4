"""Settings for all tests: examples are the same in every run, and no example is judged by the wall clock of a busy machine."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("pagoda", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pagoda")

UNIT = Path(__file__).parent / "unit"
# What ends a test that hangs where it starts processes, or computes for a minute (deep): the first one of a file pays for its cluster
# and images too, and a busy machine gives a thousand seeds of a race a fifth of a core.
LONG_S = 1800


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="every point of a sweep, not a drawn share (make test-full)")
    parser.addoption("--points", default="", help="one line that a failed sweep printed, SCENARIO:N=ACT,…; SCENARIO alone: all of it")
    parser.addoption("--slice", default="1/1", help="K/N: of the lives of a sweep every N-th from the K-th on, so that hours can be split")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes minutes by itself is for `make test-full`."""
    for item in items:
        long = UNIT not in item.path.parents or item.get_closest_marker("deep")
        if long and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_S))
    if not config.getoption("--all"):
        long = [item for item in items if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
