"""Adapters: which endpoints a request for a LoRA may go to. Pure; called by pick.py.

An endpoint that has the adapter in its memory computes at once. Another one loads it first, and puts another adapter out for it. So an
adapter lives on few endpoints: on those that have it, and if these are busy on the next one in an order that all gateways share
(affinity.py). A burst spreads by one endpoint at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pagoda_gateway.routing.affinity import owner
from pagoda_gateway.routing.endpoint import Endpoint


def candidates(endpoints: Sequence[Endpoint], adapter: str, crowded: Collection[str]) -> list[Endpoint]:
    """Returns the endpoints that have the adapter, and the one that is to load it next; all, if the name is no adapter's. Not empty
    where `endpoints` is not. `crowded`: names of those that are to load none, unless all are."""
    if not any(one.adapter(adapter) for one in endpoints):
        return list(endpoints)
    loaded = [one for one in endpoints if one.has_loaded(adapter)]
    others = [one for one in endpoints if not one.has_loaded(adapter)]
    free = [one for one in others if one.name not in crowded] or (others if not loaded else [])
    chosen = owner(free, adapter) if free else ""
    return loaded + [one for one in free if one.name == chosen]
