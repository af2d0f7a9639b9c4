"""An event loop on a thread of its own, for what must not wait for the loop that plans. Used by process.py for the Lease.

What runs there shares nothing with the other loop but values that are replaced whole: a client belongs to the loop that made it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class OwnLoop:
    """Begins at once; `close` ends it."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._turn, name=name, daemon=True)
        self._thread.start()

    async def do(self, what: Coroutine[Any, Any, T]) -> T:
        """Run it there and wait for it here; who is cancelled here cancels it there, without waiting for its end."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(what, self._loop))

    def close(self) -> None:
        """Once nothing runs there any more. Does not wait: a name that is being looked up holds a thread for minutes."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _turn(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
