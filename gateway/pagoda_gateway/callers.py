"""Callers: who calls this gateway's own gRPC (Demand on 9100), by ServiceAccount token. Asked once per call.

The API on 8080 is not its business. The key file is read for every question: calls there are streams that last, not requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from pagoda_contracts.bearer import AUTHORIZATION, subject
from pagoda_contracts.jwks import MAX_BYTES, MAX_TOKEN, BadToken, Keys, parse, verify
from pagoda_contracts.names import ROLE_OPERATOR


class Told(Protocol):
    """What the settings say of callers."""

    @property
    def token_keys(self) -> Path | None: ...
    @property
    def operator(self) -> str | None: ...


def callers_of(settings: Told) -> Callers | None:
    """None where callers are not told apart."""
    if settings.token_keys is None:
        return None
    subjects = {subject(settings.operator): ROLE_OPERATOR} if settings.operator else {}
    return Callers(settings.token_keys, subjects)


class NotLetIn(Exception):
    """Says why, without the token. `known`: the token is good, its bearer has no role here."""

    def __init__(self, message: str, *, known: bool = False) -> None:
        super().__init__(message)
        self.known = known


class Callers:
    """`subjects`: system:serviceaccount:<namespace>:<name> → role."""

    def __init__(self, keys: Path, subjects: Mapping[str, str], clock: Callable[[], float] = time.time) -> None:
        self._path, self._subjects, self._clock = keys, dict(subjects), clock

    def role(self, metadata: Iterable[tuple[str, str | bytes]]) -> str:
        """Of whoever sent this metadata; NotLetIn where it proves nothing or names nobody of ours."""
        value = dict(metadata).get(AUTHORIZATION, "")
        scheme, _, token = (value if isinstance(value, str) else "").partition(" ")
        if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN:
            raise NotLetIn("no token was given; send the metadata `authorization: Bearer TOKEN`")
        try:
            subject = verify(token, self._keys(), None, self._clock()).subject
        except BadToken as error:
            raise NotLetIn(str(error)) from None
        if subject not in self._subjects:
            raise NotLetIn(f"{subject} may not call this", known=True)
        return self._subjects[subject]

    def _keys(self) -> Keys:
        try:
            with self._path.open("rb") as file:
                return parse(file.read(MAX_BYTES))
        except (OSError, ValueError) as error:
            raise NotLetIn(f"the cluster's keys cannot be read here: {type(error).__name__}") from error
