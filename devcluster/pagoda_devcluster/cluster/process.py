"""One process of a cluster as a value, and the mark by which it is found again. Pure."""

from dataclasses import dataclass

# In the environment of everything a cluster starts. The truth about what runs is /proc: a pid file is wrong after a crash or a reboot.
CLUSTER_MARK = "PAGODA_DEVCLUSTER_CLUSTER"
PROCESS_MARK = "PAGODA_DEVCLUSTER_PROCESS"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Process:
    """What to start; `inside` means in the node's namespaces, where it is entered by nsenter."""

    name: str
    argv: list[str]
    inside: bool = False


def environment(cluster_root: str, process: str) -> dict[str, str]:
    """Nothing inherited: a proxy variable of the caller's shell would send the kubelet's calls elsewhere."""
    return {"PATH": SEARCH_PATH, "HOME": cluster_root, "LANG": "C.UTF-8", CLUSTER_MARK: cluster_root, PROCESS_MARK: process}
