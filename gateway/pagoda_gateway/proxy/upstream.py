"""Connections from the gateway to replicas, and one call on them. Called by relay.py; knows HTTP, not why this replica."""

from __future__ import annotations

import io
import socket
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import aiohttp
from aiohttp import hdrs
from multidict import CIMultiDict
from yarl import URL

from pagoda_gateway.requests.errors import UNREACHABLE, Died, Refused
from pagoda_gateway.watch.own_token import OwnToken

# A node that vanished sends no FIN. Probes after 5 s of silence, every 3 s, three times; unacknowledged data counts 14 s.
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 3), (socket.TCP_KEEPCNT, 3), (socket.TCP_USER_TIMEOUT, 14_000))
# Much shorter than the daemon's 75 s: the side that closes first does not race.
_IDLE_S: Final = 4.0
_LARGE_BODY: Final = 1 << 18
_GET_TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0)


class Call(NamedTuple):
    """A request as a replica gets it: `headers` are filtered already, `body` is the client's, byte by byte."""

    path: str
    headers: CIMultiDict[str]
    body: bytes


@dataclass(slots=True)
class Sent:
    """One request's use of connections. `reused`: the last one had served other requests before; `renewed`: one of those ended without an
    answer."""

    reused: bool = False
    renewed: bool = False


class Upstream:
    """Connections to replicas: a pool, and single-use ones for GETs and for a request whose pooled connection ended without an answer."""

    def __init__(self, connect_timeout_s: float, own: OwnToken | None = None) -> None:
        self._own = own
        self._pool = _session(connect_timeout_s, single_use=False)
        self._fresh = _session(connect_timeout_s, single_use=True)

    async def close(self) -> None:
        """Closes idle connections."""
        await self._pool.close()
        await self._fresh.close()

    async def send(self, http: str, call: Call, sent: Sent, *, fresh: bool) -> aiohttp.ClientResponse:
        """Returns the answer's head. Refused if there is no connection, Died if one ended. A cancelled call closes its connection.

        A pooled connection may have been dead before the request was sent: its replica closed it as idle, or a machine in between forgot
        it. So the replica is asked once more on a new connection, and has died only if it does not take that. Once per request, or one
        that kills replicas would kill more of them."""
        try:
            return await self._post(http, call, sent, fresh=fresh or sent.renewed)
        except Died:
            if not sent.reused:
                raise
            sent.renewed = True
            try:
                return await self._post(http, call, sent, fresh=True)
            except Refused as refusal:
                raise Died("closed", str(refusal)) from refusal

    async def get(self, http: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        """Returns status and body of a short answer; Refused or Died if there is none within 10 s."""
        own = {hdrs.AUTHORIZATION: self._own.header()} if self._own is not None else {}
        url = URL(f"http://{http}{path}", encoded=True)
        try:
            async with self._fresh.get(url, headers=headers | own, timeout=_GET_TIMEOUT) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientConnectorError, TimeoutError) as error:
            raise Refused(UNREACHABLE, str(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Died("closed", str(error)) from error

    async def _post(self, http: str, call: Call, sent: Sent, *, fresh: bool) -> aiohttp.ClientResponse:
        session, sent.reused = self._fresh if fresh else self._pool, False
        if self._own is not None:
            call.headers[hdrs.AUTHORIZATION] = self._own.header()
        url = URL(f"http://{http}{call.path}", encoded=True)
        try:
            return await session.post(url, data=_payload(call.body), headers=call.headers, trace_request_ctx=sent)
        except (aiohttp.ClientConnectorError, TimeoutError) as error:
            raise Refused(UNREACHABLE, str(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Died("closed", str(error)) from error


def _payload(body: bytes) -> bytes | io.BytesIO:
    """A large body is written in pieces, so that other requests are served in between."""
    return body if len(body) < _LARGE_BODY else io.BytesIO(body)


async def _reused(_session: aiohttp.ClientSession, context: SimpleNamespace, _of: aiohttp.TraceConnectionReuseconnParams) -> None:
    context.trace_request_ctx.reused = True


def _session(connect_timeout_s: float, *, single_use: bool) -> aiohttp.ClientSession:
    keep: dict[str, Any] = {"force_close": True} if single_use else {"keepalive_timeout": _IDLE_S}
    reuse = aiohttp.TraceConfig()
    reuse.on_connection_reuseconn.append(_reused)
    return aiohttp.ClientSession(
        trace_configs=[] if single_use else [reuse],
        connector=aiohttp.TCPConnector(limit=0, socket_factory=_socket, **keep),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=(hdrs.ACCEPT_ENCODING, hdrs.USER_AGENT, hdrs.CONTENT_TYPE),
    )


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
