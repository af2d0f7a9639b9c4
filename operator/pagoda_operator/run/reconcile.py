"""One run for one service: observe → plan → apply → status. Called by the queue, for every trigger the same way.

The one place that maps errors to conditions: what the API server refuses stalls the service, what it denies is said and
retried, everything else goes to the queue, which retries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Protocol

import structlog
from pagoda_contracts.conditions.service import INVALID_SPEC, NO_ACCELERATOR

from pagoda_operator.api.errors import ClusterError, Conflict, Denied, Refused, SpecProblem, Unavailable, Unconverged
from pagoda_operator.api.orders import Answer
from pagoda_operator.api.reader import Reader
from pagoda_operator.api.state import DEPLOYMENTS, PODS, SERVICES, Key, Observed, Resource
from pagoda_operator.decide.plan import Plan, owner_of, plan
from pagoda_operator.decide.render.writes import Annotate, Create
from pagoda_operator.decide.status.held import contested
from pagoda_operator.decide.status.outdated import alone
from pagoda_operator.decide.status.status import status
from pagoda_operator.inventory.digest import digest
from pagoda_operator.run.apply import Writer, apply, apply_status
from pagoda_operator.run.completion import TRUTH, VIEW, Run, complete
from pagoda_operator.run.defaults import DEFAULT_KEY, keep
from pagoda_operator.run.events import Recorder
from pagoda_operator.run.queue import Outcome
from pagoda_operator.run.reading import EVERYTHING, REPLICAS, SERVICE, Partly, needed, suffices
from pagoda_operator.run.senses import Senses
from pagoda_operator.run.settings import Settings
from pagoda_operator.watch.observe import observe, strangers

# After a write the next look is at once; what is on its way out is looked for again.
_AT_ONCE: Final = 0.0
_WAIT: Final = 2.0
# What a service leaves behind is charged until it is gone.
_LEFT: Final = 30.0
# A rollout's runs each write something else; a scale-up by hand, twice in one second, writes the same twice.
_SAME_WRITES: Final = 4
# While a drain is under way its daemon is asked so often how many requests are left.
_DRAIN_POLL: Final = 1.0


class Cluster(Reader, Writer, Protocol):
    """All that reconciling asks of the API server."""


class Reconciler:
    """Brings services to their specs."""

    def __init__(self, cluster: Cluster, settings: Settings, clock: Callable[[], datetime], senses: Senses | None = None) -> None:
        self._cluster = cluster
        self._senses = senses or Senses()
        source = self._senses.reader or cluster
        self._truth: Reader = self._senses.view.learning(source) if self._senses.view else source
        self._settings = settings
        self._clock = clock
        self._events = self._senses.events or Recorder(cluster, settings.identity)
        # What each service's daemons answered to their last order, by pod; asked anew after a restart.
        self._answers: dict[Key, dict[str, Answer]] = {}
        # What each service's last run wrote, and how many runs in a row wrote just that.
        self._repeats: dict[Key, tuple[list[str], int]] = {}
        # Services that this process has planned from quorum reads.
        self._verified: set[Key] = set()

    async def reconcile(self, key: Key) -> Outcome:
        """One run; ClusterError asks for another one later."""
        if not key.namespace:
            return await self._profile(key)
        read = await self._from_view(key)
        if isinstance(read, Outcome):
            return read
        return await self._from_truth(key, read)

    def unseen(self, key: Key) -> bool:
        """Whether a run would be this process's first look at a service."""
        return bool(key.namespace) and key not in self._verified

    async def _from_truth(self, key: Key, read: frozenset[Resource]) -> Outcome:
        """A run on quorum reads of these kinds, then of all where its deeds ask for that."""
        view = self._senses.view
        observed = await observe(Partly(self._truth, view or self._truth, read), key)
        if view is not None:
            await self._senses.claims.follow(view, key, sure=SERVICES in read)
        if observed is None and SERVICES in read:
            return await self._forget(key)
        planned = await self._plan(key, observed, read) if observed is not None else None
        try:
            if planned is not None:
                return await self._deeds(key, *planned)
        except Conflict:
            if SERVICES in read:
                raise  # else it is not the service that was shown
        return await self._from_truth(key, EVERYTHING)

    async def _deeds(self, key: Key, observed: Observed, draft: Plan) -> Outcome:
        """What a plan asks for, and when to look again."""
        self._verified.add(key)
        self._senses.waits(key, waiting=_wants_devices(observed, draft))
        if not observed.raw_status and await self._tell(observed, draft):
            return Outcome(again=_AT_ONCE)  # said before anything is made: kstatus takes silence for success
        outcome = await self._carry_out(key, observed, draft)
        await self._senses.scaling.keep(key, observed)
        return self._in_time(key, outcome)

    def _in_time(self, key: Key, outcome: Outcome) -> Outcome:
        """Back when scaling can decide otherwise by time alone, if that is before the resync."""
        look = self._senses.scaling.again(key)
        if look is None or look >= self._settings.resync or (outcome.again is not None and outcome.again <= look):
            return outcome
        return outcome._replace(again=look)

    async def _profile(self, key: Key) -> Outcome:
        if key != DEFAULT_KEY:
            return Outcome(gone=True)
        await keep(self._cluster, self._cluster, self._settings.default_profile)
        return Outcome()

    async def _plan(self, key: Key, observed: Observed, read: frozenset[Resource]) -> tuple[Observed, Plan] | None:
        observed = await complete(self._run(key), observed, TRUTH)
        draft = contested(observed, plan(observed))
        if not suffices(read, draft):
            return None
        if in_the_way := await strangers(self._cluster, key, draft):
            own = tuple(child for child in in_the_way if child.belongs_to(observed.meta.uid))
            others = tuple(child for child in in_the_way if child not in own)
            observed = replace(observed, children=observed.children + own, strangers=observed.strangers + others)
            draft = contested(observed, plan(observed))
        return observed, self._senses.quota.admit(key, observed, draft)

    def _run(self, key: Key) -> Run:
        now, answers = self._clock().timestamp(), self._answers.get(key, {})
        return Run(key, self._senses, now, answers, self._settings.callers, self._cluster)

    async def _from_view(self, key: Key) -> Outcome | frozenset[Resource]:
        """A run on what the watches have shown, at no cost: where that asks for nothing, there is nothing to do, or an event still comes.
        Else what must be read anew: for the first look of this process, and for whatever would be written, told or booked."""
        view = self._senses.view
        if view is None or key not in self._verified:
            return EVERYTHING
        await self._senses.claims.follow(view, key, sure=False)
        observed = await observe(view, key)
        if observed is None:
            return EVERYTHING
        if not self._senses.quota.booked(key, observed):
            return SERVICE
        observed = await complete(self._run(key), observed, VIEW)
        draft = contested(observed, plan(observed))
        if read := needed(draft):
            return read
        turn = 0.0 if _unanswered(observed) else self._turn(key, observed, draft)
        if turn == 0:
            return REPLICAS if suffices(REPLICAS, draft) else EVERYTHING
        self._repeats.pop(key, None)
        self._senses.waits(key, waiting=_wants_devices(observed, draft))
        await self._senses.scaling.keep(key, observed)
        waits = [wait for wait in (_again(observed, draft), turn) if wait is not None]
        return self._in_time(key, Outcome(again=min(waits, default=None)))

    def _turn(self, key: Key, observed: Observed, draft: Plan) -> float | None:
        """In how many seconds its status is to be written; None where it says all already. What moves nothing has its turn."""
        wanted = self._status(observed, draft)
        if wanted == observed.raw_status:
            return None
        turns = self._senses.turns
        return turns.wait(key) if turns is not None and alone(wanted, observed.raw_status) else 0.0

    async def _forget(self, key: Key) -> Outcome:
        self._repeats.pop(key, None)
        self._events.forget(key)
        self._answers.pop(key, None)
        self._verified.discard(key)
        self._senses.waits(key, waiting=False)
        self._senses.scaling.forget(key)
        self._senses.ages.forget(key)
        self._senses.lacking.forget(key)
        if self._senses.turns is not None:
            self._senses.turns.forget(key)
        # The last pod's end may go unseen by a broken watch, and nothing else would look here again.
        holds = await self._senses.quota.gone(key)
        return Outcome(again=_LEFT) if holds else Outcome(gone=True)

    async def _carry_out(self, key: Key, observed: Observed, draft: Plan) -> Outcome:
        log = structlog.get_logger().bind(namespace=key.namespace, name=key.name)
        try:
            await self._have_keys(observed, draft)
            await apply(self._cluster, draft.writes)
        except Refused as error:
            log.warning("child_refused", error=str(error))
            await self._tell(observed, replace(draft, problem=SpecProblem(INVALID_SPEC, str(error))))
            return Outcome(again=draft.rollout.again if draft.rollout is not None else None)  # a trial's refusal is not waited out for ever
        except Denied as error:
            await self._tell(observed, replace(draft, denied=str(error)))
            raise
        except Unavailable:
            self._senses.quota.unanswered(key)
            raise
        news = await self._order(key, observed, draft)
        if news and not draft.writes:
            observed, draft = await self._released(key, observed, draft)
        told = await self._tell(observed, draft)
        writes = [f"{type(write).__name__} {write.resource.kind} {write.name}" for write in draft.writes] + ([told] if told else [])
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
        further = contested(answered, plan(answered))
        if not further.writes or any(not isinstance(write, Annotate) or write.resource != PODS for write in further.writes):
            return observed, draft
        await apply(self._cluster, further.writes)
        return answered, replace(further, over_quota=draft.over_quota)

    async def _have_keys(self, observed: Observed, draft: Plan) -> None:
        """Before a replica is made that mounts them: kubelet tries a missing volume again only after minutes. Without them those that run
        are still scaled."""
        if observed.callers is None or not observed.callers.tokens:
            return
        try:
            await self._senses.keys.ensure(owner_of(observed))
        except ClusterError:
            if any(isinstance(write, Create) and write.resource in (DEPLOYMENTS, PODS) for write in draft.writes):
                raise

    async def _order(self, key: Key, observed: Observed, draft: Plan) -> bool:
        """Orders to daemons; whether an answer says something new. Pods that are gone are forgotten."""
        before = self._answers.get(key, {})
        given, now = await self._senses.daemons.give(draft.tells), self._clock().timestamp()
        answers = {uid: answer.after(before.get(uid), now) for uid, answer in given.items()}
        here = {pod.uid for pod in observed.pods}
        after = {uid: answer for uid, answer in (before | answers).items() if uid in here}
        self._answers[key] = after
        return any(uid not in before or answer.tells_more(before[uid]) for uid, answer in answers.items())

    def _check_converging(self, key: Key, written: list[str]) -> None:
        last, count = self._repeats.get(key, ([], 0))
        self._repeats[key] = (written, count + 1 if written == last else 1)
        if self._repeats[key][1] > _SAME_WRITES:
            raise Unconverged(f"written {count} times in a row and still different: {', '.join(written)}")

    async def _tell(self, observed: Observed, draft: Plan) -> str:
        """The status, named by its content, where it was written; else nothing."""
        wanted = self._status(observed, draft)
        if not await apply_status(self._cluster, observed, wanted):
            return ""
        await self._events.record(observed, wanted, self._clock())
        return f"Status {digest(wanted)}"

    def _status(self, observed: Observed, draft: Plan) -> dict[str, Any]:
        return status(observed, draft, self._settings.url, self._clock().strftime("%Y-%m-%dT%H:%M:%SZ"))


def _unanswered(observed: Observed) -> bool:
    """Whether the spec is newer than the status: there will be something to write, whatever a plan says."""
    return bool(observed.raw_status.get("observedGeneration") != observed.meta.generation)


def _wants_devices(observed: Observed, draft: Plan) -> bool:
    """Whether news of devices may change what was decided."""
    if not observed.asks_for_devices:
        return False
    none = draft.problem is not None and draft.problem.reason == NO_ACCELERATOR
    return none or (draft.placement is not None and draft.placement.status.waiting is not None)


def _again(observed: Observed, draft: Plan) -> float | None:
    """When to look again though no event may come."""
    sick = [draft.health.again] if draft.health.again is not None else []
    due = [draft.rollout.again] if draft.rollout is not None and draft.rollout.again is not None else []
    times = [*([_WAIT] if draft.waiting or draft.over_quota else []), *([_DRAIN_POLL] if draft.tells else []), *sick, *due]
    if draft.again_at is not None:
        times.append(max(1.0, draft.again_at - observed.now))
    return min(times, default=None)
