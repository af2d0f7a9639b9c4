"""Admission: how many requests this replica holds, their bodies as they are read, and the watch for a client that left.

Asked by every endpoint that takes part in a drain (`completions`, `embeddings`, `texts`, `api/grpc/generate.py`) before it does anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope

from pagoda_daemon.api.access.catalogue import Catalogue
from pagoda_daemon.api.access.pins import pinning
from pagoda_daemon.api.access.versions import AdapterOnDisk
from pagoda_daemon.api.openai import requests
from pagoda_daemon.api.openai.errors import TOO_LARGE, TOO_SLOW
from pagoda_daemon.api.routes.preparing import Preparing, in_time
from pagoda_daemon.core.errors import BadRequest, Draining, ModelNotFound, NotReady, Overloaded, shown
from pagoda_daemon.core.messages import Ready
from pagoda_daemon.health.replica import Replica

_WAITING_PER_ROW: Final = 16  # requests held per request that can decode: what waits behind 15 others has long missed its client
_LEAST_WAITING: Final = 128
_MOST_NAMED: Final = 20
T = TypeVar("T")
_MAX_HELD_BYTES: Final = 128 * 2**20  # of bodies: eight of the largest; each may become as many bytes again of token ids


@dataclass
class Admission:
    """Counts requests accepted and unfinished, as HTTP sees them, and their bodies' bytes; `idle` is set while there are none."""

    replica: Replica
    held_bytes: int = 0
    adapters: Catalogue | None = None
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.preparing = Preparing(self.replica.preparations)
        self.idle.set()

    @contextmanager
    def reading(self) -> Iterator[Callable[[int], None]]:
        """While a body comes in, and as long as it is held. Refuses as `admit` does, but takes no place: a client that sends slowly keeps
        nobody out and holds up no drain. Yields what counts bytes as they come and refuses the one that makes them too many."""
        self._check()
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            self._check()
            held += size
            self.held_bytes += size
            if self.held_bytes > _MAX_HELD_BYTES:
                self.replica.turned_away += 1
                raise Overloaded(f"this replica holds requests of {self.held_bytes} bytes; at most {_MAX_HELD_BYTES} are allowed")

        try:
            yield hold
        finally:
            self.held_bytes -= held

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Refuses while draining, loading or full; otherwise holds the drain until the request is finished."""
        self._check()
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def limits_of(self, model: str | None, served_names: Sequence[str]) -> Ready:
        """What a request for `model` (None: whichever it is) has to fit; ModelNotFound where it is not served."""
        known = model is None or model in served_names or (self.adapters is not None and self.adapters.has(model))
        if not known:
            names = (*served_names, *(self.adapters.names() if self.adapters is not None else ()))
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            raise ModelNotFound(f"model {shown(model)} is not served here, accepted: {', '.join(names[:_MOST_NAMED])}{more}")
        if self.replica.limits is None:
            raise NotReady("the model is still loading")
        return self.replica.limits

    def _check(self) -> None:
        if not self.replica.taking and self.replica.leaving:
            raise Draining("this replica is draining; another one will take the request")
        if not self.replica.taking:
            raise NotReady("the model is still loading")
        rows = self.replica.limits.max_concurrency if self.replica.limits else 0
        if self.replica.in_flight >= (most := max(_LEAST_WAITING, _WAITING_PER_ROW * rows)):
            self.replica.turned_away += 1
            raise Overloaded(f"this replica holds {self.replica.in_flight} requests; at most {most} are allowed")

    def _count(self, change: int) -> None:
        self.replica.in_flight += change
        self.replica.admitted += max(0, change)
        self.idle.clear() if self.replica.in_flight else self.idle.set()
        self.replica.changed()


async def admitted(admission: Admission, scope: Scope, receive: Receive, work: Callable[[bytes], Coroutine[Any, Any, None]]) -> None:
    """Reads the body, takes a place, and does `work` with it, for as long as the client stays."""
    with admission.reading() as hold:
        terms = scope["state"]["caller"].terms
        try:
            body = await in_time(terms.deadline_ms, read_body(Request(scope, receive), hold, requests.most_bytes(terms.answered)))
        except ClientDisconnect:
            return
        with admission.admit(), pinning(admission.adapters) as scope["state"]["pins"]:
            await unless_gone(receive, awake(admission, terms.deadline_ms, partial(work, body)))


async def awake(admission: Admission, deadline_ms: int | None, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Does `work`, once more after its adapter was loaded, if that was on disk only. It is kept in memory meanwhile."""
    async with AsyncExitStack() as kept:
        while True:
            try:
                return await work()
            except AdapterOnDisk as found:
                if admission.adapters is not None:
                    await in_time(deadline_ms, kept.enter_async_context(admission.adapters.awake(found.name)))


async def read_body(request: Request, hold: Callable[[int], None], most: int) -> bytes:
    """The whole body, counted as it comes; BadRequest where it is too large."""
    chunks, size = [], 0
    try:
        async with asyncio.timeout(requests.BODY_S):
            async for chunk in request.stream():
                size += len(chunk)
                hold(len(chunk))
                if size > most:
                    raise BadRequest(f"the body is larger than {most} bytes", None, TOO_LARGE)
                chunks.append(chunk)
    except TimeoutError as error:
        raise BadRequest(f"the body took longer than {requests.BODY_S:g} s; {size} bytes of it came", None, TOO_SLOW) from error
    return b"".join(chunks)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` to its end, or cancels it when the client leaves, streaming or not (Starlette watches only streams)."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
