"""end_of: the end of an engine process as a future of the running loop. Called by `client`."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from contextlib import suppress


def end_of(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    """Its exit code, once it has ended. Not `asyncio.to_thread`: an interpreter that ends waits for such a thread, and so for an engine
    that nobody has told to end."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def finish(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    def wait() -> None:
        code = process.wait()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish, code)

    threading.Thread(target=wait, name="engine-end", daemon=True).start()
    return ended
