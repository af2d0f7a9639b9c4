"""Decides what to write: `plan(observed) -> Plan`. Pure: no client, no clock; `reconcile` calls it, `apply` carries it out.

A composition: `placement` (where), `pinning` (what), `rollout` (how many of which revision), `replicas` and `drain` (how to get
there), `converge` (the children), `retire` (old revisions). Rules: a revision's pod template is rendered once and then read from its
ControllerRevision; who serves is drained before he is removed; nothing that another object controls is ever adopted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pagoda_contracts.conditions.service import INVALID_SPEC, NAME_CONFLICT, NO_ACCELERATOR
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_contracts.resources.traffic import RolloutSpec

from pagoda_operator.api.errors import SpecProblem
from pagoda_operator.api.placement import Held, Placement
from pagoda_operator.api.pods import Order
from pagoda_operator.api.state import DEPLOYMENTS, PODS, Child, Observed
from pagoda_operator.decide.children.converge import converge, isolate, rescaled, retire, retiring, running, wanted
from pagoda_operator.decide.children.pinning import Where, pin, told
from pagoda_operator.decide.health.health import Health, judge
from pagoda_operator.decide.health.successor import succession
from pagoda_operator.decide.placement.place import alternatives, place, spare
from pagoda_operator.decide.placement.question import ask
from pagoda_operator.decide.render import inspection
from pagoda_operator.decide.render.children import Manifest, Owner, Revision, identify
from pagoda_operator.decide.render.writes import Create, Write
from pagoda_operator.decide.replicas.replicas import steps
from pagoda_operator.decide.replicas.sides import current_side, old_sides
from pagoda_operator.decide.rollout import trial
from pagoda_operator.decide.rollout.counts import Rollout, RolloutState
from pagoda_operator.decide.rollout.rollout import decide
from pagoda_operator.decide.scale.bounds import refused


@dataclass(frozen=True)
class Plan:
    """What to write, in order, and what keeps the service from its spec."""

    writes: tuple[Write, ...] = ()
    problem: SpecProblem | None = None
    current: Revision | None = None
    # What a replica of it is, whether this plan makes one or not.
    template: Manifest | None = None
    retiring: tuple[str, ...] = ()
    placement: Placement | None = None
    # Something on its way out is in the way; no event tells when it is gone.
    waiting: str = ""
    # The API server would not let us; said in the status while the queue retries.
    denied: str = ""
    # What must be known before anything can be decided.
    held: Held | None = None
    # No event tells when a wait is over, in Unix seconds.
    again_at: float | None = None
    # No quota has room for what this would make more of; it is not among the writes.
    over_quota: str = ""
    # Orders to daemons, given after the writes; pods on their way out.
    orders: tuple[Order, ...] = ()
    leaving: tuple[str, ...] = ()
    health: Health = field(default_factory=Health)
    rollout: Rollout | None = None


def plan(observed: Observed) -> Plan:
    """The writes that bring what is observed nearer to the spec, and give an unhealthy replica its successor; none when it is there and
    well. Served names that another service has are the plan's problem."""
    health = judge(observed)
    draft = _converging(observed, health)
    if draft.rollout is None:
        draft = _succeeding(observed, draft, health)
    return _with_name_conflict(observed, replace(draft, writes=(*draft.writes, *health.marks)))


def _with_name_conflict(observed: Observed, draft: Plan) -> Plan:
    """The plan of a service whose served names others hold (claims.py), with that problem. If no name is left to it, nothing new starts."""
    if not observed.taken or draft.problem is not None or observed.spec is None:
        return draft
    holders = ", ".join(f"{taken.name!r} is held by {taken.holder.namespace}/{taken.holder.name}" for taken in observed.taken)
    problem = SpecProblem(NAME_CONFLICT, f"served names belong to the service that has them first: {holders}")
    names = observed.spec.model.served_names or (observed.meta.name,)
    if len(observed.taken) < len(names) or observed.of(DEPLOYMENTS):
        return replace(draft, problem=problem)
    return replace(draft, problem=problem, writes=tuple(write for write in draft.writes if not isinstance(write, Create)))


def _succeeding(observed: Observed, draft: Plan, health: Health) -> Plan:
    """Nothing is decided about what there should be, and an unhealthy replica gets its successor all the same."""
    targets = {child.name: child.ordered for child in running(observed)}
    succeeded, health = succession(observed, health, targets)
    if succeeded == targets and not any(child.extra for child in running(observed)):
        return replace(draft, health=health)
    toward = steps(observed, targets, succeeded, health.turns)
    writes = (*draft.writes, *toward.annotate, *rescaled(observed, owner_of(observed), toward))
    return replace(draft, orders=toward.orders, leaving=toward.leaving, writes=writes, health=health)


def _converging(observed: Observed, health: Health) -> Plan:
    if observed.spec is None:
        return Plan(problem=SpecProblem(INVALID_SPEC, observed.invalid))
    if why := refused(observed.spec.scaling):
        return Plan(problem=SpecProblem(INVALID_SPEC, why))
    placement = place(ask(observed, observed.spec))
    if placement.held is not None:
        return _undecided(observed, observed.spec, placement)
    if placement.entry is None:
        return _nowhere(observed, placement)
    where = Where(placement.entry, placement.resolved, _written(observed.spec, placement))
    return replace(_plan(observed, observed.spec, where, health), placement=placement, again_at=placement.again_at)


def _undecided(observed: Observed, spec: InferenceServiceSpec, placement: Placement) -> Plan:
    """What runs is left alone until the model's shape is known; what reads it is fenced in before it is made."""
    held, owner = placement.held, owner_of(observed)
    read = tuple(inspection.steps(observed, owner, spec))
    fence = isolate(observed, owner, inspecting=any(isinstance(step, Create) and step.resource == PODS for step in read))
    draft = Plan((*fence, *read, *trial.steps(observed, None)), held=held, placement=placement)
    if held is not None and held.stalled:
        draft = replace(draft, problem=SpecProblem(held.reason, held.message), held=None)
    return _fenced(observed, draft)


def _nowhere(observed: Observed, placement: Placement) -> Plan:
    """What runs is left alone. What it may call still follows the profile, and an inspection that told all it could goes."""
    writes = (*isolate(observed, owner_of(observed)), *inspection.tidy(observed), *trial.steps(observed, None))
    return _fenced(observed, Plan(writes, SpecProblem(NO_ACCELERATOR, placement.why_none), placement=placement))


def _written(spec: InferenceServiceSpec, placement: Placement) -> str:
    """Nothing where nothing was chosen: a list of one entry on CPU."""
    chosen = len(spec.accelerators) > 1 or bool(placement.resolved.identity or placement.resolved.resource)
    return placement.resolved.written(alternatives(spec)) if chosen else ""


def _plan(observed: Observed, spec: InferenceServiceSpec, where: Where, health: Health) -> Plan:
    owner = owner_of(observed)
    current = identify(observed.meta.name, spec, where.entry, where.resolved.identity)
    try:
        pinned = pin(observed, owner, current, where)
    except SpecProblem as problem:
        return Plan(problem=problem, current=current, retiring=retiring(observed, current))
    attempt = trial.attempt(observed, owner, current, pinned.data)
    step = decide(replace(_scene(observed, spec, current, where), tried=trial.look(observed, attempt)))
    # Quota may leave the new revision less than a rollout would give it.
    targets = {**step.targets, current.name: min(step.targets[current.name], observed.room)}
    succeeded, health = succession(observed, health, targets)
    toward = steps(observed, targets, succeeded, health.turns)
    manifests = wanted(toward, owner, current, replace(pinned, text=told(observed, current, pinned.data)))
    if step.record is not None and not toward.replicas[current.name] and observed.find(DEPLOYMENTS, current.name) is None:
        # The Deployment controller calls one of no replicas complete, which "ever served" (sides.py) is read from.
        manifests = [(resource, manifest) for resource, manifest in manifests if resource != DEPLOYMENTS]
    kept = step.kept | {name for name, replicas in targets.items() if replicas}
    writes = (
        *toward.annotate,
        *isolate(observed, owner, inspecting=step.tries),
        *converge(observed, manifests),
        *retire(observed, owner, current, toward, kept),
        *inspection.tidy(observed),
        *trial.steps(observed, attempt if step.tries else None),
    )
    draft = Plan(writes, None, current, pinned.data["podTemplate"], retiring(observed, current), rollout=step, health=health)
    return _fenced(observed, replace(draft, orders=toward.orders, leaving=toward.leaving))


def _scene(observed: Observed, spec: InferenceServiceSpec, current: Revision, where: Where) -> RolloutState:
    """What a rollout is decided by. Places are counted only where there is one: among 1,000 nodes that takes 10 ms."""
    now, olds = current_side(observed, current), old_sides(observed, current)
    free = spare(ask(observed, spec), where.resolved, where.entry) if olds else None
    granted = max(0, observed.quota.room - now.held) if observed.quota is not None else None
    rooms, record = [room for room in (free, granted) if room is not None], observed.status.rollout
    # A successor takes the place of an unhealthy replica: it makes no room scarce, or a rollout would drain the one that it stands beside.
    extra = sum(child.extra for child in observed.of(DEPLOYMENTS))
    return RolloutState(
        spec=spec.rollout or RolloutSpec(),
        wanted=observed.wanted,
        current=now,
        room=min(rooms) + extra if rooms else None,
        olds=olds,
        record=record,
        signals=observed.signals,
        now=observed.now,
        held=observed.ages.get(record.since) if record is not None and record.since else None,
        stays=observed.quota is not None and observed.quota.unread and granted == 0,
    )


def owner_of(observed: Observed) -> Owner:
    """The service as the owner of its children."""
    return Owner(observed.meta.namespace, observed.meta.name, observed.meta.uid)


def _fenced(observed: Observed, draft: Plan) -> Plan:
    """No name that another object holds: a predecessor's child is waited for, any other is a conflict."""
    held = {(stranger.resource, stranger.name): stranger for stranger in observed.strangers}
    created = [(step.resource, step.name) for step in draft.writes if isinstance(step, Create)]
    in_the_way = [held[name] for name in created if name in held]
    if not in_the_way:
        return replace(draft, waiting=_going(observed.children))
    rest = tuple(step for step in draft.writes if not isinstance(step, Create))
    other = next((child for child in in_the_way if not (child.of_a_predecessor or child.deleting)), None)
    if other is None:
        return replace(draft, writes=rest, waiting=_named(in_the_way[0]))
    message = f"{_named(other)} exists and does not belong to this service; rename the service or remove that object"
    return replace(draft, writes=rest, problem=SpecProblem(NAME_CONFLICT, message))


def _going(owned: tuple[Child, ...]) -> str:
    """Nobody waits for the end of a pod that reads or tries something."""
    return next((_named(child) for child in owned if child.deleting and child.resource != PODS), "")


def _named(child: Child) -> str:
    return f"{child.resource.kind} {child.name}"
