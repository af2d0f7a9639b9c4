"""An API server that says what the test wrote down, path by path: lists, watches, faults and pages of a proxy. It keeps no objects."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Body = dict[str, Any]
# A watch in the test's hands: what is put is sent, None ends it.
Held = asyncio.Queue[bytes | None]


def page(*items: Body, version: str = "10", more: str = "") -> Body:
    """A list, or one page of it."""
    return {"kind": "List", "metadata": {"resourceVersion": version, "continue": more}, "items": list(items)}


def event(kind: str, thing: Body) -> bytes:
    """One line of a watch."""
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


@dataclass
class Script:
    """Answers to one path, in the order written: a document, a number (a fault with its Status), a status with any body, a list of lines (a
    watch that then ends) or a watch in the test's hands. Who asks for more waits until more is written."""

    answers: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    asked: asyncio.Queue[web.Request] = field(default_factory=asyncio.Queue)

    def say(self, *answers: Body | int | tuple[int, bytes] | list[bytes] | Held) -> None:
        for answer in answers:
            self.answers.put_nowait(answer)

    async def next_request(self) -> web.Request:
        return await asyncio.wait_for(self.asked.get(), 60)

    async def next_query(self) -> dict[str, str]:
        return dict((await self.next_request()).query)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.put_nowait(request)
        answer = await self.answers.get()
        if isinstance(answer, int):
            return web.json_response({"kind": "Status", "code": answer, "message": "scripted"}, status=answer)
        if isinstance(answer, dict):
            return web.json_response(answer)
        if isinstance(answer, tuple):
            return web.Response(status=answer[0], body=answer[1])
        out = web.StreamResponse()
        await out.prepare(request)
        async for line in _lines(answer):
            await out.write(line)
        return out


async def _lines(answer: Iterable[bytes] | Held) -> AsyncIterator[bytes]:
    if isinstance(answer, asyncio.Queue):
        while (line := await answer.get()) is not None:
            yield line
    else:
        for line in answer:
            yield line


@asynccontextmanager
async def scripted_api() -> AsyncIterator[tuple[str, dict[str, Script]]]:
    """Its URL, and its scripts by path."""
    scripts: dict[str, Script] = defaultdict(Script)

    async def answer(request: web.Request) -> web.StreamResponse:
        return await scripts[request.path].answer(request)

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", answer)])
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", scripts
    finally:
        await runner.cleanup()
