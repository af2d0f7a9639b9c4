"""What a refused request looks like, whoever refuses it: OpenAI's shape, nothing begun, nothing left."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from support.servers.local_replica import NAME, LocalReplica, local_replica

# For a request that should have been refused at once: a bug that lets it run must fail the test, not hang it.
PATIENCE_S = 300.0
# What no answer says: addresses, paths, places in sources.
LEAK = re.compile(
    r"0x[0-9a-f]{6,}|/[a-z_.-]+/[a-z_.-]+/|\.py\b|Traceback|File \W|shm_|<[a-z.]+ object|pagoda_daemon|msgspec", re.IGNORECASE
)
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": NAME, "prompt": "once", "max_tokens": 4} | fields


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4} | fields


def error_of(answer: Any) -> dict[str, Any]:
    """The error object, whose form is OpenAI's."""
    assert isinstance(answer, dict), answer
    assert set(answer) == {"error"}, answer
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert isinstance(error["code"], str), error
    assert isinstance(error["message"], str), error
    return error


def message_error_of(answer: Any) -> dict[str, Any]:
    """The error object, whose form is Anthropic's."""
    assert isinstance(answer, dict), answer
    assert set(answer) == {"type", "error", "request_id"}, answer
    assert (answer["type"], bool(answer["request_id"])) == ("error", True), answer
    error = answer["error"]
    assert {"type", "message"} <= set(error) <= {"type", "message", "details"}, error
    assert isinstance(error["message"], str), error
    return error


async def refused(replica: LocalReplica, body: Any, path: str = COMPLETIONS, **headers: str) -> dict[str, Any]:
    """A 4xx before anything reached the engine; its error."""
    begun = len(replica.engine.submitted)
    async with asyncio.timeout(PATIENCE_S):
        status, answer = await replica.post(path, body, **headers)
    assert 400 <= status < 500, (status, answer)
    assert len(replica.engine.submitted) == begun
    await replica.at_rest()
    return error_of(answer)


async def served(replica: LocalReplica, body: Any = None) -> Any:
    """The replica answers as ever."""
    async with asyncio.timeout(PATIENCE_S):
        status, answer = await replica.post(COMPLETIONS, body or completion())
    assert status == 200, answer
    return answer


async def all_refused(*bodies: Any, path: str = COMPLETIONS) -> list[dict[str, Any]]:
    """Each is refused by one replica, which serves afterwards."""
    async with local_replica() as replica:
        errors = [await refused(replica, body, path) for body in bodies]
        await served(replica)
        return errors


def raw_json(text: str) -> bytes:
    """A completion with one member that no JSON library would write."""
    return json.dumps(completion()).encode()[:-1] + b"," + text.encode() + b"}"
