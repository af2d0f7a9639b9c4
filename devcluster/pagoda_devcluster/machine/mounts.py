"""Reads the mount table: where control groups live, what is mounted below a folder, what a folder lies on."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pagoda_devcluster.cluster.errors import StartError


@dataclass(frozen=True)
class Mount:
    """One line of the table."""

    target: Path
    kind: str


def parse(table: str) -> list[Mount]:
    """`/proc/self/mountinfo`: the kind stands behind a lone dash, and blanks in paths are octal."""
    mounts = []
    for line in table.splitlines():
        fields = line.split()
        mounts.append(Mount(Path(unescape(fields[4])), fields[fields.index("-") + 1]))
    return mounts


def unescape(path: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path


def current() -> list[Mount]:
    return parse(Path("/proc/self/mountinfo").read_text())


def below(mounts: list[Mount], folder: Path) -> list[Path]:
    """Mount points in `folder`, innermost first."""
    return sorted((mount.target for mount in mounts if mount.target.is_relative_to(folder)), key=lambda target: -len(target.parts))


def kind_of(mounts: list[Mount], folder: Path) -> str:
    """The filesystem `folder` lies on; of mounts on one place the last is on top."""
    holding = [mount for mount in mounts if folder.is_relative_to(mount.target)]
    deepest = max(len(mount.target.parts) for mount in holding)
    return [mount for mount in holding if len(mount.target.parts) == deepest][-1].kind


def release(folder: Path) -> list[Path]:
    """Unmount whatever is below `folder`, which a killed run may have left, and check it: what follows removes the folder."""
    real = Path(os.path.realpath(folder))
    found = below(current(), real)
    for target in found:
        subprocess.run(["umount", "--lazy", str(target)], check=False, capture_output=True)
    if left := below(current(), real):
        raise StartError(f"{left[0]} is still mounted: unmount it, then run `pagoda-devcluster down` again")
    return found
