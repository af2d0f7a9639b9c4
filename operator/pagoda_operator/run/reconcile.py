"""One run for one service: observe → decide → admit (quota) → apply → status, each once. Called by the queue, the same for all triggers.

A run is planned from the caches, and only once. If it asks for nothing, it sends no request. Before it makes or removes an object it
reads the service by quorum reads. If these show what was observed, the plan is carried out. If not, the run ends, and the next one reads
before it plans. Every other write names the version that was observed, and ends in a Conflict if there is a newer one.

This is the one place that maps errors to conditions. A write that the API server refuses stalls the service. One that it denies is reported
and retried. Every other error goes to the queue, which retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import structlog
from pagoda_contracts.conditions.service import INVALID_SPEC, NO_ACCELERATOR

from pagoda_operator.api.errors import ClusterError, Conflict, Denied, Refused, SpecProblem, Unavailable, Unconverged
from pagoda_operator.api.pods import Answer
from pagoda_operator.api.state import DEPLOYMENTS, PODS, SERVICES, Key, Observed, Resource
from pagoda_operator.decide.plan import Plan, owner_of, plan, template_of
from pagoda_operator.decide.render.writes import Apply, Create, Delete, Write
from pagoda_operator.decide.replicas.drain import answered
from pagoda_operator.decide.status.status import status
from pagoda_operator.inventory.inventory import Inventory
from pagoda_operator.inventory.values import digest, stamp
from pagoda_operator.run.apply import DEFAULT_KEY, Cluster, apply, apply_default_profile, apply_status
from pagoda_operator.run.dependencies import Dependencies
from pagoda_operator.run.queue import Outcome
from pagoda_operator.run.settings import Settings
from pagoda_operator.watch.kept import OWN
from pagoda_operator.watch.observe import Name, named, observe, profile_name

# Seconds to the next run: after a write, and while something that was removed still exists.
_AT_ONCE: Final = 0.0
_WAIT: Final = 2.0
# The devices of a deleted service are charged until its objects are gone.
_LEFT: Final = 30.0
# A rollout's runs each write something else; a scale-up by hand, twice in one second, writes the same twice.
_SAME_WRITES: Final = 4
# While a drain is under way its daemon is asked so often how many requests are left.
_DRAIN_POLL: Final = 1.0
# The kinds by which a service is charged for devices.
_HOLDINGS: Final = (DEPLOYMENTS, PODS)


class Reconciler:
    """Brings services to their specs."""

    def __init__(self, cluster: Cluster, settings: Settings, clock: Callable[[], datetime], dependencies: Dependencies) -> None:
        self._cluster, self._dependencies, self._settings, self._clock = cluster, dependencies, settings, clock
        # What each service's daemons answered to their last order, by pod; asked again after a restart.
        self._answers: dict[Key, dict[str, Answer]] = {}
        # What each service's last run wrote, and how many runs in a row wrote exactly that.
        self._repeats: dict[Key, tuple[list[str], int]] = {}
        # Services of which the caches were outdated: the next run reads before it plans.
        self._outdated: set[Key] = set()
        # Objects without our label that have a name which a service needs, and the generation that needs it.
        self._in_the_way: dict[Key, tuple[int, frozenset[Name]]] = {}

    async def reconcile(self, key: Key) -> Outcome:
        """One run; ClusterError asks for another one later."""
        if key == DEFAULT_KEY:
            await apply_default_profile(self._cluster, self._settings.default_profile)
            return Outcome()
        if not key.namespace:
            return Outcome(gone=True)  # another profile
        try:
            return await self._run(key)
        except Conflict:
            self._outdated.add(key)
            raise

    async def _run(self, key: Key) -> Outcome:
        if verified := key in self._outdated:
            await self._verify(key, OWN)
            self._outdated.discard(key)
        seen = await self._see(key)
        if seen is None:
            return await self._forget(key)
        observed = await self._complete(key, seen)
        draft = plan(observed)
        # Once: starting pods change all the time.
        if not verified and self._to_verify(observed, draft) and await self._was_outdated(key, seen):
            return Outcome(again=_AT_ONCE)
        if not observed.raw_status and await self._write_status(observed, draft):
            return Outcome(again=_AT_ONCE)  # before anything is made: kstatus takes a missing status for success
        if await self._finds_names_taken(key, observed, draft):
            return Outcome(again=_AT_ONCE)
        return await self._apply_plan(key, observed, self._dependencies.quota.admit(key, observed, draft))

    async def _see(self, key: Key) -> Observed | None:
        """The service and its objects. Devices are charged and freed by quorum reads only."""
        seen = await observe(self._dependencies.caches, key)
        if seen is None or self._dependencies.quota.booked(key, seen):
            return seen
        await self._verify(key, _HOLDINGS)
        return await observe(self._dependencies.caches, key)

    async def _complete(self, key: Key, seen: Observed) -> Observed:
        """What was seen, with all else that this process knows, in this order: each step uses what the ones before it found."""
        quota, scaling = self._dependencies.quota, self._dependencies.scaling
        observed = self._with_parts(key, await self._with_taken_names(key, seen))
        await quota.settle(key, observed)
        # Before scaling, which asks for no more than the quota grants. What a replica needs may depend on how many there will be.
        grant = quota.offer(key, observed, lambda seen: template_of(scaling.foresee(key, seen)))
        return await scaling.complete(key, replace(observed, quota=grant, full=quota.full(key, observed)))

    async def _with_taken_names(self, key: Key, seen: Observed) -> Observed:
        """With the objects that the last run found in its way, as far as they exist. The caches hold none without our label."""
        generation, names = self._in_the_way.pop(key, (0, frozenset()))
        if generation != seen.meta.generation or not (found := await named(self._cluster, key, names)):
            return seen
        self._in_the_way[key] = generation, frozenset((child.resource, child.name) for child in found)
        own = tuple(child for child in found if child.belongs_to(seen.meta.uid))
        others = tuple(child for child in found if child not in own)
        return replace(seen, children=seen.children + own, strangers=seen.strangers + others)

    def _with_parts(self, key: Key, observed: Observed) -> Observed:
        """With the time, the reports of gateways and daemons, the names that other services own, and the devices. A service on CPU alone
        need not compare 1,000 nodes."""
        dependencies, now = self._dependencies, self._clock().timestamp()
        dependencies.signals.note_ready(key, (pod.name for pod in observed.pods if pod.ready))
        return replace(
            observed,
            now=now,
            ages=dependencies.ages.of(key, observed.stamps, now),
            unschedulable=dependencies.ages.unschedulable(key, observed.pods, now),
            signals=dependencies.signals.of(key, now),
            unheard_s=dependencies.signals.unheard(key),
            answers=self._answers.get(key, {}),
            callers=self._settings.callers,
            taken=dependencies.name_owners.taken(key),
            adapter_names=dependencies.adapters.catalogue(key, observed).names,
            sole_adapters=dependencies.adapters.sole(key),
            faults=dependencies.faults(),
            inventory=dependencies.inventory() if observed.asks_for_devices else Inventory(),
            sizes=dependencies.sizes(),
        )

    def _to_verify(self, observed: Observed, draft: Plan) -> bool:
        """Whether a plan makes, removes or adopts an object, or reports a problem for the first time: a profile may be not cached yet."""
        if observed.raw_status and any(isinstance(write, Create | Delete) or _adopts(write) for write in draft.writes):
            return True
        wrong = draft.problem is not None or draft.undecided is not None
        return wrong and self._status(observed, draft) != observed.raw_status

    async def _was_outdated(self, key: Key, seen: Observed) -> bool:
        """Whether quorum reads show something else than what was seen. A watch may be faster than the reads."""
        await self._verify(key, OWN)
        if await observe(self._dependencies.caches, key) == seen:
            return False
        self._outdated.add(key)
        return True

    async def _finds_names_taken(self, key: Key, observed: Observed, draft: Plan) -> bool:
        """Whether objects without our label have names that the plan would create. The next run observes them, too."""
        found = await named(self._cluster, key, ((write.resource, write.name) for write in draft.writes if isinstance(write, Create)))
        if not found:
            return False
        self._in_the_way[key] = observed.meta.generation, frozenset((child.resource, child.name) for child in found)
        return True

    async def _verify(self, key: Key, kinds: Iterable[Resource]) -> None:
        """Reads these kinds of a service's objects into the caches by quorum reads."""
        caches = self._dependencies.caches
        profile = profile_name(await caches.get(SERVICES, *key) or {})
        await asyncio.gather(*(caches.verify(self._cluster, resource, key, profile) for resource in kinds))

    async def _apply_plan(self, key: Key, observed: Observed, draft: Plan) -> Outcome:
        """Does what a plan asks for, and comes back when scaling can decide otherwise by time alone, if that is before the resync."""
        self._dependencies.triggers.waits(key, waiting=_wants_devices(observed, draft))
        outcome = await self._carry_out(key, observed, draft)
        await self._dependencies.scaling.save_history(key, observed)
        due = (self._dependencies.scaling.again(key), await self._dependencies.adapters.run(key, observed), outcome.again)
        earliest = min((seconds for seconds in due if seconds is not None), default=None)
        return outcome._replace(again=earliest if earliest is not None and earliest < self._settings.resync else outcome.again)

    async def _forget(self, key: Key) -> Outcome:
        self._repeats.pop(key, None)
        self._dependencies.events.forget(key)
        self._answers.pop(key, None)
        self._outdated.discard(key)
        self._in_the_way.pop(key, None)
        self._dependencies.triggers.waits(key, waiting=False)
        self._dependencies.scaling.forget(key)
        self._dependencies.ages.forget(key)
        await self._dependencies.adapters.orphaned(key)
        # A broken watch may miss the last pod's end, and nothing else would requeue this key.
        charged = await self._dependencies.quota.gone(key)
        return Outcome(again=_LEFT) if charged else Outcome(gone=True)

    async def _carry_out(self, key: Key, observed: Observed, draft: Plan) -> Outcome:
        log = structlog.get_logger().bind(namespace=key.namespace, name=key.name)
        try:
            await self._have_keys(observed, draft)
            await apply(self._cluster, draft.writes)
        except Refused as error:
            log.warning("child_refused", error=str(error))
            await self._write_status(observed, replace(draft, problem=SpecProblem(INVALID_SPEC, str(error))))
            return Outcome(again=draft.rollout.again if draft.rollout is not None else None)  # a refused trial ends at its deadline
        except Denied as error:
            await self._write_status(observed, replace(draft, denied=str(error)))
            raise
        except Unavailable:
            self._dependencies.quota.unanswered(key)
            raise
        news = await self._give_orders(key, observed, draft)
        if news and not draft.writes:
            draft = await self._released(key, draft)
        wrote = await self._write_status(observed, draft)
        writes = [f"{type(write).__name__} {write.resource.kind} {write.name}" for write in draft.writes] + ([wrote] if wrote else [])
        if not writes:
            self._repeats.pop(key, None)
            return Outcome(again=_AT_ONCE if news else _again(observed, draft))
        log.info("applied", writes=writes)
        self._check_converging(key, writes)
        return Outcome(again=_AT_ONCE)

    async def _released(self, key: Key, draft: Plan) -> Plan:
        """If an answer that just came allows a replica to be removed, it is marked in this run. A separate run with its own status was half
        of the time that a scale-down took."""
        marks = answered(draft.drains, self._answers[key])
        await apply(self._cluster, marks)
        return replace(draft, writes=marks)

    async def _have_keys(self, observed: Observed, draft: Plan) -> None:
        """Makes the token keys before a replica that mounts them, since kubelet retries a missing volume only after minutes. Without them
        running replicas are still scaled."""
        if observed.callers is None or not observed.callers.tokens:
            return
        try:
            await self._dependencies.keys.ensure(owner_of(observed))
        except ClusterError:
            if any(isinstance(write, Create) and write.resource in (DEPLOYMENTS, PODS) for write in draft.writes):
                raise

    async def _give_orders(self, key: Key, observed: Observed, draft: Plan) -> bool:
        """Sends orders to daemons; returns whether an answer says something new. Answers of pods that are gone are forgotten."""
        before = self._answers.get(key, {})
        given, now = await self._dependencies.daemons.give(draft.orders), self._clock().timestamp()
        answers = {uid: answer.after(before.get(uid), now) for uid, answer in given.items()}
        here = {pod.uid for pod in observed.pods}
        self._answers[key] = {uid: answer for uid, answer in (before | answers).items() if uid in here}
        return any(uid not in before or answer.is_news(before[uid]) for uid, answer in answers.items())

    def _check_converging(self, key: Key, written: list[str]) -> None:
        last, count = self._repeats.get(key, ([], 0))
        self._repeats[key] = (written, count + 1 if written == last else 1)
        if self._repeats[key][1] > _SAME_WRITES:
            raise Unconverged(f"written {count} times in a row and still different: {', '.join(written)}")

    async def _write_status(self, observed: Observed, draft: Plan) -> str:
        """Writes the status if it differs; returns its name by content, or nothing."""
        wanted = self._status(observed, draft)
        if wanted == observed.raw_status:
            return ""
        await apply_status(self._cluster, SERVICES, observed.meta, wanted)
        self._dependencies.events.record(observed, wanted, self._clock())
        return f"Status {digest(wanted)}"

    def _status(self, observed: Observed, draft: Plan) -> dict[str, Any]:
        return status(observed, draft, self._settings.url, stamp(self._clock().timestamp()))


def _wants_devices(observed: Observed, draft: Plan) -> bool:
    """Whether a change of devices may change the decision."""
    if not observed.asks_for_devices:
        return False
    none = draft.problem is not None and draft.problem.reason == NO_ACCELERATOR
    return none or (draft.placement is not None and draft.placement.status.waiting is not None)


def _again(observed: Observed, draft: Plan) -> float | None:
    """In how many seconds to reconcile again even if no event comes."""
    times = (
        _WAIT if draft.waiting or draft.over_quota else None,
        _DRAIN_POLL if draft.orders else None,
        draft.health.again,
        draft.rollout.again if draft.rollout is not None else None,
        max(1.0, draft.again_at - observed.now) if draft.again_at is not None else None,
    )
    return min((seconds for seconds in times if seconds is not None), default=None)


def _adopts(write: Write) -> bool:
    """Whether it restores a child's owner reference. The garbage collector removes these if a service is deleted without its children, and
    the deletion may not be cached yet. A child that had its owner back would be deleted with it."""
    return isinstance(write, Apply) and write.live.controller is None
