"""What a body costs to read is bounded by its size: CPU time per byte, of bodies that grow where a client may let them grow."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import pytest
from pagoda_daemon.api.openai import fields, requests
from pagoda_daemon.api.openai.requests import ChatRequest, CompletionRequest, GenerationRequest
from pagoda_daemon.core.errors import BadRequest

SMALL, LARGE = 16_000, 512_000
# Of CPU time. The dearest body, lists of ids, takes 0.2 us per byte here; a quadratic one of 180 KB took 80.
MOST_US_PER_BYTE: Final = 2.0
GROWTH: Final = 6.0  # of the cost per byte, from SMALL to LARGE: linear is 1, quadratic 32

Shape = Callable[[int], tuple[type[GenerationRequest], str]]


def _chat(**fields: Any) -> tuple[type[GenerationRequest], str]:
    return ChatRequest, json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields})


def _completion(**fields: Any) -> tuple[type[GenerationRequest], str]:
    return CompletionRequest, json.dumps({"model": "m", "prompt": "x", **fields})


def _raw(inner: str) -> tuple[type[GenerationRequest], str]:
    return CompletionRequest, f'{{"model":"m","prompt":"x",{inner}}}'


def _schema(n: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{at}": {"type": "string", "enum": ["a", "b"]} for at in range(n // 48)}}


def _called(n: int) -> list[dict[str, Any]]:
    calls = [{"id": str(at), "type": "function", "function": {"name": "f", "arguments": '{"a": [1, 2]}'}} for at in range(n // 90)]
    return [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": calls}]


SHAPES: dict[str, Shape] = {
    "a key twice, the last of many": lambda n: _raw(",".join(f'"k{at}":0' for at in range(n // 10)) + ',"z":0,"z":0'),
    "each key twice": lambda n: _raw(",".join(f'"k{at // 2}":0' for at in range(n // 10))),
    "keys deep inside": lambda n: _raw('"metadata":{"a":{' + ",".join(f'"k{at}":0' for at in range(n // 10)) + ',"z":0,"z":0}}'),
    "many unknown fields": lambda n: _raw(",".join(f'"temperatur{at}":0' for at in range(n // 18))),
    "one long unknown name": lambda n: _raw('"' + "t" * n + '":0'),
    "deep lists": lambda n: _raw('"metadata":' + "[" * (n // 2) + "]" * (n // 2)),
    "deep schema": lambda n: _chat(guided_json="[" * (n // 2) + "]" * (n // 2)),
    "a long fraction": lambda n: _raw(f'"temperature":0.{"1" * n}'),
    "a long whole number": lambda n: _raw(f'"metadata":{"1" * n}'),
    "a long whole number in a call": lambda n: _chat(
        messages=[
            {"role": "user", "content": "x"},
            {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "1" * n}}]},
        ]
    ),
    "many ids": lambda n: _completion(prompt=[7] * (n // 3)),
    "many lists of ids": lambda n: _completion(prompt=[[7, 8]] * (n // 8)),
    "ids and texts mixed": lambda n: _completion(prompt=[*[7] * (n // 3), "x"]),
    "escapes": lambda n: _raw('"user":"' + "\\u00e4" * (n // 6) + '"'),
    "many messages": lambda n: _chat(messages=[{"role": "user", "content": "x"}] * (n // 36)),
    "many parts": lambda n: _chat(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}] * (n // 30)}]),
    "many calls": lambda n: _chat(messages=_called(n)),
    "tools with wide schemas": lambda n: _chat(
        tools=[{"type": "function", "function": {"name": f"f{at}", "parameters": _schema(n // 64)}} for at in range(64)]
    ),
    "many tools": lambda n: _chat(tools=[{"type": "function", "function": {"name": f"f{at}"}} for at in range(n // 50)]),
    "a wide schema": lambda n: _chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": _schema(n)}}),
    "choices": lambda n: _chat(guided_choice=[f"c{at}" for at in range(n // 9)]),
    "brackets": lambda n: _chat(guided_regex="(" * (n // 2) + ")" * (n // 2)),
    "biases": lambda n: _chat(logit_bias={str(at): 1 for at in range(n // 10)}),
    "stops": lambda n: _chat(stop=["x"] * (n // 5)),
    "bad words": lambda n: _chat(bad_words=["x"] * (n // 5)),
    "allowed ids": lambda n: _chat(allowed_token_ids=[7] * (n // 3)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_reading_a_body_costs_no_more_than_its_bytes(name: str) -> None:
    small, large = cost_us_per_byte(SHAPES[name], SMALL), cost_us_per_byte(SHAPES[name], LARGE)
    assert large <= max(GROWTH * small, 0.5), f"{small:.3f} us of CPU per byte of {SMALL}, {large:.3f} of {LARGE}"
    assert large <= MOST_US_PER_BYTE


def cost_us_per_byte(shape: Shape, size: int) -> float:
    """The least of three, of this thread's CPU time."""
    kind, text = shape(size)
    body = text.encode()
    assert size / 3 < len(body) < size * 3
    fields.learn(kind)
    spent = []
    for _ in range(3):
        begun = time.thread_time_ns()
        with suppress(BadRequest):
            requests.parse(body, kind, [])
        spent.append(time.thread_time_ns() - begun)
    return min(spent) / 1000 / len(body)
