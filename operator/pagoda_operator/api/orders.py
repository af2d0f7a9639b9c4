"""Orders to a replica's daemon, its answers, and what the operator wrote on its pod: values between `drain`, which decides, and `daemons`,
which connects. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from pagoda_contracts.names import ANNOTATION_DELETION_COST, ANNOTATION_DRAIN_DEADLINE


@dataclass(frozen=True, slots=True)
class Order:
    """Drain for `left_ms` more, which is until `deadline_ms` (Unix milliseconds) by our clock; or serve again, if that is None."""

    pod: str
    uid: str
    address: str
    deadline_ms: int | None
    left_ms: int = 0


class DaemonState(StrEnum):
    """The state of a daemon after an order. SERVING and DRAINING are its own words. ENDING follows a SIGTERM and cannot be turned back.
    REFUSED accepts no orders from us (it does not check callers, or did not accept the token). SILENT did not answer."""

    SERVING = "serving"
    DRAINING = "draining"
    ENDING = "ending"
    REFUSED = "refused"
    SILENT = "silent"


# For so long the last answer of a draining daemon counts although it is silent: an order times out after 2 s, and a busy machine stops a
# process for five. One late answer removed a replica with its requests under way, and nothing could turn that back.
LATE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the last order; `at`: when it came, in Unix seconds."""

    state: DaemonState
    in_flight: int = 0
    at: float = field(default=0.0, compare=False)

    @property
    def drained(self) -> bool:
        """Whether nothing runs there and nothing will: a draining daemon refuses before admission."""
        return self.state in (DaemonState.DRAINING, DaemonState.ENDING) and self.in_flight == 0

    def after(self, before: Answer | None, now: float) -> Answer:
        """Returns what is known after this answer."""
        late = self.state is DaemonState.SILENT and before is not None and abs(now - before.at) < LATE_S
        return before if late and before is not None and before.state is DaemonState.DRAINING else replace(self, at=now)

    def is_news(self, before: Answer) -> bool:
        """Whether a decision may depend on the difference. None depends on how many requests are left."""
        return (self.state, self.drained) != (before.state, before.drained)


def written(annotations: Mapping[str, str]) -> dict[str, Any]:
    """Returns what is written on a pod, as fields of `Pod`. A text that is no number is not ours: a drain that is over, no cost."""
    deadline = annotations.get(ANNOTATION_DRAIN_DEADLINE)
    return {
        "drain_deadline_ms": _number(deadline) if deadline is not None else None,
        "deletion_cost": _number(annotations.get(ANNOTATION_DELETION_COST, "0")),
    }


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0
