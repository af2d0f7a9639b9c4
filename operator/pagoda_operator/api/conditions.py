"""The conditions of a status by kstatus' rules. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, Self

from pagoda_contracts.conditions.service import NOT_STALLED, SETTLED
from pagoda_contracts.conditions.types import NO_DEADLINE, READY, RECONCILING, STALLED, ConditionType
from pagoda_contracts.resources.meta import Condition
from pagoda_placement.values import stamp

State = Literal["True", "False", "Unknown"]


def waiting(since: float, then: str = NO_DEADLINE) -> str:
    """The end of a message: since when something is waited for (Unix seconds; nothing if that is unknown), and what happens then. It names
    times and no durations, which would change by themselves."""
    return f"; waiting since {stamp(since)}; {then}" if since else ""


class Conditions(NamedTuple):
    """What the conditions of an object are made from: its generation, those that were written last by type, and the time."""

    generation: int
    last: Mapping[str, Condition]
    now: str

    @classmethod
    def after(cls, last: Iterable[Condition], generation: int, now: str) -> Self:
        """Those that follow `last`."""
        return cls(generation, {condition.type: condition for condition in last}, now)

    def one(self, kind: ConditionType, state: State, reason: str, message: str) -> Condition:
        """One condition; its time is that of the last change of its state."""
        before = self.last.get(kind.name)
        return Condition(
            type=kind.name,
            status=state,
            reason=reason,
            message=message,
            observed_generation=self.generation,
            last_transition_time=before.last_transition_time if before is not None and before.status == state else self.now,
        )

    def three(self, ready: State, said: tuple[str, str], *, reconciling: bool, stalled: bool) -> tuple[Condition, ...]:
        """Ready, Reconciling and Stalled. `said`: the reason's name and the message, for Ready and for each other one that is True."""
        return (
            self.one(READY, ready, *said),
            self.one(RECONCILING, "True", *said) if reconciling else self.one(RECONCILING, "False", SETTLED.name, ""),
            self.one(STALLED, "True", *said) if stalled else self.one(STALLED, "False", NOT_STALLED.name, ""),
        )

    def known(self, kind: ConditionType) -> Condition | None:
        """The last one of this type if it was True or False of this generation."""
        last = self.last.get(kind.name)
        return last if last is not None and last.observed_generation == self.generation and last.status != "Unknown" else None
