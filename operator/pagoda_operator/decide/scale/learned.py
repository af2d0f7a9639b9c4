"""learned: what scaling knows of a service from before: how long starts took per accelerator, what load the same time of previous days had.
Pure, its page in a ConfigMap included. Called by `inputs` and `scaling`; `scaler` reads and writes the page.

A day has BINS bins, each the mean load (rows in use, as `demand.offered` counts) of its quarter of an hour; DAYS whole days are kept beside
the present one. A page is 4 to 7 KiB, never above 64 (MAX_BYTES), whatever a service went through.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Annotated, Final, Literal

from pagoda_contracts.names import HISTORY_KEY, HISTORY_SUFFIX
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pagoda_operator.api.errors import PageRefused
from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import CONFIG_MAPS, SERVICES, Observed
from pagoda_operator.decide.render.children import Manifest, Owner

DAY_S: Final = 86_400.0
BINS: Final = 96
DAYS: Final = 7
MAX_BYTES: Final = 64 * 1024
UNKNOWN_START_S: Final = 60.0
"""Of an accelerator on which nothing was seen to start."""

_STARTS: Final = 8
_ACCELERATORS: Final = 16
_LEVEL: Final = (0.5, 1.5)  # today beside previous days: believed within these

Load = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Bin:
    """The bin that is being filled."""

    number: int = -1
    total: float = 0.0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Learned:
    """Start times in seconds, the last ones per accelerator; mean loads by day's number and bin, None where nobody watched. `written_at`
    is when the page was, `busy` whether a request came since."""

    starts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    days: Mapping[int, tuple[float | None, ...]] = field(default_factory=dict)
    open: Bin = Bin()
    written_at: float = 0.0
    busy: bool = False

    def start_s(self, accelerator: str) -> float:
        """What a start takes: the median of the last ones, the upper of two."""
        known = sorted(self.starts.get(accelerator, ()))
        return known[len(known) // 2] if known else UNKNOWN_START_S


def started(learned: Learned, accelerator: str, seconds: float) -> Learned:
    """One more start was seen."""
    last = (*learned.starts.get(accelerator, ()), round(max(0.0, seconds), 1))[-_STARTS:]
    others = {name: known for name, known in learned.starts.items() if name != accelerator}
    kept = dict(list(others.items())[-(_ACCELERATORS - 1) :])
    return replace(learned, starts=kept | {accelerator: last})


def lessons(learned: Learned, pods: Iterable[Pod], starting: frozenset[str]) -> Learned:
    """How long those took that were seen starting and serve now. Who was ready when first seen may have been unready in between."""
    for pod in pods:
        since = pod.ready_since or 0.0
        if pod.ready and pod.name in starting and pod.restarts == 0 and since > pod.created > 0:
            learned = started(learned, pod.accelerator, since - pod.created)
    return learned


def loaded(learned: Learned, load: float, now: float, day_s: float = DAY_S) -> Learned:
    """The load at a time (seconds of Unix time)."""
    number, busy = int(now / day_s * BINS), learned.busy or load > 0
    if number == learned.open.number:
        filled = Bin(number, learned.open.total + load, learned.open.count + 1)
        return replace(learned, open=filled, busy=busy)
    return replace(learned, open=Bin(number, load, 1), days=_closed(learned, number), busy=busy)


def _closed(learned: Learned, number: int) -> Mapping[int, tuple[float | None, ...]]:
    """With the filled bin in its day, without days that are too old to count."""
    done, today = learned.open, number // BINS
    days = {day: loads for day, loads in learned.days.items() if today - DAYS <= day <= today}
    if done.count and today - DAYS <= done.number // BINS <= today:
        day, index = divmod(done.number, BINS)
        loads = list(days.get(day, (None,) * BINS))
        loads[index] = _short(done.total / done.count)
        days[day] = tuple(loads)
    return days


def forecast(learned: Learned, load: float, now: float, ahead_s: float, day_s: float = DAY_S) -> float:
    """The load in `ahead_s` seconds: the median of previous days at that time, as much above or below them as the present load is."""
    then, here = (_usual(learned, at, day_s) for at in (now + ahead_s, now))
    if then is None:
        return 0.0
    level = load / here if here else 1.0
    return then * min(_LEVEL[1], max(_LEVEL[0], level))


def _usual(learned: Learned, at: float, day_s: float) -> float | None:
    """Between the middles of two bins, as a line."""
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


def _short(load: float) -> float:
    return float(f"{load:.3g}")


class _Page(BaseModel):
    """On the wire."""

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
    """The page, as it is written now."""
    whole = {"version": 1, "written": int(now), "starts": {name: list(known) for name, known in learned.starts.items()}}
    return json.dumps(whole | {"days": {str(day): list(loads) for day, loads in sorted(learned.days.items())}}, separators=(",", ":"))


def decode(page: str) -> Learned:
    """PageRefused says what is wrong with it."""
    if len(page) > MAX_BYTES:
        raise PageRefused(f"{len(page)} bytes; it must be at most {MAX_BYTES}")
    try:
        read = _Page.model_validate_json(page)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        raise PageRefused(f"{'.'.join(map(str, fault['loc'])) or 'page'}: {fault['msg']}") from error
    return Learned(read.starts, read.days, written_at=read.written)


def page_name(observed: Observed) -> str:
    """The ConfigMap's name."""
    return f"{observed.meta.name}{HISTORY_SUFFIX}"


def page_manifest(owner: Owner, page: str) -> Manifest:
    """Without the label that makes an object a child of the plan: garbage collection takes it with the service, no rollout looks at it."""
    reference = {"apiVersion": SERVICES.api_version, "kind": SERVICES.kind, "name": owner.name, "uid": owner.uid, "controller": True}
    labels = {name: value for name, value in owner.labels.items() if name not in owner.selector}
    meta = {"name": f"{owner.name}{HISTORY_SUFFIX}", "namespace": owner.namespace, "labels": labels}
    body = {"apiVersion": CONFIG_MAPS.api_version, "kind": CONFIG_MAPS.kind, "data": {HISTORY_KEY: page}}
    return body | {"metadata": meta | {"ownerReferences": [reference | {"blockOwnerDeletion": True}]}}
