"""Stream: one request's outputs on their way from the engine's wire to their reader. Filled by `client`, read by `api`."""

from __future__ import annotations

import asyncio

from pagoda_daemon.core.errors import DaemonError
from pagoda_daemon.core.messages import RowOutput


class Stream:
    """One request's outputs in order; what ends it early is raised after them.

    One task reads. What came in while it was busy it gets at once, so that tokens that are late share one write and one wake-up.
    """

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self._rows: list[RowOutput] = []
        self._error: DaemonError | None = None
        self._reader: asyncio.Future[None] | None = None

    def put(self, item: RowOutput | DaemonError) -> None:
        if isinstance(item, DaemonError):
            self._error = self._error or item
        elif self._error is None:
            self._rows.append(item)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    @property
    def behind(self) -> int:
        """Outputs that were not taken yet."""
        return len(self._rows)

    async def take(self) -> list[RowOutput]:
        """All that has come, at least one."""
        while not self._rows:
            if self._error is not None:
                raise self._error
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        rows, self._rows = self._rows, []
        return rows
