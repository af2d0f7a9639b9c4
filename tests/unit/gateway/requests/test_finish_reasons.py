"""How an answer tells its end, and that no text of a model can tell it."""

import json

import pytest
from pagoda_gateway.requests.finish_reasons import FinishReasons


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("document", [{"choices": [{"finish_reason": "stop"}]}, {"stop_reason": "stop", "usage": {}}])
def test_the_reason_of_each_api_is_found(document, separators):
    reasons = FinishReasons()
    reasons.feed(json.dumps(document, separators=separators).encode())
    assert reasons.found == {"stop"}


def test_every_end_in_a_stream_counts():
    reasons = FinishReasons()
    for event in (b'{"finish_reason":null}', b'{"finish_reason":"length"}', b'{"finish_reason":"stop"}'):
        reasons.feed(b"data: " + event + b"\n\n")
    assert reasons.found == {"length", "stop"}


def test_a_text_that_looks_like_a_reason_is_text():
    reasons = FinishReasons()
    reasons.feed(json.dumps({"content": '{"finish_reason":"forged"}'}).encode())
    assert reasons.found == set()
