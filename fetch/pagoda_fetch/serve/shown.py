"""How far a fetch is, for whoever started `pagoda-fetch fetch`: a bar on a terminal, otherwise a line in the log every 10 s."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

import structlog

from pagoda_fetch.core.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console

log = structlog.get_logger()
_EVERY_S: Final = 10.0


class StandardError:
    """Whatever is standard error at the time of writing: a bar takes its place, so that a line of the log stands above it."""

    def write(self, text: str) -> None:
        sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def terminal() -> Console | None:
    """None where nobody would see a bar."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console

    return Console(stderr=True)


async def on_terminal(moments: AsyncIterator[Progress], name: str, console: Console) -> Progress:
    """The finished fetch, with a bar as long as it lasts. What an earlier try has fetched counts as done, not as speed."""
    from rich import progress as rich

    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
    )
    last = Progress("resolving")
    with rich.Progress(*columns, console=console) as bar:
        task = bar.add_task(f"{last.phase} {name}", total=None, start=False)
        async for last in moments:
            if last.total and not bar.tasks[task].started:
                bar.reset(task, total=last.total, completed=last.done)
            bar.update(task, description=f"{last.phase} {name}", completed=last.done)
    return last


async def in_log(moments: AsyncIterator[Progress], name: str, clock: Callable[[], float]) -> Progress:
    """The finished fetch, with a line at its begin, every 10 s and at its end."""
    last, said = Progress("resolving"), float("-inf")
    async for last in moments:
        now = clock()
        if now - said >= _EVERY_S and last.phase != "done":
            said = now
            log.info(last.phase, uri=name, done=last.done, total=last.total)
    log.info("complete", uri=name, digest=last.digest, bytes=last.total)
    return last
