"""Kinds of nodes with devices that were there: what a node autoscaler that took the last of them away would bring back. Pure.

A node's devices are those of device plugins, which it says itself, and those that DRA drivers publish for it (`dressed`). Of each pool
one node is kept, as an object that `parse_node` reads, without what is its own alone. While no node like it is there it stands in the
fleet as one that is gone: nothing is free on it, and a service that would fit waits, and no status says that nothing ever will fit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from pagoda_operator.inventory.nodes import Node, lasting_labels, lasting_taints, parse_node
from pagoda_operator.inventory.slices import Published, Slice, published, read_published
from pagoda_operator.inventory.values import Json

# Hardware that nobody saw for so long was given back.
FORGET_S: Final = 30 * 86_400.0
# How old the time at which a pool was seen may get before it is written anew: each is a write.
STALE_S: Final = 7 * 86_400.0
_MAX: Final = 32


class Pool(NamedTuple):
    """One kind of nodes, by an example, and when one was last seen, in Unix seconds; with what DRA drivers published for the example."""

    body: Json
    seen: float
    published: tuple[Published, ...] = ()


Pools = Mapping[str, Pool]


def dressed(nodes: Iterable[Node], slices: Iterable[Slice], before: Mapping[str, Node]) -> tuple[Node, ...]:
    """The nodes with what DRA drivers publish for them; those of `before` where they are the same, since a node's pool takes time."""
    found = published(slices)
    return tuple(_dressed(node, found[node.name], before.get(node.name)) if node.name in found else node for node in nodes)


def _dressed(node: Node, kinds: tuple[Published, ...], before: Node | None) -> Node:
    made = replace(node, published=kinds)
    return before if before is not None and before == made else made


def seen(kept: Pools, nodes: Iterable[Node], now: float) -> dict[str, Pool]:
    """With those that are there, without those that nobody saw for long; the latest where they are too many."""
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
    """An example of each pool that has no node now."""
    there = {node.name for node in nodes}, {node.pool for node in nodes}
    examples = {name: example for name, pool in kept.items() if (example := _example(pool)) is not None}
    return tuple(example for name, example in examples.items() if example.name not in there[0] and name not in there[1])


def written(kept: Pools) -> str:
    """As text."""
    return json.dumps({name: _written(pool) for name, pool in sorted(kept.items())}, indent=1, sort_keys=True)


def _written(pool: Pool) -> dict[str, Any]:
    by_drivers = {"published": [one.written() for one in pool.published]} if pool.published else {}
    return {"seen": int(pool.seen), "node": pool.body} | by_drivers


def read(text: str) -> dict[str, Pool]:
    """What was written; nothing of what is not ours to read."""
    try:
        entries: Any = json.loads(text)
        found = {str(name): _read(one) for name, one in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: pool for name, pool in found.items() if _example(pool) is not None}


def _read(one: Any) -> Pool:
    return Pool(one["node"], float(one["seen"]), read_published(one.get("published", ())))


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
    """Whether the example is there and is of another kind now (partitioned anew, moved): then nothing says that one like it will come.
    A driver that publishes nothing is one that starts, or starts anew."""
    node = live.get(pool.body["metadata"]["name"])
    if node is None or (pool.published and not node.published):
        return False
    return node.pool not in ("", name)


def _outdated(pool: Pool, node: Node, live: Mapping[str, Node], now: float) -> bool:
    """Whether another example is better: it is there, with the driver of today, seen this week."""
    example = _example(pool)
    if example is None or example.name not in live or now - pool.seen >= STALE_S:
        return True
    return (example.cuda, example.published) != (node.cuda, node.published)
