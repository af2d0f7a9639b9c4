"""EventStream: the body of one streamed answer. Begins with its first write, and fills silence with comments. Called by `completions`.

Before the first write every failure can still be an HTTP status, and a gateway may give the request to another replica; a comment
takes that away. So whether silence before it is filled at all is the configuration's choice; after it there is nothing to lose.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

from starlette.types import Send

from pagoda_daemon.api.openai.replies import PING, SSE_HEADERS

Headers = Iterable[tuple[bytes, bytes]]
PING_EVERY_S: Final = 15.0  # proxies give up on 60 s of silence, some on 30


class EventStream:
    """`before_s`: how much silence before the first write is too much; None: none is. `ping` is written into it. `headers` are further
    ones of the answer."""

    def __init__(
        self, send: Send, before_s: float | None = None, every_s: float = PING_EVERY_S, ping: bytes = PING, headers: Headers = ()
    ) -> None:
        self._headers = (*SSE_HEADERS, *headers)
        self._send = send
        self._before_s = before_s
        self._every_s = every_s
        self._ping_frame = ping
        self._clock = asyncio.get_running_loop().time
        self._written = self._clock()
        self._begun = asyncio.Event()

    @property
    def begun(self) -> bool:
        return self._begun.is_set()

    async def __aenter__(self) -> Self:
        self._pings = asyncio.ensure_future(self._ping())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pings.cancel()

    async def write(self, frames: bytes) -> None:
        await self._put(frames, more=True)

    async def end(self, frames: bytes) -> None:
        """The last write; no comment follows it."""
        self._pings.cancel()
        await self._put(frames, more=False)

    async def _put(self, frames: bytes, *, more: bool) -> None:
        self._written = self._clock()
        if not self.begun:
            self._begun.set()
            await self._send({"type": "http.response.start", "status": 200, "headers": list(self._headers)})
        await self._send({"type": "http.response.body", "body": frames, "more_body": more})

    async def _ping(self) -> None:
        if self._before_s is None:
            await self._begun.wait()
        while True:
            most = self._before_s if self._before_s is not None and not self.begun else self._every_s
            left = self._written + most - self._clock()
            if left > 0:
                await asyncio.sleep(left)
            else:
                await self._put(self._ping_frame, more=True)
