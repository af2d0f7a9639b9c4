"""The token that one of our processes shows of itself: which of two, while the cluster's signing key rotates. Pure; nothing is verified.

Used by gateway and operator, which read the file that kubelet projects. The first token by a new key comes at once; the public key reaches
the callees through a ConfigMap, up to two minutes later. So a token by an unknown key is not used while the one before it is valid.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final, NamedTuple

AUTHORIZATION: Final = "authorization"
# The operator looks for keys every 10 s, kubelet renews mounted ConfigMaps within 90 s; twice that.
SETTLE_S: Final = 180.0
# Kubelet renews a token when a fifth of its hour is left: there are 12 minutes to settle in. In the last one the new token is used in any
# case.
_LAST_S: Final = 60.0


def subject(account: str) -> str:
    """As tokens name a ServiceAccount, namespace/name."""
    namespace, _, name = account.partition("/")
    return f"system:serviceaccount:{namespace}:{name}"


class Bearer(NamedTuple):
    """A token, and what it says of itself."""

    token: str
    key_id: str
    until: float

    @property
    def header(self) -> str:
        """The value of `authorization`."""
        return f"Bearer {self.token}"


class Shown(NamedTuple):
    """The token in use, and the one found in the file, first seen `since` (Unix seconds)."""

    used: Bearer
    found: Bearer
    since: float

    def seen(self, token: str, now: float) -> Shown:
        """What is shown from now on, given what the file holds; ValueError where that is no token."""
        found, since = (self.found, self.since) if token == self.found.token else (parse(token), now)
        hold = found.key_id != self.used.key_id and now - since < SETTLE_S and now < self.used.until - _LAST_S
        return Shown(self.used if hold else found, found, since)


def first(token: str, now: float) -> Shown:
    """At the start there is nothing to go on showing."""
    found = parse(token)
    return Shown(found, found, now)


def parse(token: str) -> Bearer:
    """ValueError names what is wrong, without the token."""
    try:
        header, claims, _ = (_decoded(part) if number < 2 else {} for number, part in enumerate(token.split(".")))
        return Bearer(token, str(header.get("kid", "")), float(claims["exp"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a ServiceAccount token: {type(error).__name__}") from None


def _decoded(part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found
