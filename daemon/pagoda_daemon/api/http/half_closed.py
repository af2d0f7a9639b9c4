"""A client that has shut down its sending side: does it still read, or is it gone? Used by `connection` alone.

TCP signals both in the same way, by a FIN. The difference shows when something is written: whoever still reads takes it, and the kernel of
one that is gone answers with a reset. So at the FIN the first bytes of the answer are written, which are the same in every answer.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Any, Final

BEGIN: Final = b"HTTP/1.1 "


class Begun:
    """A transport on which BEGIN is written already: the next answer goes on behind it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._written = len(BEGIN)
        transport.write(BEGIN)

    def write(self, data: bytes) -> None:
        self._transport.write(data[self._written :])
        self._written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Reset:
    """Calls `gone` once the connection of a socket is reset. The loop itself does not see it: it reads no more behind a FIN."""

    def __init__(self, fileno: int, gone: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._poll = select.epoll()
        self._poll.register(fileno, 0)  # a reset is always reported
        self._loop.add_reader(self._poll.fileno(), gone)

    def close(self) -> None:
        """Idempotent."""
        if not self._poll.closed:
            self._loop.remove_reader(self._poll.fileno())
            self._poll.close()
