"""The Debian packages a node needs: which are missing, the line that installs them, and the installing."""

import os
import shutil
import subprocess
from pathlib import Path

from pagoda_devcluster.cluster.errors import MissingPrerequisiteError
from pagoda_devcluster.cluster.spec import Nodes
from pagoda_devcluster.render.node_config import CNI_BINARIES

# Package → a file it brings. Files and not dpkg: a containerd from elsewhere will do as well, and other systems have no dpkg.
CONTROL_PLANE = {"openssl": "openssl"}
NODE = {
    "containerd": "containerd",
    "runc": "runc",
    "containernetworking-plugins": f"{CNI_BINARIES}/bridge",
    "iproute2": "ip",
    "nftables": "nft",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "mount": "mount",
    "util-linux": "nsenter",
}
SERVE = {"iproute2": "ip"}
# Nothing needs them to run a cluster; `make demo` and the tests count on `--install`. Images are built with the first two. redis-tools
# holds the whole server under another name; the package redis-server would also start a service.
TEST_TOOLS = {"buildah": "buildah", "mmdebstrap": "mmdebstrap", "redis-tools": "redis-check-rdb"}
SYSTEM_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing(nodes: Nodes, test_tools: bool = False, serve: bool = False) -> list[str]:
    wanted = CONTROL_PLANE | (NODE if nodes is Nodes.KUBELET else {}) | (SERVE if serve else {}) | (TEST_TOOLS if test_tools else {})
    return [package for package, file in wanted.items() if not present(file)]


def present(file: str) -> bool:
    return Path(file).exists() if file.startswith("/") else shutil.which(file, path=SYSTEM_FOLDERS) is not None


def install_line(packages: list[str]) -> list[str]:
    return ["apt-get", "install", "--yes", "--no-install-recommends", *packages]


def ensure(nodes: Nodes, install: bool, is_root: bool, serve: bool = False) -> list[str]:
    """Returns what was installed."""
    packages = missing(nodes, test_tools=install and nodes is Nodes.KUBELET, serve=serve)
    if not packages:
        return []
    line = " ".join(install_line(packages))
    if not install:
        raise MissingPrerequisiteError(f"missing Debian packages: {' '.join(packages)}. Run `{line}`, or add --install")
    if not is_root or not shutil.which("apt-get"):
        raise MissingPrerequisiteError(f"--install needs root and apt-get. Have an administrator run `{line}`")
    _install(packages)
    return packages


def _install(packages: list[str]) -> None:
    """A fresh machine has no package lists, so they are fetched first; a package manager that is busy is waited for."""
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for argv in (["apt-get", "update"], install_line(packages)):
        done = subprocess.run([*argv, "-o", "DPkg::Lock::Timeout=300"], capture_output=True, text=True, check=False, env=env)
        if done.returncode:
            raise MissingPrerequisiteError(f"`{' '.join(argv)}` failed: {done.stderr.strip().splitlines()[-1:]}")
