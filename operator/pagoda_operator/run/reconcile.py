"""One run for one service: observe → decide → admit (quota) → apply → status, each once. Called by the queue, the same for all triggers.

A run is planned from the caches. If it asks for nothing, it sends no request. Before it makes or removes an object, or frees devices, it
verifies the service by quorum reads and plans once more. Every other write names the version that was observed, and ends in a Conflict if
there is a newer one.

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
from pagoda_operator.decide.plan import Plan, owner_of, plan
from pagoda_operator.decide.render.writes import Annotate, Apply, Create, Delete, Write
from pagoda_operator.decide.status.status import status
from pagoda_operator.inventory.inventory import Inventory
from pagoda_operator.inventory.values import digest
from pagoda_operator.run.apply import DEFAULT_KEY, Cluster, apply, apply_default_profile, apply_status
from pagoda_operator.run.dependencies import Dependencies
from pagoda_operator.run.queue import Outcome
from pagoda_operator.run.settings import Settings
from pagoda_operator.watch.kept import OWN
from pagoda_operator.watch.observe import observe, profile_name, strangers

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
            await self._verify(key, OWN)  # the caches were outdated
            raise

    async def _run(self, key: Key) -> Outcome:
        if (seen := await self._planned(key)) is None:
            return await self._forget(key)
        if self._to_verify(*seen):
            await self._verify(key, OWN)
            # Even if the reads changed nothing, since a watch may have been faster. Once, since starting pods change all the time.
            if (seen := await self._planned(key)) is None:
                return await self._forget(key)
        observed, draft = seen
        if not observed.raw_status and await self._write_status(observed, draft):
            return Outcome(again=_AT_ONCE)  # before anything is made: kstatus takes a missing status for success
        return await self._apply_plan(key, *await self._admitted(key, observed, draft))

    async def _planned(self, key: Key) -> tuple[Observed, Plan] | None:
        observed = await self._observe(key)
        return None if observed is None else (observed, plan(observed))

    async def _observe(self, key: Key) -> Observed | None:
        """The service and all that this process knows of it, in this order: each step uses what the ones before it found."""
        quota, scaling = self._dependencies.quota, self._dependencies.scaling
        observed = await observe(self._dependencies.caches, key)
        if observed is not None and not quota.booked(key, observed):
            await self._verify(key, _HOLDINGS)
            observed = await observe(self._dependencies.caches, key)
        if observed is None:
            return None
        observed = self._with_parts(key, observed)
        await quota.settle(key, observed)
        # Before scaling, which asks for no more than the quota grants. What a replica needs may depend on how many there will be.
        grant = quota.offer(key, observed, lambda seen: plan(scaling.foresee(key, seen)))
        return await scaling.complete(key, replace(observed, quota=grant, full=quota.full(key, observed)))

    def _with_parts(self, key: Key, observed: Observed) -> Observed:
        """With the time, the reports of gateways and daemons, the names that other services own, and the devices. A service on CPU alone
        need not compare 1,000 nodes."""
        dependencies, now = self._dependencies, self._clock().timestamp()
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

    async def _verify(self, key: Key, kinds: Iterable[Resource]) -> None:
        """Reads these kinds of a service's objects into the caches by quorum reads."""
        caches = self._dependencies.caches
        profile = profile_name(await caches.get(SERVICES, *key) or {})
        await asyncio.gather(*(caches.verify(self._cluster, resource, key, profile) for resource in kinds))

    async def _admitted(self, key: Key, observed: Observed, draft: Plan) -> tuple[Observed, Plan]:
        """The plan as far as the quota has room for it, and without names that belong to objects of others."""
        if in_the_way := await strangers(self._cluster, key, draft):
            own = tuple(child for child in in_the_way if child.belongs_to(observed.meta.uid))
            others = tuple(child for child in in_the_way if child not in own)
            observed = replace(observed, children=observed.children + own, strangers=observed.strangers + others)
            draft = plan(observed)
        return observed, self._dependencies.quota.admit(key, observed, draft)

    async def _apply_plan(self, key: Key, observed: Observed, draft: Plan) -> Outcome:
        """Does what a plan asks for, and comes back when scaling can decide otherwise by time alone, if that is before the resync."""
        self._dependencies.triggers.waits(key, waiting=_wants_devices(observed, draft))
        outcome = await self._carry_out(key, observed, draft)
        await self._dependencies.scaling.save_history(key, observed)
        due = self._dependencies.scaling.again(key)
        earlier = due is not None and due < (self._settings.resync if outcome.again is None else min(self._settings.resync, outcome.again))
        return outcome._replace(again=due) if earlier else outcome

    async def _forget(self, key: Key) -> Outcome:
        self._repeats.pop(key, None)
        self._dependencies.events.forget(key)
        self._answers.pop(key, None)
        self._dependencies.triggers.waits(key, waiting=False)
        self._dependencies.scaling.forget(key)
        self._dependencies.ages.forget(key)
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
            observed, draft = await self._released(key, observed, draft)
        wrote = await self._write_status(observed, draft)
        writes = [f"{type(write).__name__} {write.resource.kind} {write.name}" for write in draft.writes] + ([wrote] if wrote else [])
        if not writes:
            self._repeats.pop(key, None)
            return Outcome(again=_AT_ONCE if news else _again(observed, draft))
        log.info("applied", writes=writes)
        self._check_converging(key, writes)
        return Outcome(again=_AT_ONCE)

    async def _released(self, key: Key, observed: Observed, draft: Plan) -> tuple[Observed, Plan]:
        """If an answer that just came allows a replica to be removed, it is marked in this run. A separate run with its own status was half
        of the time that a scale-down took."""
        answered = replace(observed, answers=self._answers[key])
        further = plan(answered)
        if not further.writes or any(not isinstance(write, Annotate) or write.resource != PODS for write in further.writes):
            return observed, draft
        await apply(self._cluster, further.writes)
        return answered, replace(further, over_quota=draft.over_quota)

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
        return status(observed, draft, self._settings.url, self._clock().strftime("%Y-%m-%dT%H:%M:%SZ"))


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
