"""The objects of a cluster that placement reads: by kubectl, or out of a saved file. Called by `plan_cluster`."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

from pagoda_contracts.names import NODE_POOLS_CONFIG_MAP, NODE_POOLS_KEY
from pagoda_contracts.resources.profile import SERVING_PROFILE, ServingProfileSpec
from pagoda_contracts.resources.service import INFERENCE_SERVICE, InferenceService
from pagoda_placement.inventory import Inventory, parse_occupant
from pagoda_placement.model import map_name
from pagoda_placement.nodes import parse_node
from pagoda_placement.pools import gone, read, with_gone, with_published
from pagoda_placement.slices import parse_claim, parse_slice
from pydantic import ValidationError

from pagoda_cli.errors import CliError
from pagoda_cli.kubectl import GATEWAY_NAMESPACE, Access, get, listed

NODE, POD, CONFIG_MAP = "Node", "Pod", "ConfigMap"
SLICE, CLAIM = "ResourceSlice", "ResourceClaim"
_OF_ALL: Final = {
    POD: ("pods", "--all-namespaces", "--field-selector=status.phase!=Succeeded,status.phase!=Failed"),
    SLICE: ("resourceslices.resource.k8s.io",),
    CLAIM: ("resourceclaims.resource.k8s.io", "--all-namespaces"),
    SERVING_PROFILE.kind: (SERVING_PROFILE.resource,),
}
Json = Mapping[str, Any]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Snapshot:
    """Objects by kind. A kind that was not read is absent."""

    objects: Mapping[str, Sequence[Json]]

    def find(self, kind: str, name: str, namespace: str = "") -> Json:
        """Returns an object, of any namespace if none is given; empty if it was not read."""
        metas = ((one, one.get("metadata") or {}) for one in self.objects.get(kind, ()))
        return next((one for one, meta in metas if meta.get("name") == name and namespace in ("", meta.get("namespace", ""))), {})

    def profile(self, name: str) -> ServingProfileSpec | None:
        """Returns a ServingProfile; None if it was not read."""
        found = self.find(SERVING_PROFILE.kind, name)
        try:
            return ServingProfileSpec.model_validate(found["spec"]) if found else None
        except (KeyError, ValidationError) as error:
            raise CliError(f"ServingProfile {name} is not valid: {error}") from None

    def overlaid(self, profiles: Iterable[Json]) -> Snapshot:
        """Returns it as if these profiles were applied, too."""
        return replace(self, objects={**self.objects, SERVING_PROFILE.kind: (*profiles, *self.objects.get(SERVING_PROFILE.kind, ()))})

    @cached_property
    def inventory(self) -> Inventory:
        """What placement knows of the cluster, with an example of each node pool that has no node now."""
        nodes, slices = self._read(NODE, parse_node), self._read(SLICE, parse_slice)
        there = Inventory(nodes, self._read(POD, parse_occupant), slices, self._read(CLAIM, parse_claim))
        data = self.find(CONFIG_MAP, NODE_POOLS_CONFIG_MAP).get("data") or {}
        return with_gone(there, gone(read(str(data.get(NODE_POOLS_KEY, ""))), with_published(nodes, slices, {})))

    def _read(self, kind: str, parse: Callable[[Json], _T | None]) -> tuple[_T, ...]:
        try:
            found = [parse(one) for one in self.objects.get(kind, ())]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CliError(f"a {kind} cannot be read: {error!r}") from None
        return tuple(one for one in found if one is not None)


def live(access: Access, services: Iterable[InferenceService]) -> Snapshot:
    """Returns what kubectl may read of the cluster; CliError if it may not even read the nodes."""
    found: dict[str, Sequence[Json]] = {NODE: get(access, "nodes")["items"]}
    found |= {kind: items for kind, what in _OF_ALL.items() if (items := listed(access, *what)) is not None}
    maps = _node_pools(access)
    same: list[Json] = []
    for service in services:
        inside, name = access._replace(namespace=service.metadata.namespace or access.namespace), service.metadata.name
        same += _named(inside, INFERENCE_SERVICE.resource, name)
        maps += _named(inside, "configmaps", map_name(name))
    return Snapshot(found | {CONFIG_MAP: maps, INFERENCE_SERVICE.kind: same})


def _node_pools(access: Access) -> list[Json]:
    """Which node pools the operator has seen. It keeps them in its own namespace, which any release may choose."""
    everywhere = listed(access, "configmaps", "--all-namespaces", f"--field-selector=metadata.name={NODE_POOLS_CONFIG_MAP}")
    if everywhere is not None:
        return list(everywhere)
    return _named(access._replace(namespace=GATEWAY_NAMESPACE), "configmaps", NODE_POOLS_CONFIG_MAP)


def _named(access: Access, resource: str, name: str) -> list[Json]:
    """An object that may not exist."""
    return list(listed(access, resource, f"--field-selector=metadata.name={name}") or [])


def saved(path: str) -> Snapshot:
    """Returns the objects that `kubectl get … -o json` printed; `-` is standard input."""
    try:
        document = json.loads(sys.stdin.read() if path == "-" else Path(path).read_text())
    except (OSError, ValueError) as error:
        raise CliError(f"{path}: must be what `kubectl get nodes -o json` prints: {error}") from None
    items = document.get("items", [document]) if isinstance(document, dict) else []
    # The API server's own lists name the kind once.
    of_list = str(document.get("kind", "")).removesuffix("List") if isinstance(document, dict) else ""
    found: dict[str, list[Json]] = defaultdict(list)
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and isinstance(item.get("metadata"), dict):
            found[str(item.get("kind") or of_list)].append(item)
    if NODE not in found:
        raise CliError(f"{path}: has no Node; must be what `kubectl get nodes -o json` prints")
    return Snapshot(found)
