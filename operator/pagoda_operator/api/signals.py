"""What gateways report of one service, and what scaling decides from it: frozen values, no streams, no clock. Pure.

`client/signals` makes them; scaling, rollout and health read them. They are a view: an endpoint that is not in it proves nothing about its
pod.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

BIN_S: Final = 5.0
"""Length of one Measure: shorter ones of a small service have too few requests to tell a trend from chance."""
# For so long a bad verdict must last before it is acted on: a node may hiccup, a gateway may restart.
CONFIRM_S: Final = 5.0
# A gateway or a replica that is silent for a minute is unhealthy itself and no longer blocks scaling down.
MISSING_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Measure:
    """BIN_S seconds of a service, sums over gateways and replicas: requests that came and ended, and at its end those that run, wait in
    replicas, and are held by a gateway because no replica serves."""

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
    """How many replicas were recommended at a time: for all reasons together, and for those that last (the load, late first tokens)."""

    at: float
    replicas: int
    load: int


@dataclass(frozen=True, slots=True)
class Decision:
    """`replicas` from now on. `reason` is a sentence; `cause` is a word that changes only if the sentence's point does."""

    replicas: int
    recommendation: Recommendation
    reason: str
    cause: str = "load"


class Seen(StrEnum):
    """What an endpoint's signal is worth: current, late, gone or bad (silent, stuck, a failed deep check), or never received.
    Whether it takes requests is another question: an endpoint that loads is FRESH."""

    FRESH = "fresh"
    SUSPECT = "suspect"
    DEAD = "dead"
    UNHEARD = "unheard"


@dataclass(frozen=True, slots=True)
class EndpointSignal:
    """One replica, by the most favourable gateway: a partition between one gateway and a pod is not the pod's fault.

    `reason` is the gateway's word (`silent`, `stuck`, `deep-check`, `loading`, …), `phase` the replica's own (`ready`, `draining`, …; empty
    if it never reported). `age_s` is how old its state was when the gateway reported it, `warm_s` how long its start took after the load,
    `bad_s` for how long it has been DEAD or UNHEARD
    without a pause, as far as this process knows. `lacking`: a gateway does not send it requests yet, and it has been Ready without that
    for less than MISSING_S. `device_fault`: why the replica itself says that its device is faulty.
    """

    verdict: Seen
    reason: str = ""
    in_flight: int = 0
    draining: bool = False
    phase: str = ""
    age_s: float = 0.0
    deep_failed: bool = False
    warm_s: float = 0.0
    bad_s: float = 0.0
    lacking: bool = False
    device_fault: str = ""

    @property
    def bad(self) -> bool:
        """Whether it is silent, or reports a fault."""
        return self.verdict in (Seen.DEAD, Seen.UNHEARD)

    def since(self, began: float, now: float) -> EndpointSignal:
        """The same, with how long it has been bad."""
        return replace(self, bad_s=now - began)


@dataclass(frozen=True, slots=True)
class RevisionSignal:
    """Requests that ended at a revision's replicas within the last minute, over all gateways, and the largest 95th percentile of the time
    to first token (0 if none was measured)."""

    requests: int = 0
    errors: int = 0
    ttft_p95_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServiceSignals:
    """One service now. `measures` are whole bins, oldest first, without a gap since `watched_since`, both in seconds of the caller's
    clock. `fresh`: every known gateway has reported within 3 s. `held` and `wake` are over all gateways, `endpoints` by pod name,
    `revisions` by hash. `wakes`: a request would start a service at zero, because there are gateways."""

    measures: tuple[Measure, ...] = ()
    watched_since: float = 0.0
    fresh: bool = False
    held: int = 0
    wake: bool = False
    wakes: bool = True
    endpoints: Mapping[str, EndpointSignal] = field(default_factory=dict)
    revisions: Mapping[str, RevisionSignal] = field(default_factory=dict)

    def warm_s(self, pod: str) -> float:
        """Returns what a replica's start took after the load; 0.0 if it did not report that."""
        return self.endpoints[pod].warm_s if pod in self.endpoints else 0.0

    def missing(self, ready: Iterable[str]) -> tuple[str, ...]:
        """Returns the Ready pods that should report and do not, except those that have been silent for a minute. Those too without
        gateways: clients may reach a replica that the operator does not, and gateways would count their requests."""
        waits_s = MISSING_S if self.wakes else math.inf
        lacking = (pod for pod in ready if (seen := self.endpoints.get(pod)) is None or (seen.bad and seen.bad_s < waits_s))
        return tuple(sorted(lacking))
