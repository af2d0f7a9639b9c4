"""What an answer tells of its tokens and its end, and that no text of a model can tell it."""

import json

import pytest
from pagoda_gateway.requests.told import Told

CHAT = {
    "choices": [{"finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
}
RESPONSES = {"usage": {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 3}}
MESSAGES = {"stop_reason": "stop", "usage": {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 3}}


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("document", [CHAT, RESPONSES, MESSAGES])
def test_the_tokens_of_each_api_are_found(document, separators):
    told = Told()
    told.feed(json.dumps(document, separators=separators).encode())
    assert told.tokens() == {"prompt_tokens": 7, "cached_tokens": 4, "completion_tokens": 3}
    assert told.finish == ({"stop"} if document is not RESPONSES else set())


def test_the_last_count_of_a_stream_counts_and_every_end_does():
    told = Told()
    for event in (
        b'{"usage":{"output_tokens":1}}',
        b'{"finish_reason":null}',
        b'{"finish_reason":"length"}',
        b'{"finish_reason":"stop","output_tokens":9}',
    ):
        told.feed(b"data: " + event + b"\n\n")
    assert told.tokens() == {"completion_tokens": 9}
    assert told.finish == {"length", "stop"}


def test_a_text_that_looks_like_a_usage_is_text():
    told = Told()
    told.feed(json.dumps({"content": '{"usage":{"prompt_tokens":1}, "finish_reason":"forged"}'}).encode())
    assert (told.tokens(), told.finish) == ({}, set())
