"""Each error of the daemon has the status and the type of Anthropic's API, and the headers that clients and gateways retry by."""

import json

import pytest
from pagoda_contracts.names import HEADER_ERROR_CODE, HEADER_RETRY_AFTER, HEADER_SHOULD_RETRY
from pagoda_daemon.api.anthropic.conversion import NO_THREADS
from pagoda_daemon.api.anthropic.errors import response_of, translated
from pagoda_daemon.api.openai import errors as openai
from pagoda_daemon.api.openai.errors import TOO_LARGE, TOO_SLOW
from pagoda_daemon.core import errors


@pytest.mark.parametrize(
    ("error", "status", "kind", "retry"),
    [
        (errors.BadRequest("m"), 400, "invalid_request_error", None),
        (errors.Unauthenticated("m"), 401, "authentication_error", None),
        (errors.Forbidden("m"), 403, "permission_error", None),
        (errors.ModelNotFound("m"), 404, "not_found_error", None),
        (errors.BadRequest("m", None, TOO_SLOW), 408, "invalid_request_error", None),
        (errors.BadRequest("m", None, TOO_LARGE), 413, "request_too_large", None),
        (errors.TooMany("m", 3.0), 429, "rate_limit_error", "true"),
        (errors.RequestFailed("m"), 500, "api_error", "false"),
        (errors.EndpointNotBuilt("m"), 501, "invalid_request_error", "false"),
        (errors.DeadlineExceeded("m"), 504, "timeout_error", "false"),
        (errors.Draining("m"), 529, "overloaded_error", "true"),
        (errors.NotReady("m"), 529, "overloaded_error", "true"),
        (errors.Overloaded("m", 3.0), 529, "overloaded_error", "true"),
        (errors.EngineDied("m"), 529, "overloaded_error", "true"),
    ],
)
def test_a_status_and_its_type(error, status, kind, retry):
    answer = response_of(error, "r")
    assert (answer.status_code, json.loads(answer.body)["error"]) == (status, {"type": kind, "message": "m"})
    assert answer.headers.get(HEADER_SHOULD_RETRY) == retry
    assert answer.headers.get(HEADER_RETRY_AFTER) == openai.response_of(error).headers.get(HEADER_RETRY_AFTER)
    assert answer.headers.get(HEADER_ERROR_CODE) == openai.response_of(error).headers.get(HEADER_ERROR_CODE)
    assert int(answer.headers["content-length"]) == len(answer.body)


def test_a_bug_is_reported_in_this_shape_as_well():
    answer = translated(openai.on_bug(None, None), "r")
    said = {"type": "error", "error": {"type": "api_error", "message": "internal error"}, "request_id": "r"}
    assert (answer.status_code, json.loads(answer.body)) == (500, said)
    assert answer.headers[HEADER_ERROR_CODE] == "internal_error"


def test_only_a_refused_thread_has_details():
    said = json.loads(response_of(errors.BadRequest("m", "thread", NO_THREADS), "r").body)["error"]
    assert said["details"] == {"error_code": NO_THREADS}


def test_a_long_prompt_and_the_names_of_a_chat_are_reported_in_anthropics_words():
    long = errors.context_exceeded(8, "messages has 9 tokens", "messages")
    assert json.loads(response_of(long, "r").body)["error"]["message"].startswith("prompt is too long: This model's maximum")
    chat = errors.BadRequest("tools[1].function.parameters is empty, and stop is not", "tools[1].function.parameters")
    assert json.loads(response_of(chat, "r").body)["error"]["message"] == "tools[1].input_schema is empty, and stop is not"
