"""What gateways say of one service, as scaling, rollout and health read it: frozen values, no streams, no clock. Made by `talk/signals`.

A view and never the truth: an endpoint that is not in it was not heard of, which proves nothing about its pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from pagoda_operator.api.scaling import Measure

# For so long a bad verdict must last before somebody acts on it: a node that hiccups, a gateway that restarts.
CONFIRM_S: Final = 5.0
# After a minute of silence it is the silent one that is sick: no veto on scaling any more.
MISSING_S: Final = 60.0


class Seen(StrEnum):
    """What an endpoint's own signal is worth: current, doubtful, gone or bad (silent, stuck, a wrong canary token), or never heard yet.
    Whether it takes requests is another question: one that loads is FRESH."""

    FRESH = "fresh"
    SUSPECT = "suspect"
    DEAD = "dead"
    UNHEARD = "unheard"


@dataclass(frozen=True, slots=True)
class EndpointSignal:
    """One replica, by the most favourable gateway: a partition between one gateway and a pod is not the pod's fault.

    `reason` is the gateway's word (`silent`, `stuck`, `deep-check`, `loading`, …), `phase` the replica's own (`ready`, `draining`, …; empty
    where it never spoke). `age_s` is how old its state was when the gateway reported it, `bad_s` for how long it has been DEAD or UNHEARD
    without a pause, as far as this process knows.
    """

    verdict: Seen
    reason: str = ""
    in_flight: int = 0
    draining: bool = False
    phase: str = ""
    age_s: float = 0.0
    deep_failed: bool = False
    bad_s: float = 0.0

    @property
    def bad(self) -> bool:
        """Whether nothing is heard of it, or what is heard says that it is broken."""
        return self.verdict in (Seen.DEAD, Seen.UNHEARD)

    def since(self, began: float, now: float) -> EndpointSignal:
        """The same, with how long it has been bad."""
        return replace(self, bad_s=now - began)


@dataclass(frozen=True, slots=True)
class RevisionSignal:
    """Requests that ended at a revision's replicas within the last minute, over all gateways; the largest 95th percentile of the time to
    first token (0 where none was measured)."""

    requests: int = 0
    errors: int = 0
    ttft_p95_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServiceSignals:
    """One service now. `measures` are whole bins of `BIN_S`, oldest first, watched without a gap since `watched_since`, both in
    seconds of the clock that `of` was asked by (a clock that jumps moves all of them). `fresh`: every known gateway was heard within
    3 s. `held` and `wake` are over all gateways, `endpoints` by pod name, `revisions` by hash."""

    measures: tuple[Measure, ...] = ()
    watched_since: float = 0.0
    fresh: bool = False
    held: int = 0
    wake: bool = False
    endpoints: Mapping[str, EndpointSignal] = field(default_factory=dict)
    revisions: Mapping[str, RevisionSignal] = field(default_factory=dict)

    def missing(self, ready: Iterable[str]) -> tuple[str, ...]:
        """Those of the Ready pods that should be heard and are not: never scale down on their account. One that is silent for a minute is
        sick, and no veto; neither is a pod that is not Ready."""
        lacking = (pod for pod in ready if (seen := self.endpoints.get(pod)) is None or (seen.bad and seen.bad_s < MISSING_S))
        return tuple(sorted(lacking))
