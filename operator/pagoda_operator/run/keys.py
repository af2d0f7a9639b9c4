"""The cluster's token keys (JWKS), kept in a ConfigMap per namespace with services, so that replicas verify tokens and call nobody.

`reconcile` asks for it before it makes a replica; `run` follows the keys as they rotate. Each service of the namespace is an owner: garbage
collection takes the ConfigMap with the last of them, whether an operator runs or not. Compare, then apply: nothing is written at rest.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

import structlog
from pagoda_contracts.names import (
    COMPONENT_JWKS,
    JWKS_CONFIG_MAP,
    JWKS_KEY,
    LABEL_COMPONENT,
    LABEL_MANAGED_BY,
    LABEL_NAME,
    MANAGED_BY,
)

from pagoda_operator.api.errors import ClusterError, Denied
from pagoda_operator.api.state import CONFIG_MAPS, SERVICES, Child, Json, Key
from pagoda_operator.decide.render.children import Manifest, Owner
from pagoda_operator.decide.render.writes import Apply, Create
from pagoda_operator.run.apply import Cluster, apply

# Own token: a file. Keys and copies: two requests. A key that is published before it signs reaches replicas long before.
LOOK_EVERY_S: Final = 10.0
READ_EVERY_S: Final = 60.0
# What is written while the keys rotate is written again with the new ones: a look that listed before it was there does not know of it.
_TRIES: Final = 2
SELECTOR: Final = f"{LABEL_COMPONENT}={COMPONENT_JWKS}"


class KeysCluster(Cluster, Protocol):
    """What keeping them asks of the API server."""

    async def token_keys(self) -> Json:
        """The JWKS."""


def text_of(jwks: Json) -> str:
    """The keys in an order of their own, so that another API server's answer is no change; Denied where there is none."""
    keys: list[Json] = [key for key in jwks.get("keys") or () if key.get("kid")]
    if not keys:
        raise Denied("the API server publishes no keys for ServiceAccount tokens, and a replica without them would refuse all callers")
    return json.dumps({"keys": sorted(keys, key=lambda key: str(key["kid"]))}, sort_keys=True, indent=1)


def key_ids(text: str) -> frozenset[str]:
    """Ids of the keys in a text of ours."""
    return frozenset(str(key["kid"]) for key in json.loads(text)["keys"])


def manifest(namespace: str, text: str, owners: list[Json]) -> Manifest:
    """The ConfigMap."""
    labels = {LABEL_NAME: "pagoda", LABEL_MANAGED_BY: MANAGED_BY, LABEL_COMPONENT: COMPONENT_JWKS}
    meta = {"name": JWKS_CONFIG_MAP, "namespace": namespace, "labels": labels, "ownerReferences": owners}
    return {"apiVersion": CONFIG_MAPS.api_version, "kind": CONFIG_MAPS.kind, "metadata": meta, "data": {JWKS_KEY: text}}


def reference(owner: Owner) -> dict[str, Any]:
    """One owner among equals: none of them controls it."""
    return {"apiVersion": SERVICES.api_version, "kind": SERVICES.kind, "name": owner.name, "uid": owner.uid}


class TokenKeys:
    """`newest_key`: id of the key that signed our own newest token, "" where we have none."""

    def __init__(self, cluster: KeysCluster, newest_key: Callable[[], str] = lambda: "") -> None:
        self._cluster, self._newest_key = cluster, newest_key
        self._text = ""
        # Each copy as it was at the last look or write. Those of another name are the chart's, for the gateways: only their data is ours.
        self._copies: dict[Key, Json] = {}
        self._listing = asyncio.Lock()
        # By namespace, as long as somebody holds it or waits: 32 services in as many new namespaces wait for no other's three requests.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def ensure(self, owner: Owner) -> None:
        """The owner's namespace has the keys, and keeps them as long as the owner is there; ClusterError where that cannot be."""
        if self._is_current(owner):
            return
        if not self._text:
            async with self._listing:
                if not self._text:
                    await self._list()
        async with self._lock_of(owner.namespace):
            for _ in range(_TRIES):
                if not self._is_current(owner):
                    await self._write(owner)

    async def run(self) -> None:
        """Keeps the copies true, for ever."""
        wait = 0.0
        while True:
            if wait <= 0 or self.stale:
                wait = READ_EVERY_S if await self._refreshed() else 0.0
            await asyncio.sleep(LOOK_EVERY_S)
            wait -= LOOK_EVERY_S

    async def _refreshed(self) -> bool:
        try:
            await self.refresh()
        except ClusterError as error:
            structlog.get_logger().warning("token_keys_not_kept", error=str(error))
            return False
        return True

    async def refresh(self) -> None:
        """One look at the keys and at all copies; those that differ are written."""
        async with self._listing:
            await self._list()
        for key in list(self._copies):
            async with self._lock_of(key.namespace):
                if (copy := self._copies.get(key)) is not None and _data(copy) != self._text:
                    await self._apply(copy, copy["metadata"].get("ownerReferences", []))

    @property
    def stale(self) -> bool:
        """Whether the cluster signs with a key that the copies lack."""
        newest = self._newest_key()
        return bool(newest and self._text and newest not in key_ids(self._text))

    def _lock_of(self, namespace: str) -> asyncio.Lock:
        return self._locks.setdefault(namespace, asyncio.Lock())

    async def _list(self) -> None:
        text = text_of(await self._cluster.token_keys())
        copies = await self._cluster.list(CONFIG_MAPS, "", SELECTOR)
        self._text = text
        self._copies = {_key(copy): copy for copy in copies}

    def _is_current(self, owner: Owner) -> bool:
        copy = self._copies.get(Key(owner.namespace, JWKS_CONFIG_MAP))
        return copy is not None and _data(copy) == self._text and _owned(copy, owner)

    async def _write(self, owner: Owner) -> None:
        key = Key(owner.namespace, JWKS_CONFIG_MAP)
        await self._read(key)
        found = self._copies.get(key)
        if found is None:
            await apply(self._cluster, (Create(CONFIG_MAPS, manifest(owner.namespace, self._text, [reference(owner)])),))
            await self._read(key)
        elif not self._is_current(owner):
            owners: list[Json] = list(found["metadata"].get("ownerReferences", []))
            await self._apply(found, owners if _owned(found, owner) else [*owners, reference(owner)])

    async def _apply(self, copy: Json, owners: list[Json]) -> None:
        """At exactly the version that was seen: a Conflict is another look, soon."""
        key = _key(copy)
        wanted = manifest(key.namespace, self._text, owners)
        if key.name != JWKS_CONFIG_MAP:
            wanted["metadata"] = {"name": key.name, "namespace": key.namespace}
        await apply(self._cluster, (Apply(CONFIG_MAPS, wanted, Child(CONFIG_MAPS, copy)),))
        await self._read(key)

    async def _read(self, key: Key) -> None:
        found = await self._cluster.get(CONFIG_MAPS, key.namespace, key.name)
        self._copies.pop(key, None)
        if found is not None:
            self._copies[key] = found


def _key(copy: Json) -> Key:
    return Key(copy["metadata"]["namespace"], copy["metadata"]["name"])


def _data(copy: Json) -> str | None:
    text: str | None = (copy.get("data") or {}).get(JWKS_KEY)
    return text


def _owned(copy: Json, owner: Owner) -> bool:
    return any(found.get("uid") == owner.uid for found in copy["metadata"].get("ownerReferences", []))
