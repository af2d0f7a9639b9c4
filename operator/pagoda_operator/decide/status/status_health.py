"""The condition Degraded: which replicas are sick, and what is done about it. Pure; called by `status`.

A service that never had a sick replica has no such line. kstatus does not read it: Ready says whether enough replicas serve.
What was said of a replica stays said until it is heard to be well: a new process knows nothing yet, how long a verdict has lasted least of
all.
"""

from __future__ import annotations

from typing import Final

from pagoda_contracts.conditions.health import DEVICE_FAULT, REPLACEMENT_HELD, WELL
from pagoda_contracts.conditions.types import DEGRADED, Reason
from pagoda_contracts.resources.meta import Condition

from pagoda_operator.api.state import Observed
from pagoda_operator.decide.health.health import Health
from pagoda_operator.decide.replicas.sickness import Sick

_NAMED: Final = 5
_MAX_MESSAGE: Final = 1000


def health_condition(observed: Observed, health: Health, last: Condition | None, now: str) -> tuple[Condition, ...]:
    """The line, or none where there never was anything to say."""
    if not health.sick and last is None:
        return ()
    kept = last if last is not None and not health.sick and _still(observed, last) else None
    state: Final = "True" if health.sick or kept else "False"
    return (
        Condition(
            type=DEGRADED.name,
            status=state,
            reason=kept.reason if kept else _reason(health).name,
            message=kept.message if kept else _message(health)[:_MAX_MESSAGE],
            observed_generation=observed.meta.generation,
            last_transition_time=last.last_transition_time if last is not None and last.status == state else now,
        ),
    )


def _still(observed: Observed, last: Condition) -> bool:
    """Whether a replica that the line names by what gateways said is there, Ready, and not heard to be well since."""
    if last.status != "True" or last.reason == DEVICE_FAULT.name:
        return False
    named = {told.partition(": ")[0] for told in last.message.split("; ")}
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
    named = "; ".join(map(_told, health.sick[:_NAMED]))
    more = len(health.sick) - _NAMED
    return named + (f"; and {more} more" if more > 0 else "") + f". {health.held or health.doing}"


def _told(sick: Sick) -> str:
    return f"{sick.pod.name}: {sick.why}"
