"""A progress bar on a terminal. Called by `engine`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def bar(count: int, wanted: bool | None) -> Iterator[Callable[[], None]]:
    """What is called once for each prompt that is done, from any thread. `wanted` None: for several prompts, on a terminal. It is written
    to stderr."""
    console = Console(stderr=True)
    if not (wanted if wanted is not None else count > 1 and console.is_terminal):
        yield lambda: None
        return
    columns = (TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("prompts", total=count)
        yield lambda: progress.advance(task)
