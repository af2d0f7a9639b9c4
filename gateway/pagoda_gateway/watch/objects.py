"""Meta: the part of every Kubernetes object that the gateway reads."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from pagoda_kube.cache import Item, Key

V = TypeVar("V")


class Meta(msgspec.Struct, rename="camel"):
    """The part of metadata that routing reads."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"

    def item(self, value: V | None) -> Item[V]:
        """The object in pagoda_kube's words."""
        return Item(Key(self.namespace, self.name), self.resource_version, value)
