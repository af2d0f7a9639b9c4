"""Decides who leads, from the Lease as one contender has seen it and from its own clock. Pure; called by leader.py.

As in client-go, a contender never compares its clock with another's. It notes when it first saw the Lease as it is, and takes it only if it
stays unchanged for the whole duration. The holder gives up sooner after the start of its last renewal. So clocks whose rates differ by a
factor of up to 1.5 (15 s / 10 s) never make two leaders.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple


class Terms(NamedTuple):
    """Seconds: how long a Lease without renewal is respected, after which its holder gives up, and between two attempts."""

    duration: float = 15.0
    deadline: float = 10.0
    retry: float = 2.0


class Record(NamedTuple):
    """The Lease as it was read. `holder` is empty if it was given back."""

    version: str
    holder: str
    transitions: int
    duration: float


class Wait(NamedTuple):
    """Read the Lease again after so many seconds."""

    seconds: float


class Create(NamedTuple):
    """There is no Lease: create it."""

    transitions: int


class Take(NamedTuple):
    """The Lease is free, expired, or of this contender's previous process: write our name on this version."""

    record: Record
    transitions: int


class Renew(NamedTuple):
    """The Lease is ours: write it again, on this version."""

    record: Record


class Quit(NamedTuple):
    """Leadership is lost: the process must end before it writes anything more."""

    why: str


Step = Wait | Create | Take | Renew | Quit


@dataclass(frozen=True)
class View:
    """What one contender knows. Times are its own clock's."""

    identity: str
    record: Record | None = None
    # When the record was first seen as it is; None before the first read.
    since: float | None = None
    # When our last successful write was begun; None while we do not lead.
    renewed: float | None = None
    epoch: int = 0
    # An older version of the Lease appeared: the store was restored, and all that this process has seen is obsolete.
    restored: bool = False


def seen(view: View, record: Record | None, now: float) -> View:
    """The view after the Lease was read."""
    if view.since is not None and record == view.record:
        return view
    # The highest number of transitions is kept: a Lease that a person deleted must not bring old epochs back.
    epoch = view.epoch if view.renewed is not None else max(view.epoch, record.transitions if record else 0)
    return replace(view, record=record, since=now, epoch=epoch, restored=view.restored or _went_back(view.record, record))


def _went_back(before: Record | None, record: Record | None) -> bool:
    """Versions of one kind compare as numbers since Kubernetes 1.35; one that is no number proves nothing."""
    if before is None or record is None or not (before.version.isdigit() and record.version.isdigit()):
        return False
    return int(record.version) < int(before.version)


def won(view: View, record: Record, begun: float) -> View:
    """The view after a write of ours that was accepted and began at that time."""
    return replace(view, record=record, since=begun, renewed=begun, epoch=record.transitions)


def cause(step: Create | Take, identity: str) -> str:
    """Why this contender takes the Lease, for people."""
    if isinstance(step, Create):
        return "there was no Lease" if step.transitions == 1 else "the Lease was deleted"
    holder = step.record.holder
    if not holder:
        return "the leader before it gave the Lease back"
    return f"{holder} did not renew the Lease" if holder != identity else "an earlier process of this name had the Lease"


def leads(view: View, now: float, terms: Terms) -> bool:
    """Whether this contender may act."""
    return view.renewed is not None and now - view.renewed < terms.deadline


def decide(view: View, now: float, terms: Terms) -> Step:
    """What to do with the Lease."""
    if view.restored:
        return Quit("the Lease is older than it was: the store was restored")
    return _as_standby(view, now, terms) if view.renewed is None else _as_leader(view, now, terms)


def _as_leader(view: View, now: float, terms: Terms) -> Step:
    record = view.record
    if not leads(view, now, terms):
        return Quit(f"the Lease could not be renewed for {terms.deadline:.0f} s")
    if record is None:
        return Create(view.epoch + 1)
    if record.holder != view.identity:
        return Quit(f"the Lease belongs to {record.holder}" if record.holder else "the Lease has no holder any more")
    if record.transitions != view.epoch:
        return Quit(f"another process has the Lease under the same identity {view.identity}")
    return Renew(record)


def _as_standby(view: View, now: float, terms: Terms) -> Step:
    record = view.record
    if record is None and view.epoch == 0:
        return Create(1)
    if record is not None and record.holder in ("", view.identity):
        return Take(record, max(view.epoch, record.transitions) + 1)
    respected = max(terms.duration, record.duration if record else 0.0)
    left = (view.since if view.since is not None else now) + respected - now
    if left > 0:
        return Wait(min(terms.retry, left))
    return Create(view.epoch + 1) if record is None else Take(record, max(view.epoch, record.transitions) + 1)
