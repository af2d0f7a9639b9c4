"""What a service makes of the served names that others hold: its plan and its status. Asked by `reconcile` and `status`; who holds what
is `claims.py`. Knows no client, no clock.
"""

from __future__ import annotations

from dataclasses import replace

from pagoda_contracts.conditions.service import NAME_CONFLICT

from pagoda_operator.api.errors import SpecProblem
from pagoda_operator.api.state import DEPLOYMENTS, Observed
from pagoda_operator.decide.plan import Plan
from pagoda_operator.decide.render.writes import Create


def held_names(observed: Observed) -> tuple[str, ...]:
    """Which of its names a service has, for its status; as it was told last where its spec cannot be read."""
    if observed.spec is None:
        return observed.status.served_names
    taken = {found.name for found in observed.taken}
    return tuple(name for name in observed.spec.model.served_names or (observed.meta.name,) if name not in taken)


def with_name_conflict(observed: Observed, draft: Plan) -> Plan:
    """The plan of a service whose names others hold: told so; where no name is left to it, it starts nothing that is not there yet."""
    if not observed.taken or draft.problem is not None or observed.spec is None:
        return draft
    told = ", ".join(f"{taken.name!r} is held by {taken.holder.namespace}/{taken.holder.name}" for taken in observed.taken)
    problem = SpecProblem(NAME_CONFLICT, f"served names belong to the service that has them first: {told}")
    names = observed.spec.model.served_names or (observed.meta.name,)
    if len(observed.taken) < len(names) or observed.of(DEPLOYMENTS):
        return replace(draft, problem=problem)
    return replace(draft, problem=problem, writes=tuple(write for write in draft.writes if not isinstance(write, Create)))
