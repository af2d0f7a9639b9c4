"""Callers: the roles of callers of this gateway's gRPC (Demand on 9100), by ServiceAccount token. Called once per call by server.py.

It is not for the API on 8080. The key file is read at every call, because a call is a stream that lasts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from pagoda_contracts.bearer import AUTHORIZATION, subject
from pagoda_contracts.jwks import MAX_BYTES, MAX_TOKEN, BadToken, Keys, parse, verify
from pagoda_contracts.names import ROLE_GATEWAY, ROLE_OPERATOR


class CallerSettings(Protocol):
    """The settings about callers."""

    @property
    def token_keys(self) -> Path | None: ...
    @property
    def operator(self) -> str | None: ...
    @property
    def account(self) -> str | None: ...


def callers_of(settings: CallerSettings) -> Callers | None:
    """Returns None if every caller may watch."""
    if settings.token_keys is None:
        return None
    roles = ((settings.operator, ROLE_OPERATOR), (settings.account, ROLE_GATEWAY))
    return Callers(settings.token_keys, {subject(account): role for account, role in roles if account})


class Unauthorized(Exception):
    """Says why, without the token. `known`: the token is valid, but its subject has no role here."""

    def __init__(self, message: str, *, known: bool = False) -> None:
        super().__init__(message)
        self.known = known


class Callers:
    """`subjects`: system:serviceaccount:<namespace>:<name> → role."""

    def __init__(self, keys: Path, subjects: Mapping[str, str], clock: Callable[[], float] = time.time) -> None:
        self._path, self._subjects, self._clock = keys, dict(subjects), clock

    def role(self, metadata: Iterable[tuple[str, str | bytes]]) -> str:
        """Returns the role of the caller with this metadata; Unauthorized without a valid token or without a role."""
        value = dict(metadata).get(AUTHORIZATION, "")
        scheme, _, token = (value if isinstance(value, str) else "").partition(" ")
        if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN:
            raise Unauthorized("no token was given; send the metadata `authorization: Bearer TOKEN`")
        try:
            subject = verify(token, self._keys(), None, self._clock()).subject
        except BadToken as error:
            raise Unauthorized(str(error)) from None
        if subject not in self._subjects:
            raise Unauthorized(f"{subject} may not call this", known=True)
        return self._subjects[subject]

    def _keys(self) -> Keys:
        try:
            with self._path.open("rb") as file:
                return parse(file.read(MAX_BYTES))
        except (OSError, ValueError) as error:
            raise Unauthorized(f"the gateway cannot read the cluster's keys: {type(error).__name__}") from error
