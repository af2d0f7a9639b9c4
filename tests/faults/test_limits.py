"""An operator that is given little: a tenth of a core, 160 MiB, 64 file descriptors. It is slow, and does nothing wrong."""

import os
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.harness.service_life import harness_of, run
from support.kube.fault_plan import Plan
from support.kube.operator_process import OPERATOR

pytestmark = [pytest.mark.cluster, pytest.mark.sweep, pytest.mark.full]
# Control groups of version 1, as the native dev cluster's.
GROUPS = Path("/sys/fs/cgroup")
LITTLE = {"cpu": ("cpu.cfs_quota_us", "10000"), "memory": ("memory.limit_in_bytes", str(160 << 20))}


@contextmanager
def group(controller):
    """A control group that gives little of one thing; its tasks file."""
    if not os.access(GROUPS / controller / "cgroup.procs", os.W_OK):
        pytest.skip(f"no control group of version 1 for {controller} that may be written")
    folder = GROUPS / controller / f"pagoda-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    try:
        name, value = LITTLE[controller]
        (folder / name).write_text(value)
        yield folder / "cgroup.procs"
    finally:
        folder.rmdir()


@pytest.mark.parametrize("controller", LITTLE)
def test_little_of_a_machine_makes_it_slow_and_nothing_else(controller, undisturbed, place, proxy, account):
    with group(controller) as tasks:
        program = ("sh", "-c", f'echo $$ > {tasks} && exec "$0" "$@"', OPERATOR)
        with harness_of(place(), proxy, account, program=program, lease=False) as harness:
            outcome = run("whole_life", harness, Plan())
    assert outcome.broken == []
    assert outcome.deaths == 0
    assert outcome.rests == undisturbed("whole_life").rests


def test_few_file_descriptors_are_enough(undisturbed, place, proxy, account):
    program = ("prlimit", "--nofile=64", OPERATOR)
    with harness_of(place(), proxy, account, program=program, lease=False) as harness:
        outcome = run("whole_life", harness, Plan())
    assert outcome.broken == []
    assert outcome.deaths == 0
    assert outcome.rests == undisturbed("whole_life").rests
