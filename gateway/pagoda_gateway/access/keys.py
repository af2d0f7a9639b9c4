"""KeyRing: which API keys are valid, and to which tenant each belongs. Pure: keys, credentials and time come in, a tenant goes out.

Filled by watch/key_secrets.py or watch/key_file.py, asked by proxy/authenticate.py for each request. A key is looked up by its SHA-256. How
long that takes depends on the digest, which a client cannot choose, and not on how much of a key it has guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from pagoda_contracts.resources.apikeys import MAX_BYTES, Refusal, StoredKey, sha256


class Owner(NamedTuple):
    """The tenant of a key."""

    tenant: str
    key_id: str
    key: StoredKey


class Refused(Exception):
    """The credentials are not valid; `reason` is a word for the metric."""

    def __init__(self, reason: Refusal, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class KeyRing:
    """The keys of all sources. `version` changes with them. `synced` is False until every source was read once: before that "unknown" means
    nothing."""

    def __init__(self, *, synced: bool = True) -> None:
        self._sources: dict[str, tuple[str, Mapping[str, StoredKey]]] = {}
        self._owners: dict[str, Owner] | None = None  # of the sources as they are now; None until a key is asked for
        self.version = 0
        self.synced = synced

    def tenants(self) -> dict[str, str]:
        """Returns the tenant of each source."""
        return {source: tenant for source, (tenant, _) in self._sources.items()}

    def mark_synced(self) -> None:
        """Records that every source was read once."""
        self.synced = True

    def put(self, source: str, tenant: str, keys: Mapping[str, StoredKey]) -> None:
        """Replaces the keys of one source, such as a Secret."""
        self._sources[source] = tenant, keys
        self._owners = None
        self.version += 1

    def drop(self, source: str) -> None:
        """Removes a source and its keys."""
        self._sources.pop(source, None)
        self._owners = None
        self.version += 1

    def owner(self, text: str, now: datetime) -> Owner:
        """Returns whose key this is; Refused if it is nobody's or has expired."""
        if len(text) > MAX_BYTES or not text.isascii():
            raise Refused("malformed", f"an API key is ASCII text of at most {MAX_BYTES} characters")
        owner = self._index().get(sha256(text))
        if owner is None:
            raise Refused("unknown", "the API key is not valid here")
        if owner.key.expired(now):
            raise Refused("expired", f"the API key {owner.key_id} expired at {owner.key.expires:%Y-%m-%dT%H:%M:%SZ}")
        return owner

    def _index(self) -> dict[str, Owner]:
        """Of two sources that hold one key, the first by name owns it, on every gateway alike. Made once for all changes since the last
        request: a list of many Secrets comes as one change each."""
        if self._owners is None:
            self._owners = {
                key.sha256: Owner(tenant, key_id, key)
                for _, (tenant, keys) in sorted(self._sources.items(), reverse=True)
                for key_id, key in keys.items()
            }
        return self._owners
