"""What the container may use: cores and memory, from cgroup v1 or v2 files and /proc. Called once by `engine.build`.

Inside a container the group's files lie at the mount's root (its own namespace or bind mount); on a plain machine under the path that
/proc/self/cgroup names. Both are looked at, the deeper first.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# cgroup v1 says "no limit" with a number near 2^63.
_UNLIMITED = 2**60


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes in all and bytes still left; `limited` by a group or a device's own, else the machine's. `kind`: whose they are."""

    total: int
    left: int
    limited: bool
    kind: Literal["container", "machine", "device"] | None = None

    @property
    def place(self) -> str:
        return self.kind or ("container" if self.limited else "machine")


@dataclass(frozen=True, slots=True)
class Host:
    """Where the kernel's files are; tests point them at a folder."""

    cgroup: Path = Path("/sys/fs/cgroup")
    proc: Path = Path("/proc")

    def cores(self) -> int:
        """Whole cores that the quota grants, at most those of the affinity mask, at least 1."""
        allowed = len(os.sched_getaffinity(0))
        quota = self._quota()
        return allowed if quota is None else max(1, min(allowed, int(quota)))

    def memory(self) -> Memory:
        """What may still be used: the group's limit less what it uses (page cache it can drop not counted), or the machine's."""
        text = (self.proc / "meminfo").read_text()
        machine = Memory(_meminfo(text, "MemTotal"), _meminfo(text, "MemAvailable"), limited=False)
        group = self._group_memory()
        if group is None or group.total >= machine.total:
            return machine
        return Memory(group.total, max(0, min(machine.left, group.left)), limited=True)

    def _quota(self) -> float | None:
        modern = self._read("", "cpu.max")
        if modern is not None:
            quota, period = modern.split()
            return None if quota == "max" else int(quota) / int(period)
        quota_us, period_us = self._read("cpu", "cpu.cfs_quota_us"), self._read("cpu", "cpu.cfs_period_us")
        if quota_us is None or period_us is None or int(quota_us) <= 0:
            return None
        return int(quota_us) / int(period_us)

    def _group_memory(self) -> Memory | None:
        limit, used = self._read("", "memory.max"), self._read("", "memory.current")
        stat, key = self._read("", "memory.stat"), "inactive_file"
        if limit is None:
            limit, used = self._read("memory", "memory.limit_in_bytes"), self._read("memory", "memory.usage_in_bytes")
            stat, key = self._read("memory", "memory.stat"), "total_inactive_file"
        if limit is None or used is None or limit == "max" or int(limit) >= _UNLIMITED:
            return None
        return Memory(int(limit), int(limit) - int(used) + _stat(stat or "", key), limited=True)

    def _read(self, controller: str, name: str) -> str | None:
        for folder in (self.cgroup / controller / self._own_path(controller), self.cgroup / controller):
            if (folder / name).is_file():
                return (folder / name).read_text().strip()
        return None

    def _own_path(self, controller: str) -> str:
        for line in (self.proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                return path.lstrip("/")
        return ""


def _meminfo(text: str, key: str) -> int:
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(f"{key}:"))


def _stat(text: str, key: str) -> int:
    return next((int(value) for name, _, value in (line.partition(" ") for line in text.splitlines()) if name == key), 0)
