"""One run for one service: observe → decide → admit (quota) → apply → status, each once. Called by the queue, the same for all triggers.

A run is planned from the caches and costs no request where it asks for nothing. What it would make or remove is verified by a quorum read
first, and so is what frees devices; every other write carries the version that was seen, and ends in a Conflict where that was an old one.
The run is planned again on what was read, whether that differs or not, and once: a service whose pods start changes all the time.

The one place that maps errors to conditions: what the API server refuses stalls the service, what it denies is said and
retried, everything else goes to the queue, which retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Protocol

import structlog
from pagoda_contracts.conditions.service import INVALID_SPEC, NO_ACCELERATOR

from pagoda_operator.api.errors import ClusterError, Conflict, Denied, Refused, SpecProblem, Unavailable, Unconverged
from pagoda_operator.api.pods import Answer
from pagoda_operator.api.state import DEPLOYMENTS, PODS, SERVICES, Key, Lister, Observed, Reader, Resource
from pagoda_operator.decide.plan import Plan, owner_of, plan
from pagoda_operator.decide.render.writes import Annotate, Create, Delete
from pagoda_operator.decide.status.status import status
from pagoda_operator.inventory.fleet import Fleet
from pagoda_operator.inventory.values import digest
from pagoda_operator.run.apply import Cluster, apply, apply_status
from pagoda_operator.run.defaults import DEFAULT_KEY, ensure_default_profile
from pagoda_operator.run.dependencies import Dependencies
from pagoda_operator.run.queue import Outcome
from pagoda_operator.run.settings import Settings
from pagoda_operator.watch.kept import OWN
from pagoda_operator.watch.observe import observe, profile_used, strangers

# After a write the next look is at once; what is on its way out is looked for again.
_AT_ONCE: Final = 0.0
_WAIT: Final = 2.0
# What a service leaves behind is charged until it is gone.
_LEFT: Final = 30.0
# A rollout's runs each write something else; a scale-up by hand, twice in one second, writes the same twice.
_SAME_WRITES: Final = 4
# While a drain is under way its daemon is asked so often how many requests are left.
_DRAIN_POLL: Final = 1.0
# By what a service is charged for devices.
_HOLDINGS: Final = (DEPLOYMENTS, PODS)


class VerifiedCluster(Cluster, Lister, Protocol):
    """All that reconciling asks of the API server."""


class Reconciler:
    """Brings services to their specs."""

    def __init__(self, cluster: VerifiedCluster, settings: Settings, clock: Callable[[], datetime], dependencies: Dependencies) -> None:
        self._cluster = cluster
        self._dependencies = dependencies
        self._reader: Reader = self._dependencies.caches or cluster
        self._settings = settings
        self._clock = clock
        # What each service's daemons answered to their last order, by pod; asked anew after a restart.
        self._answers: dict[Key, dict[str, Answer]] = {}
        # What each service's last run wrote, and how many runs in a row wrote just that.
        self._repeats: dict[Key, tuple[list[str], int]] = {}

    async def reconcile(self, key: Key) -> Outcome:
        """One run; ClusterError asks for another one later."""
        if not key.namespace:
            return await self._profile(key)
        try:
            return await self._run(key)
        except Conflict:
            await self._verify(key, OWN)  # it was not as the caches show it
            raise

    async def _run(self, key: Key) -> Outcome:
        if (seen := await self._planned(key)) is None:
            return await self._forget(key)
        if self._to_verify(*seen):
            await self._verify(key, OWN)
            # Planned again whatever was read: a watch may have shown the same meanwhile. Once, since pods that start change all the time.
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
        """The service and all that this process knows of it: a declared order, each step on what the ones before it found."""
        observed = await observe(self._reader, key)
        if observed is not None and not self._dependencies.quota.booked(key, observed):
            await self._verify(key, _HOLDINGS)
            observed = await observe(self._reader, key)
        if observed is None:
            return None
        observed = self._with_parts(key, observed)
        await self._dependencies.quota.settle(key, observed)
        # After what it holds is booked; before scaling, which wishes for no more. What it needs may depend on how many it will be.
        grant = self._dependencies.quota.offer(key, observed, lambda seen: plan(self._dependencies.scaling.foresee(key, seen)))
        observed = replace(observed, quota=grant, full=self._dependencies.quota.full(key, observed))
        return await self._dependencies.scaling.complete(key, observed)

    def _with_parts(self, key: Key, observed: Observed) -> Observed:
        """With the time, what gateways and daemons said, the names that others hold, and the devices. Who runs on CPU alone need not
        compare 1,000 nodes."""
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
            taken=dependencies.claims.taken(key),
            faults=dependencies.faults(),
            fleet=dependencies.fleet() if observed.asks_for_devices else Fleet(),
            sizes=dependencies.sizes(),
        )

    def _to_verify(self, observed: Observed, draft: Plan) -> bool:
        """Whether a plan makes or removes anything, since what the caches do not show may exist and what they show may have changed; or
        says for the first time that something is wrong: a profile that was not shown yet is not missing."""
        if observed.raw_status and any(isinstance(write, Create | Delete) for write in draft.writes):
            return True
        wrong = draft.problem is not None or draft.undecided is not None
        return wrong and self._status(observed, draft) != observed.raw_status

    async def _verify(self, key: Key, kinds: Iterable[Resource]) -> None:
        """Has the caches know these kinds of a service's objects by quorum reads."""
        if (caches := self._dependencies.caches) is not None:
            profile = await profile_used(caches, key)
            await asyncio.gather(*(caches.verify(self._cluster, resource, key, profile) for resource in kinds))

    async def _admitted(self, key: Key, observed: Observed, draft: Plan) -> tuple[Observed, Plan]:
        """As far as there is room for it, and no name that it would create is a stranger's."""
        if in_the_way := await strangers(self._cluster, key, draft):
            own = tuple(child for child in in_the_way if child.belongs_to(observed.meta.uid))
            others = tuple(child for child in in_the_way if child not in own)
            observed = replace(observed, children=observed.children + own, strangers=observed.strangers + others)
            draft = plan(observed)
        return observed, self._dependencies.quota.admit(key, observed, draft)

    async def _apply_plan(self, key: Key, observed: Observed, draft: Plan) -> Outcome:
        """What a plan asks for, and when to look again."""
        self._dependencies.triggers.waits(key, waiting=_wants_devices(observed, draft))
        outcome = await self._carry_out(key, observed, draft)
        await self._dependencies.scaling.save_history(key, observed)
        return self._in_time(key, outcome)

    def _in_time(self, key: Key, outcome: Outcome) -> Outcome:
        """Back when scaling can decide otherwise by time alone, if that is before the resync."""
        look = self._dependencies.scaling.again(key)
        if look is None or look >= self._settings.resync or (outcome.again is not None and outcome.again <= look):
            return outcome
        return outcome._replace(again=look)

    async def _profile(self, key: Key) -> Outcome:
        if key != DEFAULT_KEY:
            return Outcome(gone=True)
        await ensure_default_profile(self._cluster, self._settings.default_profile)
        return Outcome()

    async def _forget(self, key: Key) -> Outcome:
        self._repeats.pop(key, None)
        self._dependencies.events.forget(key)
        self._answers.pop(key, None)
        self._dependencies.triggers.waits(key, waiting=False)
        self._dependencies.scaling.forget(key)
        self._dependencies.ages.forget(key)
        # A broken watch may miss the last pod's end, and nothing else would requeue this key.
        holds = await self._dependencies.quota.gone(key)
        return Outcome(again=_LEFT) if holds else Outcome(gone=True)

    async def _carry_out(self, key: Key, observed: Observed, draft: Plan) -> Outcome:
        log = structlog.get_logger().bind(namespace=key.namespace, name=key.name)
        try:
            await self._have_keys(observed, draft)
            await apply(self._cluster, draft.writes)
        except Refused as error:
            log.warning("child_refused", error=str(error))
            await self._write_status(observed, replace(draft, problem=SpecProblem(INVALID_SPEC, str(error))))
            return Outcome(again=draft.rollout.again if draft.rollout is not None else None)  # a trial's refusal is not waited out for ever
        except Denied as error:
            await self._write_status(observed, replace(draft, denied=str(error)))
            raise
        except Unavailable:
            self._dependencies.quota.unanswered(key)
            raise
        news = await self._order(key, observed, draft)
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
        """What daemons have just answered may let replicas go: they are marked for it in this run. A look and a status for that step alone
        were half of what a scale-down waited for."""
        answered = replace(observed, answers=self._answers[key])
        further = plan(answered)
        if not further.writes or any(not isinstance(write, Annotate) or write.resource != PODS for write in further.writes):
            return observed, draft
        await apply(self._cluster, further.writes)
        return answered, replace(further, over_quota=draft.over_quota)

    async def _have_keys(self, observed: Observed, draft: Plan) -> None:
        """Before a replica is made that mounts them: kubelet tries a missing volume again only after minutes. Without them those that run
        are still scaled."""
        keys = self._dependencies.keys
        if keys is None or observed.callers is None or not observed.callers.tokens:
            return
        try:
            await keys.ensure(owner_of(observed))
        except ClusterError:
            if any(isinstance(write, Create) and write.resource in (DEPLOYMENTS, PODS) for write in draft.writes):
                raise

    async def _order(self, key: Key, observed: Observed, draft: Plan) -> bool:
        """Orders to daemons; whether an answer says something new. Pods that are gone are forgotten."""
        before = self._answers.get(key, {})
        given, now = await self._dependencies.daemons.give(draft.orders), self._clock().timestamp()
        answers = {uid: answer.after(before.get(uid), now) for uid, answer in given.items()}
        here = {pod.uid for pod in observed.pods}
        after = {uid: answer for uid, answer in (before | answers).items() if uid in here}
        self._answers[key] = after
        return any(uid not in before or answer.is_news(before[uid]) for uid, answer in answers.items())

    def _check_converging(self, key: Key, written: list[str]) -> None:
        last, count = self._repeats.get(key, ([], 0))
        self._repeats[key] = (written, count + 1 if written == last else 1)
        if self._repeats[key][1] > _SAME_WRITES:
            raise Unconverged(f"written {count} times in a row and still different: {', '.join(written)}")

    async def _write_status(self, observed: Observed, draft: Plan) -> str:
        """The status, named by its content, where it was written; else nothing."""
        wanted = self._status(observed, draft)
        if wanted == observed.raw_status:
            return ""
        await apply_status(self._cluster, SERVICES, observed.meta, wanted)
        await self._dependencies.events.record(observed, wanted, self._clock())
        return f"Status {digest(wanted)}"

    def _status(self, observed: Observed, draft: Plan) -> dict[str, Any]:
        return status(observed, draft, self._settings.url, self._clock().strftime("%Y-%m-%dT%H:%M:%SZ"))


def _wants_devices(observed: Observed, draft: Plan) -> bool:
    """Whether news of devices may change what was decided."""
    if not observed.asks_for_devices:
        return False
    none = draft.problem is not None and draft.problem.reason == NO_ACCELERATOR
    return none or (draft.placement is not None and draft.placement.status.waiting is not None)


def _again(observed: Observed, draft: Plan) -> float | None:
    """In how many seconds to reconcile again though no event may come."""
    health = [draft.health.again] if draft.health.again is not None else []
    due = [draft.rollout.again] if draft.rollout is not None and draft.rollout.again is not None else []
    times = [*([_WAIT] if draft.waiting or draft.over_quota else []), *([_DRAIN_POLL] if draft.orders else []), *health, *due]
    if draft.again_at is not None:
        times.append(max(1.0, draft.again_at - observed.now))
    return min(times, default=None)
