"""ServiceAccount tokens in a role, by the cluster's public keys (a JWKS file). Called by `auth.py`.

How one is verified is the contracts' `jwks.py`. The daemon opens no connection: what a token may do is decided from the token and two
files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from pagoda_contracts.jwks import MAX_BYTES, BadToken, parse, verify
from pagoda_contracts.launch import TokensConfig

from pagoda_daemon.api.access.caller import Principal
from pagoda_daemon.api.access.watched import WatchedFile
from pagoda_daemon.core.errors import Unauthenticated

NO_ROLE: Final = ""


class Proof(NamedTuple):
    """Who the bearer is, and until when (Unix seconds) the token says so."""

    principal: Principal
    until: float


class Tokens:
    """Verifies by the file's keys; a valid token of an unknown subject has no role."""

    def __init__(self, config: TokensConfig, clock: Callable[[], float]) -> None:
        self._issuer = config.issuer
        self._roles = dict(config.subjects)
        self._file = WatchedFile(Path(config.jwks_file), MAX_BYTES, parse, clock)
        self._clock = clock

    def generation(self) -> int:
        """Grows when the file changed: what was proven by its keys before counts no more."""
        self._file.get()
        return self._file.generation

    def verify(self, token: str) -> Proof:
        """Unauthenticated says what is wrong, without the token."""
        try:
            claims = verify(token, self._file.get(), self._issuer, self._clock())
        except BadToken as error:
            raise Unauthenticated(str(error)) from None
        return Proof(Principal(self._roles.get(claims.subject, NO_ROLE), claims.subject), claims.until)
