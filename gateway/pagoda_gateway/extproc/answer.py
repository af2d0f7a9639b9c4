"""One answer on its way from a replica through Envoy: what it says of its tokens, and where it came from. Called by session.py.

It is passed on as it comes, so nothing can be taken back: a replica's refusal reaches the client.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import structlog
from pagoda_contracts.names import (
    HEADER_CONTINUABLE,
    HEADER_ERROR_CODE,
    HEADER_REQUEST_ID,
    HEADER_USAGE,
)
from pagoda_contracts.pb import extproc_pb2 as pb
from pagoda_contracts.usage import from_header

from pagoda_gateway.extproc import messages
from pagoda_gateway.extproc.phases import Head, Piece, Side, chunks
from pagoda_gateway.proxy.headers import to_client
from pagoda_gateway.proxy.sse import Events, NotedEvents, Release, count
from pagoda_gateway.requests.dialects import Dialect
from pagoda_gateway.requests.errors import NOT_LET_IN, AttemptFailed, Died, Refused, UpstreamDied, failure_of
from pagoda_gateway.requests.finish_reasons import FinishReasons
from pagoda_gateway.requests.lifecycle import RequestLife
from pagoda_gateway.requests.limiter import Account
from pagoda_gateway.routing.endpoint import Endpoint

log = structlog.get_logger()

_STATUS: Final = ":status"
_STREAM: Final = "text/event-stream"
# A whole answer ends with its usage: so much of its end is read for the access line.
_TAIL: Final = 1 << 16


class Answer:
    """An answer under way. `place` counts the request at the endpoint that has it."""

    def __init__(self, life: RequestLife, account: Account, finish: FinishReasons, place: ExitStack, dialect: Dialect) -> None:
        self._life, self._account, self._finish, self._place, self._dialect = life, account, finish, place, dialect
        self._events: Events | NotedEvents | None = None
        self._count, self._over = 0, False
        self._tail = b""
        self._failure: AttemptFailed | None = None

    def moved(self, endpoint: Endpoint) -> None:
        """Envoy sent the request to another replica than the one that was picked. It says so with the answer's head, so the time since the
        pick is that replica's."""
        self._place.close()
        self._life.repicked("envoy")
        self._life.endpoint, asked_ms = endpoint.address, self._life.asked_ms
        self._place.enter_context(self._life.at(endpoint))
        self._life.asked_ms = asked_ms

    async def head(self, head: Head) -> pb.ProcessingResponse:
        """Returns what Envoy does with the answer's head."""
        before = messages.plain(head.headers)
        self._account.status = int(head.headers.get(_STATUS, "0"))
        if (used := from_header(before.get(HEADER_USAGE, ""))) is not None:
            await self._account.note(used)
        if before.get("content-type", "").startswith(_STREAM):
            self._events = NotedEvents() if HEADER_CONTINUABLE in before else Events()
        self._failure = failure_of(self._account.status, before.get(HEADER_ERROR_CODE, ""))
        if self._failure is not None and self._failure.reason == NOT_LET_IN:
            log.warning("a replica refuses this gateway's token", route=self._life.route(), status=self._account.status)
        after = to_client(before, self._life.route())
        after.update(self._account.headers)
        after[HEADER_REQUEST_ID] = self._life.request_id
        return messages.answered(messages.changes(before, after))

    async def piece(self, piece: Piece) -> Iterator[pb.ProcessingResponse]:
        """Returns what Envoy passes on to the client for a part of the body."""
        data = piece.data if self._events is None else await self._read(self._events, piece)
        if self._events is None:
            self._tail = (self._tail + data)[-_TAIL:]
        return messages.bodies(Side.ANSWER, chunks(data, end=piece.end))

    async def _read(self, events: Events | NotedEvents, piece: Piece) -> bytes:
        if piece.data and not self._life.first_ms:
            self._life.first_byte()
        passed = await self._note(events.take(piece.data)) if piece.data else b""
        return passed + await self._rest(events) if piece.end else passed

    async def _rest(self, events: Events | NotedEvents) -> bytes:
        return b"" if self._over else await self._note(events.take(b""))

    async def _note(self, release: Release) -> bytes:
        """Returns what the client gets. No other replica can go on with an answer that Envoy relays, so it ends with an error."""
        if release.used is not None:
            await self._account.note(release.used)
        self._finish.feed(release.events)
        self._count += count(release.events)
        self._over = bool(release.end)
        if release.end != "died":
            return release.events
        self._failure = Died("engine-died")
        error = UpstreamDied("the replica died with this answer under way; it cannot be continued")
        return release.events + self._dialect.event(error, self._life.request_id, self._count)

    async def trailers(self) -> list[pb.ProcessingResponse]:
        """Returns what Envoy passes on when the answer ends with trailers."""
        rest = await self._rest(self._events) if self._events is not None else b""
        bodies = messages.bodies(Side.ANSWER, chunks(rest, end=False)) if rest else ()
        return [*bodies, messages.trailers(Side.ANSWER)]

    def end(self) -> None:
        """The answer is complete. Raises AttemptFailed if the replica refused the request or failed with it."""
        self._finish.feed(self._tail)
        if self._failure is None:
            self._life.answered(self._account.status)
            return
        self._life.status = self._account.status
        if isinstance(self._failure, Refused):
            self._account.sent = False  # nothing was computed
        raise self._failure
