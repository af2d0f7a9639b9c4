"""Reads API keys from a file, for a gateway without Kubernetes. Called by serve/process.py at the start.

`{"TENANT": {"KEY-ID": {"sha256": "…", "created": "2026-11-24T00:00:00Z", "expires": "2027-11-24T00:00:00Z"}}}`
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from pagoda_contracts.resources.apikeys import is_tenant, stored_key

from pagoda_gateway.access.keys import KeyRing


def read_key_file(path: Path, ring: KeyRing) -> None:
    """Fills the ring. ValueError names what is wrong, OSError a file that cannot be read."""
    try:
        tenants = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, msgspec.Raw]])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: it is not JSON of tenants and their keys: {error}") from error
    for tenant, keys in tenants.items():
        if not is_tenant(tenant):
            raise ValueError(f"{path}: {tenant[:64]!r} cannot be a tenant's name; it must be like a label's value")
        try:
            ring.put(f"file/{tenant}", tenant, {key_id: stored_key(key_id, bytes(value)) for key_id, value in keys.items()})
        except ValueError as error:
            raise ValueError(f"{path}: a key of tenant {tenant!r} cannot be used: {error}") from None
