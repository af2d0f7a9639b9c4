"""Bearer keys: a file of SHA-256 digests, so that neither the file nor a dump of this process gives a key away. Called by `auth.py`.

Every digest is compared in full, whether one matched before or not: how long that takes tells nothing of a key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from pagoda_contracts.names import ROLE_ADMIN, ROLE_METRICS

from pagoda_daemon.api.access.caller import MAX_TENANT, ROLE_CLIENT, Principal
from pagoda_daemon.api.access.watched import WatchedFile

MAX_KEYS: Final = 4096
OF_FLAG: Final = "api-key-"  # how `serve` names the keys of --api-key, with a number
_MAX_BYTES: Final = 2**20
_STDIN: Final = "-"  # what sha256sum writes where a name stands: two keys appended that way are not one tenant
_ROLES: Final = (ROLE_CLIENT, ROLE_METRICS, ROLE_ADMIN)  # gateways and operators prove who they are by a token
_LINE: Final = re.compile(rf"([0-9a-fA-F]{{64}})(?:[ \t]+([A-Za-z0-9._-]{{1,{MAX_TENANT - 4}}})(?:[ \t]+role=({'|'.join(_ROLES)}))?)?")


class Key(NamedTuple):
    """One line. Keys of one name are one tenant; without a name the digest's beginning is it."""

    digest: bytes
    name: str
    role: str = ROLE_CLIENT


class Keys:
    """The file's keys."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._file = WatchedFile(path, _MAX_BYTES, parse, clock)

    def generation(self) -> int:
        """Grows when the file changed: what was found before counts no more."""
        self._file.get()
        return self._file.generation

    def identify(self, secret: str) -> Principal | None:
        """Whose key it is."""
        digest, found = hashlib.sha256(secret.encode()).digest(), None
        for key in self._file.get():
            if hmac.compare_digest(key.digest, digest):
                found = key
        return Principal(found.role, found.name) if found else None


def parse(data: bytes) -> tuple[Key, ...]:
    """ValueError names the line, never its content: the key itself may be there by mistake."""
    keys = []
    for number, line in enumerate(data.decode("ascii", errors="replace").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        matched = _LINE.fullmatch(text)
        if matched is None:
            roles = " or ".join(f"role={role}" for role in _ROLES)
            raise ValueError(f"line {number} is not `<64 hexadecimal digits of a SHA-256> [name [{roles}]]`")
        name = "" if matched[2] == _STDIN else matched[2]
        keys.append(Key(bytes.fromhex(matched[1]), name or matched[1][:16].lower(), matched[3] or ROLE_CLIENT))
    if len(keys) > MAX_KEYS:
        raise ValueError(f"{len(keys)} keys; at most {MAX_KEYS} are allowed")
    return tuple(keys)
