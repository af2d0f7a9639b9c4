"""The stream of a response, whatever pieces its text comes in: its events, judged by the openai client's types, and its end."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from pagoda_daemon.answers.events import AnswerParser
from pagoda_daemon.answers.forms import REASONING_FORMS, TOOL_FORMS
from pagoda_daemon.answers.reasoning import ReasoningParser
from pagoda_daemon.answers.wishes import Wish
from pagoda_daemon.api.openai.reading import Reading
from pagoda_daemon.api.openai.replies import Answer, CompletionDetails, Head, PromptDetails, Usage
from pagoda_daemon.api.responses.conversion import read
from pagoda_daemon.api.responses.dialect import Responses, Terms
from pagoda_daemon.api.responses.events import OutputTextDelta, TextDeltas, framed
from pagoda_daemon.core.errors import BadRequest, DaemonError, DeadlineExceeded, Draining, EngineDied, RequestFailed, TooMany
from pagoda_daemon.core.messages import TokenLogprob
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.text.answer import Piece, Scored
from support.clients.hostile_requests import BASES, NUMBERS, OTHERS, TEXTS, nested_items
from support.judges import openai_types

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'
TEXT = f"<think>hm</think>I ask.{CALL}\n{CALL} Wait."
JUDGED = 7  # characters in a piece
USAGE = Usage(5, 7, 12, PromptDetails(3), CompletionDetails(2))
ID = "0123456789abcdef" * 2


def parser() -> AnswerParser:
    return ReasoningParser(REASONING_FORMS["qwen3"], "open", TOOL_FORMS["hermes"].parser(Wish()))


def dialect(*, scored: bool = False, must: bool = False, form: str = "", **fields: Any) -> Responses:
    converted = read(json.dumps({"model": "m", "input": "hi"} | fields).encode(), [])
    reads = partial(TOOL_FORMS[form].parser, Wish(parameters={"f": {"properties": {"n": {"type": "integer"}}}})) if form else parser
    reading = Reading(reads, TOOL_FORMS[form or "hermes"], must=must)
    head = Head(ID, 1000, "m", include_usage=False, spell=(lambda token: bytes([token])) if scored else None, reading=reading)
    return Responses(Terms(head, converted.asked, Sampling(9, temperature=0.5), lambda: 1002.7))


def pieces(text: str, size: int, *, scored: bool) -> Iterator[Piece]:
    """Of `size` characters; each has a token of its own if they are scored."""
    for at in range(0, len(text), size):
        part = text[at : at + size]
        score = tuple(Scored(ord(one) % 128, at + n, TokenLogprob(-1.0, 1, ((1, -1.0),))) for n, one in enumerate(part))
        yield Piece(part, score if scored else ())


def events(stream: bytes, *, judged: bool = True) -> list[dict[str, Any]]:
    """Each frame is named as its type and numbered, and the client knows all of it; to ask it is what costs time."""
    *frames, last = stream.decode().split("\n\n")
    assert last == ""
    found = []
    for number, frame in enumerate(frames):
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert (name, number) == (f"event: {event['type']}", event["sequence_number"])
        if judged:
            openai_types.event(event)
        found.append(event)
    return found


def streamed(text: str, size: int, reason: str = "stop", *, scored: bool = False, **fields: Any) -> list[dict[str, Any]]:
    made = dialect(scored=scored, **fields)
    stream = made.opening() + b"".join(made.text(piece) for piece in pieces(text, size, scored=scored))
    return events(stream + made.finish(reason) + made.end(USAGE), judged=size == JUDGED)


def at_once(text: str, reason: str = "stop", *, scored: bool = False, **fields: Any) -> dict[str, Any]:
    (piece,) = pieces(text, len(text), scored=scored) if text else (Piece(""),)
    document = json.loads(dialect(scored=scored, **fields).whole([Answer(piece, reason)], USAGE))
    openai_types.response(document)
    return document


def played(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as a client joins them from deltas, each begun by its own event and closed by what it says at the end."""
    items: list[dict[str, Any]] = []
    for event in found:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items)
            items.append(event["item"])
        elif kind == "content_part.added":
            items[event["output_index"]]["content"].append(event["part"])
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            items[event["output_index"]]["content"][event["content_index"]]["text"] += event["delta"]
        elif kind == "function_call_arguments.delta":
            items[event["output_index"]]["arguments"] += event["delta"]
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert event["text"] == items[event["output_index"]]["content"][0]["text"]
        elif kind == "function_call_arguments.done":
            assert event["arguments"] == items[event["output_index"]]["arguments"]
        elif kind == "output_item.done":
            items[event["output_index"]] = event["item"]
        if "item_id" in event:
            assert event["item_id"] == items[event["output_index"]]["id"]
    return items


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_the_pieces_of_a_text_change_nothing_but_the_deltas(reason, scored):
    fields = {"include": ["message.output_text.logprobs"]} if scored else {}
    for text in (TEXT, "hello", "", "<think>hm", f"a{CALL}", CALL[:40], "x<tool_call>no", TEXT[:60]):
        whole = at_once(text, reason, scored=scored, **fields)
        for size in (1, 2, JUDGED, 19, 1000):
            found = streamed(text, size, reason, scored=scored, **fields)
            assert found[-1]["response"] == whole, (text, size)
            assert played(found) == whole["output"]
            said = [event["logprobs"] for event in found if event["type"] == "response.output_text.delta"]
            tokens = [token["token"] for one in said for token in one]
            parts = [part for item in whole["output"] if item["type"] == "message" for part in item["content"]]
            assert tokens == [token["token"] for part in parts for token in part["logprobs"]]
            assert [len(part["logprobs"]) for part in parts] == [len(part["text"]) if scored else 0 for part in parts]


ONE_CALL = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>',
    "llama3_json": '{"name": "f", "parameters": {"n": 1}}',
    "pythonic": "[f(n=1)]",
    "mistral": '[TOOL_CALLS]f[ARGS]{"n": 1}',
    "granite": '<|tool_call|>[{"name": "f", "arguments": {"n": 1}}]',
    "phi4_mini_json": 'functools[{"name": "f", "arguments": {"n": 1}}]',
    "deepseek_v31": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"n": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>",
    "glm45": "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "openai": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
    '{"n": 1}',
}


@pytest.mark.parametrize(("form", "text"), ONE_CALL.items())
def test_calls_of_every_form_are_items(form, text):
    whole = at_once(text, form=form)
    call = whole["output"][-1]
    assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "f", {"n": 1})
    assert [item["type"] for item in whole["output"][:-1]] == (["reasoning"] if form == "openai" else [])
    for size in (1, JUDGED):
        found = streamed(text, size, form=form)
        assert found[-1]["response"] == whole
        assert played(found) == whole["output"]


def test_a_frame_of_text_is_written_as_its_event_is():
    for text in ("a", "", '"\\', "\0\u2028", 'sequence_number":0', "é\U0001f600"):
        for number in (0, 7, 12345):
            event = OutputTextDelta(sequence_number=number, item_id="msg_1", output_index=3, delta=text)
            assert TextDeltas("msg_1", 3).framed(number, text) == framed(event)


def test_an_answer_that_is_whole_and_one_that_is_cut():
    done, cut = at_once(TEXT), at_once(TEXT[:-30], "length")
    assert [item["type"] for item in done["output"]] == ["reasoning", "message", "function_call", "function_call", "message"]
    assert (done["status"], done["incomplete_details"], done["completed_at"]) == ("completed", None, 1002)
    assert {item["status"] for item in done["output"]} == {"completed"}
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in cut["output"]] == ["completed", "completed", "completed", "incomplete"]
    assert "completed_at" not in cut
    assert done["usage"] == {
        "input_tokens": 5,
        "output_tokens": 7,
        "total_tokens": 12,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 2},
    }


def test_an_answer_of_nothing_is_an_empty_message_unless_it_must_be_a_call():
    assert [item["content"][0]["text"] for item in at_once("")["output"]] == [""]
    made = dialect(must=True)
    assert json.loads(made.whole([Answer(Piece(""), "length")], USAGE))["output"] == []


def test_calls_have_ids_of_their_own_that_a_client_hands_back():
    items = at_once(f"{CALL}{CALL}")["output"]
    assert len({item["call_id"] for item in items}) == len({item["id"] for item in items}) == 2
    assert all(item["id"].startswith(f"fc_{ID}") for item in items)


@pytest.mark.parametrize(
    ("error", "code", "ours"),
    [
        (RequestFailed("no"), "server_error", "internal_error"),
        (EngineDied("no"), "server_error", "engine_died"),
        (Draining("no"), "server_error", "draining"),
        (DeadlineExceeded("no"), "server_error", "deadline_exceeded"),
        (TooMany("no"), "rate_limit_exceeded", "overloaded"),
        (BadRequest("response_format leaves no token", "response_format"), "invalid_prompt", "invalid_value"),
    ],
)
@pytest.mark.parametrize("begun", [False, True])
def test_a_failure_ends_the_response_and_then_the_stream(error: DaemonError, code: str, ours: str, *, begun: bool):
    """Also where nothing but a comment was sent before."""
    made = dialect()
    stream = made.opening() + made.text(Piece("hel")) if begun else b""
    found = events(stream + made.failed(error))
    assert [event["type"] for event in found[:2]] == ["response.created", "response.in_progress"]
    failed, last = found[-2:]
    assert (failed["type"], last["type"]) == ("response.failed", "error")
    assert (failed["response"]["status"], failed["response"]["error"]["code"]) == ("failed", code)
    assert [item["content"][0]["text"] for item in failed["response"]["output"]] == (["hel"] if begun else [])
    assert (last["code"], last["message"]) == (ours, failed["response"]["error"]["message"])
    assert last["error"]["code"] == ours
    if isinstance(error, BadRequest):
        assert (last["param"], last["message"]) == ("text.format", "text.format leaves no token")


@pytest.mark.deep
def test_hostile_requests_are_refused_or_repeated_in_a_form_that_the_client_knows():
    """Every field with every wrong value, and items that are wrong inside."""
    luck, outcomes = random.Random(5), Counter()
    base, names = BASES["/v1/responses"]
    bodies = [json.dumps(base | {name: wrong}).encode() for name in names for wrong in (*NUMBERS, *TEXTS, *OTHERS)]
    for body in [*bodies, *(nested_items(luck).body for _ in range(3000))]:
        try:
            converted = read(body, [])
            converted.chat.turns()
        except BadRequest:
            outcomes["refused"] += 1
            continue
        head = Head(ID, 1000, "m", include_usage=False)
        whole = Responses(Terms(head, converted.asked, Sampling(9), lambda: 1.0)).whole([Answer(Piece("x"), "stop")], USAGE)
        openai_types.response(json.loads(whole))
        outcomes["answered"] += 1
    assert min(outcomes["refused"], outcomes["answered"]) > 300
