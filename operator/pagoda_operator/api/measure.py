"""What gateways measured of a service in one bin of time. A value; kept by bins, read by scaling. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BIN_S: Final = 5.0
"""Length of one Measure: shorter ones of a small service hold too few requests to tell a trend from chance."""


@dataclass(frozen=True, slots=True)
class Measure:
    """BIN_S seconds of a service, sums over gateways and replicas: requests that came and ended, and at its end those that run, wait in
    replicas and are held without one."""

    at: float
    arrived: int
    ended: int
    running: int
    waiting: int
    held: int
    kv_utilization: float = 0.0
    ttft_p95_s: float = 0.0
