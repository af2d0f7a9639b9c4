"""The HTTP session that Kopf watches with: the same addresses, certificates and rotating tokens as cluster.py's, whose configuration it
takes. Made by process.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

Stamp = Callable[[str, float], None]


def watch_session(configuration: Configuration, heard: Stamp) -> aiohttp.ClientSession:
    """Kopf's session: our addresses and tokens; of a watched path it tells each connection and each event or bookmark."""

    async def authorize(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if token := await configuration.get_api_key_with_prefix("BearerToken"):
            request.headers["Authorization"] = token
        return await send(request)

    class Response(aiohttp.ClientResponse):
        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            await super().start(connection)
            if "watch" in self.url.query and self.status == HTTPStatus.OK:  # a refused one is none
                heard(self.url.path, time.monotonic())
                self.content = _Stamped(self.content, lambda: heard(self.url.path, time.monotonic()))  # type: ignore[assignment]
            return self

    ssl_context = ApiClient(configuration).rest_client.ssl_context
    connector = aiohttp.TCPConnector(limit=0, ssl=ssl_context)
    return aiohttp.ClientSession(connector=connector, response_class=Response, middlewares=(authorize,))


class _Stamped:
    """A response's stream that tells of each chunk; Kopf hands on events but not bookmarks, and idle kinds have only those."""

    def __init__(self, content: aiohttp.StreamReader, alive: Callable[[], None]) -> None:
        self._content = content
        self._alive = alive

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> Any:
        async for chunk in self._content.iter_chunked(size):
            self._alive()
            yield chunk
