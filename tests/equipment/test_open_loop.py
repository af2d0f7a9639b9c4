"""The load of a test goes on while an event lasts, and never fills what it is pointed at."""

import asyncio

from support.clients import streams
from support.clients.streams import Load, Stream, open_loop


async def test_arrivals_go_on_while_the_event_lasts_with_so_many_under_way(monkeypatch):
    under_way, most = 0, 0

    async def answered_some_turns_later(_client, _model, question, _tokens=None):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(6):
            await asyncio.sleep(0)
        under_way -= 1
        return Stream(question, 0.0, done=True)

    async def event():
        for _ in range(200):
            await asyncio.sleep(0)

    monkeypatch.setattr(streams, "stream_chat", answered_some_turns_later)
    load = Load(("a", "b"), per_second=1e6, before=3, after=4, most=5)
    found = await open_loop("http://nobody", "m", load, event)
    assert most == 5
    assert len(found) > 3 + 4 + 10
    assert [stream.question for stream in found[:4]] == ["a", "b", "a", "b"]
