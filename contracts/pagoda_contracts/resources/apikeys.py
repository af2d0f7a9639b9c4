"""API keys of the gateway's clients: a key's text, and what a Secret keeps of it. Pure; `pagoda key` writes the Secrets, the gateway reads.

A Secret with the label LABEL_API_KEYS holds the keys of one tenant, which its label LABEL_TENANT names. Each entry of its data is one key:
the entry's name is the key's id, its value is JSON. Only the SHA-256 of a key is stored. A key has 256 random bits, so its digest can be
found neither by guessing nor by a table, and needs no salt.
"""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints, ValidationError

from pagoda_contracts.resources.meta import Model

PREFIX: Final = "pagoda-"
RANDOM_BYTES: Final = 32
MAX_BYTES: Final = 256
"""Of a key's text. Longer credentials are refused before they are hashed."""
_ID_LENGTH: Final = 8
SECRET_PREFIX: Final = "pagoda-keys-"  # noqa: S105 (a name)
"""The Secret of a tenant's keys is called so, with the tenant's name behind it. The gateway goes by labels alone."""
# A label's value (Kubernetes), and it goes into a header.
TENANT: Final = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_TENANT: Final = re.compile(TENANT)
_KEY_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")


class StoredKey(Model):
    """What is kept of a key."""

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] = Field(description="SHA-256 of the key's text, in hexadecimal.")
    created: datetime = Field(description="When it was made.")
    expires: datetime | None = Field(default=None, description="From when on it is refused; never if absent.")

    def expired(self, now: datetime) -> bool:
        """Whether it is refused at this time."""
        return self.expires is not None and now >= self.expires

    def document(self) -> str:
        """The entry's value in a Secret."""
        return self.model_dump_json(exclude_none=True)


class NewKey(Model):
    """A key that was just made. `text` is for its owner alone."""

    id: str
    text: str
    stored: StoredKey


def new_key(random: bytes, created: datetime, expires: datetime | None = None) -> NewKey:
    """A key from RANDOM_BYTES random bytes; ValueError if there are fewer."""
    if len(random) < RANDOM_BYTES:
        raise ValueError(f"a key needs {RANDOM_BYTES} random bytes, got {len(random)}")
    text = PREFIX + base64.urlsafe_b64encode(random).decode().rstrip("=")
    digest = sha256(text)
    return NewKey(id=digest[:_ID_LENGTH], text=text, stored=StoredKey(sha256=digest, created=created, expires=expires))


def sha256(text: str) -> str:
    """The digest by which a key is known."""
    return hashlib.sha256(text.encode()).hexdigest()


def stored_key(key_id: str, value: bytes) -> StoredKey:
    """An entry of a Secret; ValueError says what is wrong, without the value."""
    if not _KEY_ID.fullmatch(key_id):
        raise ValueError("its name is not a key's id")
    try:
        key = StoredKey.model_validate_json(value)
    except ValidationError as error:
        raise ValueError(f"it is not a stored key: {error.errors(include_input=False, include_url=False)[0]['msg']}") from None
    if any(time is not None and time.tzinfo is None for time in (key.created, key.expires)):
        raise ValueError("its times have no time zone")
    return key


def is_tenant(name: str) -> bool:
    """Whether this can be a tenant's name."""
    return _TENANT.fullmatch(name) is not None


Refusal = Literal["missing", "malformed", "unknown", "expired"]
"""Why a client is not let in."""
