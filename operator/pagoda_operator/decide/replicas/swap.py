"""Replaces a sick replica where quota has no room for its successor beside it: it goes first. Pure; called by `replicas`.

A ReplicaSet makes a successor the moment that a pod is deleted, and both hold devices until the first is gone. So its Deployment is lowered
by one instead, with the sick one priced to be the one that goes, and raised again when nothing of it ends any more, or as soon as there is
room beside what ends: on a dead node that may take days. What is lowered and how many replicas it stays charged for are one write: no rival
takes the devices in between, and an operator that dies is followed by one that reads both. Replicas that do not serve yet
go along where the ReplicaSet would take them before the sick one; all are made again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from pagoda_operator.decide.replicas.drain import Crew, Drain, cheapest, drain, removal_class


class Swap(NamedTuple):
    """The next steps; how many replicas stay charged for, 0 where that is as many as are asked for."""

    drain: Drain
    reserved: int = 0


def swap(crew: Crew, reserved: int, sick: str, *, cramped: bool) -> Swap:
    """The crew's next steps, whether one of it is `sick` or not; `reserved`: what its Deployment says now; `cramped`: whether quotas have
    no room for one replica beside all that is charged."""
    if crew.replicas < min(crew.target, reserved):
        return _ending(crew, min(crew.target, reserved), cramped=cramped)
    victim = next((pod for pod in crew.active if pod.name == sick), None)
    if victim is None:
        return Swap(drain(crew))
    crew = replace(crew, sick=frozenset({sick}))
    if len(crew.active) > min(crew.target, crew.replicas):
        return Swap(drain(crew))  # there are to be fewer anyway, and it goes first
    ahead = sum(removal_class(pod) < removal_class(victim) for pod in crew.active)
    return _lowered(crew, len(crew.active) - 1 - ahead)


def _lowered(crew: Crew, target: int) -> Swap:
    """All at once, or not yet: half of it would take the others and leave the sick one."""
    found, whole = drain(replace(crew, target=target)), min(crew.target, crew.replicas)
    return Swap(found, whole) if found.replicas <= target else Swap(replace(found, replicas=crew.replicas))


def _ending(crew: Crew, whole: int, *, cramped: bool) -> Swap:
    """Lowered; up again by as many as nothing that ends is in the way of, and one more beside what does where there is room for one."""
    ending = sum(pod.deleting and not pod.finished for pod in crew.pods)
    overdue = len(crew.active) > crew.replicas  # the ReplicaSet has not taken it yet
    target = crew.replicas if overdue else min(whole, max(crew.replicas, whole - ending) + (not cramped))
    priced = frozenset(pod.name for pod in crew.active if cheapest(pod) and pod.drain_deadline_ms is None)
    found = drain(replace(crew, target=target, sick=priced))
    return Swap(found, whole if found.replicas < whole else 0)
