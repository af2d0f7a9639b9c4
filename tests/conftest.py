"""Settings for all tests: the examples of properties (support/suite/profiles.py), what takes long, and what ends a test that hangs."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.suite import profiles
from support.suite.ahead import Ahead
from support.suite.forked import Forked
from support.suite.pool import Bill

profiles.register()

HERE = Path(__file__).parent
# Without a GPU, kernels run in Triton's interpreter. It has to be chosen before whatever a test imports imports triton (transformers does).
if not any(Path(driver).exists() for driver in ("/dev/nvidiactl", "/dev/kfd")):
    os.environ.setdefault("TRITON_INTERPRET", "1")
UNIT = {HERE / "unit", HERE / "equipment"}
# What ends a test that hangs where it starts processes, or computes for a minute (deep): the first one of a file pays for its cluster
# and images too, and a busy machine gives a thousand seeds of a race a fifth of a core.
LONG_S = 1800


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="every point of a sweep, not a drawn share (make test-full)")
    parser.addoption("--points", default="", help="one line that a failed sweep printed, SCENARIO:N=ACT,…; SCENARIO alone: all of it")
    parser.addoption("--budget", default="", help="NAME=SECONDS, or NAME=SECONDS CPU: print what the run took beside what it may take")
    parser.addoption("--fork", type=int, default=0, metavar="N", help="run in N workers that are forked once the tests are collected")
    parser.addoption("--slice", default="1/1", help="K/N: of the lives of a sweep every N-th from the K-th on, so that hours can be split")


def pytest_configure(config: pytest.Config) -> None:
    # A shell has its background jobs ignore SIGINT, and all that they start: tests of Ctrl-C would wait for ever.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if budget := config.getoption("--budget"):
        config.pluginmanager.register(Bill(budget), "bill")
    if count := config.getoption("--fork"):
        config.pluginmanager.register(Forked(count), "forked")
        config.pluginmanager.register(Ahead([HERE / "support", *HERE.parent.glob("*/pagoda_*")]), "ahead")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """What is imported stays: to look for cycles in it again and again finds none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """What takes minutes by itself is for `make test-full`."""
    unit = {path: bool(UNIT & set(path.parents)) for path in {item.path for item in items}}
    for item in items:
        if unit[item.path] and not item.get_closest_marker("deep"):
            item.add_marker(pytest.mark.unit)
        elif item.get_closest_marker("timeout") is None and config.getoption("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_S))
    yield  # -m takes its share
    if not config.getoption("--all"):
        long = [item for item in items if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without the unit tier, its files are not read: to collect them takes 14 s of CPU."""
    without = (
        "not unit" in config.option.markexpr
        and UNIT & set(collection_path.parents)
        and collection_path.name.startswith("test_")
        and collection_path.is_file()
    )
    return True if without and "mark.deep" not in collection_path.read_text() else None
