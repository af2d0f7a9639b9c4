"""ServiceAccount tokens in a role, by the cluster's public keys (a JWKS file). Called by `auth.py`.

How one is verified is the contracts' `jwks.py`. The daemon opens no connection: what a token may do is decided from the token and two
files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pagoda_contracts.jwks import MAX_BYTES, BadToken, Unbound, parse, stored, verify
from pagoda_contracts.launch import TokensConfig
from pagoda_contracts.names import ROLE_GATEWAY, ROLE_METRICS, ROLE_OPERATOR

from pagoda_daemon.api.access.caller import Principal
from pagoda_daemon.api.access.watched import WatchedFile
from pagoda_daemon.core.errors import Unauthenticated

NO_ROLE: Final = ""
_MAX_SUBJECTS: Final = 1024
_ROLES: Final = (ROLE_GATEWAY, ROLE_OPERATOR, ROLE_METRICS)


class Proof(NamedTuple):
    """Who the bearer is, and until when (Unix seconds) the token says so."""

    principal: Principal
    until: float


class Tokens:
    """Verifies by the file's keys; a valid token of an unknown subject has no role. The operator that runs now may be of another
    installation than the one that made this replica, so its file of subjects counts before the configuration's."""

    def __init__(self, config: TokensConfig, clock: Callable[[], float]) -> None:
        self._issuer = config.issuer
        self._file = WatchedFile(Path(config.jwks_file), MAX_BYTES, parse, clock)
        self._named: dict[str, str] = dict(config.subjects)
        named = config.subjects_file
        self._subjects = WatchedFile(Path(named), MAX_BYTES, _subjects, clock, self._named) if named is not None else None
        self._clock = clock

    def generation(self) -> int:
        """Grows when a file changed: what was proven by it before counts no more."""
        self._file.get()
        self._roles()
        return self._file.generation + (self._subjects.generation if self._subjects else 0)

    def verify(self, token: str) -> Proof:
        """Unauthenticated says what is wrong, without the token."""
        try:
            claims = verify(token, self._file.get(), self._issuer, self._clock())
        except Unbound as error:
            return self._stored(token, str(error))
        except BadToken as error:
            raise Unauthenticated(str(error)) from None
        return Proof(Principal(self._roles().get(claims.subject, NO_ROLE), claims.subject), claims.until)

    def _stored(self, token: str, why: str) -> Proof:
        """Prometheus shows what a Secret keeps. Such a token has no end and is for any audience, so it reads metrics and nothing else."""
        try:
            subject = stored(token, self._file.get()) if self._issuer is None else ""
        except BadToken:
            subject = ""
        if self._roles().get(subject) != ROLE_METRICS:
            raise Unauthenticated(why)
        return Proof(Principal(ROLE_METRICS, subject), math.inf)

    def _roles(self) -> Mapping[str, str]:
        return self._subjects.get() if self._subjects else self._named


def _subjects(data: bytes) -> dict[str, str]:
    """Account → role; ValueError if the file says something else. Roles that are not known here are left out: a newer operator may have
    them."""
    found = json.loads(data)
    if not isinstance(found, dict) or len(found) > _MAX_SUBJECTS:
        raise ValueError(
            f"it must be an object with at most {_MAX_SUBJECTS} accounts, system:serviceaccount:<namespace>:<name>, and their roles"
        )
    return {account: role for account, role in found.items() if role in _ROLES}
