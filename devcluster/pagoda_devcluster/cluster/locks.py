"""A file lock that goes with its holder, however that ends."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def exclusive(path: Path, on_wait: Callable[[], None], remove: bool = False) -> Iterator[None]:
    """Hold `path` locked; `on_wait` is called once if another process has it; `remove` deletes the file at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _acquire(path, on_wait)
    try:
        yield
    finally:
        if remove:
            path.unlink(missing_ok=True)
        handle.close()


def is_held(path: Path) -> bool:
    """Whether a process has it now; a file that does not exist has no owner."""
    # Not made by looking: its holder may remove it at any moment.
    with suppress(FileNotFoundError), path.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _acquire(path: Path, on_wait: Callable[[], None]) -> IO[str]:
    """A holder may have removed the file while we waited for it: then the lock we got is on a file that no other process will open."""
    while True:
        handle = path.open("a")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(handle.fileno()).st_ino:
                return handle
        handle.close()
