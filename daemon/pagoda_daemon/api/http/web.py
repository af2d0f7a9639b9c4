"""What stands between browsers or proxies and the routes: allowed host names, origins whose pages may read answers, a proxy's prefix.

Made by `front.py` from `listen` of the DaemonConfig, wrapped around the router by `app.py`. Absent fields change nothing.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pagoda_contracts.launch import Listen
from pagoda_contracts.names import HEADER_IGNORED, HEADER_REQUEST_ID, HEADER_RETRY_AFTER, HEADER_RETRY_AFTER_MS, HEADER_SHOULD_RETRY
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from pagoda_daemon.api.http.refusals import HEADER_MESSAGE_ID, response_of
from pagoda_daemon.api.openai.errors import body_of
from pagoda_daemon.core.errors import ConfigRejected, Forbidden, shown

_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_ANY: Final = "*"
_LOCALHOST: Final = "localhost"
# Headers of an answer that pages of other origins may read.
_EXPOSED: Final = (
    *(HEADER_REQUEST_ID, HEADER_MESSAGE_ID, HEADER_IGNORED),
    *(HEADER_RETRY_AFTER, HEADER_RETRY_AFTER_MS, HEADER_SHOULD_RETRY),
)
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


@dataclass(frozen=True)
class Web:
    """`hosts` None: every name is answered."""

    hosts: frozenset[str] | None = None
    origins: tuple[str, ...] = ()
    root_path: str = ""

    @classmethod
    def of(cls, listen: Listen, *, closed: bool) -> Web:
        """`closed`: callers must prove who they are. ConfigRejected names the field that makes no sense."""
        given = listen.allowed_hosts
        hosts = None if given is None or _ANY in given else frozenset(name.lower().rstrip(".") for name in given)
        return cls(hosts, tuple(_origin(one, closed=closed) for one in listen.cors_origins or ()), _root_path(listen.root_path))

    def around(self, app: ASGIApp) -> ASGIApp:
        """`app` behind what is configured. A preflight has no key and none of the client's headers, so it is answered out here."""
        if self.origins:
            app = CORSMiddleware(app, self.origins, ("GET", "POST"), ("*",), expose_headers=_EXPOSED)
        if self.hosts is not None:
            app = KnownHosts(app, self.hosts, self.origins)
        return UnderPrefix(app, self.root_path) if self.root_path else app


class UnderPrefix:
    """Serves what a proxy passes on with its prefix as if it had removed it."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["path"] = without_prefix(scope["path"], self._prefix)
        await self._app(scope, receive, send)


def without_prefix(path: str, prefix: str) -> str:
    """Whole segments only: /llmx is not under /llm."""
    return path.removeprefix(prefix) or "/" if path == prefix or path.startswith(f"{prefix}/") else path


class KnownHosts:
    """Refuses requests to a name that is not ours, and of pages under such a name. A page whose own name was made to point here (DNS
    rebinding) is of the first sort. One that asks our address is of the second: it could read nothing, but have us compute."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], origins: Sequence[str]) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not is_known(host, self._hosts):
            said = f"host {shown(host)} is not answered here; start the daemon with --allowed-host and this name, or with keys"
        elif origin is not None and not self._may_ask(origin):
            said = f"pages of {shown(origin)} are not answered here; start the daemon with --cors-origin and this origin, or with keys"
        else:
            await self._app(scope, receive, send)
            return
        refused = Forbidden(said)
        scope["state"]["refusal"] = body_of(refused).error.code
        await response_of(scope, refused)(scope, receive, send)

    def _may_ask(self, origin: str) -> bool:
        named = origin.partition("://")[2]
        return _ANY in self._origins or origin in self._origins or (named != "" and is_known(named, self._hosts))


def is_known(host: str, hosts: frozenset[str]) -> bool:
    """An address always is: the browser takes it for the page's own origin, so no foreign page can have it. HTTP/1.0 may name no host."""
    name = host_name(host)
    return name in ("", _LOCALHOST) or name.endswith(f".{_LOCALHOST}") or name in hosts or _is_address(name)


def host_name(host: str) -> str:
    """Without the port and the brackets of an IPv6 address, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower().rstrip(".") if ":" in host else host.lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _origin(given: str, *, closed: bool) -> str:
    """As a browser writes it."""
    if given == _ANY and closed:
        raise ConfigRejected("listen.corsOrigins: '*' is refused where keys are needed; name each origin, such as https://chat.example.org")
    text = given.lower()
    if given != _ANY and not _ORIGIN.fullmatch(text):
        raise ConfigRejected(f"listen.corsOrigins must be origins such as https://chat.example.org, got {shown(given)}")
    return text.removesuffix(_DEFAULT_PORTS.get(text.partition(":")[0], "/"))


def _root_path(given: str | None) -> str:
    if given is not None and not _PREFIX.fullmatch(given):
        raise ConfigRejected(f"listen.rootPath must be a path such as /llm, without a slash at its end, got {shown(given)}")
    return given or ""
