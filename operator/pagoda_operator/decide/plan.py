"""Decides what to write: `plan(observed) -> Plan`. Pure: no client, no clock; `reconcile` calls it, `apply` carries it out.

A composition: `placement` (on which devices), `rollout` (how many of which revision), `health` (successors), `replicas` (how to get there),
`children` (what each object should be). Rules: a revision's pod template is rendered once and then read from its ControllerRevision; a
replica that serves is drained before it is removed; an object that another one controls is never adopted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from pagoda_contracts.conditions.service import INVALID_SPEC, NAME_CONFLICT, NAME_RESERVED, NO_ACCELERATOR, OBJECT_EXISTS
from pagoda_contracts.names import ANNOTATION_REJECTED
from pagoda_contracts.resources.service import Accelerator, InferenceServiceSpec
from pagoda_contracts.resources.traffic import RolloutSpec
from pagoda_placement.place import alternatives, place, spare
from pagoda_placement.result import Placement, Resolved, Undecided
from pagoda_placement.revision import Revision, identify
from pagoda_placement.values import unix

from pagoda_operator.api.errors import SpecProblem
from pagoda_operator.api.pods import Order
from pagoda_operator.api.state import DEPLOYMENTS, PODS, Child, Observed
from pagoda_operator.decide.children import Where, converge, isolate, pin, reachable, rescaled, retire, running, wanted
from pagoda_operator.decide.health import Health, judge, succession
from pagoda_operator.decide.placement import ask
from pagoda_operator.decide.render import inspection
from pagoda_operator.decide.render.children import Manifest, Owner
from pagoda_operator.decide.render.writes import Create, Write
from pagoda_operator.decide.replicas.drain import DrainState
from pagoda_operator.decide.replicas.replicas import current_state, old_states, rejection, steps
from pagoda_operator.decide.rollout import trial
from pagoda_operator.decide.rollout.counts import Rollout, RolloutState
from pagoda_operator.decide.rollout.rollout import decide
from pagoda_operator.decide.scale.bounds import refused

# Seconds to the next run while something that was removed still exists.
_WAIT: Final = 2.0
# While a drain is under way its daemon is asked so often how many requests are left.
_DRAIN_POLL: Final = 1.0


@dataclass(frozen=True)
class Plan:
    """What to write, in order, and what keeps the service from its spec."""

    writes: tuple[Write, ...] = ()
    problem: SpecProblem | None = None
    current: Revision | None = None
    # The Deployments of old revisions.
    retiring: tuple[str, ...] = ()
    placement: Placement | None = None
    # An object with a name that is needed is being deleted; no event says when it is gone.
    waiting: str = ""
    # The API server denied a write; the queue retries it.
    denied: str = ""
    # What must be known before anything can be decided.
    undecided: Undecided | None = None
    # When a wait is over that ends without an event, in Unix seconds.
    again_at: float | None = None
    # No quota has room for what this would make more of; it is not among the writes.
    over_quota: str = ""
    # Orders to daemons, given after the writes; names of the pods that drain.
    orders: tuple[Order, ...] = ()
    leaving: tuple[str, ...] = ()
    # What the drains were decided from: an answer of a daemon decides the next step.
    drains: tuple[DrainState, ...] = ()
    health: Health = field(default_factory=Health)
    rollout: Rollout | None = None
    # Why the daemons refused the model for good, so that their devices are given back.
    rejected: str = ""


def plan(observed: Observed) -> Plan:
    """The writes that bring the service nearer to its spec, and start a successor of an unhealthy replica; none at rest. Served names that
    another service has are the plan's problem."""
    health = judge(observed)
    draft = _converging(observed, health)
    if draft.rollout is None:
        draft = _succeeding(observed, draft, health)
    return _with_name_conflict(observed, draft)


def _with_name_conflict(observed: Observed, draft: Plan) -> Plan:
    """The plan, with a problem if it does not get its served names (triggers.py). If it has no name of its own, nothing new starts."""
    if not observed.taken or draft.problem is not None or observed.spec is None:
        return draft
    reserved = any(taken.reserved for taken in observed.taken)
    rule = "this namespace may not have these served names" if reserved else "served names belong to the service that has them first"
    why = ", ".join(taken.why for taken in observed.taken)
    problem = SpecProblem(NAME_RESERVED if reserved else NAME_CONFLICT, f"{rule}: {why}")
    names = observed.spec.model.served_names or (observed.meta.name,)
    if len(observed.taken) < len(names) or observed.of(DEPLOYMENTS):
        return replace(draft, problem=problem)
    return replace(draft, problem=problem, writes=tuple(write for write in draft.writes if not isinstance(write, Create)))


def _succeeding(observed: Observed, draft: Plan, health: Health) -> Plan:
    """With the Service and a successor of an unhealthy replica, though nothing is decided about the revisions."""
    found = _without_conflicts(observed, Plan(reachable(observed, owner_of(observed)))).writes
    draft = replace(draft, writes=(*found, *draft.writes))
    targets = {child.name: child.ordered for child in running(observed)}
    succeeded, health = succession(observed, health, targets)
    if succeeded == targets and not any(child.extra for child in running(observed)):
        return replace(draft, health=health)
    toward = steps(observed, targets, succeeded, health.order)
    numbers = (write for child in running(observed) for write in rescaled(observed, owner_of(observed), child, toward))
    writes = (*draft.writes, *toward.annotate, *numbers)
    return replace(draft, orders=toward.orders, leaving=toward.leaving, drains=toward.drains, writes=writes, health=health)


def _converging(observed: Observed, health: Health) -> Plan:
    spec = observed.spec
    if spec is None:
        return Plan(problem=SpecProblem(INVALID_SPEC, observed.invalid))
    if why := refused(spec.scaling):
        return Plan(problem=SpecProblem(INVALID_SPEC, why))
    placement = place(ask(observed, spec))
    if placement.undecided is not None or placement.entry is None:
        return _unplaced(observed, spec, placement)
    where = _where(spec, placement.entry, placement.resolved)
    return replace(_plan(observed, spec, where, health), placement=placement, again_at=placement.again_at)


def _where(spec: InferenceServiceSpec, entry: Accelerator, resolved: Resolved) -> Where:
    # On CPU, with one entry, nothing was chosen.
    chosen = len(spec.accelerators) > 1 or bool(resolved.identity or resolved.resource)
    return Where(entry, resolved, resolved.written(alternatives(spec)) if chosen else "")


def template_of(observed: Observed) -> tuple[Revision, Manifest] | None:
    """The revision that the spec asks for and its pod template, whatever quotas allow; None if it cannot be placed or rendered."""
    spec = observed.spec
    if spec is None or refused(spec.scaling):
        return None
    placement = place(ask(observed, spec))
    if placement.undecided is not None or placement.entry is None:
        return None
    current = identify(observed.meta.name, spec, placement.entry, placement.resolved.identity)
    try:
        pinned = pin(observed, owner_of(observed), current, _where(spec, placement.entry, placement.resolved))
    except SpecProblem:
        return None
    return current, pinned.data["podTemplate"]


def _unplaced(observed: Observed, spec: InferenceServiceSpec, placement: Placement) -> Plan:
    """What runs stays as it is; its NetworkPolicies still follow the profile. Until the model's shape is known, an inspection reads it, and
    its policy is made before its pod; a finished inspection goes."""
    owner, why = owner_of(observed), placement.undecided
    problem = SpecProblem(NO_ACCELERATOR, placement.why_none) if why is None else SpecProblem(why.reason, why.message)
    read = tuple(inspection.tidy(observed) if why is None else inspection.steps(observed, owner, spec))
    fence = isolate(observed, owner, inspecting=any(isinstance(step, Create) and step.resource == PODS for step in read))
    draft = Plan((*fence, *read, *trial.steps(observed, None)), placement=placement, again_at=placement.again_at)
    waits = why is not None and not why.stalled
    return _without_conflicts(observed, replace(draft, undecided=why) if waits else replace(draft, problem=problem))


def _plan(observed: Observed, spec: InferenceServiceSpec, where: Where, health: Health) -> Plan:
    owner = owner_of(observed)
    current = identify(observed.meta.name, spec, where.entry, where.resolved.identity)
    retiring = tuple(child.name for child in observed.of(DEPLOYMENTS) if child.name != current.name)
    try:
        pinned = pin(observed, owner, current, where)
    except SpecProblem as problem:
        return Plan(problem=problem, current=current, retiring=retiring)
    attempt = trial.attempt(observed, owner, current, pinned.data)
    step = decide(replace(_rollout_state(observed, spec, current, where), trial=trial.result(observed, attempt)))
    # Devices are given back if no other try can help. On CPU the kubelet tries again.
    live = observed.find(DEPLOYMENTS, current.name)
    rejected = rejection(observed, live) if live is not None and where.entry.cpu is None else ""
    # Quota may leave the new revision less than a rollout would give it.
    targets = {**step.targets, current.name: 0 if rejected else min(step.targets[current.name], observed.room)}
    succeeded, health = succession(observed, health, targets)
    toward = steps(observed, targets, succeeded, health.order)
    toward = replace(toward, notes={**toward.notes, current.name: {ANNOTATION_REJECTED: rejected}}) if rejected else toward
    manifests = wanted(observed, owner, current, where, pinned, toward)
    if step.record is not None and not toward.replicas[current.name] and live is None:
        # The Deployment controller calls one without replicas complete, and `RevisionState.proven` is read from that.
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
    draft = Plan(writes, None, current, retiring, rollout=step, health=health, rejected=rejected)
    return _without_conflicts(observed, replace(draft, orders=toward.orders, leaving=toward.leaving, drains=toward.drains))


def _rollout_state(observed: Observed, spec: InferenceServiceSpec, current: Revision, where: Where) -> RolloutState:
    """What a rollout is decided by. Places are counted only if there are old revisions: among 1,000 nodes that takes 10 ms."""
    now, olds, record = current_state(observed, current), old_states(observed, current), observed.status.rollout
    free = spare(ask(observed, spec), where.resolved, where.entry) if olds else None
    # The place of a successor counts as free: it replaces an unhealthy replica, which a rollout would else drain to make room for it.
    extra = {child.name: child.extra for child in observed.of(DEPLOYMENTS)}
    mine, all_extra = extra.get(current.name, 0), sum(extra.values())
    granted = max(0, observed.quota.room - now.total - mine) if observed.quota is not None else None
    rooms = ([] if free is None else [free + all_extra]) + ([] if granted is None else [granted + all_extra - mine])
    return RolloutState(
        spec=spec.rollout or RolloutSpec(),
        wanted=observed.wanted,
        current=now,
        room=min(rooms, default=None),
        olds=olds,
        record=record,
        signals=observed.signals,
        now=observed.now,
        elapsed=observed.ages.get(record.since) if record is not None and record.since else None,
        frozen=observed.quota is not None and observed.quota.unread and granted == 0,
    )


def wants_devices(observed: Observed, draft: Plan) -> bool:
    """Whether a change of devices may change the decision."""
    if not observed.asks_for_devices:
        return False
    none = draft.problem is not None and draft.problem.reason == NO_ACCELERATOR
    return none or (draft.placement is not None and draft.placement.status.waiting is not None)


def due_in(observed: Observed, draft: Plan) -> float | None:
    """In how many seconds to reconcile again even if no event comes."""
    times = (
        _WAIT if draft.waiting or draft.over_quota else None,
        _DRAIN_POLL if draft.orders else None,
        draft.health.again,
        draft.rollout.again if draft.rollout is not None else None,
        max(1.0, draft.again_at - observed.now) if draft.again_at is not None else None,
        max(1.0, expected - observed.now) if (expected := unix(observed.raw_status.get("readyExpectedAt"))) is not None else None,
    )
    return min((seconds for seconds in times if seconds is not None), default=None)


def owner_of(observed: Observed) -> Owner:
    """The service as the owner of its children."""
    return Owner(observed.meta.namespace, observed.meta.name, observed.meta.uid, observed.service_class)


def _without_conflicts(observed: Observed, draft: Plan) -> Plan:
    """The plan without names that other objects have. A deleted service's child is waited for; any other object is a conflict."""
    others = {(stranger.resource, stranger.name): stranger for stranger in observed.strangers}
    created = [(step.resource, step.name) for step in draft.writes if isinstance(step, Create)]
    in_the_way = [others[name] for name in created if name in others]
    if not in_the_way:
        # The end of a pod that inspects or tries something is not waited for.
        going = next((child for child in observed.children if child.deleting and child.resource != PODS), None)
        return replace(draft, waiting=_named(going) if going else "")
    rest = tuple(step for step in draft.writes if not isinstance(step, Create))
    other = next((child for child in in_the_way if not (child.of_a_predecessor or child.deleting)), None)
    if other is None:
        return replace(draft, writes=rest, waiting=_named(in_the_way[0]))
    message = f"{_named(other)} exists and does not belong to this service; rename the service or remove that object"
    return replace(draft, writes=rest, problem=SpecProblem(OBJECT_EXISTS, message))


def _named(child: Child) -> str:
    return f"{child.resource.kind} {child.name}"
