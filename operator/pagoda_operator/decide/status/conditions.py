"""The conditions of a service: Ready, Reconciling and Stalled by its verdict, Degraded by its replicas' health. Pure; called by `status`.

A service that never had an unhealthy replica has no Degraded. kstatus does not read it: Ready says whether enough replicas serve. What was
said of a replica stays said until a gateway reports that it is well: a new process knows nothing yet, how long a verdict has lasted least
of all.
"""

from __future__ import annotations

from typing import Final, Literal

from pagoda_contracts.conditions.health import DEVICE_FAULT, REPLACEMENT_HELD, WELL
from pagoda_contracts.conditions.service import NOT_STALLED, SETTLED
from pagoda_contracts.conditions.types import DEGRADED, READY, RECONCILING, STALLED, ConditionType, Reason
from pagoda_contracts.resources.meta import Condition

from pagoda_operator.api.state import Observed
from pagoda_operator.decide.health.health import Health
from pagoda_operator.decide.status.verdict import Verdict

_NAMED: Final = 5
_MAX_MESSAGE: Final = 1000

State = Literal["True", "False", "Unknown"]


def conditions(observed: Observed, verdict: Verdict, health: Health, now: str) -> tuple[Condition, ...]:
    """All of a service's; `now` stamps those whose status flips."""
    last = {condition.type: condition for condition in observed.status.conditions}
    ready = _ready(observed, verdict, last.get(READY.name))
    reconciling: State = "True" if verdict.kind in ("serving", "reconciling") else "False"
    stalled: State = "True" if verdict.kind == "stalled" else "False"
    said = (verdict.reason.name, verdict.message)
    return (
        _condition(observed, READY, ready, said, last.get(READY.name), now),
        _condition(
            observed, RECONCILING, reconciling, said if reconciling == "True" else (SETTLED.name, ""), last.get(RECONCILING.name), now
        ),
        _condition(observed, STALLED, stalled, said if stalled == "True" else (NOT_STALLED.name, ""), last.get(STALLED.name), now),
        *_degraded(observed, health, last.get(DEGRADED.name), now),
    )


def _ready(observed: Observed, verdict: Verdict, last: Condition | None) -> State:
    """Unknown on the way to a generation's first readiness, False where it is lost or cannot come."""
    if verdict.kind in ("settled", "serving"):
        return "True"
    known = last is not None and last.observed_generation == observed.meta.generation and last.status != "Unknown"
    return "False" if verdict.kind == "stalled" or known else "Unknown"


def _condition(observed: Observed, kind: ConditionType, state: State, said: tuple[str, str], last: Condition | None, now: str) -> Condition:
    """`said`: the reason's name and the message. The time is that of the last change of the state."""
    reason, message = said
    return Condition(
        type=kind.name,
        status=state,
        reason=reason,
        message=message,
        observed_generation=observed.meta.generation,
        last_transition_time=last.last_transition_time if last is not None and last.status == state else now,
    )


def _degraded(observed: Observed, health: Health, last: Condition | None, now: str) -> tuple[Condition, ...]:
    """Which replicas are unhealthy and what is done about it; nothing if there never was anything to say."""
    if not health.sick and last is None:
        return ()
    kept = last if last is not None and not health.sick and _still(observed, last) else None
    said = (kept.reason, kept.message) if kept else (_reason(health).name, _message(health)[:_MAX_MESSAGE])
    return (_condition(observed, DEGRADED, "True" if health.sick or kept else "False", said, last, now),)


def _still(observed: Observed, last: Condition) -> bool:
    """Whether a replica that the line names by what gateways said is there, Ready, and not heard to be well since."""
    if last.status != "True" or last.reason == DEVICE_FAULT.name:
        return False
    named = {part.partition(": ")[0] for part in last.message.split("; ")}
    there = [pod for pod in observed.pods if pod.name in named and pod.counts and pod.ready and pod.drain_deadline_ms is None]
    heard = observed.signals.endpoints if observed.signals is not None else {}
    return any(pod.name not in heard or heard[pod.name].bad for pod in there)


def _reason(health: Health) -> Reason:
    if not health.sick:
        return WELL
    return REPLACEMENT_HELD if health.held else health.sick[0].sickness.value


def _message(health: Health) -> str:
    if not health.sick:
        return ""
    named = "; ".join(f"{sick.pod.name}: {sick.why}" for sick in health.sick[:_NAMED])
    more = len(health.sick) - _NAMED
    return named + (f"; and {more} more" if more > 0 else "") + f". {health.held or health.doing}"
