"""Where a service's replicas are rendered otherwise than they would be now: nothing rolls them, so somebody must be told. Pure; called by
`status`.

A rendering is pinned once something runs it (`pinning.py`); an edited profile or another operator changes only what would be rendered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pagoda_operator.api.errors import SpecProblem
from pagoda_operator.api.state import CONTROLLER_REVISIONS, DEPLOYMENTS, Observed
from pagoda_operator.decide.children.pinning import CLAIM, Where, render
from pagoda_operator.decide.plan import Plan, owner_of
from pagoda_operator.decide.render.children import Manifest
from pagoda_operator.decide.render.overlay import lost, written

_PARTS: Final = ("podTemplate", "daemonConfig", CLAIM)
_MOST: Final = 512


def outdated(observed: Observed, plan: Plan) -> str | None:
    """The first path of each part; as it was told last where nothing can be rendered now."""
    if plan.current is None or plan.placement is None or plan.placement.entry is None:
        return observed.status.outdated
    kept = observed.find(CONTROLLER_REVISIONS, plan.current.name)
    if kept is None or observed.find(DEPLOYMENTS, plan.current.name) is None:
        return None
    try:
        fresh = render(observed, owner_of(observed), plan.current, Where(plan.placement.entry, plan.placement.resolved))
    except SpecProblem:
        return observed.status.outdated
    return ", ".join(_differences(kept.body["data"], fresh))[:_MOST] or None


def _differences(kept: Manifest, fresh: Manifest) -> Iterator[str]:
    for part in _PARTS:
        before, now = kept.get(part, {}), fresh.get(part, {})
        if before == now:  # nearly always: path by path it was a tenth of all CPU that changes cost
            continue
        path = found if (found := lost(now, before)) is not None else lost(before, now)
        if path is not None:
            yield written((part, *path))
