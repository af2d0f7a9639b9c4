"""Reproducers of advisories about grammars that explode, as far as they are refused before anything compiles them.

What compiles within the limits and still grows is killed in a process of its own: tests/unit/daemon/engine/test_grammars.py.
"""

from __future__ import annotations

from typing import Any

from support.judges.refusals import CHAT, all_refused, chat


def schema(inner: Any) -> dict[str, Any]:
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": inner}})


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        found = {"type": "object", "properties": {"a": found}}
    return found


async def test_a_schema_is_nested_so_deeply_only() -> None:
    await all_refused(schema(nested(40)), schema(nested(150)), path=CHAT)


async def test_brackets_are_nested_so_deeply_only() -> None:
    deep = 20_000
    await all_refused(
        chat(structured_outputs={"regex": "(" * deep + "a" + ")" * deep}),
        chat(structured_outputs={"grammar": "root ::= " + "(" * deep + '"a"' + ")" * deep}),
        path=CHAT,
    )


async def test_a_schema_has_so_many_bytes_only() -> None:
    wide = {"type": "object", "properties": {f"property_{n}": {"type": "string"} for n in range(4000)}}
    await all_refused(schema(wide), path=CHAT)
