"""An HTTP server on loopback that fails on purpose: each request ends as the next word of its script says, and well after its end.

It speaks bytes: a head that breaks off or a body shorter than it said is nothing that a web framework sends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

GOOD = {"kind": "ConfigMap", "metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7"}, "items": [], "resources": []}
# How a connection or an answer breaks; whatever else a script says is a status, with a Retry-After after a colon.
BREAKS = ("reset", "half a head", "half a body", "half a chunk", "shorter", "a page", "a list")


class FailingServer:
    """`seen`: the requests' first lines. `date`: what the answers' Date says, None for none."""

    def __init__(self, script: Iterable[str] = (), good: Any = None, date: Callable[[], str | None] = lambda: None) -> None:
        self._script, self._good, self._date = iter(script), GOOD if good is None else good, date
        self.seen: list[str] = []
        self._serving: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for serving in self._serving:
            serving.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            self._serving.append(task)
        try:
            await self._answer(reader, writer)
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = next((int(line.split(":")[1]) for line in head.splitlines() if line.startswith("content-length")), 0)
                await reader.readexactly(length)
                self.seen.append(head.splitlines()[0])
                if not await self._answered(next(self._script, "200"), reader, writer):
                    break

    async def _answered(self, word: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        if word == "silence":
            await reader.read()
            return False
        if word == "reset":
            return False
        status, _, bidden = ("200", "", "") if word in BREAKS else word.partition(":")
        body = json.dumps(self._good if status == "200" else {"kind": "Status", "message": "planted"}).encode()
        body = {"a page": b"<html>back soon</html>", "a list": b"[]"}.get(word, body)
        more = f"retry-after: {bidden}\r\n" if bidden else ""
        more += f"date: {date}\r\n" if (date := self._date()) else ""
        head = f"HTTP/1.1 {status} x\r\ncontent-type: application/json\r\n{more}"
        for part in _parts(word, head, body):
            writer.write(part)
            await writer.drain()
        if word in ("half a body", "half a chunk", "shorter"):
            writer.close()  # what was written arrives, which an abort may take back
            await writer.wait_closed()
        return word not in ("half a head", "half a body", "half a chunk", "shorter")


def _parts(word: str, head: str, body: bytes) -> list[bytes]:
    half, whole = body[: len(body) // 2], f"{head}content-length: {len(body)}\r\n\r\n".encode()
    match word:
        case "half a head":
            return [whole[:20]]
        case "half a body":
            return [whole, half]
        case "half a chunk":
            return [f"{head}transfer-encoding: chunked\r\n\r\n{len(body):x}\r\n".encode(), half]
        case "shorter":  # nothing says how long it was to be
            return [f"{head}connection: close\r\n\r\n".encode(), half]
    return [whole, body]


def kubeconfig(folder: Path, address: str) -> str:
    """A file that names it."""
    parts = {"clusters": {"cluster": {"server": address}}, "contexts": {"context": {"cluster": "x", "user": "x"}}, "users": {"user": {}}}
    document = {"apiVersion": "v1", "kind": "Config", "current-context": "x"}
    (folder / "kubeconfig").write_text(json.dumps(document | {kind: [{"name": "x", **entry}] for kind, entry in parts.items()}))
    return str(folder / "kubeconfig")
