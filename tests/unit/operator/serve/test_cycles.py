"""How often Python looks for garbage in cycles, seen in a process of its own: the setting is the process's."""

import json
import subprocess
import sys

import pytest

# Containers that live on, as what 500 services' runs hold does, and a count of the looks at everything.
PROGRAM = """
import gc, json
from pagoda_operator import serve
from pagoda_operator.cycles import look_seldom
if {seldom}:
    look_seldom()
before = [one["collections"] for one in gc.get_stats()]
held = [[] for _ in range(300_000)]
print(json.dumps({{"looks": [now["collections"] - then for now, then in zip(gc.get_stats(), before)], "left_out": gc.get_freeze_count()}}))
"""


def looks(seldom: bool) -> int:
    """At everything, while 300,000 containers are made."""
    argv = [sys.executable, "-P", "-c", PROGRAM.format(seldom=seldom)]
    found = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300).stdout)
    assert (found["left_out"] > 10_000) is seldom
    looked: int = found["looks"][2]
    return looked


@pytest.mark.deep
def test_what_is_imported_is_left_out_and_the_rest_is_looked_at_less_often():
    assert looks(seldom=True) < looks(seldom=False)


DOOR = """
import gc
from pagoda_operator import __main__ as door, serve

async def run(settings):
    print(gc.get_threshold()[0], gc.get_freeze_count())
    return 0

serve.run = run
door._operate(["--probes-port", "0"])
"""


@pytest.mark.deep
def test_the_operator_begins_with_it():
    argv = [sys.executable, "-P", "-c", DOOR]
    threshold, left_out = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300).stdout.split()
    assert int(threshold) == 2000
    assert int(left_out) > 10_000
