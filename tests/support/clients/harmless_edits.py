"""An event of every kind that the operator watches, made by a person who changes nothing that matters. For the fault tests."""

from __future__ import annotations

from itertools import count
from typing import Any

from pagoda_contracts.names import API_VERSION, LABEL_SERVICE
from pagoda_operator.api.state import (
    ADAPTERS,
    CONTROLLER_REVISIONS,
    NAMESPACES,
    NETWORK_POLICIES,
    PROFILES,
    QUOTAS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from pagoda_operator.watch.caches import KINDS as CACHED
from support.kube.client import Body
from support.kube.namespace import Real
from support.kube.operator_process import NODES

# Kopf looks itself for what kinds there are.
DEFINITIONS = Resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
KINDS = (*CACHED, DEFINITIONS)
_CLUSTER = (NAMESPACES, NODES, PROFILES, QUOTAS, RESOURCE_SLICES, DEFINITIONS)
_CLAIM = {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "nothing.example"}}]}}
# Of these a service on cores has none, or nobody may change one: one is made, and made anew. Nobody's, as its label says.
_MADE: dict[Resource, dict[str, Any]] = {
    ADAPTERS: {"spec": {"serviceRef": {"name": "nobody"}, "source": {"uri": "pvc://models/adapter"}}},
    QUOTAS: {"spec": {"subjects": {"namespaces": ["nowhere"]}, "devices": {"gpus": 1}}},
    CONTROLLER_REVISIONS: {"revision": 1, "data": {}},
    NETWORK_POLICIES: {"spec": {"podSelector": {"matchLabels": {"nobody": "here"}}}},
    RESOURCE_CLAIM_TEMPLATES: {"spec": {"spec": _CLAIM}},
    RESOURCE_CLAIMS: {"spec": _CLAIM},
    RESOURCE_SLICES: {
        "spec": {"driver": "nothing.example", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "allNodes": True}
    },
}


class HarmlessEdits:
    """In one namespace, and beside it."""

    def __init__(self, real: Real) -> None:
        self._real, self._numbers = real, count()

    def edit(self, resource: Resource) -> None:
        """An event, or two: of one that goes and one that comes."""
        namespace = self._namespace(resource)
        if resource in _MADE:
            self._remove(resource)
            meta = {"name": self._name, "labels": {LABEL_SERVICE: "nobody"}}
            body: Body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, **_MADE[resource]}
            self._real.kube.create(resource, namespace, body)
            return
        found = sorted(body["metadata"]["name"] for body in self._real.kube.list(resource, namespace, self._selector(resource)))
        patch = {"metadata": {"annotations": {"poked": str(next(self._numbers))}}}
        self._real.kube.merge_where_it_is(resource, namespace, found[0], patch)

    def leave(self) -> None:
        for resource in _MADE:
            self._remove(resource)

    @property
    def _name(self) -> str:
        return f"edit-{self._real.namespace}"

    def _remove(self, resource: Resource) -> None:
        self._real.kube.delete(resource, self._namespace(resource), self._name)

    def _namespace(self, resource: Resource) -> str:
        return "" if resource in _CLUSTER else self._real.namespace

    def _selector(self, resource: Resource) -> str:
        """Children are watched by their label."""
        return "" if resource in _CLUSTER or resource.api_version == API_VERSION else LABEL_SERVICE
