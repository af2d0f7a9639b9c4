"""Which tests share a worker, which start first, and what a tier took against its budget.

Three quarters of what the tests on a cluster take is waiting, so there are more workers than cores. Each worker has a control plane of its
own; tests that share one installed Pagoda, or one kubelet node, stay on one worker.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest

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


class Budget(NamedTuple):
    """What a tier may take: seconds of the clock, or of CPU if it shares the cores with another tier."""

    name: str
    seconds: float
    of_cpu: bool

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Reads NAME=SECONDS or NAME=SECONDS CPU."""
        name, _, bound = text.partition("=")
        return cls(name, float(bound.removesuffix(" CPU")), bound.endswith(" CPU"))

    def holds(self, took: float, cpu: float) -> bool:
        return (cpu if self.of_cpu else took) <= self.seconds

    def line(self, took: float, cpu: float) -> str:
        word, unit = "within" if self.holds(took, cpu) else "OVER", "s of CPU" if self.of_cpu else "s"
        return f"{self.name}: {took:.0f} s, {cpu:.0f} s of CPU, {word} its budget of {self.seconds:.0f} {unit}"


class Bill:
    """What a run took, printed at its end beside its budget. A number for people: no test is red by it."""

    def __init__(self, budget: str) -> None:
        self._budget, self._start = Budget.parse(budget), time.monotonic()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        took, times = time.monotonic() - self._start, os.times()
        cpu = times.user + times.system + times.children_user + times.children_system
        terminalreporter.write_line(self._budget.line(took, cpu), yellow=not self._budget.holds(took, cpu))
