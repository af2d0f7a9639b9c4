"""The link between host and node, and the host's routes to pods and Services: command lines (pure) and their running."""

import json
import subprocess
from ipaddress import IPv4Network
from pathlib import Path

from pagoda_devcluster.cluster.errors import StartError
from pagoda_devcluster.cluster.spec import ClusterSpec


def host_commands(spec: ClusterSpec, init: int) -> list[str]:
    """For `ip -batch`, on the host."""
    net, link = spec.net, spec.link
    return [
        f"link add {link} type veth peer name eth0 netns {init}",
        f"addr add {net.host}/{net.link_cidr.prefixlen} dev {link}",
        f"link set {link} up",
    ]


def node_commands(spec: ClusterSpec) -> list[str]:
    net = spec.net
    return [f"addr add {net.node}/{net.link_cidr.prefixlen} dev eth0", "link set eth0 up", f"route add default via {net.host}"]


def route_commands(spec: ClusterSpec) -> list[str]:
    """The host reaches pods and ClusterIPs through the node; they go when the link goes."""
    return [f"route add {network} via {spec.net.node} dev {spec.link}" for network in (spec.net.pod_cidr, spec.net.service_cidr)]


def connect(spec: ClusterSpec, init: int) -> None:
    _batch([], host_commands(spec, init))
    _batch(["nsenter", "--target", str(init), "--net"], node_commands(spec))
    _batch([], route_commands(spec))


def serve_route(spec: ClusterSpec) -> str:
    """Every address of the pod network is this machine's own: a process can listen on it, and a client that dials it reaches that
    process."""
    return f"local {spec.net.pod_cidr} dev lo"


def open_pod_range(spec: ClusterSpec) -> None:
    _batch([], [f"route add {serve_route(spec)}"])


def close_pod_range(spec: ClusterSpec) -> bool:
    """Whether it was open."""
    done = subprocess.run(["ip", "route", "del", *serve_route(spec).split()], capture_output=True, text=True, check=False)
    if done.returncode and "No such process" not in done.stderr:
        raise StartError(f"the route to {spec.net.pod_cidr} does not go: {done.stderr.strip()}")
    return done.returncode == 0


def remove_link(link: str) -> bool:
    """Whether there was one. The peer and the routes go with it."""
    if not Path(f"/sys/class/net/{link}").exists():
        return False
    done = subprocess.run(["ip", "link", "delete", link], capture_output=True, text=True, check=False)
    # A node that has just been killed takes its end, and with it this one, along.
    if done.returncode and Path(f"/sys/class/net/{link}").exists():
        raise StartError(f"link {link} does not go: {done.stderr.strip()}")
    return True


def occupied() -> list[IPv4Network]:
    """Networks this machine has a route to, the default route apart."""
    done = subprocess.run(["ip", "-json", "-4", "route", "show", "table", "all"], capture_output=True, text=True, check=False)
    return parse_routes(done.stdout)


def parse_routes(text: str) -> list[IPv4Network]:
    destinations = [route["dst"] for route in json.loads(text or "[]")]
    return [IPv4Network(destination, strict=False) for destination in destinations if destination != "default"]


def _batch(prefix: list[str], commands: list[str]) -> None:
    done = subprocess.run([*prefix, "ip", "-batch", "-"], input="\n".join(commands), capture_output=True, text=True, check=False)
    if done.returncode:
        raise StartError(f"ip refused: {done.stderr.strip()}")
