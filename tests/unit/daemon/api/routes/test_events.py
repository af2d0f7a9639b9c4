"""Silence in a stream is filled with comments: before the first token where that is wished, after it always; and never after the end."""

import asyncio

import pytest
from pagoda_daemon.api.openai.chat_replies import Chat
from pagoda_daemon.api.openai.replies import DONE, Head
from pagoda_daemon.api.routes.completions import Prepared, _stream
from pagoda_daemon.api.routes.continuing import NoNotes
from pagoda_daemon.api.routes.events import PING, EventStream
from pagoda_daemon.api.routes.generation import Answering, Delta, Submission
from pagoda_daemon.api.routes.usages import Usages
from pagoda_daemon.core.errors import RequestFailed
from pagoda_daemon.core.messages import Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.text.answer import Piece


class Wire:
    """What was sent, and an event that comes with each."""

    def __init__(self):
        self.messages = []
        self.came = asyncio.Condition()

    async def send(self, message):
        async with self.came:
            self.messages.append(message)
            self.came.notify_all()

    @property
    def bodies(self):
        return [message["body"] for message in self.messages if message["type"] == "http.response.body"]

    async def until(self, holds):
        async with self.came:
            await self.came.wait_for(lambda: holds(self.bodies))


async def streamed(wire, deltas, **settings):
    usages = Usages([Submission(Submit("r", (1,), Sampling(1)))])
    dialect = Chat(Head("r", 0, "m", include_usage=False))
    await _stream(Prepared(None, (), usages, dialect, NoNotes()), Answering(deltas, ()), EventStream(wire.send, **settings))


async def test_comments_come_before_the_first_token_where_wished_and_the_stream_is_whole_after_them():
    wire, go = Wire(), asyncio.Event()

    async def deltas():
        await go.wait()
        yield [Delta(Piece("text"), 1, None)]
        yield [Delta(Piece(""), 1, "stop")]

    task = asyncio.ensure_future(streamed(wire, deltas(), before_s=0.001, every_s=0.001))
    await wire.until(lambda bodies: bodies[:3] == [PING] * 3)
    go.set()
    await task
    assert [message["type"] for message in wire.messages].count("http.response.start") == 1
    assert wire.messages[0]["type"] == "http.response.start"
    text = b"".join(wire.bodies)
    assert text.index(b'"role":"assistant"') < text.index(b'"text"') < text.index(b'"finish_reason":"stop"')
    assert text.endswith(DONE)
    assert wire.messages[-1]["more_body"] is False


async def test_without_the_wish_nothing_is_sent_before_the_first_token():
    wire, go = Wire(), asyncio.Event()

    async def deltas():
        await go.wait()
        yield [Delta(Piece("a"), 1, None)]
        await wire.until(lambda bodies: PING in bodies)
        yield [Delta(Piece(""), 1, "stop")]

    task = asyncio.ensure_future(streamed(wire, deltas(), every_s=0.001))
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert wire.messages == []
    go.set()
    await task
    assert wire.bodies.index(PING) > 0


async def test_a_failure_is_raised_before_the_first_write_and_an_event_after_it():
    async def failing(after):
        if after:
            await after.until(lambda bodies: PING in bodies)
        raise RequestFailed("why")
        yield []

    wire = Wire()
    with pytest.raises(RequestFailed):
        await streamed(wire, failing(None))
    assert wire.messages == []
    await streamed(wire, failing(wire), before_s=0.001)
    assert wire.bodies[-1].startswith(b'data: {"error":{"message":"why"')
    assert wire.bodies[-1].endswith(DONE)


async def test_nothing_follows_the_end():
    wire = Wire()
    async with EventStream(wire.send, before_s=0.0001, every_s=0.0001) as events:
        await events.write(b"x")
        await wire.until(lambda bodies: PING in bodies)
        await events.end(DONE)
        sent = len(wire.messages)
        for _ in range(20):
            await asyncio.sleep(0.001)
    assert len(wire.messages) == sent
    assert wire.bodies[-1] == DONE
