"""next_look: when a decision can change by time alone: a window ends, a schedule begins, the idle timer runs out. Pure; called by `scaler`.

All else comes as an event. A look too many costs reads, one too few a late decision; there is none where nothing can change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pagoda_operator.api.scaling import Decision
from pagoda_operator.api.signals import ServiceSignals
from pagoda_operator.decide.scale.asked import History
from pagoda_operator.decide.scale.autoscale import holds
from pagoda_operator.decide.scale.behavior import resumes
from pagoda_operator.decide.scale.scaling import Basis, Memory, Moment, behavior_of, fleet_of, history_of, idle_after_s
from pagoda_operator.decide.scale.schedules import limits, next_edge

PREDICTED_EVERY_S: Final = 60.0
_SOONEST_S: Final = 0.5


def next_look(basis: Basis, signals: ServiceSignals | None, memory: Memory, decision: Decision | None, moment: Moment) -> float | None:
    """Seconds from now; None where only an event can change anything."""
    if basis.spec.mode == "Manual":
        return None
    waits = [at - moment.steady for at in _timers(basis, signals, memory, decision, moment)]
    if basis.spec.mode == "Auto":
        edge = next_edge(basis.spec.schedules, moment.wall)
        waits += [edge - moment.wall] if edge is not None else []
        predictive = basis.spec.predictive is not None and basis.spec.predictive.enabled and memory.learned.days
        waits += [PREDICTED_EVERY_S] if predictive else []
    return max(_SOONEST_S, min(waits)) if waits else None


def _timers(basis: Basis, signals: ServiceSignals | None, memory: Memory, decision: Decision | None, moment: Moment) -> Iterator[float]:
    """By the steady clock, all in the future. Without fresh signals time changes nothing."""
    if signals is None or not signals.fresh or decision is None:
        return
    history = history_of(signals, memory)
    may_end = basis.spec.mode == "External" or limits(basis.spec, moment.wall).least == 0
    if decision.replicas and may_end:
        yield max(moment.steady, history.quiet_since + idle_after_s(basis.spec))
    if basis.spec.mode == "Auto":
        yield from (at for at in _windows(basis, memory, history, decision.replicas, moment) if at > moment.steady)


def _windows(basis: Basis, memory: Memory, history: History, replicas: int, moment: Moment) -> Iterator[float]:
    """Where the last wish is another number: what still stands in its way, and until when."""
    behavior, wish = behavior_of(basis.spec), memory.asked[-1].replicas if memory.asked else replicas
    if wish < replicas:
        yield history.since + behavior.down_window_s
        held = holds(memory.asked, fleet_of(basis, memory, moment), behavior, moment.steady)
        yield max((until for until, most in held if most >= replicas), default=0.0)
        yield resumes(memory.changes, behavior.down, moment.steady) or 0.0
    elif wish > replicas:
        window = behavior.up.window_s or 0.0
        yield max((asked.at + window for asked in memory.asked if asked.replicas < wish), default=0.0)
        yield resumes(memory.changes, behavior.up, moment.steady) or 0.0
