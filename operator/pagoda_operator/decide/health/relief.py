"""One replica more beside those that serve on devices called faulty: how many that makes of its Deployment, and what stands on it. Pure;
called by `plan` with what `health` wants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from pagoda_operator.api.relieved import Relieved
from pagoda_operator.api.state import DEPLOYMENTS, Child, Observed
from pagoda_operator.decide.health.health import Health
from pagoda_operator.decide.health.successors import ill, loading
from pagoda_operator.decide.render.writes import Annotate
from pagoda_operator.decide.replicas.drain import removal_class
from pagoda_operator.decide.replicas.replicas import Steps, pods_of, steps
from pagoda_operator.inventory.values import stamp


def relief(observed: Observed, health: Health, targets: Mapping[str, int], current: str) -> dict[str, int]:
    """The targets, with one replica beside those that are sick: no more than one, and none for what is to end. Whether it may be made is
    for quotas to say of that Deployment (`cramped`, the ledger's `admit`); here only a cap that shrank takes it away again."""
    target, live = targets.get(health.relieved, 0), observed.find(DEPLOYMENTS, health.relieved)
    if live is None or not target:
        return dict(targets)
    capped = observed.quota is not None and health.relieved == current and target >= observed.quota.room
    return {**targets, live.name: target if capped else _raised(observed, health, live, target)}


def _raised(observed: Observed, health: Health, live: Child, target: int) -> int:
    """Where fewer are wanted meanwhile they go once the one that loads serves: the ReplicaSet would take that one first."""
    if not live.extra and ill(observed, live, health.sick) < target:
        return target  # as many as are wanted are not sick, or come
    active, coming = [pod for pod in pods_of(observed, live) if pod.counts], loading(observed, live, health.sick)
    if not coming:
        return target + (len(active) <= target + live.extra)  # fewer first
    last = max(map(removal_class, coming))
    return max(target + 1, min(live.replicas, 1 + sum(removal_class(pod) > last for pod in active)))


def relieved_steps(observed: Observed, health: Health, targets: Mapping[str, int], current: str) -> Steps:
    """The next steps to so many replicas, and to one more where the sick need it; with what is to stand on each Deployment about that."""
    raised = relief(observed, health, targets, current)
    toward = steps(observed, raised, health.swapped, health.turns)
    live = [child for child in observed.of(DEPLOYMENTS) if child.name in targets]
    asked = {child.name: _Asked(targets[child.name], raised[child.name], toward.replicas[child.name]) for child in live}
    notes = {child.name: _note(observed, health, child, asked[child.name]).written() for child in live}
    toward = replace(toward, relieved=notes)
    return replace(toward, annotate=(*toward.annotate, *_over(live, toward)))


class _Asked(NamedTuple):
    """Replicas of a Deployment: its target, the same with relief, and what is asked for now."""

    target: int
    raised: int
    now: int


def _note(observed: Observed, health: Health, live: Child, asked: _Asked) -> Relieved:
    """What is to stand on it. Who has as many as are wanted has none more, whatever stood there."""
    last = live.relieved if health.kept else Relieved(live.relieved.replicas)
    if asked.now > asked.target and (asked.raised > asked.target or (live.extra and asked.now == live.replicas)):
        return replace(last, replicas=asked.now)
    if live.extra and health.given_up == live.name and asked.now < live.replicas:
        return last.given_up(stamp(observed.now))
    return replace(last, replicas=0)


def _over(live: list[Child], toward: Steps) -> Iterator[Annotate]:
    """Words that no number of replicas goes with any more, where nothing else is written of it: who changes the number takes them away in
    the same write."""
    for child in live:
        there = child.meta.get("annotations", {})
        stale = {word: None for word, text in toward.notes(child.name).items() if word in there and not text}
        if stale and toward.replicas[child.name] == child.replicas:
            yield Annotate(child, stale)
