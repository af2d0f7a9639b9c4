"""Whatever a client sends, a refusal shows at most 200 characters of it; every field of every endpoint is filled with long values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc.aio
import httpx
import pytest
from pagoda_contracts.names import GRPC_GENERATE, HEADER_DEADLINE
from pagoda_contracts.pb import inference_pb2 as pb
from pagoda_daemon.core.errors import MAX_SHOWN, clipped, shown
from pagoda_daemon.structured.worker import _sentence
from pagoda_daemon.text.template_worker import Job, attempt
from support.clients.hostile_requests import BASES, OTHER_PATHS
from support.judges.refusals import error_of, message_error_of
from support.servers.local_replica import HOST, LocalReplica, local_replica

LONG = "q" * 5000
VALUES: tuple[Any, ...] = (
    LONG,
    [LONG],
    {LONG: 1},
    {LONG: LONG},
    [[LONG]],
    {"type": LONG, LONG: {LONG: LONG}},
    int("9" * 4000),
    [{LONG: 1}],
)
WITHIN = (
    {"messages": [{"role": LONG, "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": LONG}]}]},
    {"messages": [{"role": "user", "content": "x", LONG: 1}]},
    {"messages": [{"role": "assistant", "tool_calls": [{"id": LONG, "type": LONG, "function": {"name": LONG, "arguments": LONG}}]}]},
    {"tools": [{"type": "function", "function": {"name": LONG}}]},
    {"tools": [{"type": "function", "function": {"name": "a" * 64}}], "tool_choice": {"type": "function", "function": {"name": LONG}}},
    {"tool_choice": LONG},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": LONG}}}},
    {"response_format": {"type": LONG}},
    {"stream_options": {LONG: True}},
    {"structured_outputs": {LONG: LONG}},
    {"logit_bias": {LONG: 1}},
)


def bodies() -> Iterator[tuple[str, bytes]]:
    for path, (base, fields) in BASES.items():
        for field in (*fields, LONG, LONG + "`'", "x" + LONG + " - at `$." + LONG):
            yield from ((path, json.dumps(base | {field: value}).encode()) for value in VALUES)
        yield from ((path, json.dumps(base | within).encode()) for within in WITHIN)
        yield path, json.dumps(base).encode()[:-1] + f',"{LONG}":1,"{LONG}":2}}'.encode()
        yield path, LONG.encode()


def judge(answer: httpx.Response) -> bool:
    """Whether it was refused, in few words."""
    if answer.status_code < 400:
        return False
    assert answer.status_code < 500, answer.text
    error = (message_error_of if answer.request.url.path.startswith("/v1/messages") else error_of)(answer.json())
    assert "q" * (MAX_SHOWN + 1) not in answer.text, answer.text[:600]
    assert "9" * (MAX_SHOWN + 1) not in answer.text
    assert len(error["message"]) <= 3 * MAX_SHOWN, error
    assert len(error.get("param") or "") <= MAX_SHOWN  # Anthropic's errors have none
    return True


def client_of(replica: LocalReplica) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{HOST}:{replica.ports.http}", timeout=300.0, trust_env=False)


@pytest.mark.deep
async def test_no_refusal_of_any_field_of_any_endpoint_shows_more() -> None:
    async with local_replica() as replica, client_of(replica) as client:
        refused = 0
        for path, body in bodies():
            refused += judge(await client.post(path, content=body))
        assert refused > 500
        for path in OTHER_PATHS:
            judge(await client.get(path.replace("{name}", LONG).replace("{id}", LONG)))
        for path in (f"/{LONG}", "/v1/completions"):
            assert judge(await client.request("PUT", path, headers={HEADER_DEADLINE: LONG}))
        assert judge(await client.post("/tokenize", json={}, headers={HEADER_DEADLINE: LONG}))


async def test_grpc_shows_no_more() -> None:
    async with local_replica() as replica, grpc.aio.insecure_channel(f"{HOST}:{replica.ports.grpc}") as channel:
        call = channel.unary_stream(GRPC_GENERATE, pb.GenerateRequest.SerializeToString, pb.GenerateResponse.FromString)
        for request in (pb.GenerateRequest(model=LONG), pb.GenerateRequest(model="toy", prompt_tokens=[1], tier=LONG, cache_salt=LONG)):
            async for event in call(request):
                assert "q" * (MAX_SHOWN + 1) not in event.failed.message


def test_what_others_say_of_a_grammar_or_a_conversation_is_cut_as_well() -> None:
    assert len(_sentence(LONG)) == MAX_SHOWN
    done = attempt("{{ raise_exception(messages) }}", [], Job({"messages": LONG}, 10**6))
    assert done.error is not None
    assert len(done.error) == MAX_SHOWN


@pytest.mark.parametrize(
    ("value", "said"),
    [("a", "'a'"), ("a" * 200, f"'{'a' * 200}'"), ("a" * 201, f"'{'a' * 200}'…"), (12, "12"), (int("1" * 300), "1" * 200 + "…")],
)
def test_a_value_is_shown_as_far_as_200_characters(value: object, said: str) -> None:
    assert shown(value) == said


def test_values_within_somebody_elses_sentence_are_cut() -> None:
    assert clipped(f"unknown field `{LONG}`") == f"unknown field `{'q' * 200}…`"
    assert clipped("Expected `int`, got `str`") == "Expected `int`, got `str`"
