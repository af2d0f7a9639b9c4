"""The one limit of a machine that several clusters run into: inotify instances, 128 for each user by default."""

import ctypes
import os

from pagoda_devcluster.errors import MissingPrerequisiteError
from pagoda_devcluster.spec import Nodes

# Counted in /proc/*/fd: API server and controller-manager 6 each, scheduler 1; with a node kubelet 6, containerd and kube-proxy 1 each.
INOTIFY_INSTANCES = {Nodes.CONTROL_PLANE: 13, Nodes.KUBELET: 21, Nodes.FAKE: 13}
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
