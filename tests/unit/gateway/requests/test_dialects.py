"""How each API writes errors: the documents, the statuses, and the last event of a stream that broke."""

import json

import httpx
import openai
import pytest
from openai.types.responses import ResponseErrorEvent
from pagoda_gateway.requests.dialects import ANTHROPIC, OPENAI, RESPONSES, dialect_of
from pagoda_gateway.requests.errors import AllOverloaded, BadRequest, BodyTooLarge, ModelNotFound, QueueFull, Unauthenticated, UpstreamDied


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (BadRequest("x", "model"), 400, "invalid_request_error"),
        (Unauthenticated("x"), 401, "authentication_error"),
        (ModelNotFound("m"), 404, "not_found_error"),
        (BodyTooLarge("x"), 413, "request_too_large"),
        (QueueFull("x"), 429, "rate_limit_error"),
        (UpstreamDied("x"), 502, "api_error"),
        (AllOverloaded("x"), 529, "overloaded_error"),
    ],
)
def test_anthropics_kind_follows_the_status_and_no_room_is_529(error, status, kind):
    reply = ANTHROPIC.reply(error, "r1")
    document = json.loads(reply.body)
    assert (reply.status, document["error"]["type"], document["request_id"]) == (status, kind, "r1")
    assert OPENAI.reply(error, "r1").status == error.status


def test_a_stream_ends_as_its_own_api_ends_it():
    error = UpstreamDied("gone")
    chat = OPENAI.event(error, "r1", 7)
    assert chat.startswith(b"data: {")
    assert chat.endswith(b"data: [DONE]\n\n")
    name, data, *_ = RESPONSES.event(error, "r1", 7).decode().split("\n")
    event = ResponseErrorEvent.model_validate_json(data.removeprefix("data: "), strict=True)
    assert (name, event.sequence_number, event.code) == ("event: error", 7, "upstream_died")
    name, data, *_ = ANTHROPIC.event(error, "r1", 7).decode().split("\n")
    assert (name, json.loads(data.removeprefix("data: "))["error"]) == ("event: error", {"type": "api_error", "message": "gone"})


async def test_openais_client_raises_on_a_response_that_broke():
    stream = RESPONSES.event(UpstreamDied("gone"), "r1", 0)
    answer = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=stream)
    http = httpx.AsyncClient(transport=httpx.MockTransport(lambda _request: answer))
    async with openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="none", max_retries=0, http_client=http) as client:
        with pytest.raises(openai.APIError, match="gone") as caught:
            [event async for event in await client.responses.create(model="m", input="hi", stream=True)]
    assert caught.value.code == "upstream_died"


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v1/messages", ANTHROPIC),
        ("/v1/messages/count_tokens", ANTHROPIC),
        ("/v1/messages/batches", ANTHROPIC),
        ("/v1/responses", RESPONSES),
        ("/x", OPENAI),
    ],
)
def test_the_path_names_the_dialect(path, dialect):
    assert dialect_of(path) is dialect
