"""Keys and quotas that come from files. Called by process.py at the start."""

from __future__ import annotations

import sys

from pagoda_gateway.access.keys import KeyRing
from pagoda_gateway.limits.registry import Registry
from pagoda_gateway.serve.settings import Settings
from pagoda_gateway.watch.key_file import read_key_file
from pagoda_gateway.watch.quotas import read_quota_file


def keys_of(settings: Settings) -> KeyRing:
    """Keys come from the cluster, unless a file is named. A file that cannot be read ends the process."""
    ring = KeyRing(synced=settings.keys_namespace is None)
    if settings.keys is not None:
        try:
            read_key_file(settings.keys, ring)
        except (OSError, ValueError) as error:
            sys.exit(f"pagoda-gateway: keys: {error}")
    return ring


def quotas_of(settings: Settings, ring: KeyRing) -> Registry:
    """Quotas come from the cluster if services do, or from a file. One that cannot be read ends the process."""
    registry = Registry(ring, settings.keys_namespace, synced=settings.fleet is not None or settings.quotas is not None)
    if settings.quotas is not None:
        try:
            read_quota_file(settings.quotas, registry)
        except (OSError, ValueError) as error:
            sys.exit(f"pagoda-gateway: quotas: {error}")
    return registry
