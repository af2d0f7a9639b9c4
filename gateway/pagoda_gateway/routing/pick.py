"""Pick: which endpoint takes a request, and why. Pure: endpoints, request and time come in, an endpoint and a reason go out.

Called by requests/router.py. First verdicts filter the endpoints, then scorers order those that are left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pagoda_contracts.route import (
    REASON_LEAST_LOADED,
    REASON_ONLY_ENDPOINT,
    REASON_ONLY_SUSPECT,
    REASON_ONLY_UNSOUND,
    REASON_PREFIX,
    REASON_SESSION,
)

from pagoda_gateway.routing.adapters import candidates
from pagoda_gateway.routing.affinity import owner, within_bound
from pagoda_gateway.routing.endpoint import Endpoint
from pagoda_gateway.routing.request import RoutingRequest
from pagoda_gateway.routing.revisions import in_order
from pagoda_gateway.routing.scorers import SCORERS, Weighted, cached_share, prefix, score, session
from pagoda_gateway.routing.share import crowded
from pagoda_gateway.routing.verdict import RANK, ROUTABLE, SOUND, UNSOUND, Verdict, judge, judge_for

Judged = tuple[Endpoint, Verdict]


class Pick(NamedTuple):
    """The endpoint, and the word for the route header."""

    endpoint: Endpoint
    reason: str


class NoPick(NamedTuple):
    """No endpoint can take the request; `reason` is the most hopeful verdict."""

    reason: Verdict


@dataclass(frozen=True, slots=True)
class Split:
    """How requests are split between revisions: (revision, percent), and the point of this request, 0 <= point < 1."""

    weights: tuple[tuple[str, int], ...]
    point: float


def pick(
    endpoints: Collection[Endpoint],
    request: RoutingRequest,
    tried: Mapping[str, int],
    now_ms: float,
    scorers: Sequence[Weighted] = SCORERS,
) -> Pick | NoPick:
    """Returns the best endpoint for a request. `tried`: endpoint → sequence of its frame when this request failed there. Such an endpoint
    is left out until its next frame. Then it is the last choice, because the last frames of a killed replica may arrive late."""
    judged = [(endpoint, judge_for(endpoint, request, tried, now_ms)) for endpoint in endpoints]
    able = [(endpoint, verdict) for endpoint, verdict in judged if verdict in ROUTABLE] or _last_resort(judged)
    if not able:
        return NoPick(min((verdict for _, verdict in judged), key=RANK.__getitem__, default=Verdict.NO_REPLICA))
    trusted = min(_trust(entry, tried) for entry in able)
    choice = [entry for entry in able if _trust(entry, tried) == trusted]
    best, request = _best([endpoint for endpoint, _ in choice], request, scorers)
    verdict = next(verdict for endpoint, verdict in choice if endpoint is best)
    if verdict is not Verdict.READY:
        return Pick(best, REASON_ONLY_SUSPECT if verdict is Verdict.SUSPECT else REASON_ONLY_UNSOUND)
    return Pick(best, _reason(best, request, scorers) if len(able) > 1 else REASON_ONLY_ENDPOINT)


def pick_by_revision(
    endpoints: Collection[Endpoint],
    split: Split,
    request: RoutingRequest,
    tried: Mapping[str, int],
    now_ms: float,
    scorers: Sequence[Weighted] = SCORERS,
) -> Pick | NoPick:
    """Returns the best endpoint of the revision whose share holds the point; then of the next revision that has one; then of all."""
    for revision in in_order(split.weights, split.point):
        choice = pick([endpoint for endpoint in endpoints if endpoint.revision == revision], request, tried, now_ms, scorers)
        if isinstance(choice, Pick):
            return choice
    return pick(endpoints, request, tried, now_ms, scorers)


def any_routable(endpoints: Iterable[Endpoint], now_ms: float) -> bool:
    """Returns whether an endpoint can take requests, so that held requests should look again."""
    judged = [(endpoint, judge(endpoint, now_ms)) for endpoint in endpoints]
    return any(verdict in ROUTABLE for _, verdict in judged) or bool(_last_resort(judged))


def _trust(judged: Judged, tried: Mapping[str, int]) -> tuple[bool, bool]:
    """Smaller is better, before any score: not tried, not suspect."""
    endpoint, verdict = judged
    return endpoint.name in tried, verdict is Verdict.SUSPECT


def _best(endpoints: Sequence[Endpoint], request: RoutingRequest, scorers: Sequence[Weighted]) -> tuple[Endpoint, RoutingRequest]:
    """Returns the endpoint with the best score of those within the bound of load, and the request with its session's owner among them.
    Among equals, the one that was not picked for the longest time: a stable rotation."""
    request = replace(request, crowded=crowded(endpoints))
    bounded = candidates(within_bound(endpoints), request.model, request.crowded)
    if request.session:
        fair = [one for one in bounded if one.name not in request.crowded]
        loaded = [one for one in fair if one.has_loaded(request.model)]
        request = replace(request, owner=owner(loaded or fair or bounded, request.session))
    return min(bounded, key=lambda one: (-score(one, request, scorers), one.last_pick, one.name)), request


def _reason(best: Endpoint, request: RoutingRequest, scorers: Sequence[Weighted]) -> str:
    used = {one.scorer for one in scorers}
    if session in used and best.name == request.owner:
        return REASON_SESSION
    return REASON_PREFIX if prefix in used and cached_share(best, request) > 0 else REASON_LEAST_LOADED


def _last_resort(judged: Sequence[Judged]) -> list[Judged]:
    """Returns unsound endpoints that serve because none is sound: those with a faulty device and a right check, else the others. The last
    one stays in use, as it does among outliers: a wrong or late check is likelier a false alarm than an outage is worth."""
    unsound = [entry for entry in judged if entry[1] in UNSOUND]
    if any(verdict in SOUND for _, verdict in judged):
        return []
    able = [entry for entry in unsound if entry[1] is Verdict.DEVICE_FAULT] or unsound
    return [entry for entry in able if not entry[0].refused]
