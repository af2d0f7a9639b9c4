"""Writes TenantQuotas' statuses and keeps their native ResourceQuotas, beside the services' runs; has services read anew of which something
was charged in doubt for long enough. Made by process.py.

A changed spec is answered within seconds; what only counts up and down, at most once a minute per quota.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

import structlog

from pagoda_operator.api.errors import ClusterError
from pagoda_operator.api.state import QUOTAS
from pagoda_operator.decide.quota.caps import Quota
from pagoda_operator.quota.keeper import Quotas
from pagoda_operator.quota.native import Kept, ensure_resource_quota
from pagoda_operator.quota.status import status
from pagoda_operator.run.apply import Cluster, apply_status

TICK_S: Final = 2.0
_PERIOD_S: Final = 60.0


class StatusWriter:
    """One round: `write`. `single`: slices that the fleet offers as GPUs, None until all nodes are known: a ResourceQuota without them
    would refuse replicas meanwhile."""

    def __init__(
        self,
        cluster: Cluster,
        quotas: Callable[[], Iterable[Quota]],
        keeper: Quotas,
        clock: Callable[[], datetime],
        single: Callable[[], frozenset[str] | None],
    ) -> None:
        self._cluster, self._quotas, self._keeper, self._clock, self._single = cluster, quotas, keeper, clock, single
        # Quota (by uid) → when it was last looked at, by the keeper's steady clock, and at which generation.
        self._looked: dict[str, tuple[float, int]] = {}

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(TICK_S)
            await self.write()

    async def write(self) -> None:
        """Each quota that changed, and each that was not looked at for a minute."""
        now = self._keeper.steady()
        self._keeper.doubt()
        quotas = tuple(self._quotas())
        self._looked = {uid: seen for uid, seen in self._looked.items() if uid in {quota.meta.uid for quota in quotas}}
        for quota in quotas:
            if not self._due(quota, now) or (quota.native and self._single() is None):
                continue
            try:
                await self._one(quota)
                self._looked[quota.meta.uid] = (now, quota.meta.generation)
            except ClusterError as error:
                structlog.get_logger().warning("quota_not_told", quota=quota.name, error=str(error))

    def _due(self, quota: Quota, now: float) -> bool:
        last, generation = self._looked.get(quota.meta.uid, (None, 0))
        return last is None or generation != quota.meta.generation or now - last >= _PERIOD_S

    async def _one(self, quota: Quota) -> None:
        await self._keeper.fill()
        native = await ensure_resource_quota(self._cluster, quota, self._single() or frozenset()) if not quota.invalid else Kept()
        wanted = status(quota, self._keeper.ledger.used(quota), native, self._clock().strftime("%Y-%m-%dT%H:%M:%SZ"))
        if wanted != quota.status:
            await apply_status(self._cluster, QUOTAS, quota.meta, wanted)
