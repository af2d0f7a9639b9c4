"""InFlight: all requests under way, each in the outermost context of its life (lifecycle.py), and their end when the gateway stops.

Called by proxy/handlers.py and extproc/session.py for each request, by serve/process.py at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog

from pagoda_gateway.requests.errors import GatewayError, ShuttingDown
from pagoda_gateway.requests.lifecycle import Counters, RequestLife

log = structlog.get_logger()


class InFlight:
    """All requests under way, and their end when the gateway stops."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._deadlines: set[asyncio.Timeout] = set()
        self._stopped = False
        self._changed = asyncio.Event()

    @property
    def count(self) -> int:
        """Requests that are read, held or answered now."""
        return len(self._deadlines)

    @asynccontextmanager
    async def begin(self, request_id: str = "", tenant: str = "") -> AsyncIterator[RequestLife]:
        """The life of one request. An error leaves it as a GatewayError for the client, or as the error that says that the client left."""
        with self._counters.budget.account(tenant) as take:
            life = RequestLife(self._counters, request_id, take)
            try:
                async with self._until_stopped():
                    yield life
            except (GatewayError, ConnectionError) as error:  # ConnectionError: the client left while it was written to
                life.end(error)
                raise
            except Exception as error:
                failure = GatewayError("internal error; the gateway's log has its cause")
                life.end(failure)
                log.exception("a request failed by an error of the gateway", request_id=request_id, route=life.route())
                raise failure from error
            except BaseException as error:
                life.end(error)
                raise
            else:
                life.end(None)

    @asynccontextmanager
    async def _until_stopped(self) -> AsyncIterator[None]:
        deadline = asyncio.timeout(0 if self._stopped else None)
        self._deadlines.add(deadline)
        try:
            async with deadline:
                yield
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise ShuttingDown("the gateway stopped before this request could finish") from error
        finally:
            self._deadlines.discard(deadline)
            self._changed.set()

    async def finish(self, seconds: float) -> None:
        """Returns when no request is under way. After `seconds` it ends those that are, and each one that comes later."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._none_left()
                return
        self._stopped = True
        for deadline in self._deadlines:
            deadline.reschedule(asyncio.get_running_loop().time())
        await self._none_left()

    async def _none_left(self) -> None:
        while self._deadlines:
            self._changed.clear()
            await self._changed.wait()
