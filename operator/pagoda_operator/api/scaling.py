"""What scaling is decided from, what it decides for a service, and what is kept of that: values. Pure."""

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

    @property
    def active(self) -> bool:
        """Whether a request came or was there."""
        return bool(self.arrived or self.running or self.waiting or self.held)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """How many replicas were recommended at a time: by everything together, and by what lasts, the load and late first tokens."""

    at: float
    replicas: int
    load: int


@dataclass(frozen=True, slots=True)
class Decision:
    """`replicas` from now on. `recommendation` is to be kept in History. `reason` says why in a sentence, `cause` in a word that changes
    only where the sentence's point does."""

    replicas: int
    recommendation: Recommendation
    reason: str
    cause: str = "load"
