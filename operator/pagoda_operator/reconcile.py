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
from pagoda_operator.errors import Denied, Refused, SpecProblem
from pagoda_operator.manifests.pod import INVALID_SPEC
from pagoda_operator.observe import Reader, observe, strangers
from pagoda_operator.plan import Plan, plan
from pagoda_operator.queue import Outcome
from pagoda_operator.state import Key, Observed
from pagoda_operator.status import status

# After a write the next look is at once; what is on its way out is looked for again.
_AT_ONCE: Final = 0.0
_WAIT: Final = 2.0


class Cluster(Reader, Writer, Protocol):
    """All that reconciling asks of the API server."""


class Reconciler:
    """Brings services to their specs."""

    def __init__(self, cluster: Cluster, url: str | None, clock: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._url = url
        self._clock = clock

    async def reconcile(self, key: Key) -> Outcome:
        """One run; ClusterError asks for another one later."""
        observed = await observe(self._cluster, key)
        if observed is None:
            return Outcome(gone=True)
        observed, draft = await self._plan(key, observed)
        if not observed.raw_status and await self._tell(observed, draft):
            return Outcome(again=_AT_ONCE)  # said before anything is made: kstatus takes silence for success
        return await self._carry_out(key, observed, draft)

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
        if draft.writes:
            log.info("applied", writes=[f"{type(write).__name__} {write.resource.kind} {write.name}" for write in draft.writes])
        told = await self._tell(observed, draft)
        if draft.writes or told:
            return Outcome(again=_AT_ONCE)
        return Outcome(again=_WAIT if draft.waiting else None)

    async def _tell(self, observed: Observed, draft: Plan) -> bool:
        now = self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        return await apply_status(self._cluster, observed, status(observed, draft, self._url, now))
