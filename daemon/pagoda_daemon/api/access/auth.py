"""Guard: the identity of a caller, and what it may do. Called by every HTTP route (`guarded`) and every gRPC method (`api/grpc/server.py`).

Without `auth` in the configuration everybody is the same anybody, who may use the OpenAI API and watch. With it, a bearer key or a
ServiceAccount token is to be shown on every route that `roles.py` does not leave open. What was proven is remembered by the secret's
hash until it expires or the file it was proven by changes; the secret itself is kept nowhere and logged nowhere.
"""

from __future__ import annotations

import hashlib
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from pagoda_contracts.jwks import MAX_TOKEN
from pagoda_contracts.launch import AuthConfig
from pagoda_contracts.names import ROLE_ADMIN, ROLE_METRICS
from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pagoda_daemon.api.access.caller import ANYBODY, Principal, authorization, caller
from pagoda_daemon.api.access.jwks import Proof, Tokens
from pagoda_daemon.api.access.keys import OF_FLAG, Keys
from pagoda_daemon.api.access.roles import NOBODY, OPEN, PEER_ROUTES, ROUTES, Roles
from pagoda_daemon.core.errors import ConfigRejected, Forbidden, Unauthenticated

_REMEMBERED: Final = 1024
_FOR_EVER: Final = float("inf")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Guard:
    """`clock` returns Unix seconds."""

    def __init__(self, config: AuthConfig | None, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.closed = config is not None
        self._keys: Keys | None = None
        self._tokens: Tokens | None = None
        self._peers: tuple[Network, ...] = ()
        self._proven: OrderedDict[bytes, tuple[Proof, int]] = OrderedDict()
        if config is not None:
            self._close(config)

    def _close(self, config: AuthConfig) -> None:
        if config.keys_file is None and config.tokens is None:
            raise ConfigRejected(
                "auth: neither keysFile nor tokens is given, so no client could ever call; leave auth out to let everybody"
            )
        self._keys = Keys(Path(config.keys_file), self._clock) if config.keys_file is not None else None
        self._tokens = Tokens(config.tokens, self._clock) if config.tokens is not None else None
        try:
            self._peers = tuple(ipaddress.ip_network(text) for text in config.metrics_from)
        except ValueError as error:
            raise ConfigRejected(f"auth.metricsFrom: {error}") from error

    def identify(self, authorization: str | None) -> Principal:
        """From the header's value; Unauthenticated where it proves nothing."""
        if not self.closed:
            return ANYBODY
        scheme, _, secret = (authorization or "").partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not secret or not secret.isascii():
            raise Unauthenticated("no key was given; send the header `Authorization: Bearer KEY` or `x-api-key: KEY`")
        if len(secret) > MAX_TOKEN:
            raise Unauthenticated(f"the key must have at most {MAX_TOKEN} characters, got {len(secret)}")
        return self._remembered(hashlib.sha256(secret.encode()).digest(), secret)

    def allow(self, roles: Roles, authorization: str | None) -> Principal:
        """Who calls; Unauthenticated or Forbidden where `roles` do not let him in."""
        if roles >= OPEN:
            return ANYBODY
        principal = self.identify(authorization)
        if principal.role in roles:
            return principal
        if not self.closed:
            raise Forbidden("this cannot be used unless the configuration has auth")
        raise Forbidden(f"{_called(principal)} may not use this; its role is {principal.role or 'none'}{_cure(roles)}")

    def is_peer(self, host: str) -> bool:
        """Whether an address is in one of the networks that read metrics without a token."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._peers)

    def _remembered(self, digest: bytes, secret: str) -> Principal:
        generation = sum(one.generation() for one in (self._keys, self._tokens) if one is not None)
        known = self._proven.get(digest)
        if known is not None and known[1] == generation and known[0].until > self._clock():
            self._proven.move_to_end(digest)
            return known[0].principal
        self._proven.pop(digest, None)
        proof = self._prove(secret)
        self._proven[digest] = proof, generation
        if len(self._proven) > _REMEMBERED:
            self._proven.popitem(last=False)
        return proof.principal

    def _prove(self, secret: str) -> Proof:
        principal = self._keys.identify(secret) if self._keys else None
        if principal is not None:
            return Proof(principal, _FOR_EVER)
        if self._tokens is not None and secret.count(".") == 2:  # as a JWT has
            return self._tokens.verify(secret)
        raise Unauthenticated("the key is not known here")


def _called(principal: Principal) -> str:
    return "the key of --api-key" if principal.name.startswith(OF_FLAG) else principal.name


def _cure(roles: Roles) -> str:
    """What lets a key in, where one can be let in. Keys have the roles client, metrics and admin only."""
    if ROLE_ADMIN in roles:
        return ". Use a key that has role=admin in auth.keysFile, or that of --admin-api-key (docs/lora.md)"
    if ROLE_METRICS not in roles:
        return ""
    return ". Use a key that has role=metrics in auth.keysFile, or name the caller's network in auth.metricsFrom (docs/wires.md)"


class Guarded:
    """One route behind the guard. What it lets in finds its Caller in `scope["state"]["caller"]`."""

    def __init__(self, app: ASGIApp, path: str, guard: Guard) -> None:
        self._app = app
        self._guard = guard
        self._roles = ROUTES.get(path, NOBODY)
        self._for_peers = path in PEER_ROUTES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state, headers = scope["state"], Headers(scope=scope)
        principal = ANYBODY if self._from_peer(scope) else self._guard.allow(self._roles, authorization(headers))
        state["caller"] = caller(principal, headers, state["arrived"])
        await self._app(scope, receive, send)

    def _from_peer(self, scope: Scope) -> bool:
        return self._for_peers and scope.get("client") is not None and self._guard.is_peer(scope["client"][0])


def guarded(routes: Iterable[Route], guard: Guard) -> list[BaseRoute]:
    """The same routes, each behind the guard by its own pattern."""
    found: list[BaseRoute] = []
    for route in routes:
        route.app = Guarded(route.app, route.path, guard)
        found.append(route)
    return found
