"""Affinity: which endpoint a session belongs to, and how much more load than the mean an endpoint may have for it. Pure; called by pick.py.

Rendezvous hashing (Thaler and Ravishankar, 1998): each endpoint draws a number from session and name, and the highest one has the session.
If an endpoint comes or goes, only its own sessions move. Gateway copies agree without talking to each other. With a bound on load
(Mirrokni, Thorup and Zadimoghaddam, 2016), a busy endpoint's sessions go to the next highest one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Final

from pagoda_gateway.routing.endpoint import Endpoint, load

# An endpoint may have a quarter more than the mean. Up to four requests side by side are no load worth moving a session for.
_OVER_MEAN: Final = 1.25
_ALWAYS: Final = 4


def owner(endpoints: Iterable[Endpoint], session: str) -> str:
    """Returns the name of the endpoint that has the session; ValueError without endpoints."""
    key = session.encode()
    return max(endpoints, key=lambda endpoint: hashlib.blake2b(endpoint.name.encode(), digest_size=8, key=key[:64]).digest()).name


def within_bound(endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """Returns the endpoints that may take one more request. The least loaded one is always among them."""
    loads = [load(endpoint) for endpoint in endpoints]
    bound = max(_ALWAYS, math.ceil(_OVER_MEAN * (sum(loads) + 1) / len(loads))) if loads else 0
    least = min(loads, default=0)
    return [endpoint for endpoint, has in zip(endpoints, loads, strict=True) if has + 1 <= bound or has == least]


def resident_share(endpoint: Endpoint, hashes: Sequence[bytes]) -> float:
    """Returns which part of a prompt's named beginning the endpoint has in its cache, from 0 to 1."""
    return resident_chunks(endpoint, hashes) / len(hashes) if hashes else 0.0


def resident_chunks(endpoint: Endpoint, hashes: Sequence[bytes]) -> int:
    """Returns how many chunks of a prompt's named beginning the endpoint has in its cache."""
    found, resident = 0, endpoint.resident
    for name in hashes:  # no generator, because this runs for each endpoint of each request
        if name not in resident:
            break
        found += 1
    return found
