"""One run for one service: observe → decide → admit (quota) → apply → status, each once. Called by the queue, the same for all triggers.

A run is planned from the caches, and only once. If it asks for nothing, it sends no request. Before it makes or removes an object it
reads the service by quorum reads. If these show what was observed, the plan is carried out. If not, the run ends, and the next one reads
before it plans. Every other write names the version that was observed, and ends in a Conflict if there is a newer one.

This is the one place that maps errors to conditions. A write that the API server refuses stalls the service. One that it denies is reported
and retried. Every other error goes to the queue, which retries.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import structlog
from pagoda_contracts.conditions.service import INVALID_SPEC
from pagoda_placement.inventory import Inventory
from pagoda_placement.values import digest, stamp

from pagoda_operator.api.errors import ClusterError, Conflict, Denied, Refused, SpecProblem, Unavailable
from pagoda_operator.api.pods import Answer, starting_of
from pagoda_operator.api.state import DEPLOYMENTS, PODS, SERVICES, Key, Observed, Resource
from pagoda_operator.decide.plan import Plan, due_in, owner_of, plan, template_of, wants_devices
from pagoda_operator.decide.render.writes import Create, at_risk
from pagoda_operator.decide.replicas.drain import answered
from pagoda_operator.decide.status.status import down, status
from pagoda_operator.run.apply import Cluster, Repeats, apply, apply_default_profile, apply_status
from pagoda_operator.run.dependencies import Dependencies
from pagoda_operator.run.queue import Outcome
from pagoda_operator.run.settings import Settings
from pagoda_operator.watch.kept import OWN
from pagoda_operator.watch.observe import Name, look_again, named, observe, profile_name, with_mount_faults

# Seconds to the next run after a write.
_AT_ONCE: Final = 0.0
# The devices of a deleted service are charged until its objects are gone.
_LEFT: Final = 30.0
# Seconds until a foreign object that is in the way, or a write that was refused, is tried again.
_LOOKS: Final = (2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
# Names the status among the objects that a run writes.
_STATUS: Final = "Status"
# The kinds by which a service is charged for devices.
_HOLDINGS: Final = (DEPLOYMENTS, PODS)


class Reconciler:
    """Brings services to their specs."""

    def __init__(self, cluster: Cluster, settings: Settings, clock: Callable[[], datetime], dependencies: Dependencies) -> None:
        self._cluster, self._dependencies, self._settings, self._clock = cluster, dependencies, settings, clock
        # What each service's daemons answered to their last order, by pod; asked again after a restart.
        self._answers: dict[Key, dict[str, Answer]] = {}
        self._repeats = Repeats()
        # Services of which the caches were outdated: the next run reads before it plans.
        self._outdated: set[Key] = set()
        # Objects without our label that have a name which a service needs, and the generation that needs it.
        self._in_the_way: dict[Key, tuple[int, frozenset[Name]]] = {}
        # How many runs in a row met something that only another object's change cures, and no event tells of that.
        self._looks: dict[Key, int] = {}
        # The generation for which the API server refused the pod that inspects the model.
        self._uninspected: dict[Key, int] = {}
        self._down: set[Key] = set()
        # Pods that were seen starting, by uid. A run that fails has not told of those that became Ready: the next one does.
        self._starting: dict[Key, frozenset[str]] = {}

    def down(self) -> int:
        """How many services have served, are not asleep and have no replica that takes requests."""
        return len(self._down)

    async def reconcile(self, key: Key) -> Outcome:
        """One run; ClusterError asks for another one later."""
        if key == self._settings.default_profile_key:
            await apply_default_profile(self._cluster, key.name, self._settings.default_profile)
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
        observed = await with_mount_faults(self._cluster, self._with_parts(key, await self._with_taken_names(key, seen)))
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
        """With the time, reports, names that others own, and the devices. A service on CPU alone need not compare 1,000 nodes."""
        dependencies, now = self._dependencies, self._clock().timestamp()
        dependencies.signals.note_ready(key, (pod.name for pod in observed.pods if pod.ready))
        if dependencies.replicas is not None:
            dependencies.replicas.follow(key, observed.pods)
        starting = self._starting[key] = starting_of(observed.pods, self._starting.get(key, frozenset()))
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
            seen_starting=starting,
            uninspected=self._uninspected.get(key) == observed.meta.generation,
            inventory=dependencies.inventory() if observed.asks_for_devices else Inventory(),
            sizes=dependencies.sizes(),
        )

    def _to_verify(self, observed: Observed, draft: Plan) -> bool:
        """Whether a plan makes, removes or adopts an object, or reports a problem for the first time: a profile may be not cached yet."""
        risky = bool(observed.raw_status) and any(map(at_risk, draft.writes))
        wrong = draft.problem is not None or draft.undecided is not None
        return risky or (wrong and self._status(observed, draft) != observed.raw_status)

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
        self._dependencies.triggers.waits(key, waiting=wants_devices(observed, draft))
        now = self._clock()
        self._dependencies.events.record_evictions(observed, now)
        outcome = await self._carry_out(key, observed, replace(draft, writes=self._repeats.allowed(key, draft.writes, now.timestamp())))
        self._dependencies.started(observed)
        self._starting[key] = starting_of(observed.pods)
        await self._dependencies.scaling.save_history(key, observed)
        undone = self._repeats.again(key, now.timestamp())
        due = (self._dependencies.scaling.again(key), await self._dependencies.adapters.run(key, observed), undone, outcome.again)
        earliest = min((seconds for seconds in due if seconds is not None), default=None)
        return outcome._replace(again=earliest if earliest is not None and earliest < self._settings.resync else outcome.again)

    async def _forget(self, key: Key) -> Outcome:
        self._repeats.forget(key)
        self._down.discard(key)
        self._dependencies.events.forget(key)
        self._outdated.discard(key)
        memories: tuple[dict[Key, Any], ...] = (self._answers, self._in_the_way, self._looks, self._starting, self._uninspected)
        for memory in memories:
            memory.pop(key, None)
        self._dependencies.triggers.waits(key, waiting=False)
        self._dependencies.scaling.forget(key)
        self._dependencies.ages.forget(key)
        if self._dependencies.replicas is not None:
            self._dependencies.replicas.forget(key)
        await self._dependencies.adapters.orphaned(key)
        # A broken watch may miss the last pod's end, and nothing else would requeue this key.
        return Outcome(again=_LEFT) if await self._dependencies.quota.gone(key) else Outcome(gone=True)

    async def _carry_out(self, key: Key, observed: Observed, draft: Plan) -> Outcome:
        log, now = structlog.get_logger().bind(namespace=key.namespace, name=key.name), self._clock()
        try:
            await self._have_keys(observed, draft)
            await apply(self._cluster, draft.writes)
            self._dependencies.events.record_writes(observed, self._repeats.counted(key, draft.writes, now.timestamp()), now)
        except (Refused, Denied) as error:
            return await self._not_written(key, observed, draft, error)
        except Unavailable:
            self._dependencies.quota.unanswered(key)
            raise
        news = await self._give_orders(key, observed, draft)
        if news and not draft.writes:
            draft = await self._released(key, draft)
        wrote = await self._write_status(observed, draft)
        writes = [f"{type(write).__name__} {write.resource.kind} {write.name}" for write in draft.writes] + ([wrote] if wrote else [])
        if writes:
            log.info("applied", writes=writes)
        if writes or news:
            return Outcome(again=_AT_ONCE)
        again = min((seconds for seconds in (due_in(observed, draft), look_again(observed)) if seconds is not None), default=None)
        if key in self._in_the_way:
            return Outcome(again=self._look_again(key, again))
        self._looks.pop(key, None)
        return Outcome(again=again)

    async def _not_written(self, key: Key, observed: Observed, draft: Plan, error: Refused | Denied) -> Outcome:
        """Reports what the API server does not accept. Without the pod that would inspect the model, the next run is planned anew."""
        if draft.undecided is not None and not observed.uninspected:
            self._uninspected[key] = observed.meta.generation
            await self._write_status(observed, replace(draft, denied=str(error)))
            return Outcome(again=_AT_ONCE)
        if isinstance(error, Denied):
            await self._write_status(observed, replace(draft, denied=str(error)))
            raise error
        structlog.get_logger().warning("child_refused", namespace=key.namespace, name=key.name, error=str(error))
        await self._write_status(observed, replace(draft, problem=SpecProblem(INVALID_SPEC, str(error))))
        at_deadline = draft.rollout.again if draft.rollout is not None else None  # of a refused trial
        return Outcome(again=self._look_again(key, at_deadline))

    def _look_again(self, key: Key, again: float | None) -> float:
        """In how many seconds to look whether another object was changed or removed: sooner at first."""
        looks = self._looks[key] = min(self._looks.get(key, 0) + 1, len(_LOOKS))
        return min(_LOOKS[looks - 1], again if again is not None else math.inf)

    async def _released(self, key: Key, draft: Plan) -> Plan:
        """Marks a replica that an answer which just came allows to remove. A run of its own for that was half of a scale-down's time."""
        marks = answered(draft.drains, self._answers[key])
        await apply(self._cluster, marks)
        return replace(draft, writes=marks)

    async def _have_keys(self, observed: Observed, draft: Plan) -> None:
        """Makes the token keys before a replica mounts them: kubelet retries only after minutes. Without them, running ones are scaled."""
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

    async def _write_status(self, observed: Observed, draft: Plan) -> str:
        """Writes the status if it differs; returns its name by content, or nothing."""
        key, wanted, now = Key(observed.meta.namespace, observed.meta.name), self._status(observed, draft), self._clock()
        (self._down.add if down(wanted) else self._down.discard)(key)
        if wanted == observed.raw_status or not self._repeats.may(key, _STATUS, content := digest(wanted), now.timestamp()):
            return ""
        await apply_status(self._cluster, SERVICES, observed.meta, wanted)
        self._repeats.wrote(key, _STATUS, content, now.timestamp())
        self._dependencies.events.record(observed, wanted, now)
        return f"Status {content}"

    def _status(self, observed: Observed, draft: Plan) -> dict[str, Any]:
        return status(observed, draft, self._settings.url, stamp(self._clock().timestamp()))
