"""The cluster's token keys (JWKS), in one ConfigMap per namespace with services, so that replicas verify tokens without any call.

Beside the keys stand the accounts of this installation, because replicas outlive it and the next one may have others. `reconcile` asks for
the ConfigMap before it makes a replica; `run` follows the keys as they rotate. Each service of the namespace is an owner: garbage
collection removes the ConfigMap with the last of them, whether an operator runs or not. Nothing is written at rest.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Final
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

# Our own token is read from a file every 10 s, keys and copies with two requests every 60 s.
LOOK_EVERY_S: Final = 10.0
READ_EVERY_S: Final = 60.0
# A copy that is written while the keys rotate is written again with the new ones: `refresh` may have listed before it existed.
_TRIES: Final = 2
# Another program's ConfigMaps may have such a component, too.
SELECTOR: Final = f"{LABEL_NAME}=pagoda,{LABEL_COMPONENT}={COMPONENT_JWKS}"


def text_of(jwks: Json) -> str:
    """The keys in a fixed order, so that the answer of another API server is no change; Denied if there are none."""
    keys: list[Json] = [key for key in jwks.get("keys") or () if key.get("kid")]
    if not keys:
        raise Denied("the API server publishes no keys for ServiceAccount tokens, and a replica without them would refuse all callers")
    return json.dumps({"keys": sorted(keys, key=lambda key: str(key["kid"]))}, sort_keys=True, indent=1)


def _manifest(namespace: str, data: Mapping[str, str], owners: list[Json]) -> Manifest:
    labels = {LABEL_NAME: "pagoda", LABEL_MANAGED_BY: MANAGED_BY, LABEL_COMPONENT: COMPONENT_JWKS}
    meta = {"name": JWKS_CONFIG_MAP, "namespace": namespace, "labels": labels, "ownerReferences": owners}
    return {"apiVersion": CONFIG_MAPS.api_version, "kind": CONFIG_MAPS.kind, "metadata": meta, "data": dict(data)}


def _reference(owner: Owner) -> dict[str, Any]:
    """One owner among equals: none of them controls it."""
    return {"apiVersion": SERVICES.api_version, "kind": SERVICES.kind, "name": owner.name, "uid": owner.uid}


class TokenKeys:
    """Keeps the copies. `newest_key`: id of the key that signed our own newest token, "" if we have none. `accounts`: the file of our
    accounts, by its name. Files of other installations stay."""

    def __init__(self, cluster: Cluster, newest_key: Callable[[], str] = lambda: "", accounts: Mapping[str, str] | None = None) -> None:
        self._cluster, self._newest_key = cluster, newest_key
        self._accounts = dict(accounts or {})
        self._text = ""
        # Each copy as it was last read. Those of another name belong to the chart, for the gateways: only their data is ours.
        self._copies: dict[Key, Json] = {}
        self._listing = asyncio.Lock()
        # By namespace, while in use: 32 services in as many new namespaces do not wait for each other's three requests.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def ensure(self, owner: Owner) -> None:
        """Gives the owner's namespace the keys, for as long as the owner exists; ClusterError if that is not possible."""
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
        """Keeps the copies up to date until cancelled."""
        wait = 0.0
        while True:
            if wait <= 0 or self.stale:
                try:
                    await self.refresh()
                    wait = READ_EVERY_S
                except ClusterError as error:
                    structlog.get_logger().warning("token_keys_not_kept", error=str(error))
                    wait = 0.0
            await asyncio.sleep(LOOK_EVERY_S)
            wait -= LOOK_EVERY_S

    async def refresh(self) -> None:
        """Reads the keys and all copies; writes the copies that differ. ClusterError, if one was not written, after all others."""
        async with self._listing:
            await self._list()
        failed: ClusterError | None = None
        for key in list(self._copies):
            try:
                await self._follow(key)
            except ClusterError as error:
                structlog.get_logger().warning("token_keys_not_copied", namespace=key.namespace, name=key.name, error=str(error))
                failed = failed or error
        if failed:
            raise failed

    async def _follow(self, key: Key) -> None:
        async with self._lock_of(key.namespace):
            if (copy := self._copies.get(key)) is not None and not self._holds(copy):
                await self._apply(copy, copy["metadata"].get("ownerReferences", []))

    @property
    def stale(self) -> bool:
        """Whether the cluster signs with a key that the copies lack."""
        newest = self._newest_key()
        return bool(newest and self._text) and newest not in {key["kid"] for key in json.loads(self._text)["keys"]}

    def _lock_of(self, namespace: str) -> asyncio.Lock:
        return self._locks.setdefault(namespace, asyncio.Lock())

    async def _list(self) -> None:
        text = text_of(await self._cluster.token_keys())
        copies = await self._cluster.list(CONFIG_MAPS, "", SELECTOR)
        self._text = text
        self._copies = {_key(copy): copy for copy in copies}

    def _is_current(self, owner: Owner) -> bool:
        copy = self._copies.get(Key(owner.namespace, JWKS_CONFIG_MAP))
        return copy is not None and self._holds(copy) and _owned(copy, owner)

    def _data(self) -> dict[str, str]:
        return {JWKS_KEY: self._text, **self._accounts}

    def _holds(self, copy: Json) -> bool:
        return self._data().items() <= (copy.get("data") or {}).items()

    async def _write(self, owner: Owner) -> None:
        key = Key(owner.namespace, JWKS_CONFIG_MAP)
        await self._read(key)
        found = self._copies.get(key)
        if found is None:
            await apply(self._cluster, (Create(CONFIG_MAPS, _manifest(owner.namespace, self._data(), [_reference(owner)])),))
            await self._read(key)
        elif not self._is_current(owner):
            owners: list[Json] = list(found["metadata"].get("ownerReferences", []))
            await self._apply(found, owners if _owned(found, owner) else [*owners, _reference(owner)])

    async def _apply(self, copy: Json, owners: list[Json]) -> None:
        """At exactly the version that was read; after a Conflict the next attempt reads it again."""
        key = _key(copy)
        wanted = _manifest(key.namespace, (copy.get("data") or {}) | self._data(), owners)
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


def _owned(copy: Json, owner: Owner) -> bool:
    return any(found.get("uid") == owner.uid for found in copy["metadata"].get("ownerReferences", []))
