"""What a client is told of an answer that ended badly: statuses, codes, whether to try again, and the names of the fields that did it."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from pagoda_contracts.names import HEADER_DEADLINE, HEADER_SHOULD_RETRY
from pagoda_daemon.api.grpc import server
from pagoda_daemon.api.openai.errors import body_of, response_of, retryable
from pagoda_daemon.api.routes import admission, completions
from pagoda_daemon.api.routes.ends import checked_reason
from pagoda_daemon.api.routes.preparing import in_time
from pagoda_daemon.core.errors import BadRequest, DaemonError, DeadlineExceeded
from pagoda_daemon.core.messages import Grammar, Reason, Refusal, RowOutput
from pagoda_daemon.engine.client import EngineLink
from pagoda_daemon.engine.stream import Stream
from support.judges.refusals import error_of
from support.servers.local_replica import NAME, local_replica, request

GRAMMAR = Grammar("regex", "a", param="response_format")


def raised_for(reason: Reason, fields: tuple[str, ...] = (), grammar: Grammar | None = None) -> DaemonError:
    row = RowOutput("r", (), "error", "e", refusal=Refusal(reason, 0.0, "why", fields))
    with pytest.raises(DaemonError) as caught:
        checked_reason(row, grammar)
    return caught.value


@pytest.mark.parametrize(
    ("reason", "fields", "grammar", "answer"),
    [
        ("expired", (), None, (408, "deadline_exceeded", None, "false", "why")),
        ("never_fits", (), None, (400, "invalid_value", None, None, "why")),
        ("grammar", (), GRAMMAR, (400, "invalid_grammar", "response_format", None, "why")),
        ("conflict", ("grammar",), GRAMMAR, (400, "invalid_grammar", "response_format", None, "response_format leaves")),
        (
            *("conflict", ("allowed_token_ids", "grammar"), GRAMMAR),
            (400, "invalid_value", "allowed_token_ids", None, "allowed_token_ids and response_format together"),
        ),
        ("conflict", ("a", "b", "c"), None, (400, "invalid_value", "a", None, "a, b and c together")),
        ("deadline", (), None, (503, "overloaded", None, "true", "deadline: why")),
    ],
)
def test_each_end_has_its_answer(reason: Reason, fields: tuple[str, ...], grammar: Grammar | None, answer: tuple[Any, ...]) -> None:
    response = response_of(raised_for(reason, fields, grammar))
    error = error_of(json.loads(response.body))
    assert (response.status_code, error["code"], error["param"], response.headers.get(HEADER_SHOULD_RETRY)) == answer[:-1]
    assert error["message"].startswith(answer[-1])


async def test_over_grpc_a_deadline_is_no_reason_to_try_another_replica() -> None:
    error = raised_for("expired")
    assert (body_of(error).error.code, retryable(error)) == ("deadline_exceeded", False)
    assert server._CODES[DeadlineExceeded] is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_client_that_does_not_read_gets_that_reason_and_no_internal_error() -> None:
    stream = Stream("r")
    EngineLink._cut(SimpleNamespace(close_stream=lambda *_, **__: None), "r", stream)  # type: ignore[arg-type]
    with pytest.raises(DaemonError) as caught:
        await stream.take()
    assert response_of(caught.value).status_code == 408
    assert body_of(caught.value).error.code == "request_timeout"


async def ended_at_its_deadline(replica: Any, body: dict[str, Any], path: str = "/v1/completions") -> tuple[bytes, bytes]:
    """Head and body of the answer to a request whose deadline the engine finds passed, once it has computed some of it."""
    whole = {"model": NAME, "prompt": [5, 6], "max_tokens": 400, "ignore_eos": True, **body}
    asking = asyncio.ensure_future(replica.send(request("POST", path, json.dumps(whole).encode(), **{HEADER_DEADLINE: "600000"})))
    await replica.until(lambda: bool(replica.engine.computed))
    await replica.engine.steps(3)
    replica.engine.clock_ahead_ms = 700_000.0
    answer = await asking
    replica.engine.clock_ahead_ms = 0.0
    return answer.partition(b"\r\n\r\n")[::2]


async def test_a_deadline_that_passes_is_408_and_an_event_where_the_stream_has_begun() -> None:
    async with local_replica() as replica:
        head, whole = await ended_at_its_deadline(replica, {})
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"x-should-retry: false" in head
        error = error_of(json.loads(whole))
        assert (error["code"], error["type"], error["param"]) == ("deadline_exceeded", "invalid_request_error", None)
        assert "-" not in error["message"]
        head, stream = await ended_at_its_deadline(replica, {"stream": True})
        assert head.startswith(b"HTTP/1.1 200 ")
        *_, last, done = stream.strip().split(b"\n\n")
        assert error_of(json.loads(last[6:]))["code"] == "deadline_exceeded"
        assert done == b"data: [DONE]"
        await replica.at_rest()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/detokenize"])
async def test_a_deadline_that_passes_before_the_body_has_come_is_the_same(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every endpoint that reads one; the deadline passes in the first look at it."""
    monkeypatch.setattr(admission, "in_time", lambda _deadline_ms, work: in_time(0, work))
    async with local_replica() as replica:
        raw = request("POST", path, b"{" + b" " * 99 + b"}", **{HEADER_DEADLINE: "600000"})
        reader, writer = await replica.connect()
        writer.write(raw[:-50])
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"deadline_exceeded" in await reader.readuntil(b"}}")
        assert replica.engine.submitted == []


async def test_work_in_time_is_done_and_what_it_raises_is_raised() -> None:
    async def work() -> int:
        return 3

    async def broken() -> int:
        raise BadRequest("x")

    later = int(time.monotonic() * 1000) + 600_000
    assert await in_time(None, work()) == await in_time(later, work()) == 3
    with pytest.raises(BadRequest):
        await in_time(later, broken())
    with pytest.raises(DeadlineExceeded):
        await in_time(0, asyncio.Event().wait())


BROKEN = {
    "/v1/completions": ({"prompt": [7, 9], "stream": True}, b"data: [DONE]", "internal_error"),
    "/v1/responses": ({"input": "x", "stream": True}, b"event: error", "internal_error"),
    "/v1/messages": ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 40, "stream": True}, b"event: error", "api_error"),
}


@pytest.mark.parametrize("path", BROKEN)
async def test_a_fault_of_ours_in_mid_stream_is_the_streams_last_event_without_its_words(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields, end, code = BROKEN[path]
    frames = completions._frames

    def breaks(dialect: Any, usages: Any, deltas: Any) -> bytes:
        if usages.completion_tokens > 2:
            raise RuntimeError("the answer's words")
        return frames(dialect, usages, deltas)

    monkeypatch.setattr(completions, "_frames", breaks)
    async with local_replica() as replica:
        raw = request("POST", path, json.dumps({"model": NAME} | fields).encode())
        head, _, stream = (await replica.send(raw)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert stream.strip().rpartition(b"\n\n")[2].startswith(end)
        assert code.encode() in stream
        assert b"words" not in stream
        await replica.at_rest()
