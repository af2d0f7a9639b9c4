"""Which tests share a worker, which start first, and what a tier took against its budget.

Three quarters of what the tests on a cluster take is waiting, so there are more workers than cores. Each worker has a control plane of its
own; tests that share one installed Pagoda, or one kubelet node, stay on one worker.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable

import pytest
from xdist.scheduler import LoadScopeScheduling

# One Pagoda is installed for all scenarios, and one kubelet node stands for the tests of the dev cluster. The latter compare every path of
# the machine that a node could leave behind. Images that a scenario builds meanwhile lie in Pagoda's cache folder.
ONE_WORKER = ("tests/e2e/devcluster", "tests/e2e")
# The folders whose tests wait longest come first, so that the tests that compute fill the cores beside them.
FIRST = ("tests/e2e", "tests/controlplane/operator", "tests/faults", "tests/controlplane", "tests/sweeps", "tests/extras", "tests/security")


def group_of(nodeid: str) -> str:
    """The folder whose tests share a cluster, or the test's file."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in ONE_WORKER if file.startswith(f"{folder}/")), file)


def longest_first(nodeids: list[str]) -> Callable[[str], tuple[int, int, str]]:
    """A key that sorts tests by their groups: by folder as in FIRST, in a folder the group with most tests first."""
    sizes = Counter(map(group_of, nodeids))

    def key(nodeid: str) -> tuple[int, int, str]:
        group = group_of(nodeid)
        rank = next((place for place, folder in enumerate(FIRST) if f"{group}/".startswith(f"{folder}/")), len(FIRST))
        return rank, -sizes[group], group

    return key


class Groups(LoadScopeScheduling):
    """Hands whole groups to workers, in the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


class Bill:
    """What a run took, printed at its end beside its budget. A number for people: no test is red by it."""

    def __init__(self, budget: str) -> None:
        """`budget`: NAME=SECONDS."""
        self._name, _, seconds = budget.partition("=")
        self._budget, self._start = float(seconds), time.monotonic()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        took, times = time.monotonic() - self._start, os.times()
        cpu = times.user + times.system + times.children_user + times.children_system
        word = "within" if took <= self._budget else "OVER"
        line = f"{self._name}: {took:.0f} s, {word} its budget of {self._budget:.0f} s; {cpu:.0f} s of CPU"
        terminalreporter.write_line(line, yellow=took > self._budget)
