"""One run for one service: observe → plan → apply → status. Called by the queue, for every trigger the same way.

The one place that maps errors to conditions: what the API server refuses stalls the service, what it denies is said and
retried, everything else goes to the queue, which retries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Final, Protocol

import structlog

from pagoda_operator.apply import Writer, apply, apply_status
from pagoda_operator.defaults import DEFAULT_KEY, keep
from pagoda_operator.errors import Denied, Refused, SpecProblem, Unconverged
from pagoda_operator.manifests.pod import INVALID_SPEC
from pagoda_operator.manifests.revision import digest
from pagoda_operator.observe import Reader, observe, strangers
from pagoda_operator.plan import Plan, plan
from pagoda_operator.queue import Outcome
from pagoda_operator.settings import Settings
from pagoda_operator.state import Key, Observed
from pagoda_operator.status import status

# After a write the next look is at once; what is on its way out is looked for again.
_AT_ONCE: Final = 0.0
_WAIT: Final = 2.0
# A rollout's runs each write something else; a scale-up by hand, twice in one second, writes the same twice.
_SAME_WRITES: Final = 4


class Cluster(Reader, Writer, Protocol):
    """All that reconciling asks of the API server."""


class Reconciler:
    """Brings services to their specs."""

    def __init__(self, cluster: Cluster, settings: Settings, clock: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        # What each service's last run wrote, and how many runs in a row wrote just that.
        self._repeats: dict[Key, tuple[list[str], int]] = {}

    async def reconcile(self, key: Key) -> Outcome:
        """One run; ClusterError asks for another one later."""
        if not key.namespace:
            return await self._profile(key)
        observed = await observe(self._cluster, key)
        if observed is None:
            self._repeats.pop(key, None)
            return Outcome(gone=True)
        observed, draft = await self._plan(key, observed)
        if not observed.raw_status and await self._tell(observed, draft):
            return Outcome(again=_AT_ONCE)  # said before anything is made: kstatus takes silence for success
        return await self._carry_out(key, observed, draft)

    async def _profile(self, key: Key) -> Outcome:
        if key != DEFAULT_KEY:
            return Outcome(gone=True)
        await keep(self._cluster, self._cluster, self._settings.default_profile)
        return Outcome()

    async def _plan(self, key: Key, observed: Observed) -> tuple[Observed, Plan]:
        draft = plan(observed)
        in_the_way = await strangers(self._cluster, key, draft)
        if not in_the_way:
            return observed, draft
        complete = replace(observed, strangers=observed.strangers + in_the_way)
        return complete, plan(complete)

    async def _carry_out(self, key: Key, observed: Observed, draft: Plan) -> Outcome:
        log = structlog.get_logger().bind(namespace=key.namespace, name=key.name)
        try:
            await apply(self._cluster, draft.writes)
        except Refused as error:
            log.warning("child_refused", error=str(error))
            await self._tell(observed, replace(draft, problem=SpecProblem(INVALID_SPEC, str(error))))
            return Outcome()
        except Denied as error:
            await self._tell(observed, replace(draft, denied=str(error)))
            raise
        told = await self._tell(observed, draft)
        writes = [f"{type(write).__name__} {write.resource.kind} {write.name}" for write in draft.writes] + ([told] if told else [])
        if not writes:
            self._repeats.pop(key, None)
            return Outcome(again=_WAIT if draft.waiting else None)
        log.info("applied", writes=writes)
        self._check_converging(key, writes)
        return Outcome(again=_AT_ONCE)

    def _check_converging(self, key: Key, written: list[str]) -> None:
        last, count = self._repeats.get(key, ([], 0))
        self._repeats[key] = (written, count + 1 if written == last else 1)
        if self._repeats[key][1] > _SAME_WRITES:
            raise Unconverged(f"written {count} times in a row and still different: {', '.join(written)}")

    async def _tell(self, observed: Observed, draft: Plan) -> str:
        """The status, named by its content, where it was written; else nothing."""
        now = self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        wanted = status(observed, draft, self._settings.url, now)
        return f"Status {digest(wanted)}" if await apply_status(self._cluster, observed, wanted) else ""
