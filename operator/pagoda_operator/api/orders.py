"""Orders about a replica: to its daemon and what it answered, and as they stand written on its pod. Plain values between `drain`, which
decides, and `daemons`, which dials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Protocol

from pagoda_contracts.names import ANNOTATION_DELETION_COST, ANNOTATION_DRAIN_DEADLINE


@dataclass(frozen=True, slots=True)
class Order:
    """Drain for `left_ms` more, which is until `deadline_ms` (Unix milliseconds) by our clock; or, where that is None, serve again."""

    pod: str
    uid: str
    address: str
    deadline_ms: int | None
    left_ms: int = 0


class Stand(StrEnum):
    """The state of a daemon after an order. SERVING and DRAINING are its own words; ENDING follows a SIGTERM and is not turned back;
    REFUSED takes no orders from us (callers are not told apart, or the token was not taken); SILENT was not reached."""

    SERVING = "serving"
    DRAINING = "draining"
    ENDING = "ending"
    REFUSED = "refused"
    SILENT = "silent"


# For so long the last word of a daemon that drains holds though it does not answer: an order ends after 2 s, and a busy machine stops a
# process for five. One late answer made a replica removed with its requests under way, and nothing could turn it back.
LATE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """To the last order; `at`: when it came, in Unix seconds."""

    stand: Stand
    in_flight: int = 0
    at: float = field(default=0.0, compare=False)

    @property
    def drained(self) -> bool:
        """Nothing runs there and nothing will: a draining daemon refuses before admission."""
        return self.stand in (Stand.DRAINING, Stand.ENDING) and self.in_flight == 0

    def after(self, before: Answer | None, now: float) -> Answer:
        """What is known once this one has come."""
        late = before is not None and before.stand is Stand.DRAINING and self.stand is Stand.SILENT and abs(now - before.at) < LATE_S
        return before if before is not None and late else replace(self, at=now)

    def is_news(self, before: Answer) -> bool:
        """Whether a decision may hang on the difference; how many are left is none."""
        return (self.stand, self.drained) != (before.stand, before.drained)


class Orders(Protocol):
    """Who carries orders out."""

    async def give(self, orders: Sequence[Order]) -> dict[str, Answer]:
        """All of them at once; answers by the pod's uid. Superseded where a daemon has obeyed a later leader."""


class Nobody:
    """Stand-in where no daemon can be dialled: each is drained by its own deletion."""

    async def give(self, orders: Sequence[Order]) -> dict[str, Answer]:
        """Refused, all of them."""
        return {order.uid: Answer(Stand.REFUSED) for order in orders}


def written(annotations: Mapping[str, str]) -> dict[str, Any]:
    """What stands on a pod, as fields of it. A text that is no number is somebody else's: a drain that is over, no cost."""
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
