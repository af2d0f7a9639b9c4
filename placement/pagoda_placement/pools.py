"""Node pools with devices that were seen: a node autoscaler that removed the last node of one may add nodes of it again. Pure.

A node's devices are those of device plugins, which the node lists, and those that DRA drivers publish for it (`with_published`). Of each
pool one node is kept as an example, as an object that `parse_node` reads, without what is its own alone. While the pool has no node, the
example is in the inventory as one that is gone. Nothing is free on it, so a service that would fit waits for the pool to scale up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pagoda_placement.inventory import Inventory
from pagoda_placement.nodes import Node, lasting_labels, lasting_taints, parse_node
from pagoda_placement.slices import Published, Slice, as_slices, published, read_published
from pagoda_placement.values import Json

# A pool that had no node for so long is forgotten.
FORGET_S: Final = 30 * 86_400.0
# The age at which the time of the last sight is written again: each is a write.
STALE_S: Final = 7 * 86_400.0
_MAX: Final = 32


class Pool(NamedTuple):
    """An example node, when one was last seen (Unix seconds), and the devices that DRA drivers published for it."""

    body: Json
    seen: float
    published: tuple[Published, ...] = ()


Pools = Mapping[str, Pool]


def with_published(nodes: Iterable[Node], slices: Iterable[Slice], before: Mapping[str, Node]) -> tuple[Node, ...]:
    """Returns the nodes with the devices of DRA drivers. Equal nodes of `before` are reused, because they have their pool's name cached."""
    found = published(slices)
    made = (replace(node, published=found[node.name]) if node.name in found else node for node in nodes)
    return tuple(before[node.name] if before.get(node.name) == node else node for node in made)


def seen(kept: Pools, nodes: Iterable[Node], now: float) -> dict[str, Pool]:
    """Returns the pools with those of live nodes and without old ones; the latest _MAX if they are too many."""
    live = {node.name: node for node in nodes}
    there: dict[str, Node] = {}
    for node in live.values():
        if name := node.pool:
            there.setdefault(name, node)
    found = {name: pool for name, pool in kept.items() if now - pool.seen < FORGET_S and not _changed(name, pool, live)}
    for name, node in there.items():
        if name not in found or _outdated(found[name], node, live, now):
            found[name] = Pool(_body(node), now, node.published)
    latest = sorted(found, key=lambda name: (name in there, found[name].seen, name), reverse=True)[:_MAX]
    return {name: found[name] for name in sorted(latest)}


def gone(kept: Pools, nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Returns an example of each pool that has no node now."""
    there = {node.name for node in nodes}, {node.pool for node in nodes}
    examples = {name: example for name, pool in kept.items() if (example := _example(pool)) is not None}
    return tuple(example for name, example in examples.items() if example.name not in there[0] and name not in there[1])


def with_gone(inventory: Inventory, away: tuple[Node, ...]) -> Inventory:
    """Returns it with nodes that are gone for now, and the devices that they had."""
    if not away:
        return inventory
    slices = (one for node in away for one in as_slices(node.name, node.published))
    return replace(inventory, nodes=(*inventory.nodes, *away), slices=(*inventory.slices, *slices))


def written(kept: Pools) -> str:
    """Returns the pools as text."""
    found = {name: {"seen": int(pool.seen), "node": pool.body} | _published(pool) for name, pool in kept.items()}
    return json.dumps(found, indent=1, sort_keys=True)


def _published(pool: Pool) -> dict[str, Any]:
    return {"published": [one.written() for one in pool.published]} if pool.published else {}


def read(text: str) -> dict[str, Pool]:
    """Returns the written pools; none if the text cannot be read."""
    try:
        entries: Any = json.loads(text)
        found = {
            str(name): Pool(one["node"], float(one["seen"]), read_published(one.get("published", ()))) for name, one in entries.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: pool for name, pool in found.items() if _example(pool) is not None}


def _body(node: Node) -> dict[str, Any]:
    devices = {one.resource: str(one.capacity) for one in node.offers}
    return {
        "metadata": {"name": node.name, "labels": dict(lasting_labels(node))},
        "spec": {"taints": [taint._asdict() for taint in lasting_taints(node)]},
        "status": {"capacity": devices, "allocatable": devices, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _example(pool: Pool) -> Node | None:
    try:
        node = parse_node(pool.body)
    except (KeyError, TypeError, AttributeError, ValueError):
        return None
    if node is None or not (node.offers or pool.published):
        return None
    return replace(node, gone=True, published=pool.published)


def _changed(name: str, pool: Pool, live: Mapping[str, Node]) -> bool:
    """Whether the example node exists and belongs to another pool now (repartitioned, moved): then no node like it is expected.
    A driver that publishes nothing is starting."""
    node = live.get(pool.body["metadata"]["name"])
    if node is None or (pool.published and not node.published):
        return False
    return node.pool not in ("", name)


def _outdated(pool: Pool, node: Node, live: Mapping[str, Node], now: float) -> bool:
    """Whether another node is a better example: it exists, with the current driver, and the last sight is more than a week old."""
    example = _example(pool)
    if example is None or example.name not in live or now - pool.seen >= STALE_S:
        return True
    return (example.cuda, example.published) != (node.cuda, node.published)
