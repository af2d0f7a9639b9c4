"""Reads API keys from the labelled Secrets of one namespace. Started by serve/process.py; access/keys.py decides who owns a key.

While the API server is away, the keys stay as they are. Nothing of a Secret but labels and digests is kept.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

import msgspec
import structlog
from pagoda_contracts.names import LABEL_API_KEYS, LABEL_TENANT
from pagoda_contracts.resources.apikeys import StoredKey, is_tenant, stored_key
from pagoda_kube.cache import Cache, Changed, Item, Key
from pagoda_kube.reflector import Api, Kind, Reflector, Signs

from pagoda_gateway.access.keys import KeyRing

log = structlog.get_logger()

_SELECTOR: Final = (("labelSelector", f"{LABEL_API_KEYS}=true"),)


class KeySecret(NamedTuple):
    """What is kept of a Secret."""

    tenant: str
    keys: dict[str, StoredKey]


class _Meta(msgspec.Struct, rename="camel"):
    name: str
    namespace: str
    resource_version: str
    labels: dict[str, str] = {}


class _Secret(msgspec.Struct):
    metadata: _Meta
    data: dict[str, str] | None = None


def secrets_of(namespace: str) -> Kind[KeySecret]:
    """The labelled Secrets of a namespace."""
    return Kind(f"/api/v1/namespaces/{namespace}/secrets", read_secret, _SELECTOR)


def read_secret(raw: msgspec.Raw) -> Item[KeySecret]:
    """A Secret as the API server writes it. What cannot be read is left out and logged without its value."""
    secret = msgspec.json.decode(raw, type=_Secret)
    meta = secret.metadata
    name, tenant = f"{meta.namespace}/{meta.name}", meta.labels.get(LABEL_TENANT, "")
    if not is_tenant(tenant):
        log.warning("a Secret of API keys names no tenant; its keys are not used", secret=name, label=LABEL_TENANT)
        return Item(Key(meta.namespace, meta.name), meta.resource_version, None)
    keys = {}
    for key_id, value in (secret.data or {}).items():
        try:
            keys[key_id] = stored_key(key_id, base64.b64decode(value, validate=True))
        except (ValueError, binascii.Error) as error:
            log.warning("an API key cannot be read; it is not used", secret=name, key=key_id[:64], why=str(error))
    return Item(Key(meta.namespace, meta.name), meta.resource_version, KeySecret(tenant, keys))


async def watch_keys(api: Api, namespace: str, ring: KeyRing) -> None:
    """Keeps the ring as the Secrets say, until it is cancelled."""
    await Reflector(api, secrets_of(namespace), Cache[KeySecret](_changes(ring)), Signs(ring.mark_synced)).run()


def _changes(ring: KeyRing) -> Changed[KeySecret]:
    def changed(key: Key, _before: KeySecret | None, after: KeySecret | None) -> None:
        source = f"{key.namespace}/{key.name}"
        if after is None:
            ring.drop(source)
        else:
            ring.put(source, after.tenant, after.keys)

    return changed
