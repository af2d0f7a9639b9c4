"""The events of docs/what-you-can-break.md at a small size: no stream is lost or changed. bench/zero_loss.py plays them at full size."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from support.clients.streams import Load
from support.harness import zero_loss_events as events
from support.harness.zero_loss import Row, api_server, zero_loss

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(1800)]

STREAMS = 16
LOAD = Load([f"question number {number}" for number in range(4)], per_second=8, before=STREAMS, after=8, tokens=20, most=STREAMS)
EVENTS = {
    "rollout": partial(events.rolling_restarts, times=1),
    "reverted": events.reverted,
    "killed": partial(events.kills_before_the_first_token, times=2, least=2),
    "unknown": partial(events.unknown_to_a_gateway, gateways={"g1"}),
    "gateways": partial(events.gateways_restarted, times=1, late=2),
}


def test_no_planned_event_and_no_death_before_the_first_token_loses_a_stream(tmp_path: Path) -> None:
    async def played() -> list[Row]:
        async with zero_loss(real, account, tmp_path, LOAD, step_s=0.1) as place:
            return [await place.play(event, partial(strike, place)) for event, strike in EVENTS.items()]

    with api_server(tmp_path) as (real, account):
        rows = asyncio.run(played())
    assert [(row.event, row.lost, row.wrong) for row in rows] == [(event, 0, 0) for event in EVENTS]
    assert [row.event for row in rows if not row.hit] == [], "no stream was under way there: the test proves nothing"
