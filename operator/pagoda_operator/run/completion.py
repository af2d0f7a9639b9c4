"""Completes what was observed with what this process knows: names, signals, devices, quota, scaling. Called by `reconcile` before `plan`.

A declared order, each step on what the ones before it found. Two of them: on the truth, and on the view, where nothing is asked of the API
server and nothing is booked. A step that is in both may be taken twice in one run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from pagoda_operator.api.callers import Callers
from pagoda_operator.api.orders import Answer
from pagoda_operator.api.reader import Reader
from pagoda_operator.api.state import Key, Observed
from pagoda_operator.decide.plan import plan
from pagoda_operator.inventory.fleet import Fleet
from pagoda_operator.run.senses import Senses


class Run(NamedTuple):
    """One run for one service: when, what its daemons answered last, and who may call its replicas."""

    key: Key
    senses: Senses
    now: float
    answers: Mapping[str, Answer]
    callers: Callers | None
    reader: Reader


Step = Callable[[Run, Observed], Awaitable[Observed]]


async def complete(run: Run, observed: Observed, steps: tuple[Step, ...]) -> Observed:
    """All of the steps, in their order."""
    for step in steps:
        observed = await step(run, observed)
    return observed


async def _process(run: Run, observed: Observed) -> Observed:
    signals = run.senses.signals.of(run.key, run.now)
    ages = run.senses.ages.of(run.key, observed.stamps, run.now)
    lacking = run.senses.lacking.of(run.key, observed.pods, run.now)
    observed = replace(observed, now=run.now, ages=ages, lacking=lacking, signals=signals, answers=run.answers, callers=run.callers)
    return replace(observed, unheard_s=run.senses.signals.unheard(run.key))


async def _names(run: Run, observed: Observed) -> Observed:
    return replace(observed, taken=await run.senses.claims.confirmed(run.reader, run.key))


async def _shown_names(run: Run, observed: Observed) -> Observed:
    return replace(observed, taken=run.senses.claims.taken(run.key))


async def _devices(run: Run, observed: Observed) -> Observed:
    """Who runs on CPU alone need not compare 1,000 nodes."""
    fleet = run.senses.fleet() if observed.asks_for_devices else Fleet()
    return replace(observed, faults=run.senses.faults(), fleet=fleet, sizes=run.senses.sizes())


async def _booked(run: Run, observed: Observed) -> Observed:
    await run.senses.quota.settle(run.key, observed)
    return observed


async def _granted(run: Run, observed: Observed) -> Observed:
    """After what it holds is booked; before scaling, which wishes for no more. What it needs may depend on how many it will be."""
    quota = run.senses.quota
    grant = quota.offer(run.key, observed, lambda seen: plan(run.senses.scaling.foresee(run.key, seen)))
    return replace(observed, quota=grant, cramped=quota.cramped(run.key, observed))


async def _scaled(run: Run, observed: Observed) -> Observed:
    """Scaling remembers each look, as it does each measure; it never saw older objects than in this one, the view's included."""
    return await run.senses.scaling.complete(run.key, observed)


TRUTH: Final[tuple[Step, ...]] = (_process, _names, _devices, _booked, _granted, _scaled)
VIEW: Final[tuple[Step, ...]] = (_process, _shown_names, _devices, _granted, _scaled)
