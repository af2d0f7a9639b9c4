"""Cores and memory from cgroup v1 and v2 files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pagoda_daemon.runner.host import Host, Memory

GIB = 2**30
V1_GROUPS = "5:memory:/kube/pod1\n2:cpu,cpuacct:/kube/pod1\n1:name=systemd:/\n0::/\n"


def host(folder: Path, files: dict[str, str], groups: str = "0::/\n") -> Host:
    everything = {"proc/self/cgroup": groups, "proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n"}
    for name, text in (everything | {f"cgroup/{name}": text for name, text in files.items()}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return Host(folder / "cgroup", folder / "proc")


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.parametrize(
    ("files", "groups", "cores"),
    [
        ({}, "0::/\n", 8),
        ({"cpu.max": "max 100000\n"}, "0::/\n", 8),
        ({"cpu.max": "250000 100000\n"}, "0::/\n", 2),
        ({"cpu.max": "25000 100000\n"}, "0::/\n", 1),
        ({"cpu.max": "9900000 100000\n"}, "0::/\n", 8),
        ({"kube/pod1/cpu.max": "300000 100000\n", "cpu.max": "max 100000\n"}, "0::/kube/pod1\n", 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, V1_GROUPS, 8),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, V1_GROUPS, 4),
        (
            {
                "cpu/kube/pod1/cpu.cfs_quota_us": "50000",
                "cpu/kube/pod1/cpu.cfs_period_us": "100000",
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
            },
            V1_GROUPS,
            1,
        ),
    ],
)
def test_cores_are_those_the_group_grants(tmp_path: Path, files: dict[str, str], groups: str, cores: int) -> None:
    assert host(tmp_path, files, groups).cores() == cores


MACHINE = Memory(16 * GIB, 8 * GIB, limited=False)


@pytest.mark.parametrize(
    ("files", "groups", "memory"),
    [
        ({}, "0::/\n", MACHINE),
        ({"memory.max": "max", "memory.current": "5"}, "0::/\n", MACHINE),
        (
            {"memory.max": str(4 * GIB), "memory.current": str(GIB), "memory.stat": f"anon 7\ninactive_file {GIB // 2}\n"},
            "0::/\n",
            Memory(4 * GIB, 7 * GIB // 2, limited=True),
        ),
        ({"memory.max": str(64 * GIB), "memory.current": "0"}, "0::/\n", MACHINE),
        ({"memory.max": str(12 * GIB), "memory.current": "0"}, "0::/\n", Memory(12 * GIB, 8 * GIB, limited=True)),
        ({"memory/memory.limit_in_bytes": str(2**63 - 4096), "memory/memory.usage_in_bytes": "9"}, V1_GROUPS, MACHINE),
        (
            {
                "memory/memory.limit_in_bytes": str(3 * GIB),
                "memory/memory.usage_in_bytes": str(2 * GIB),
                "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
            },
            V1_GROUPS,
            Memory(3 * GIB, 2 * GIB, limited=True),
        ),
        ({"memory.max": "10", "memory.current": "99"}, "0::/\n", Memory(10, 0, limited=True)),
    ],
)
def test_memory_is_the_groups_or_the_machines(tmp_path: Path, files: dict[str, str], groups: str, memory: Memory) -> None:
    assert host(tmp_path, files, groups).memory() == memory


def test_the_real_machine_has_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert Host().cores() >= 1
    assert 0 < Host().memory().left < Host().memory().total
