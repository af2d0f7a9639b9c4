"""Loopback networks for replicas, whose ports are fixed: no two test processes of this machine have the same one."""

from __future__ import annotations

import random
import socket

# Held until this process ends: replicas of another net than a test's own may outlive it by a moment.
_HELD: list[socket.socket] = []


def own_net() -> str:
    """Three of an address's four numbers, which nobody else is given."""
    for _ in range(10_000):
        net = f"127.{random.randrange(100, 250)}.{random.randrange(256)}"
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0pagoda-tests-{net}")
        except OSError:
            mark.close()
            continue
        _HELD.append(mark)
        return net
    raise AssertionError("all loopback networks are taken")
