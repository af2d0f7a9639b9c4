"""Where the API server keeps an object, a kind, an API group. Pure; used by cluster.py."""

from __future__ import annotations

from urllib.parse import quote

from pagoda_operator.api.state import Json, Resource


def path_of(resource: Resource, namespace: str = "", name: str = "") -> str:
    """A kind's objects, in one namespace or in all; or one of them."""
    scope = f"/namespaces/{quote(namespace)}" if namespace else ""
    return f"{root_of(resource)}{scope}/{resource.plural}" + (f"/{quote(name)}" if name else "")


def root_of(resource: Resource) -> str:
    """The kind's group and version."""
    return f"/apis/{resource.api_version}" if "/" in resource.api_version else f"/api/{resource.api_version}"


def object_path(resource: Resource, meta: Json) -> str:
    """The object with this metadata."""
    return path_of(resource, meta.get("namespace", ""), meta["name"])
