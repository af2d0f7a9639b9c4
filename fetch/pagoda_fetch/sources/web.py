"""HTTP as fetch needs it: bounded answers, streams from an offset, and redirects that never carry a credential elsewhere.

Called by the sources that speak HTTP themselves. Every answer that is not a success becomes an error of the one tree.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

import httpx2

from pagoda_fetch.core.errors import Changed, FetchError, Forbidden, NotFound, Refused, Unreachable

_MAX_HOPS: Final = 5
_MAX_DOCUMENT: Final = 4 * 1024 * 1024
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_PATIENCE: Final = frozenset((408, 409, 425, 429))
_RANGE: Final = re.compile(r"bytes (\d+)-")
_LOOPBACK: Final = re.compile(r"(localhost|127\.\d+\.\d+\.\d+)(:\d+)?")
Headers = Mapping[str, str]


def base_url(host: str, plain: frozenset[str] = frozenset()) -> str:
    """With TLS, but for the hosts in `plain` and for loopback."""
    return f"{'http' if host in plain or _LOOPBACK.fullmatch(host) else 'https'}://{host}"


class Web:
    """One client. `silence` is how long a connection may say nothing."""

    def __init__(self, silence: float, tls: ssl.SSLContext | None = None) -> None:
        timeout = httpx2.Timeout(silence, connect=min(silence, 20.0))
        self._client = httpx2.AsyncClient(timeout=timeout, follow_redirects=False, verify=tls if tls is not None else True)

    async def close(self) -> None:
        """Ends all connections."""
        await self._client.aclose()

    @asynccontextmanager
    async def open(
        self, url: str, headers: Headers, *, take: frozenset[int] = frozenset(), method: str = "GET"
    ) -> AsyncIterator[httpx2.Response]:
        """A successful answer, its body unread; answers with a status in `take` are given back too."""
        current, sent = url_of(url), dict(headers)
        for _ in range(_MAX_HOPS + 1):
            try:
                request = self._client.build_request(method, current, headers=sent)
                response = await self._client.send(request, stream=True)
            except (httpx2.HTTPError, httpx2.InvalidURL, ssl.SSLError) as error:
                raise Unreachable(f"{place(current)}: {type(error).__name__}") from None
            try:
                if response.status_code in _REDIRECTS:
                    current, sent = _next_hop(current, response, sent)
                    continue
                if not response.is_success and response.status_code not in take:
                    raise refusal(response.status_code, place(current))
                yield response
                return
            finally:
                await response.aclose()
        raise Refused(f"{place(httpx2.URL(url))}: more than {_MAX_HOPS} redirects")

    async def document(self, url: str, headers: Headers, *, take: frozenset[int] = frozenset()) -> tuple[httpx2.Response, bytes]:
        """A whole answer of bounded length."""
        async with self.open(url, headers, take=take) as response:
            body = bytearray()
            async for chunk in chunks(response):
                body += chunk
                if len(body) > _MAX_DOCUMENT:
                    raise Refused(f"{place(httpx2.URL(url))}: an answer of more than {_MAX_DOCUMENT} bytes")
            return response, bytes(body)

    async def stream(self, url: str, headers: Headers, span: tuple[int, int]) -> AsyncGenerator[bytes]:
        """A file's bytes from `span[0]` to before `span[1]`; a server that sends all of it anyway is heard to the offset in vain.

        The range has an end: some registries understand no open one.
        """
        offset, size = span
        asked = {**headers, "accept-encoding": "identity"} | ({"range": f"bytes={offset}-{size - 1}"} if offset else {})
        async with self.open(url, asked) as response:
            skip = offset
            if response.status_code == HTTPStatus.PARTIAL_CONTENT:
                start = _RANGE.match(response.headers.get("content-range", ""))
                if start is None or int(start.group(1)) != offset:
                    raise Unreachable(f"{place(response.url)}: asked for bytes from {offset}, was sent others")
                skip = 0
            async for chunk in chunks(response):
                rest, skip = chunk[skip:], max(0, skip - len(chunk))
                if rest:
                    yield rest


async def chunks(response: httpx2.Response) -> AsyncGenerator[bytes]:
    """The body as it comes."""
    try:
        async for chunk in response.aiter_raw():
            yield chunk
    except (httpx2.HTTPError, httpx2.StreamError, ssl.SSLError) as error:
        raise Unreachable(f"{place(response.url)}: {type(error).__name__} in the middle of the body") from None


def parsed(body: bytes, whence: str) -> Any:
    """JSON of a source."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(f"{whence} is not JSON") from None


def url_of(text: str) -> httpx2.URL:
    """Parses an address. Raises Refused if it is not valid, such as one with a word for its port; its credentials are not repeated."""
    try:
        return httpx2.URL(text)
    except httpx2.InvalidURL:
        scheme, _, rest = text.partition("?")[0].partition("://")
        shown = f"{scheme}://{rest.rpartition('@')[2]}"[:200]
        raise Refused(f"{shown!r} is not a valid address; it must be https://HOST[:PORT]/PATH") from None


def place(url: httpx2.URL) -> str:
    """An address without its query: signed links carry their right there."""
    return f"{url.scheme}://{url.host}{f':{url.port}' if url.port else ''}{url.path}"[:300]


def refusal(status: int, where: str) -> FetchError:
    """What an HTTP status means for us."""
    text = f"{where} answers {status}"
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return Forbidden(f"{text}: name a credential that may read it")
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return NotFound(text)
    if status in (HTTPStatus.PRECONDITION_FAILED, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE):
        return Changed(f"{text}: the file is not the one that was listed")
    return Unreachable(text) if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PATIENCE else Refused(text)


def _next_hop(current: httpx2.URL, response: httpx2.Response, sent: dict[str, str]) -> tuple[httpx2.URL, dict[str, str]]:
    """Where a redirect leads. Never to another scheme, but from http to https; never with a credential to another host."""
    try:
        target = current.join(response.headers.get("location", ""))
    except httpx2.InvalidURL:
        raise Refused(f"{place(current)} redirects to an invalid address") from None
    if target.scheme not in {"https", current.scheme} or target.userinfo or not target.host:
        raise Refused(f"{place(current)} redirects to {place(target)}; a redirect must lead to https, without a user")
    if (target.scheme, target.host, target.port) != (current.scheme, current.host, current.port):
        sent = {name: value for name, value in sent.items() if name.lower() not in ("authorization", "cookie")}
    return target, sent
