"""Chooses a slot that nothing else on this machine uses."""

import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Network
from pathlib import Path

from pagoda_devcluster.cluster.errors import DevClusterError, StartError
from pagoda_devcluster.cluster.spec import API_PORT, ETCD_PORT, Addresses, from_json, preferred_slots
from pagoda_devcluster.machine import network

WIDEST_IGNORED = 8
# What listens on the host: etcd and its peers, the API server, controller-manager, scheduler. What a node has is in its own namespace.
PORTS = (ETCD_PORT, ETCD_PORT + 1, API_PORT, 10257, 10259)
# In the range of the slots' loopback addresses and none of them: a port that is taken here is taken on every address.
NO_SLOT = "127.64.255.1"


def choose(name: str, taken: set[int], free: Callable[[int], bool]) -> int:
    """The first slot of the name's own order that no other cluster holds and that `free` confirms. Pure but for `free`."""
    for slot in preferred_slots(name):
        if slot not in taken and free(slot):
            return slot
    raise StartError("all 48 address slots are in use: `pagoda-devcluster down` a cluster you do not need, or see `ip route`")


@contextmanager
def claimed(name: str, clusters: Path, needs_network: bool) -> Iterator[int]:
    """Hold a slot until etcd holds it by its port. The claim in between is an abstract socket: machine-wide, gone with its holder."""
    refuse_ports_taken_everywhere()
    routes = network.occupied() if needs_network else []
    claims: list[socket.socket] = []

    def free(slot: int) -> bool:
        if conflicts(Addresses(slot), routes) or taken_ports(str(Addresses(slot).loopback)):
            return False
        claim = _claim(slot)
        claims.extend([claim] if claim else [])
        return claim is not None

    try:
        yield choose(name, held_by_others(name, clusters), free)
    finally:
        for claim in claims:
            claim.close()


def conflicts(net: Addresses, routes: list[IPv4Network]) -> bool:
    """A whole 10.0.0.0/8 (a company's VPN) is no conflict: our networks are more specific and win."""
    return any(ours.overlaps(route) for ours in net.networks for route in routes if route.prefixlen > WIDEST_IGNORED)


def held_by_others(name: str, clusters: Path) -> set[int]:
    """Slots of this home's other clusters, running or not: a stopped one's leftovers still have its addresses."""
    slots = set()
    for state in clusters.glob("*/cluster.json"):
        # An unreadable state is a killed `up`'s: nothing was started from it.
        with suppress(OSError, ValueError, KeyError, TypeError, DevClusterError):
            spec = from_json(state.read_text())
            slots |= {spec.slot} - ({spec.slot} if spec.name == name else set())
    return slots


def refuse_ports_taken_everywhere() -> None:
    """A program that listens on 0.0.0.0 (another Kubernetes, say) leaves no slot, and 48 tries would say nothing of it."""
    if taken := taken_ports(NO_SLOT):
        command = f"`ss -ltnp 'sport = :{taken[0]}'` says which"
        raise StartError(f"port {', '.join(map(str, taken))} is in use on every address of this machine: stop that program ({command})")


def taken_ports(address: str) -> list[int]:
    return [port for port in PORTS if not _port_free(address, port)]


def _port_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _bound(probe, (address, port))


def _claim(slot: int) -> socket.socket | None:
    claim = socket.socket(socket.AF_UNIX)
    if _bound(claim, f"\0pagoda-devcluster-slot-{slot}"):
        return claim
    claim.close()
    return None


def _bound(probe: socket.socket, address: str | tuple[str, int]) -> bool:
    try:
        probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    return True
