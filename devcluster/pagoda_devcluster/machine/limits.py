"""The limits of a machine that clusters run into: inotify instances (128 for each user by default), and a full disk."""

import ctypes
import os
import shutil
from pathlib import Path

from pagoda_devcluster.cluster.errors import MissingPrerequisiteError
from pagoda_devcluster.cluster.spec import Nodes

# Counted in /proc/*/fd: API server and controller-manager 6 each, scheduler 1; with a node kubelet 6, containerd and kube-proxy 1 each.
INOTIFY_INSTANCES = {Nodes.CONTROL_PLANE: 13, Nodes.KUBELET: 21, Nodes.FAKE: 13}
# Measured after `up`: 123 MiB, nearly all reserved by etcd for its log; a node's images come on top, and below 1 % free it evicts pods.
FREE_MIB = {Nodes.CONTROL_PLANE: 256, Nodes.KUBELET: 1024, Nodes.FAKE: 256}
FULL_BYTES = 1 << 20
ROOM = "free some, or set PAGODA_DEVCLUSTER_HOME to a folder on a larger one"
SETTING = "fs.inotify.max_user_instances"


def check_inotify(nodes: Nodes) -> None:
    """Without this the kubelet dies 5 s later of "too many open files", which is no help."""
    wanted = INOTIFY_INSTANCES[nodes]
    found = inotify_available(wanted)
    if found < wanted:
        remedy = f"`pagoda-devcluster down` another one, or `sysctl -w {SETTING}=1024`"
        raise MissingPrerequisiteError(f"{found} inotify instances are left and a cluster needs {wanted}: {remedy}")


def inotify_available(wanted: int) -> int:
    """Opens up to `wanted` and closes them again: the kernel's own count is not readable."""
    libc = ctypes.CDLL(None, use_errno=True)
    opened: list[int] = []
    while len(opened) < wanted and (descriptor := libc.inotify_init1(os.O_CLOEXEC)) >= 0:
        opened.append(descriptor)
    for descriptor in opened:
        os.close(descriptor)
    return len(opened)


def check_disk(folder: Path, nodes: Nodes) -> None:
    """Without this etcd dies of it half-way, or the node evicts every pod."""
    free, wanted = shutil.disk_usage(folder).free >> 20, FREE_MIB[nodes]
    if free < wanted:
        raise MissingPrerequisiteError(f"{free} MiB are free in {folder} and a cluster needs {wanted} MiB: {ROOM}")


def disk_hint(folder: Path) -> str:
    """The likely cause of any failure while nothing can be written; a process that died of it does not always say so."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return ""
    return f" (the disk of {folder} is full: {ROOM})" if free < FULL_BYTES else ""
