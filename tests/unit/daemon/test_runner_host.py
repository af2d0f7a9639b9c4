"""Cores and memory from cgroup v1 and v2 files, and the pool that follows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pagoda_contracts.launch import EngineConfig
from pagoda_daemon.errors import ConfigRejected
from pagoda_daemon.runner.host import Host
from pagoda_daemon.runner.kv_size import KvShape, kv_shape

GIB = 2**30
V1_GROUPS = "5:memory:/kube/pod1\n2:cpu,cpuacct:/kube/pod1\n1:name=systemd:/\n0::/\n"


def host(folder: Path, files: dict[str, str], groups: str = "0::/\n") -> Host:
    everything = {"proc/self/cgroup": groups, "proc/meminfo": "MemTotal: 99 kB\nMemAvailable: 8388608 kB\n"}
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


@pytest.mark.parametrize(
    ("files", "groups", "left"),
    [
        ({}, "0::/\n", 8 * GIB),
        ({"memory.max": "max", "memory.current": "5"}, "0::/\n", 8 * GIB),
        (
            {"memory.max": str(4 * GIB), "memory.current": str(GIB), "memory.stat": f"anon 7\ninactive_file {GIB // 2}\n"},
            "0::/\n",
            7 * GIB // 2,
        ),
        ({"memory.max": str(64 * GIB), "memory.current": "0"}, "0::/\n", 8 * GIB),
        ({"memory/memory.limit_in_bytes": str(2**63 - 4096), "memory/memory.usage_in_bytes": "9"}, V1_GROUPS, 8 * GIB),
        (
            {
                "memory/memory.limit_in_bytes": str(3 * GIB),
                "memory/memory.usage_in_bytes": str(2 * GIB),
                "memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\n",
            },
            V1_GROUPS,
            2 * GIB,
        ),
        ({"memory.max": "10", "memory.current": "99"}, "0::/\n", 0),
    ],
)
def test_memory_left_is_the_groups_or_the_machines(tmp_path: Path, files: dict[str, str], groups: str, left: int) -> None:
    assert host(tmp_path, files, groups).memory_left() == left


def test_the_real_machine_has_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert Host().cores() >= 1
    assert Host().memory_left() > 0


def engine(**values: object) -> EngineConfig:
    return EngineConfig.model_validate({"max_concurrency": 4, "block_size": 16, **values})


def test_the_pool_is_half_of_what_is_left() -> None:
    assert kv_shape(engine(), 100, 1024, memory_left=2 * 1600 * 70) == KvShape(70, 1024)


def test_the_pool_is_never_larger_than_full_rows_need() -> None:
    assert kv_shape(engine(max_model_len=100), 100, 1024, 10**12) == KvShape(4 * 7, 100)


def test_a_context_nobody_asked_for_is_cut_to_the_pool() -> None:
    assert kv_shape(engine(kv_bytes=1600 * 3), 100, 1024, 0) == KvShape(3, 48)


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        ({"max_model_len": 100, "kv_bytes": 1600 * 6}, ("maxModelLen 100", "10000 bytes", "96 tokens")),
        ({"max_model_len": 2000}, ("maxModelLen 2000", "1024")),
        ({"kv_bytes": 1599}, ("1599 bytes", "0 blocks")),
    ],
)
def test_what_does_not_fit_is_refused_by_numbers(values: dict[str, int], numbers: tuple[str, ...]) -> None:
    with pytest.raises(ConfigRejected) as refused:
        kv_shape(engine(**values), 100, 1024, 0)
    assert all(number in str(refused.value) for number in numbers)
