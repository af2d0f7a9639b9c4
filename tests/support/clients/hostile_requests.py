"""Requests that mean harm, by the thousand, from a seed: every field with every wrong value, random JSON, broken bytes, wild paths."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from pagoda_daemon.api.anthropic.requests import CountTokensRequest, MessagesRequest
from pagoda_daemon.api.openai.requests import ChatRequest, CompletionRequest
from pagoda_daemon.api.responses.requests import ResponsesRequest
from pagoda_daemon.api.routes.embeddings import EmbeddingRequest
from pagoda_daemon.api.routes.openapi import OPERATIONS
from pagoda_daemon.api.routes.texts import DetokenizeRequest, TokenizeRequest
from support.servers.replica import NAME

PROMPT_CANARY: Final = "canary-of-a-prompt-7f3a"
KEY_CANARY: Final = "canary-of-a-key-91bc"
MESSAGES: Final = [{"role": "system", "content": PROMPT_CANARY}, {"role": "user", "content": f"hi {PROMPT_CANARY}"}]
# Of every endpoint that there is: tests/unit/daemon/api/routes/test_openapi.py holds that OPERATIONS are the application's routes.
SAMPLES: Final[dict[type[Any], dict[str, Any]]] = {
    CompletionRequest: {"model": NAME, "prompt": PROMPT_CANARY, "max_tokens": 2},
    ChatRequest: {"model": NAME, "messages": MESSAGES, "max_tokens": 2},
    ResponsesRequest: {"model": NAME, "input": PROMPT_CANARY, "instructions": PROMPT_CANARY, "max_output_tokens": 2},
    TokenizeRequest: {"model": NAME, "prompt": PROMPT_CANARY},
    DetokenizeRequest: {"model": NAME, "tokens": [1, 2, 3]},
    EmbeddingRequest: {"model": NAME, "input": PROMPT_CANARY},
    MessagesRequest: {"model": NAME, "max_tokens": 2, "messages": MESSAGES},
    CountTokensRequest: {"model": NAME, "messages": MESSAGES},
}
BASES: Final[dict[str, tuple[dict[str, Any], tuple[str, ...]]]] = {
    one.path: (SAMPLES[one.request], one.request.__struct_fields__) for one in OPERATIONS if one.request is not None
}
OTHER_PATHS: Final = tuple(one.path for one in OPERATIONS if one.request is None)
FOREIGN: Final = (
    *(
        "kv_transfer_params",
        "prompt_embeds",
        "cache_salt",
        "chat_template",
        "custom_logit_processor",
        "mm_processor_kwargs",
        "lora_request",
    ),
    *("best_of", "guided_json", "structured_outputs", "suffix", "priority", "__class__", "constructor", "__proto__", "$ref", "", "\u0000"),
)
NUMBERS: Final = (
    0,
    1,
    -1,
    2,
    127,
    128,
    129,
    2**15,
    2**31 - 1,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    10**30,
    0.0,
    -0.0,
    1.5,
    -1e308,
    1e-320,
)
TEXTS: Final = (
    *("", " ", "\u0000", "\ufeff", "\u202e", "\U0001f4a9" * 30, "e\u0301" * 50, "\u0000" * 50, "a" * 257, "a" * 5000, "%s%n{0.__class__}"),
    *(
        "{{7*7}}",
        "<|im_start|>system",
        "<|im_end|>",
        "../../etc/passwd",
        "'; DROP TABLE x; --",
        "null",
        "NaN",
        "true",
        "1e999",
        "[",
        "http://x/",
    ),
)
OTHERS: Final[tuple[Any, ...]] = (
    *(None, True, False, [], {}, [[]], [{}], {"": None}, [None], [[[]]], {"type": "json_object"}, {"type": "nonsense"}, [True], ["a", 1]),
    *([0] * 3, [-1], [2**31], [1.5], ["a"] * 200, {"1": 1}, {"-1": 1}, {"x": 1}, {"1": 1000}, {"a": {"b": {"c": {}}}}),
)
WRONG: Final = (*NUMBERS, *TEXTS, *OTHERS)
METHODS: Final = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE")


@dataclass(frozen=True)
class Hostile:
    """One request. `echoes`: what it sends as names may come back in a refusal that names them. `route`: the endpoint that is meant."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str]
    echoes: bool = False
    route: str = ""


def hostile_requests(others: int, seed: int, *, whole: bool = False) -> Iterator[Hostile]:
    """Fields with wrong values, alone (a refusal of one hides what a second would do), and others between. The first are of each endpoint
    one. Each field gets every second value, for which the endpoints that have it take turns; `whole`: each endpoint gets all of them."""
    luck = random.Random(seed)
    makers = [confused, foreign, nested, nested_items, random_json, broken, wild_path, bodyless]
    todo: list[Any] = [*_pairs(whole), *(luck.choice(makers) for _ in range(others))]
    luck.shuffle(todo)
    yield from (_post(luck, path, base | {luck.choice(fields): value(luck)}) for path, (base, fields) in BASES.items())
    yield from (bodyless(luck, path) for path in OTHER_PATHS)
    for one in todo:
        if isinstance(one, tuple):
            path, field, wrong = one
            yield _post(luck, path, BASES[path][0] | {field: wrong})
        else:
            yield one(luck)


def _pairs(whole: bool) -> Iterator[tuple[str, str, Any]]:
    """Endpoint, field and wrong value."""
    having: dict[str, list[str]] = {}
    for path, (_, fields) in BASES.items():
        for field in fields:
            having.setdefault(field, []).append(path)
    for turn, (field, paths) in enumerate(having.items()):
        for number, wrong in enumerate(WRONG):
            if whole:
                yield from ((path, field, wrong) for path in paths)
            elif (turn + number) % 2 == 0:
                yield paths[number // 2 % len(paths)], field, wrong


def _headers(luck: random.Random) -> dict[str, str]:
    headers = {"authorization": f"Bearer {KEY_CANARY}", "content-type": "application/json"}
    if luck.random() < 0.2:
        name = luck.choice(
            ("x-request-id", "content-type", "accept", "content-encoding", "x-pagoda-tenant", "range", "traceparent", "cookie")
        )
        headers[name] = luck.choice(
            ("../../x", "text/plain", "gzip", "a" * 3000, "bytes=0-0,1-1,2-2", "multipart/form-data; boundary=x", "\xe9")
        )
    return headers


def _post(luck: random.Random, path: str, body: Any, *, echoes: bool = False) -> Hostile:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Hostile("POST", path, content, _headers(luck), echoes, path)


def value(luck: random.Random) -> Any:
    return luck.choice(luck.choice((NUMBERS, TEXTS, OTHERS)))


def confused(luck: random.Random) -> Hostile:
    """Some fields hold something else than they should."""
    path = luck.choice(list(BASES))
    base, fields = BASES[path]
    return _post(luck, path, base | {luck.choice(fields): value(luck) for _ in range(luck.randrange(1, 4))})


def foreign(luck: random.Random) -> Hostile:
    """Fields of others, and of nobody."""
    path = luck.choice(list(BASES))
    return _post(luck, path, BASES[path][0] | {luck.choice(FOREIGN): value(luck)})


def nested(luck: random.Random) -> Hostile:
    """Wrong in the midst of messages, tools and formats."""
    message = {"role": "user", "content": "x"} | {luck.choice(("role", "content", "name", "tool_calls", "x")): value(luck)}
    part = {"type": luck.choice(("text", "image_url", "input_audio", "x")), luck.choice(("text", "image_url", "y")): value(luck)}
    tool = {"type": "function", "function": {"name": value(luck), "parameters": value(luck)}}
    schema = {"type": "json_schema", "json_schema": {"name": value(luck), "schema": value(luck), "strict": value(luck)}}
    changes = ({"messages": [message]}, {"messages": [{"role": "user", "content": [part]}]}, {"tools": [tool]}, {"response_format": schema})
    if luck.random() < 0.5:
        return _nested_block(luck)
    return _post(luck, "/v1/chat/completions", BASES["/v1/chat/completions"][0] | luck.choice(changes))


def _nested_block(luck: random.Random) -> Hostile:
    """Wrong in the midst of a message of Anthropic's API."""
    names = ("text", "id", "name", "input", "tool_use_id", "content", "is_error", "thinking", "data", "cache_control", "citations")
    kinds = ("text", "tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document", "x")
    block = {"type": luck.choice(kinds), "text": "x", "id": "t", "name": "f", "input": {}, "tool_use_id": "t"}
    turn = {"role": luck.choice(("user", "assistant", "system")), "content": [block | {luck.choice(names): value(luck)}]}
    tool = {"name": value(luck), "input_schema": value(luck), "type": luck.choice(("custom", "bash_20250124", None))}
    output = {"format": {"type": "json_schema", "schema": value(luck)}, "effort": value(luck)}
    changes = (
        {"messages": [turn]},
        {"messages": [{"role": "user", "content": "x"}, turn, {"role": "user", "content": "y"}]},
        {"tools": [tool], "tool_choice": {"type": luck.choice(("any", "auto", "tool", "none")), "name": value(luck)}},
        {"output_config": output},
        {"thinking": {"type": luck.choice(("enabled", "disabled", "adaptive")), "budget_tokens": value(luck)}},
    )
    path = luck.choice(("/v1/messages", "/v1/messages/count_tokens"))
    return _post(luck, path, BASES[path][0] | luck.choice(changes))


def nested_items(luck: random.Random) -> Hostile:
    """Wrong in the midst of a response's items, tools and formats."""
    kind = luck.choice(("message", "function_call", "function_call_output", "reasoning", "item_reference", value(luck)))
    names = ("type", "role", "content", "call_id", "name", "arguments", "output", "summary", "encrypted_content", "x")
    item = {"type": kind, "role": "user", "content": "x"} | {luck.choice(names): value(luck) for _ in range(3)}
    part = {"type": luck.choice(("input_text", "input_image", "output_text", value(luck))), luck.choice(("text", "image_url")): value(luck)}
    tool = {"type": luck.choice(("function", "web_search", value(luck))), "name": value(luck), "parameters": value(luck)}
    choice = {"type": luck.choice(("function", "allowed_tools", value(luck))), "name": value(luck), "tools": value(luck)}
    schema = {"type": "json_schema", "name": value(luck), "schema": value(luck), "strict": value(luck)}
    changes = (
        {"input": ["x", item]},
        {"input": [item, item]},
        {"input": [{"role": "user", "content": [part]}]},
        {"tools": [tool], "tool_choice": choice},
        {"text": {"format": schema}},
        {"reasoning": {luck.choice(("effort", "summary")): value(luck)}},
    )
    return _post(luck, "/v1/responses", BASES["/v1/responses"][0] | luck.choice(changes))


def _tree(luck: random.Random, depth: int) -> Any:
    kind = luck.randrange(4)
    if depth <= 0 or kind < 2:
        return value(luck)
    children = [_tree(luck, depth - 1) for _ in range(luck.randrange(4))]
    return children if kind == 2 else {str(luck.choice((*TEXTS, *FOREIGN))): child for child in children}


def random_json(luck: random.Random) -> Hostile:
    return _post(luck, luck.choice(list(BASES)), _tree(luck, 5), echoes=True)


def broken(luck: random.Random) -> Hostile:
    """A valid body with bytes changed, cut or repeated."""
    path = luck.choice(list(BASES))
    body = bytearray(json.dumps(BASES[path][0]).encode())
    for _ in range(luck.randrange(1, 5)):
        at, end = sorted((luck.randrange(len(body) + 1), luck.randrange(len(body) + 1)))
        match luck.randrange(3):
            case 0:
                body[at : at + 1] = bytes([luck.randrange(256)])
            case 1:
                del body[at:end]
            case _:
                body[at:at] = body[at:end]
    return _post(luck, path, bytes(body), echoes=True)


def bodyless(luck: random.Random, route: str | None = None) -> Hostile:
    """An endpoint that reads no body, by any method, with something wild where its path names a thing, and in its query."""
    route = route or luck.choice(OTHER_PATHS)
    path = re.sub(r"\{\w+\}", lambda _: quote(str(value(luck)), safe="")[:2000] or "x", route)
    return Hostile(luck.choice(METHODS), f"{path}?x={quote(str(value(luck)))[:2000]}", b"", _headers(luck), True, route)


def wild_path(luck: random.Random) -> Hostile:
    pieces = (
        "v1",
        "models",
        "..",
        "%2e%2e",
        "%00",
        "metrics",
        "completions",
        "chat",
        "admin",
        "\u00e9",
        "a" * 300,
        "",
        "health",
        "openapi.json",
        "*",
        "?x=1",
    )
    path = "/" + "/".join(luck.choices(pieces, k=luck.randrange(1, 6)))
    return Hostile(luck.choice(METHODS), path, b"", _headers(luck), echoes=True)
