"""What a rollout is decided by and what it decides, as values. Pure; made by `plan`, read by `rollout` and `counts`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pagoda_contracts.resources.status import RolloutStatus
from pagoda_contracts.resources.traffic import CanaryStep, RolloutSpec

from pagoda_operator.api.signals import ServiceSignals
from pagoda_operator.decide.replicas.sides import Side
from pagoda_operator.decide.rollout.trial import Trial
from pagoda_operator.inventory.values import unix

Strategy = Literal["Surge", "Replace"]


@dataclass(frozen=True)
class RolloutState:
    """All that is decided by. `room`: how many more replicas find a place now, None where nobody knows."""

    spec: RolloutSpec
    wanted: int
    current: Side
    olds: tuple[Side, ...] = ()
    record: RolloutStatus | None = None
    room: int | None = None
    signals: ServiceSignals | None = None
    now: float = 0.0
    # How long the record's `since` is ago, where anybody has counted.
    held: float | None = None
    # What a trial of the new revision has shown.
    tried: Trial = field(default=Trial())
    # Nobody can tell whether the new side may have anything, and no replica of an old one makes room for one of it.
    stays: bool = False


@dataclass(frozen=True)
class Rollout:
    """Replicas by Deployment, the record to keep in the status, percent of requests by revision (empty: by load), what must not be deleted
    though it has no replicas, and whether the new revision is tried before the last old replica goes."""

    targets: Mapping[str, int]
    record: RolloutStatus | None = None
    weights: Mapping[str, int] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    again: float | None = None
    waits: str = ""
    tries: bool = False


class Steps(NamedTuple):
    """The canary's steps as they apply now; none where there is nothing to try the new revision against."""

    all: tuple[CanaryStep, ...]
    at: int | None

    @property
    def now(self) -> CanaryStep | None:
        """The step under way."""
        return self.all[self.at] if self.at is not None and self.at < len(self.all) else None


def steps_of(state: RolloutState, record: RolloutStatus) -> Steps:
    """For the record as it is."""
    return Steps(state.spec.canary.steps if state.spec.canary else (), record.step)


def held_s(state: RolloutState, record: RolloutStatus) -> float:
    """How long ago the record's `since` is."""
    since = unix(record.since)
    return 0.0 if since is None else state.now - since if state.held is None else state.held


def share(wanted: int, weight: int) -> int:
    """Replicas that bear so many percent of the load, one at least."""
    return max(1, math.ceil(wanted * weight / 100))
