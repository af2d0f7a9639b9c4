"""How soon changes were answered, by an audit log's times: what bench/operator.py tells. Pure.

A change's writes are those of its service until the service's next change, and it is answered by the last of them; one that lacks a write
of some kind was not answered before the run's end, which is the least that it took.

Our share of it: until its first run that wrote is done, and from then on as long as a run for the service is wanted (in the queue, held
back, backing off) or at work, but for those moments at which the API server was at work on a request of the service's, or had told no
watch of the edit yet. What is left out is the time in which nothing was asked of us: the Deployment's controller, the scheduler, the
kubelet; and how long their news took to reach us, which the edit's own news tells (`news`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Change(NamedTuple):
    """One edit of a service; what is written until then is its answer."""

    service: str
    at: float
    until: float


class Written(NamedTuple):
    """A write of the operator's: of which kind, when it was done."""

    kind: str
    at: float


class Span(NamedTuple):
    """From when to when."""

    begin: float
    end: float


class Ran(NamedTuple):
    """A run of the operator's for one service: since when it was wanted, from when to when it was at work, how much it wrote."""

    asked: float
    began: float
    ended: float
    writes: int


class Seen(NamedTuple):
    """What is known of one service: writes, runs, and when the API server was at work on its requests."""

    writes: list[Written]
    runs: list[Ran]
    served: list[Span]


_NOTHING = Seen([], [], [])


class Answers(NamedTuple):
    """Seconds by change: all of it, our share, until its news was in the queue; how many changes were not answered by the end."""

    whole: list[float]
    ours: list[float]
    news: list[float]
    unanswered: int


def changes(asked: Sequence[tuple[str, float]], end: float) -> list[Change]:
    """Each until the next one of the same service."""
    found, later = [], dict[str, float]()
    for service, at in sorted(asked, key=lambda one: -one[1]):
        found.append(Change(service, at, later.get(service, end)))
        later[service] = at
    return found[::-1]


def answers(asked: Sequence[Change], seen: Mapping[str, Seen], kinds: Sequence[str], end: float) -> Answers:
    """What each change took until the last write of each of these kinds. One that was not answered took until the end, and our share of
    that is what runs took of it."""
    whole, ours, news, unanswered = [], [], [], 0
    for change in asked:
        known = seen.get(change.service, _NOTHING)
        mine = [write for write in known.writes if write.kind in kinds and change.at < write.at <= change.until]
        answered = {write.kind for write in mine} == set(kinds)
        done = max(write.at for write in mine) if answered else change.until
        unanswered += not answered
        whole.append(done - change.at if answered else end - change.at)
        ours.append(share(change.at, done, known))
        news.append(min((run.asked for run in known.runs if run.asked >= change.at), default=done) - change.at)
    return Answers(whole, ours, news, unanswered)


def share(at: float, done: float, known: Seen) -> float:
    """Ours of the time between: see above."""
    runs = [run for run in known.runs if run.began >= at]
    first = min((run.ended for run in runs if run.writes), default=done)
    spans = [Span(at, first), *(Span(run.asked, run.ended) for run in runs)]
    mine = [Span(max(at, span.begin), min(done, span.end)) for span in spans]
    return length(mine) - length([Span(max(a.begin, b.begin), min(a.end, b.end)) for a in union(mine) for b in union(known.served)])


def union(spans: Sequence[Span]) -> list[Span]:
    """The same moments, in spans that do not meet."""
    found: list[Span] = []
    for span in sorted(span for span in spans if span.end > span.begin):
        if found and span.begin <= found[-1].end:
            found[-1] = Span(found[-1].begin, max(found[-1].end, span.end))
        else:
            found.append(span)
    return found


def length(spans: Sequence[Span]) -> float:
    """Seconds in any of them."""
    return sum(span.end - span.begin for span in union(spans))
