"""What scaling learns of a service: how long starts take per accelerator, and the load of previous days by time. Pure.

It outlasts the process as a page in a ConfigMap of 4 to 7 KiB, at most 64, which `scaler` reads and writes. A day has BINS bins, each the
mean load (rows in use, as `demand.offered` counts) of its quarter of an hour. DAYS whole days are kept besides the present one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated, Final, Literal

from pagoda_contracts.names import HISTORY_KEY, HISTORY_SUFFIX
from pydantic import BaseModel, ConfigDict, Field

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import CONFIG_MAPS, SERVICES, Observed
from pagoda_operator.decide.render.children import Manifest, Owner

DAY_S: Final = 86_400.0
BINS: Final = 96
DAYS: Final = 7
UNKNOWN_START_S: Final = 60.0
"""For an accelerator without a known start."""

_STARTS: Final = 8
_ACCELERATORS: Final = 16
_LEVEL: Final = (0.5, 1.5)  # the limits of today's load as a factor of previous days'

Load = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Bin:
    """The bin that is being filled."""

    number: int = -1
    total: float = 0.0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Learned:
    """Seconds of the last starts per accelerator; mean loads by day's number and bin, None if not measured. `written_at` is when the page
    was written, `busy` whether a request came since."""

    starts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    days: Mapping[int, tuple[float | None, ...]] = field(default_factory=dict)
    open: Bin = Bin()
    written_at: float = 0.0
    busy: bool = False

    def start_s(self, accelerator: str) -> float:
        """Returns what a start takes: the median of the last ones, the upper of two."""
        known = sorted(self.starts.get(accelerator, ()))
        return known[len(known) // 2] if known else UNKNOWN_START_S


def started(learned: Learned, accelerator: str, seconds: float) -> Learned:
    """Adds a start."""
    last = (*learned.starts.get(accelerator, ()), round(max(0.0, seconds), 1))[-_STARTS:]
    others = {name: known for name, known in learned.starts.items() if name != accelerator}
    kept = dict(list(others.items())[-(_ACCELERATORS - 1) :])
    return replace(learned, starts=kept | {accelerator: last})


def lessons(learned: Learned, pods: Iterable[Pod], starting: frozenset[str]) -> Learned:
    """Adds the starts of pods that were seen starting and are Ready now. Others may have been Ready before they were seen."""
    for pod in pods:
        since = pod.ready_since or 0.0
        if pod.ready and pod.name in starting and pod.restarts == 0 and since > pod.created > 0:
            learned = started(learned, pod.accelerator, since - pod.created)
    return learned


def loaded(learned: Learned, load: float, now: float, day_s: float = DAY_S) -> Learned:
    """Adds the load at a time (seconds of Unix time)."""
    number, busy = int(now / day_s * BINS), learned.busy or load > 0
    if number == learned.open.number:
        filled = Bin(number, learned.open.total + load, learned.open.count + 1)
        return replace(learned, open=filled, busy=busy)
    return replace(learned, open=Bin(number, load, 1), days=_closed(learned, number), busy=busy)


def _closed(learned: Learned, number: int) -> Mapping[int, tuple[float | None, ...]]:
    """Returns the days with the filled bin, without days that are too old."""
    done, today = learned.open, number // BINS
    days = {day: loads for day, loads in learned.days.items() if today - DAYS <= day <= today}
    if done.count and today - DAYS <= done.number // BINS <= today:
        day, index = divmod(done.number, BINS)
        loads = list(days.get(day, (None,) * BINS))
        loads[index] = float(f"{done.total / done.count:.3g}")
        days[day] = tuple(loads)
    return days


def forecast(learned: Learned, load: float, now: float, ahead_s: float, day_s: float = DAY_S) -> float:
    """Returns the load in `ahead_s` seconds: the median of previous days at that time, scaled as the present load compares with them."""
    then, here = (_usual(learned, at, day_s) for at in (now + ahead_s, now))
    if then is None:
        return 0.0
    level = load / here if here else 1.0
    return then * min(_LEVEL[1], max(_LEVEL[0], level))


def _usual(learned: Learned, at: float, day_s: float) -> float | None:
    """The median load at a time, linear between the middles of two bins."""
    place = at / day_s * BINS - 0.5
    first = math.floor(place)
    known = [_of_previous_days(learned, number) for number in (first, first + 1)]
    if known[0] is None or known[1] is None:
        return known[0] if known[1] is None else known[1]
    return known[0] + (known[1] - known[0]) * (place - first)


def _of_previous_days(learned: Learned, number: int) -> float | None:
    day, index = divmod(number, BINS)
    loads = [found for d, loads in learned.days.items() if day - DAYS <= d < day and (found := loads[index]) is not None]
    return median(loads) if loads else None


class _Page(BaseModel):
    """The page's JSON."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1]
    written: Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
    starts: Annotated[
        dict[Annotated[str, Field(max_length=128)], Annotated[tuple[Load, ...], Field(max_length=_STARTS)]], Field(max_length=_ACCELERATORS)
    ]
    days: Annotated[
        dict[Annotated[int, Field(ge=0)], Annotated[tuple[Load | None, ...], Field(min_length=BINS, max_length=BINS)]],
        Field(max_length=DAYS + 1),
    ]


def encode(learned: Learned, now: float) -> str:
    """Returns the page as of now."""
    whole = {"version": 1, "written": int(now), "starts": {name: list(known) for name, known in learned.starts.items()}}
    return json.dumps(whole | {"days": {str(day): list(loads) for day, loads in sorted(learned.days.items())}}, separators=(",", ":"))


def decode(page: str) -> Learned:
    """Returns what a page has; pydantic's ValidationError if it cannot be read."""
    read = _Page.model_validate_json(page)
    return Learned(read.starts, read.days, written_at=read.written)


def page_name(observed: Observed) -> str:
    """Returns the ConfigMap's name."""
    return f"{observed.meta.name}{HISTORY_SUFFIX}"


def page_manifest(owner: Owner, page: str) -> Manifest:
    """Returns the ConfigMap, without the label that makes an object a child of the plan. Garbage collection deletes it with the service."""
    reference = {"apiVersion": SERVICES.api_version, "kind": SERVICES.kind, "name": owner.name, "uid": owner.uid, "controller": True}
    labels = {name: value for name, value in owner.labels.items() if name not in owner.selector}
    meta = {"name": f"{owner.name}{HISTORY_SUFFIX}", "namespace": owner.namespace, "labels": labels}
    body = {"apiVersion": CONFIG_MAPS.api_version, "kind": CONFIG_MAPS.kind, "data": {HISTORY_KEY: page}}
    return body | {"metadata": meta | {"ownerReferences": [reference | {"blockOwnerDeletion": True}]}}
