"""How many replicas a service in mode Auto should have. Pure: measures and the time go in, a decision with its reason comes out.

The largest of these needs counts:

- *Load.* Little's law: rate of arrivals times time per request (Little, 1961), with the rate projected by its trend to when a replica
  ordered now would serve. A load L needs L + beta * sqrt(L) rows (square-root staffing: Halfin and Whitt, 1981).
- *Forecast.* The load of previous days at that time, if spec.scaling.predictive is enabled.
- *Backlog.* Requests that would still wait when the starting replicas serve. So a slow start is not ordered twice.
- *Targets.* KV in use, and the 95th percentile of the time to first token, in proportion to how far the target is missed.

Scaling down goes to the largest number that was needed within the window. It needs fresh metrics that cover a whole window, so a restart
removes nothing. Only a service without requests for `idle_after_s` goes to zero. `bounds.paced` limits the speed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from pagoda_operator.api.signals import Decision, Measure, Recommendation
from pagoda_operator.decide.scale.bounds import Bounds, paced
from pagoda_operator.decide.scale.demand import Demand, demand_of
from pagoda_operator.decide.scale.inputs import Capacity, History, Targets

_CATCH_UP_S: Final = 60.0
_WORTH_A_REPLICA: Final = 0.5  # rows: a forecast below it starts nothing
_HELD: Final = "Requests are held and no replica exists."
UNHEARD: Final = "No recent metrics from the gateway; keeping the current replica count."
_TREND_LASTS_S: Final = 600.0  # five minutes of growth say little about the time after ten
_LONG_START_S: Final = 900.0
QUANTILE_S: Final = 60.0  # the time over which gateways take the 95th percentile
_ENOUGH_REQUESTS: Final = 40  # two lie above the 95th percentile, so one slow request decides nothing
_BINDING: Final = 0.3  # of the TTFT target: below it nothing is needed; at 0 a burst cost 11 % more hours, here 5 %, for the same misses
_NEAR: Final = 0.9  # of the TTFT target: above it nothing is removed
_AT_MOST: Final = 1.5  # times the replicas that serve, because one late minute says little about how many help
_FULL: Final = 0.9  # of the KV: more requests have to wait for it


@dataclass(frozen=True, slots=True)
class _Need:
    """A number of replicas, and why. `lasts`: the number is still needed after the ordered replicas serve."""

    replicas: int
    cause: str
    reason: str
    lasts: bool = False


def enough(replicas: int) -> str:
    """Returns the beginning of a reason to scale down."""
    return f"{replicas} replica is enough." if replicas == 1 else f"{replicas} replicas are enough."


def limited(reason: str, wanted: int, limit: str) -> str:
    """Returns a reason with what limits the decision."""
    return f"{reason.rstrip('.')}. Wanted: {wanted}, but {limit}."


def autoscale(history: History, capacity: Capacity, targets: Targets, bounds: Bounds, now: float, forecast: float = 0.0) -> Decision:
    """Returns the replicas from now on. `forecast` is the load of previous days, in rows, at the time when a replica ordered now would
    serve."""
    if not history.fresh(now):
        return _unheard(history, capacity, bounds, now)
    if _idle(history, bounds, now) and forecast < _WORTH_A_REPLICA:
        idle = Decision(0, Recommendation(now, 0, 0), f"No requests for {bounds.idle_after_s:.0f} s.", "idle")
        return _at_a_pace(history, capacity, bounds, idle, now)
    needs = [*_needs(history, capacity, targets, forecast), *_for_ttft(history, capacity, targets, now)]
    lasting = max(need.replicas for need in needs if need.lasts)
    wish = _wish(max(needs, key=lambda need: need.replicas), lasting, capacity, bounds, now)
    settled = _down(history, capacity, bounds, wish, now) if wish.replicas < capacity.wanted else _up(history, capacity, bounds, wish, now)
    return _at_a_pace(history, capacity, bounds, settled, now)


def _unheard(history: History, capacity: Capacity, bounds: Bounds, now: float) -> Decision:
    """Missing or old metrics remove nothing. A held request starts the first replica all the same."""
    wanted = max(capacity.wanted, 1 if history.held else 0)
    kept = bounds.clamp(wanted)
    if kept == capacity.wanted:
        return Decision(kept, Recommendation(now, kept, kept), UNHEARD, "unheard")
    if kept == wanted:
        return Decision(kept, Recommendation(now, kept, kept), _HELD, "held")
    why = f"{bounds.least_by} is {kept}" if kept > wanted else f"{bounds.most_by} is {kept}"
    return Decision(kept, Recommendation(now, kept, kept), f"No recent metrics from the gateway; {why}.", f"unheard, {why}")


def _wish(best: _Need, load: int, capacity: Capacity, bounds: Bounds, now: float) -> Decision:
    """Within the bounds. Only idleness removes the last replica."""
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
    """With a scaleUp window, the least that was needed within it. From zero there is no such wait."""
    window = bounds.behavior.up.stabilization_window_seconds
    if not window or not capacity.wanted:
        return wish
    recent = (past.replicas for past in history.recommendations if past.at > now - window)
    kept = max(min([wish.replicas, *recent]), capacity.wanted)
    if kept == wish.replicas:
        return wish
    reason = f"{wish.reason} Scaling up waits until this has lasted {window} s."
    return Decision(kept, wish.recommendation, reason, f"{wish.cause}, scaleUp window")


def _down(history: History, capacity: Capacity, bounds: Bounds, wish: Decision, now: float) -> Decision:
    window = bounds.behavior.down_window_s
    if now - history.since < window:
        why = f"{enough(wish.replicas)} Scaling down waits until the metrics cover {window:.0f} s."
        return replace(wish, replicas=capacity.wanted, reason=why, cause="young")
    kept = min(capacity.wanted, max(wish.replicas, _needed(history, capacity, bounds, now)))
    if kept == wish.replicas:
        return wish
    why = f"{enough(wish.replicas)} Keeping {kept}, which were needed within the last {window:.0f} s."
    return replace(wish, replicas=kept, reason=why, cause="window")


def _needed(history: History, capacity: Capacity, bounds: Bounds, now: float) -> int:
    """The most that was needed within the window. Unless the spec sets the window, help with a backlog counts only until it could have
    helped."""
    window = bounds.behavior.down_window_s
    help_s = min(window, capacity.start_s + _CATCH_UP_S) if bounds.behavior.down.stabilization_window_seconds is None else window
    recent = (past for past in history.recommendations if now < past.at + window)
    return max((past.replicas if now < past.at + help_s else past.load for past in recent), default=0)


def _at_a_pace(history: History, capacity: Capacity, bounds: Bounds, settled: Decision, now: float) -> Decision:
    """As far as the policies allow. Bounds apply at once, as an HPA's do."""
    allowed = bounds.clamp(paced(settled.replicas, capacity.wanted, history.changes, bounds.behavior, now))
    if allowed == settled.replicas:
        return settled
    way = "scaleUp" if settled.replicas > allowed else "scaleDown"
    reason = limited(settled.reason, settled.replicas, f"behavior.{way} allows {allowed}")
    return replace(settled, replicas=allowed, reason=reason, cause=f"{settled.cause}, {way} policy")


def _needs(history: History, capacity: Capacity, targets: Targets, forecast: float) -> list[_Need]:
    """All needs but that of the TTFT target."""
    last, demand = history.measures[-1], demand_of(history.measures)
    targets = replace(targets, rows=_rows(last, capacity, targets))
    needs = [_for_load(demand, capacity, targets), _for_backlog(demand, capacity, targets)]
    if forecast >= _WORTH_A_REPLICA:
        why = f"On previous days the load was {forecast:.0f} rows at the time when a replica ordered now would serve."
        needs.append(_Need(_staffed(forecast, targets, capacity), "predicted", why))
    if targets.kv_utilization and last.kv_utilization > targets.kv_utilization and capacity.ready:
        needed = math.ceil(capacity.ready * last.kv_utilization / targets.kv_utilization)
        why = f"{last.kv_utilization * 100:.0f} % of the KV cache is in use; the target is {targets.kv_utilization * 100:.0f} %."
        needs.append(_Need(needed, "kv", why))
    if (last.held or history.held) and not capacity.wanted:
        needs.append(_Need(1, "held", _HELD))
    return needs


def _for_ttft(history: History, capacity: Capacity, targets: Targets, now: float) -> list[_Need]:
    """If requests wait, one replica more than serve. If none waits, prompts that share a replica's steps make first tokens late: then in
    proportion, as an HPA does."""
    last = history.measures[-1]
    ratio = last.ttft_p95_s / targets.ttft_p95_s if targets.ttft_p95_s else 0.0
    why = f"The first token takes {last.ttft_p95_s:.1f} s (p95); the target is {targets.ttft_p95_s:.1f} s."
    if ratio > 1 and last.waiting + last.held:
        return [_Need(capacity.ready + 1, "ttft", why)]
    if ratio < _BINDING or not _shared(history, capacity, now):
        return []
    if _NEAR <= ratio <= 1 or (ratio > 1 and _young(history, capacity, now)):
        return [_Need(capacity.wanted, "ttft", why, lasts=True)]
    return [_Need(math.ceil(capacity.ready * min(ratio, _AT_MOST)), "ttft", why, lasts=True)]


def _young(history: History, capacity: Capacity, now: float) -> bool:
    """Whether the minute of the quantile began before the newest replica served."""
    grown = max((change.at for change in history.changes if change.by > 0), default=-math.inf)
    return bool(capacity.starting) or now - grown < capacity.start_s + QUANTILE_S


def _shared(history: History, capacity: Capacity, now: float) -> bool:
    """Whether prompts that share steps explain late first tokens: none waited within the minute of the quantile, enough came, and replicas
    run more than one request each. Otherwise another replica could not help."""
    minute = [m for m in history.measures if m.at > now - QUANTILE_S]
    if history.measures[-1].running <= capacity.ready or any(m.waiting + m.held for m in minute):
        return False
    return sum(m.arrived for m in minute) >= _ENOUGH_REQUESTS


def _rows(last: Measure, capacity: Capacity, targets: Targets) -> int:
    """Requests that a replica runs at a time. If the KV is full and others wait, no more fit than those that run."""
    full = last.kv_utilization >= _FULL and last.waiting > 0 and capacity.ready > 0
    return max(1, min(targets.rows, last.running // capacity.ready)) if full else targets.rows


def _staffed(load: float, targets: Targets, capacity: Capacity) -> int:
    """The spare grows with the time that a start takes, because a missing replica is missed for longer. On traces with starts of six
    minutes, 2.5 had 1.37 times an HPA's misses and 3.5 had 0.37 to 0.40, at 0.85 to 0.89 of its hours."""
    spare = targets.spare * (1 + min(capacity.start_s, _LONG_START_S) / _LONG_START_S)
    return math.ceil((load + spare * math.sqrt(load)) / targets.rows)


def _for_load(demand: Demand, capacity: Capacity, targets: Targets) -> _Need:
    rate = max(0.0, demand.rate + max(0.0, demand.slope) * min(capacity.start_s, _TREND_LASTS_S))
    load = rate * demand.request_s
    why = f"{rate:.1f} requests per second of {demand.request_s:.1f} s each fill {load:.0f} rows; a replica has {targets.rows}."
    return _Need(_staffed(load, targets, capacity), "load", why, lasts=True)


def _for_backlog(demand: Demand, capacity: Capacity, targets: Targets) -> _Need:
    """Requests that wait or come until a replica ordered now would serve, less those that ready and starting replicas serve until then."""
    horizon = capacity.start_s
    row_seconds = targets.rows * (capacity.ready * horizon + sum(max(0.0, horizon - left) for left in capacity.starting))
    served = row_seconds / demand.request_s if demand.request_s else math.inf
    left = demand.backlog + demand.rate * horizon - served
    if left <= targets.queue_depth * capacity.wanted:
        return _Need(0, "load", "No requests wait.")
    rows = (demand.rate + left / _CATCH_UP_S) * demand.request_s
    why = f"{demand.backlog} requests wait; {left:.0f} would still wait in {horizon:.0f} s."
    return _Need(math.ceil(rows / targets.rows), "backlog", why)
