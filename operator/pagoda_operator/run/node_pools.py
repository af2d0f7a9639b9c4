"""The inventory for placement, with one node of each pool that has none now. Wraps the view of the caches; made by process.py.

The pools outlast the process in a ConfigMap of the operator's namespace. The chart makes it; its data are ours. They are written if a kind
of nodes is new, has another example, or is seen again after a week. Without the ConfigMap a process knows the pools that it saw itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog
from pagoda_contracts.names import NODE_POOLS_CONFIG_MAP, NODE_POOLS_KEY
from pagoda_placement.inventory import Inventory
from pagoda_placement.nodes import Node
from pagoda_placement.pools import Pool, gone, read, seen, with_gone, with_published, written
from pagoda_placement.slices import Slice

from pagoda_operator.api.errors import ClusterError
from pagoda_operator.api.state import CONFIG_MAPS
from pagoda_operator.run.apply import Cluster, apply_anew

LOOK_EVERY_S: Final = 30.0


class NodePools:
    """`inventory`: the nodes that exist; `namespace`: the operator's own, None if it has none; `wall`: the wall clock."""

    def __init__(self, cluster: Cluster, inventory: Callable[[], Inventory], namespace: str | None, wall: Callable[[], float]) -> None:
        self._cluster, self._inventory, self._namespace, self._wall = cluster, inventory, namespace, wall
        self._pools: dict[str, Pool] = {}
        self._looked: tuple[tuple[Node, ...], tuple[Slice, ...]] = ((), ())
        self._nodes: tuple[Node, ...] = ()
        self._gone: tuple[Node, ...] = ()
        self._made = (Inventory(), Inventory())
        self._text = ""
        self._loaded = self._kept = False

    def __call__(self) -> Inventory:
        """The nodes that exist, and those that may scale up; the same object while nothing changed."""
        inventory = self._inventory()
        if self._made[0] is not inventory:
            if (inventory.nodes, inventory.slices) != self._looked:
                self._looked = inventory.nodes, inventory.slices
                self._see(with_published(inventory.nodes, inventory.slices, {node.name: node for node in self._nodes}))
            self._made = (inventory, with_gone(inventory, self._gone))
        return self._made[1]

    async def load(self) -> None:
        """Reads what a predecessor wrote, before a leader's first decision. A read that failed is repeated by `run`."""
        if self._loaded or self._namespace is None:
            return
        try:
            body = await self._cluster.get(CONFIG_MAPS, self._namespace, NODE_POOLS_CONFIG_MAP)
        except ClusterError as error:
            structlog.get_logger().warning("node_pools_not_read", error=str(error))
            return
        self._loaded, self._kept = True, body is not None
        self._text = str(((body or {}).get("data") or {}).get(NODE_POOLS_KEY, ""))
        self._pools = read(self._text) | self._pools
        self._see(self._nodes)
        self._made = (Inventory(), Inventory())

    async def run(self) -> None:
        """Keeps the ConfigMap up to date until cancelled; for the leader only."""
        while True:
            await self.load()
            await self.save()
            await asyncio.sleep(LOOK_EVERY_S)

    async def save(self) -> None:
        """Writes the pools if they changed. A write that failed is repeated by `run`."""
        self()
        self._see(self._nodes)
        text = written(self._pools)
        if self._namespace is None or not self._kept or text == self._text:
            return
        meta = {"name": NODE_POOLS_CONFIG_MAP, "namespace": self._namespace}
        manifest = {"apiVersion": CONFIG_MAPS.api_version, "kind": CONFIG_MAPS.kind, "metadata": meta, "data": {NODE_POOLS_KEY: text}}
        try:
            await apply_anew(self._cluster, CONFIG_MAPS, manifest)
            self._text = text
        except ClusterError as error:
            structlog.get_logger().warning("node_pools_not_written", error=str(error))

    def _see(self, nodes: tuple[Node, ...]) -> None:
        self._nodes = nodes
        self._pools = seen(self._pools, nodes, self._wall())
        self._gone = gone(self._pools, nodes)
