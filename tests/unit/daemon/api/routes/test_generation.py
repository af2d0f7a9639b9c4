"""What a client reads of a request that the engine ended, by the generator alone."""

import asyncio
import json
import time
from dataclasses import replace

import pytest
from pagoda_contracts.names import ERROR_DRAINING, ERROR_OVERLOADED, HEADER_RETRY_AFTER, HEADER_RETRY_AFTER_MS, HEADER_SHOULD_RETRY
from pagoda_daemon.api.openai.errors import response_of
from pagoda_daemon.api.routes.generation import Generator, Submission
from pagoda_daemon.core.errors import Overloaded, RequestError, RequestFailed
from pagoda_daemon.core.messages import Refusal, RowOutput, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.engine.stream import Stream
from pagoda_daemon.metrics import Counts
from pagoda_daemon.text.tokens import ModelText
from support.engine.toy_model import tiny_model_dir


class FailingEngine:
    """Ends each request at once, with `error`."""

    def __init__(self, error):
        self._error = error

    def submit(self, message):
        stream = Stream(message.request_id)
        stream.put(RowOutput(message.request_id, (), "error", self._error))
        return stream

    def close_stream(self, _request_id, *, finished):
        assert not finished


@pytest.mark.parametrize(("error", "said"), [("why", "why (request r1)"), (None, "the engine ended this request: error (request r1)")])
async def test_a_request_that_the_engine_ended_names_its_id(tmp_path, error, said):
    generator = Generator(FailingEngine(error), ModelText(tiny_model_dir(tmp_path)), Counts())
    async with generator.answering([Submission(Submit("r1", (1,), Sampling(1)))], 0.0) as deltas:
        with pytest.raises(RequestFailed) as caught:
            await anext(aiter(deltas))
    assert str(caught.value) == said
    assert generator.counts.finished["error"] == 1


class ScriptedEngine:
    """Says what it is told to, and writes down what it is asked."""

    def __init__(self, *rows):
        self._rows = rows
        self.asked = []
        self.heard_at = []

    def submit(self, message, joined=None):
        self.heard_at.append(time.monotonic())
        self.asked.append(("submit", message.request_id, message.n))
        stream = joined or Stream(message.request_id)
        if joined or message.request_id == "r":
            for row in self._rows:
                stream.put(row)
        return stream

    def close_stream(self, request_id, *, finished):
        self.asked.append(("close", request_id, finished))

    def abort_choice(self, request_id, index):
        self.asked.append(("abort", request_id, index))


def row(request_id, index, text, reason=None):
    return RowOutput(request_id, tuple(text.encode()), reason, index=index)


def job(request_id, n=1, first=0, stops=()):
    return Submission(Submit(request_id, (1, 2), Sampling(9), n), stops, first=first)


async def generated(engine, jobs, tmp_path):
    """All deltas as (choice, text, tokens so far, reason)."""
    generator = Generator(engine, ModelText(tiny_model_dir(tmp_path)), Counts())
    async with generator.answering(jobs, 0.0) as deltas:
        together = [delta async for found in deltas for delta in found]
    return [(delta.choice, delta.piece.text, delta.completion_tokens, delta.finish_reason) for delta in together]


async def test_answers_of_one_prompt_are_distinguished_and_end_one_by_one(tmp_path):
    engine = ScriptedEngine(row("r", 1, "b"), row("r", 0, "a"), row("r", 1, "B", "length"), row("r", 0, "A", "length"))
    assert await generated(engine, [job("r", 2)], tmp_path) == [
        (1, "b", 1, None),
        (0, "a", 1, None),
        (1, "B", 2, "length"),
        (0, "A", 2, "length"),
    ]
    assert engine.asked == [("submit", "r", 2), ("close", "r", True)]


async def test_an_answer_that_a_stop_string_ends_is_freed_alone_and_its_late_tokens_are_dropped(tmp_path):
    engine = ScriptedEngine(
        row("r", 0, "no!"), row("r", 0, "late"), row("r", 1, "yes"), row("r", 0, "", "abort"), row("r", 1, "", "length")
    )
    said = await generated(engine, [job("r", 2, stops=("!",))], tmp_path)
    assert said == [(0, "no", 3, "stop"), (1, "yes", 3, None), (1, "", 3, "length")]
    assert engine.asked == [("submit", "r", 2), ("abort", "r", 0), ("close", "r", True)]


async def test_a_stop_id_counts_and_shows_no_text_unless_it_is_to_be_shown(tmp_path):
    rows = row("r", 0, "yes"), row("r", 0, "X", "stop")
    assert await generated(ScriptedEngine(*rows), [job("r")], tmp_path) == [(0, "yes", 3, None), (0, "", 4, "stop")]
    shown = replace(job("r"), shows_stop=True)
    assert await generated(ScriptedEngine(*rows), [shown], tmp_path) == [(0, "yes", 3, None), (0, "X", 4, "stop")]
    complete = row("r", 0, "yes"), row("r", 0, "", "stop")  # a grammar's end, without a token
    assert await generated(ScriptedEngine(*complete), [job("r")], tmp_path) == [(0, "yes", 3, None), (0, "", 3, "stop")]


async def test_what_a_stop_string_held_back_comes_before_the_stop_id(tmp_path):
    engine = ScriptedEngine(row("r", 0, "yes!"), row("r", 0, "X", "stop"))
    assert await generated(engine, [job("r", stops=("!?",))], tmp_path) == [(0, "yes", 4, None), (0, "!", 5, "stop")]


async def test_the_engine_is_informed_of_an_answer_that_a_stop_string_ended_and_not_of_one_that_it_ended_itself(tmp_path):
    engine = ScriptedEngine(row("r", 0, "no!"), row("r", 0, "late"))
    assert await generated(engine, [job("r", stops=("!",))], tmp_path) == [(0, "no", 3, "stop")]
    assert engine.asked == [("submit", "r", 1), ("close", "r", False)], "it would compute up to max_tokens for nobody"
    engine = ScriptedEngine(row("r", 0, "yes", "length"))
    await generated(engine, [job("r", stops=("!",))], tmp_path)
    assert engine.asked == [("submit", "r", 1), ("close", "r", True)]


async def test_several_prompts_are_numbered_by_their_place_and_share_one_stream(tmp_path):
    engine = ScriptedEngine(*(row(*end, "length") for end in [("r-1", 0, "c"), ("r-0", 1, "b"), ("r-0", 0, "a"), ("r-1", 1, "d")]))
    said = await generated(engine, [job("r-0", 2), job("r-1", 2, first=2)], tmp_path)
    assert said == [(2, "c", 1, "length"), (1, "b", 1, "length"), (0, "a", 1, "length"), (3, "d", 1, "length")]
    assert engine.asked[:2] == [("submit", "r-0", 2), ("submit", "r-1", 2)]
    assert sorted(engine.asked[2:]) == [("close", "r-0", True), ("close", "r-1", True)]


async def test_what_preparing_took_ends_before_the_engine_may_have_heard_of_the_request(tmp_path):
    """The engine's own times run from there: one that was stamped later counted the first part of the queue twice."""
    engine = ScriptedEngine(row("r", 0, "a", "stop"))
    generator = Generator(engine, ModelText(tiny_model_dir(tmp_path)), Counts())
    async with generator.answering([job("r")], 0.0) as deltas:
        assert [delta async for delta in deltas]
    (heard_at,) = engine.heard_at
    assert generator.counts.recent.get("r")[0].submitted <= heard_at


async def test_one_answer_that_fails_ends_its_request_and_frees_the_others(tmp_path):
    engine = ScriptedEngine(row("r-1", 0, "c"), RowOutput("r-0", (), "error", "why"))
    with pytest.raises(RequestFailed, match="why"):
        await generated(engine, [job("r-0"), job("r-1", first=1)], tmp_path)
    assert sorted(engine.asked[2:]) == [("close", "r-0", False), ("close", "r-1", False)]


async def test_tokens_that_came_together_are_sent_together_and_before_a_later_error(tmp_path):
    engine = ScriptedEngine(row("r", 0, "a"), row("r", 0, "b"), RowOutput("r", (), "error", "why"))
    generator = Generator(engine, ModelText(tiny_model_dir(tmp_path)), Counts())
    async with generator.answering([job("r")], 0.0) as deltas:
        assert [delta.piece.text for delta in await anext(aiter(deltas))] == ["a", "b"]
        with pytest.raises(RequestFailed, match="why"):
            await anext(aiter(deltas))
    assert engine.asked[-1] == ("close", "r", False)


async def test_a_reader_that_waits_is_woken_once_and_gets_all_that_came_then_the_error():
    stream = Stream("r")
    reader = asyncio.ensure_future(stream.take())
    await asyncio.sleep(0)
    rows = [row("r", 0, "a"), row("r", 0, "b")]
    for one in rows:
        stream.put(one)
    stream.put(RequestFailed("first"))
    stream.put(RequestFailed("second"))
    stream.put(row("r", 0, "too late"))
    assert stream.behind == 2
    assert await reader == rows
    assert stream.behind == 0
    with pytest.raises(RequestFailed, match="first"):
        await stream.take()


async def test_a_reader_that_was_cancelled_does_not_hinder_the_next():
    stream = Stream("r")
    reader = asyncio.ensure_future(stream.take())
    await asyncio.sleep(0)
    reader.cancel()
    stream.put(row("r", 0, "a"))
    assert len(await stream.take()) == 1


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        ("queue_full", 429, ERROR_OVERLOADED),
        ("load_shed", 429, ERROR_OVERLOADED),
        ("memory_pressure", 503, ERROR_OVERLOADED),
        ("deadline", 503, ERROR_OVERLOADED),
        ("draining", 503, ERROR_DRAINING),
    ],
)
async def test_a_refusal_says_when_to_come_back(tmp_path, reason, status, code):
    engine = ScriptedEngine(RowOutput("r", (), "refused", refusal=Refusal(reason, 2.5, "not now")))
    with pytest.raises(RequestError) as caught:
        await generated(engine, [job("r")], tmp_path)
    answer = response_of(caught.value)
    wait, milliseconds = ("1", "1000") if reason == "draining" else ("3", "2500")
    assert (answer.status_code, json.loads(answer.body)["error"]["code"]) == (status, code)
    assert answer.headers[HEADER_SHOULD_RETRY] == "true"
    assert (answer.headers[HEADER_RETRY_AFTER], answer.headers[HEADER_RETRY_AFTER_MS]) == (wait, milliseconds)


def test_no_wait_is_longer_than_clients_obey():
    answer = response_of(Overloaded("x", 1e9))
    assert (answer.headers[HEADER_RETRY_AFTER], answer.headers[HEADER_RETRY_AFTER_MS]) == ("120", "120000")
