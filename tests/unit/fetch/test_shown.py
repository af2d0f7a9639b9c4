"""How far a fetch is, as a person sees it: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import sys

import pytest
from pagoda_fetch.core.errors import Unreachable
from pagoda_fetch.core.progress import Progress
from pagoda_fetch.serve import shown
from rich.console import Console
from structlog.testing import capture_logs

MIB = 2**20
NAME = "hf://org/model"
ALL = (
    Progress("resolving"),
    *(Progress("fetching", done * MIB, 100 * MIB) for done in (40, 60, 90)),
    Progress("verifying", 100 * MIB, 100 * MIB),
    Progress("done", 100 * MIB, 100 * MIB, "sha256:1", "/store/sha256-1"),
)


async def phases(moments=ALL, error=None):
    for one in moments:
        yield one
    if error is not None:
        raise error


def console():
    return Console(file=io.StringIO(), force_terminal=True, width=120, legacy_windows=False)


async def test_a_terminal_has_a_bar_with_bytes_and_phase():
    screen = console()
    assert await shown.on_terminal(phases(), NAME, screen) == ALL[-1]
    text = screen.file.getvalue()
    assert f"done {NAME}" in text
    assert "104.9/104.9 MB" in text


async def test_what_was_there_already_is_no_speed():
    """Resumed at 40 of 100 MiB: the bar begins there."""
    screen = console()
    await shown.on_terminal(phases(ALL[:2]), NAME, screen)
    assert "41.9/104.9 MB" in screen.file.getvalue()
    assert "MB/s" not in screen.file.getvalue()


async def test_a_fetch_that_fails_leaves_the_bar_and_raises():
    screen = console()
    with pytest.raises(Unreachable):
        await shown.on_terminal(phases(ALL[:3], Unreachable("gone")), NAME, screen)
    assert screen.file.getvalue().endswith("\x1b[?25h")  # the cursor is visible again


async def test_elsewhere_lines_come_at_most_every_ten_seconds():
    now = iter(range(0, 1000, 4))
    with capture_logs() as found:
        assert await shown.in_log(phases(), NAME, lambda: next(now)) == ALL[-1]
    assert [(line["event"], line.get("done")) for line in found] == [("resolving", 0), ("fetching", 90 * MIB), ("complete", None)]


def test_only_a_terminal_gets_a_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert shown.terminal() is None
