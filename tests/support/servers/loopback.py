"""Networks of this machine for replicas, whose ports are fixed: no two test processes have the same one."""

from __future__ import annotations

import random
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

# Held until this process ends: replicas of another net than a test's own may outlive it by a moment.
_HELD: list[socket.socket] = []


def own_net() -> str:
    """Three of an address's four numbers, which nobody else is given."""
    return _own("127", range(100, 250))


@contextmanager
def pod_net() -> Iterator[str]:
    """The same, for addresses of pods that an API server knows: it takes no loopback address into an EndpointSlice. Needs root."""
    net = _own("198", range(18, 20))  # for benchmarks (RFC 2544), so that nothing else has them
    route = ["local", f"{net}.0/24", "dev", "lo"]
    subprocess.run(["ip", "route", "replace", *route], check=True)
    try:
        yield net
    finally:
        subprocess.run(["ip", "route", "del", *route], check=True)


def _own(first: str, seconds: range) -> str:
    for _ in range(10_000):
        net = f"{first}.{random.choice(seconds)}.{random.randrange(256)}"
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0pagoda-tests-{net}")
        except OSError:
            mark.close()
            continue
        _HELD.append(mark)
        return net
    raise AssertionError("all loopback networks are taken")
