"""autoscale: how many replicas a service should have. Pure: what was measured and the time go in, a decision with its reason comes out.

Called by `scaling` for services in mode Auto and by `replay` on recorded demand; the same code, the same numbers.

Questions, of which the largest answer counts. *What does the demand need when a replica ordered now would serve?* The load is Little's
law, rate of arrivals times time in a row (Little, 1961), the rate projected by its trend; rows for a load L are L + beta * sqrt(L)
(square-root staffing: Halfin and Whitt, 1981), so that a large service needs less spare than a small one. *What did it need at that time on
previous days*, where a forecast is given? *Will those who wait be served in time* by the replicas that there are and those on their
way? Only what these leave over asks for more: a slow start is not ordered twice. *Is a target broken now*: KV in use, the 95th percentile
of the time to first token? Then more than serve, for the latter in proportion to how far the target is missed.

Down goes to the most that any moment of the window asked for, never on signals that are missing or old, and not before a whole window was
seen, so that a restart takes nothing away. To zero goes only who had no request for `idle_after_s`. `behavior` says how fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pagoda_operator.api.scaling import Decision, Measure, Recommendation
from pagoda_operator.decide.scale.behavior import Behavior, paced, stabilized
from pagoda_operator.decide.scale.demand import Demand, demand_of
from pagoda_operator.decide.scale.inputs import Bounds, Capacity, History, Targets

_CATCH_UP_S: Final = 60.0
_WORTH_A_REPLICA: Final = 0.5  # rows: a forecast below it starts nothing
_HELD: Final = "Requests are held and no replica exists."
UNHEARD: Final = "No recent metrics from the gateway; keeping the current replica count."
_TREND_HOLDS_S: Final = 600.0  # five minutes of growth tell little about what comes after ten
_LONG_START_S: Final = 900.0
QUANTILE_S: Final = 60.0  # what gateways take the 95th percentile of
_TELLING: Final = 40  # requests: two lie above the 95th percentile, so one slow one decides nothing
_BINDING: Final = 0.3  # of the TTFT target: below it nothing is asked for; at 0 a burst cost 11 % more hours, here 5 %, for the same misses
_NEAR: Final = 0.9  # of the TTFT target: from here on nothing is taken away
_AT_MOST: Final = 1.5  # times the replicas that serve, because one late minute says little about how many help
_FULL: Final = 0.9  # of the KV: what else runs has to wait for it


@dataclass(frozen=True, slots=True)
class _Answer:
    """It `lasts` where another number will not do as soon as replicas have come."""

    replicas: int
    cause: str
    reason: str
    lasts: bool = False


def enough(replicas: int) -> str:
    """How a decision to have fewer begins."""
    return f"{replicas} replica is enough." if replicas == 1 else f"{replicas} replicas are enough."


def limited(reason: str, wanted: int, limit: str) -> str:
    """A reason, and what keeps the decision from going as far."""
    return f"{reason.rstrip('.')}. Wanted: {wanted}, but {limit}."


def autoscale(history: History, capacity: Capacity, targets: Targets, bounds: Bounds, now: float, forecast: float = 0.0) -> Decision:
    """Replicas from now on; `forecast` is the load, in rows, that previous days had when a replica ordered now would serve."""
    if not history.fresh(now):
        return _unheard(history, capacity, bounds, now)
    if _idle(history, bounds, now) and forecast < _WORTH_A_REPLICA:
        idle = Decision(0, Recommendation(now, 0, 0), f"No requests for {bounds.idle_after_s:.0f} s.", "idle")
        return _at_a_pace(history, capacity, bounds, idle, now)
    answers = [*_answers(history, capacity, targets, forecast), *_for_ttft(history, capacity, targets, now)]
    lasting = max(answer.replicas for answer in answers if answer.lasts)
    wish = _wish(max(answers, key=lambda answer: answer.replicas), lasting, capacity, bounds, now)
    settled = _down(history, capacity, bounds, wish, now) if wish.replicas < capacity.wanted else _up(history, capacity, bounds, wish, now)
    return _at_a_pace(history, capacity, bounds, settled, now)


def _unheard(history: History, capacity: Capacity, bounds: Bounds, now: float) -> Decision:
    """Missing or old signals take nothing away; who is held somewhere is served all the same."""
    wanted = max(capacity.wanted, 1 if history.held else 0)
    kept = bounds.clamp(wanted)
    if kept == capacity.wanted:
        return Decision(kept, Recommendation(now, kept, kept), UNHEARD, "unheard")
    if kept == wanted:
        return Decision(kept, Recommendation(now, kept, kept), _HELD, "held")
    why = f"{bounds.least_by} is {kept}" if kept > wanted else f"{bounds.most_by} is {kept}"
    return Decision(kept, Recommendation(now, kept, kept), f"No recent metrics from the gateway; {why}.", f"unheard, {why}")


def _wish(best: _Answer, load: int, capacity: Capacity, bounds: Bounds, now: float) -> Decision:
    """Within the bounds. The last replica goes only by idleness, whatever the load says."""
    floor = max(bounds.least, min(1, capacity.wanted))
    replicas = min(bounds.most, max(floor, best.replicas))
    reason, cause = best.reason, best.cause
    if replicas < best.replicas:
        reason, cause = limited(reason, best.replicas, f"{bounds.most_by} is {bounds.most}"), f"{cause}, {bounds.most_by}"
    elif replicas > best.replicas:
        bound, idle = bounds.least >= replicas, f"The last one will be removed after {bounds.idle_after_s:.0f} s without requests."
        named = f"The {bounds.least_by} is {bounds.least}." if bound else idle
        reason, cause = f"{enough(best.replicas)} {named}", bounds.least_by if bound else "last"
    return Decision(replicas, Recommendation(now, replicas, min(replicas, max(floor, load))), reason, cause)


def _idle(history: History, bounds: Bounds, now: float) -> bool:
    return bounds.least == 0 and not history.held and now - history.quiet_since >= bounds.idle_after_s


def _up(history: History, capacity: Capacity, bounds: Bounds, wish: Decision, now: float) -> Decision:
    """Where a window upwards is asked for, the least that it asked for; nobody waits for that at zero."""
    if not bounds.behavior.up.window_s or not capacity.wanted:
        return wish
    recent = [(past.at, past.replicas) for past in history.recommendations]
    kept = max(stabilized(wish.replicas, capacity.wanted, recent, bounds.behavior, now), capacity.wanted)
    if kept == wish.replicas:
        return wish
    reason = f"{wish.reason} Scaling up waits until this has lasted {bounds.behavior.up.window_s:.0f} s."
    return Decision(kept, wish.recommendation, reason, f"{wish.cause}, scaleUp window")


def _down(history: History, capacity: Capacity, bounds: Bounds, wish: Decision, now: float) -> Decision:
    window = bounds.behavior.down_window_s
    if now - history.since < window:
        why = f"{enough(wish.replicas)} Scaling down waits until the metrics cover {window:.0f} s."
        return replace(wish, replicas=capacity.wanted, reason=why, cause="young")
    kept = min(capacity.wanted, max(wish.replicas, _needed(history, capacity, bounds.behavior, now)))
    if kept == wish.replicas:
        return wish
    why = f"{enough(wish.replicas)} Keeping {kept}, which were needed within the last {window:.0f} s."
    return replace(wish, replicas=kept, reason=why, cause="window")


def _needed(history: History, capacity: Capacity, behavior: Behavior, now: float) -> int:
    """The most that the window asked for. Unless somebody set the window, help with a backlog counts only until it could have helped."""
    counts = [most for _, most in holds(history.recommendations, capacity, behavior, now)]
    return max(counts, default=0)


def holds(recommendations: Sequence[Recommendation], capacity: Capacity, behavior: Behavior, now: float) -> list[tuple[float, int]]:
    """What each recommendation still holds, and until when."""
    window = behavior.down_window_s
    help_s = min(window, capacity.start_s + _CATCH_UP_S) if behavior.down.window_s is None else window
    holding = []
    for past in recommendations:
        if now < past.at + help_s:
            holding.append((past.at + help_s, past.replicas))
        elif now < past.at + window:
            holding.append((past.at + window, past.load))
    return holding


def _at_a_pace(history: History, capacity: Capacity, bounds: Bounds, settled: Decision, now: float) -> Decision:
    """What the policies let through. Bounds are kept at once, as an HPA keeps them."""
    allowed = bounds.clamp(paced(settled.replicas, capacity.wanted, history.changes, bounds.behavior, now))
    if allowed == settled.replicas:
        return settled
    way = "scaleUp" if settled.replicas > allowed else "scaleDown"
    reason = limited(settled.reason, settled.replicas, f"behavior.{way} allows {allowed}")
    return replace(settled, replicas=allowed, reason=reason, cause=f"{settled.cause}, {way} policy")


def _answers(history: History, capacity: Capacity, targets: Targets, forecast: float) -> list[_Answer]:
    """All but the first token's."""
    last, demand = history.measures[-1], demand_of(history.measures)
    targets = replace(targets, rows=_rows(last, capacity, targets))
    answers = [_for_load(demand, capacity, targets), _for_backlog(demand, capacity, targets)]
    if forecast >= _WORTH_A_REPLICA:
        why = f"On previous days the load was {forecast:.0f} rows at the time when a replica ordered now would serve."
        answers.append(_Answer(_staffed(forecast, targets, capacity), "predicted", why))
    if targets.kv_utilization and last.kv_utilization > targets.kv_utilization and capacity.ready:
        needed = math.ceil(capacity.ready * last.kv_utilization / targets.kv_utilization)
        why = f"{last.kv_utilization * 100:.0f} % of the KV cache is in use; the target is {targets.kv_utilization * 100:.0f} %."
        answers.append(_Answer(needed, "kv", why))
    if (last.held or history.held) and not capacity.wanted:
        answers.append(_Answer(1, "held", _HELD))
    return answers


def _for_ttft(history: History, capacity: Capacity, targets: Targets, now: float) -> list[_Answer]:
    """If requests wait, one replica more than serve. If none waits, prompts that share a replica's steps make first tokens late: then in
    proportion, as an HPA does."""
    last = history.measures[-1]
    ratio = last.ttft_p95_s / targets.ttft_p95_s if targets.ttft_p95_s else 0.0
    why = f"The first token takes {last.ttft_p95_s:.1f} s (p95); the target is {targets.ttft_p95_s:.1f} s."
    if ratio > 1 and last.waiting + last.held:
        return [_Answer(capacity.ready + 1, "ttft", why)]
    if ratio < _BINDING or not _shared(history, capacity, now):
        return []
    if _NEAR <= ratio <= 1 or (ratio > 1 and _young(history, capacity, now)):
        return [_Answer(capacity.wanted, "ttft", why, lasts=True)]
    return [_Answer(math.ceil(capacity.ready * min(ratio, _AT_MOST)), "ttft", why, lasts=True)]


def _young(history: History, capacity: Capacity, now: float) -> bool:
    """Whether the minute that the quantile is of began before the last replica served."""
    grown = max((change.at for change in history.changes if change.by > 0), default=-math.inf)
    return bool(capacity.starting) or now - grown < capacity.start_s + QUANTILE_S


def _shared(history: History, capacity: Capacity, now: float) -> bool:
    """Whether the first token's time is due to prompts that share steps: none waited for the minute that the quantile is of, enough came
    to tell, and not each has a replica to itself, since no other replica could help then."""
    minute = [m for m in history.measures if m.at > now - QUANTILE_S]
    if history.measures[-1].running <= capacity.ready or any(m.waiting + m.held for m in minute):
        return False
    return sum(m.arrived for m in minute) >= _TELLING


def _rows(last: Measure, capacity: Capacity, targets: Targets) -> int:
    """Requests that a replica really runs at a time: where KV is full and others wait, those that run are all that fit."""
    full = last.kv_utilization >= _FULL and last.waiting > 0 and capacity.ready > 0
    return max(1, min(targets.rows, last.running // capacity.ready)) if full else targets.rows


def _staffed(load: float, targets: Targets, capacity: Capacity) -> int:
    """The longer a start takes, the longer a replica too few is missed: on traces with starts of six minutes and other seeds than the
    recorded one, 2.5 had 1.37 times an HPA's misses and 3.5 had 0.37 to 0.40, at 0.85 to 0.89 of its hours."""
    spare = targets.spare * (1 + min(capacity.start_s, _LONG_START_S) / _LONG_START_S)
    return math.ceil((load + spare * math.sqrt(load)) / targets.rows)


def _for_load(demand: Demand, capacity: Capacity, targets: Targets) -> _Answer:
    rate = max(0.0, demand.rate + max(0.0, demand.slope) * min(capacity.start_s, _TREND_HOLDS_S))
    load = rate * demand.hold_s
    why = f"{rate:.1f} requests per second of {demand.hold_s:.1f} s each fill {load:.0f} rows; a replica has {targets.rows}."
    return _Answer(_staffed(load, targets, capacity), "load", why, lasts=True)


def _for_backlog(demand: Demand, capacity: Capacity, targets: Targets) -> _Answer:
    """What waits and comes until a replica ordered now would serve, less what those there and on their way serve until then."""
    horizon = capacity.start_s
    row_seconds = targets.rows * (capacity.ready * horizon + sum(max(0.0, horizon - left) for left in capacity.starting))
    served = row_seconds / demand.hold_s if demand.hold_s else math.inf
    left = demand.backlog + demand.rate * horizon - served
    if left <= targets.queue_depth * capacity.wanted:
        return _Answer(0, "load", "No requests wait.")
    rows = (demand.rate + left / _CATCH_UP_S) * demand.hold_s
    why = f"{demand.backlog} requests wait; {left:.0f} would still wait in {horizon:.0f} s."
    return _Answer(math.ceil(rows / targets.rows), "backlog", why)
