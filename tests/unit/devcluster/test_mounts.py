"""The mount table, as the kernel writes it."""

from pathlib import Path

from pagoda_devcluster.machine import mounts

TABLE = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
50 27 0:40 / /home/a\040b rw - tmpfs tmpfs rw
51 50 0:41 / /home/a\040b/deep/er rw - overlay overlay rw
52 27 0:42 / /home rw - xfs /dev/vdb rw
"""


def test_kinds_stand_behind_the_dash_and_blanks_are_octal():
    parsed = mounts.parse(TABLE)
    assert parsed[1] == mounts.Mount(Path("/"), "ext4")
    assert parsed[3] == mounts.Mount(Path("/home/a b"), "tmpfs")


def test_what_is_below_a_folder_comes_innermost_first():
    assert mounts.below(mounts.parse(TABLE), Path("/home/a b")) == [Path("/home/a b/deep/er"), Path("/home/a b")]
    assert mounts.below(mounts.parse(TABLE), Path("/home/a")) == []


def test_a_folder_lies_on_its_innermost_mount():
    parsed = mounts.parse(TABLE)
    assert mounts.kind_of(parsed, Path("/home/a b/deep/er/x")) == "overlay"
    assert mounts.kind_of(parsed, Path("/home/c")) == "xfs"
    assert mounts.kind_of(parsed, Path("/var")) == "ext4"


def test_this_machines_own_table_is_readable():
    assert Path("/") in [mount.target for mount in mounts.current()]
