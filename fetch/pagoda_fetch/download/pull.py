"""One file from a source into staging: tried again where it was cut, from where it was cut; once from its beginning where it is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import structlog

from pagoda_fetch.core.errors import FetchError, LockLost, Mismatch, NoRoom, Transient
from pagoda_fetch.core.limits import Limits
from pagoda_fetch.core.listing import RemoteFile
from pagoda_fetch.core.progress import steady
from pagoda_fetch.sources.base import Source
from pagoda_fetch.volume.sink import Sink
from pagoda_fetch.volume.unpack import Unpacking

log = structlog.get_logger()
P = ParamSpec("P")
T = TypeVar("T")
# Written and hashed at once: large enough that the hop to a thread costs nothing beside it.
_BATCH: Final = 1024 * 1024
_MAX_PAUSE: Final = 30.0
# What another try of the same request cannot change.
_FINAL: Final = (NoRoom, LockLost)


@dataclass(frozen=True)
class Work:
    """What pulling needs beside the file. `moved` hears of bytes (negative where they were thrown away), `guard` may forbid to go on.

    `grew` hears of bytes that an archive unpacked to, from threads.
    """

    source: Source
    staging: Path
    limits: Limits
    moved: Callable[[int], None]
    guard: Callable[[], None]
    grew: Callable[[int], None]


async def finished(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The work on a thread, which is over before this returns, cancelled or not: its file is closed after that, and the number of a closed
    file may be another file's by then."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def pause(limits: Limits, failures: int) -> float:
    """Seconds before the next try."""
    return min(_MAX_PAUSE, limits.pause * 2.0 ** (failures - 1))


async def pull(work: Work, file: RemoteFile) -> str:
    """The file's SHA-256 once it is whole and right."""
    whole = file.layer is None or file.layer.form == "raw"
    sink = Sink(work.staging, file) if whole else Unpacking(work.staging, file, work.limits, work.grew)
    try:
        return await _persist(work, file, sink)
    finally:
        sink.close()


async def _persist(work: Work, file: RemoteFile, sink: Sink | Unpacking) -> str:
    failures, wrong = 0, False
    work.guard()  # it removes what another holder of the lock may have there
    work.moved(await finished(sink.begin))
    while True:
        before = sink.offset
        try:
            if sink.torn:
                before = await _anew(work, sink)
            await _once(work, file, sink)
            work.guard()
            return await finished(sink.finish)
        except Mismatch:
            # A crash of the node may have left a hole in what was kept: from the beginning, once.
            if wrong:
                raise
            wrong = True
            await _anew(work, sink)
        except _FINAL:
            raise
        except Transient as error:
            # What a torn one has brought is lost: no progress, or a disk that always fails at one place would have no end.
            failures = 1 if sink.offset - before >= work.limits.floor and not sink.torn else failures + 1
            if failures >= work.limits.attempts:
                raise
            log.info("again", file=file.label, offset=sink.offset, why=error.reason, message=str(error))
            await asyncio.sleep(pause(work.limits, failures))


async def _anew(work: Work, sink: Sink | Unpacking) -> int:
    """From its beginning; where that is."""
    work.guard()
    lost = sink.offset
    await finished(sink.drop)
    begin = await finished(sink.begin)
    work.moved(begin - lost)
    return begin


async def _once(work: Work, file: RemoteFile, sink: Sink | Unpacking) -> None:
    """One request, as far as it gets; what came is written in any case."""
    if sink.whole:
        return
    buffer = bytearray()
    try:
        async with aclosing(steady(work.source.read(file, sink.offset), work.limits, file.label)) as chunks:
            async for chunk in chunks:
                buffer += chunk
                if len(buffer) >= _BATCH:
                    await _flush(work, sink, buffer)
    except FetchError:
        await _flush(work, sink, buffer)
        raise
    await _flush(work, sink, buffer)


async def _flush(work: Work, sink: Sink | Unpacking, buffer: bytearray) -> None:
    if not buffer:
        return
    work.guard()
    data = bytes(buffer)
    buffer.clear()
    await finished(sink.write, data)
    work.moved(len(data))
