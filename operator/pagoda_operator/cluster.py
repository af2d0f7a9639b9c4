"""The API server, in five verbs on raw JSON: the only importer of the Kubernetes client. Errors leave as ours.

Also makes the HTTP session that Kopf watches with, so that both share addresses, certificates and rotating tokens.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.incluster_config import load_incluster_config
from kubernetes.aio.config.kube_config import load_kube_config

from pagoda_operator.errors import ClusterError, Conflict, Denied, Refused, Unavailable
from pagoda_operator.state import Json, Resource

_APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML
_TIMEOUT: Final = 30
_ERRORS: Final[dict[int, type[ClusterError]]] = {
    HTTPStatus.BAD_REQUEST: Refused,
    HTTPStatus.UNPROCESSABLE_ENTITY: Refused,
    HTTPStatus.UNAUTHORIZED: Denied,
    HTTPStatus.FORBIDDEN: Denied,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.NOT_FOUND: Conflict,  # of a write: what was observed is gone
}
Stamp = Callable[[str, float], None]


async def connect(kubeconfig: str | None) -> Configuration:
    """From a kubeconfig file, else from the pod's ServiceAccount, whose token is read anew every minute."""
    configuration = Configuration()
    if kubeconfig is None:
        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        await load_kube_config(  # type: ignore[no-untyped-call]
            config_file=kubeconfig, client_configuration=configuration, persist_config=False
        )
    return configuration


class KubeCluster:
    """The verbs that observing and applying need."""

    def __init__(self, configuration: Configuration) -> None:
        self._api = ApiClient(configuration)
        self._api.user_agent = "pagoda-operator"

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The object, None where there is none; a quorum read."""
        status, body = await self._call("GET", _path(resource, namespace, name))
        return None if status == HTTPStatus.NOT_FOUND else _checked(status, body)

    async def list(self, resource: Resource, namespace: str, selector: str) -> list[Json]:
        """The objects with these labels; a quorum read."""
        status, body = await self._call("GET", _path(resource, namespace), {"labelSelector": selector})
        # Items of a list do not say what they are; everything else about them is as in a GET.
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        return [kind | item for item in _checked(status, body)["items"]]

    async def create(self, resource: Resource, manifest: Json, manager: str) -> None:
        """POST; Conflict where the name is taken."""
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        _checked(*await self._call("POST", _path(resource, manifest["metadata"]["namespace"]), query, manifest))

    async def apply(self, resource: Resource, manifest: Json, manager: str) -> None:
        """Server-side apply, taking fields over; Conflict where uid or resourceVersion do not match."""
        await self._patch(_object(resource, manifest["metadata"]), manifest, manager)

    async def apply_status(self, resource: Resource, manifest: Json, manager: str) -> None:
        """Server-side apply to the status subresource."""
        await self._patch(f"{_object(resource, manifest['metadata'])}/status", manifest, manager)

    async def delete(self, resource: Resource, meta: Json) -> None:
        """DELETE in the background, only this very version."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
        }
        _checked(*await self._call("DELETE", _object(resource, meta), {}, body))

    async def _patch(self, path: str, manifest: Json, manager: str) -> None:
        query = {"fieldManager": manager, "force": "true", "fieldValidation": "Strict"}
        _checked(*await self._call("PATCH", path, query, manifest, _APPLY))

    async def _call(
        self, method: str, path: str, query: dict[str, str] | None = None, body: Json | None = None, kind: str = "application/json"
    ) -> tuple[int, Any]:
        headers = {"Accept": "application/json", "Content-Type": kind}
        prepared = await self._api.param_serialize(
            method, path, query_params=list((query or {}).items()), header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        try:
            response = await self._api.call_api(*prepared, _request_timeout=_TIMEOUT)
            return response.status, _parsed(await response.read())  # type: ignore[no-untyped-call]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"{method} {path}: {error!r}") from error


def _path(resource: Resource, namespace: str = "", name: str = "") -> str:
    root = f"/apis/{resource.api_version}" if "/" in resource.api_version else f"/api/{resource.api_version}"
    scope = f"/namespaces/{quote(namespace)}" if namespace else ""
    return f"{root}{scope}/{resource.plural}" + (f"/{quote(name)}" if name else "")


def _object(resource: Resource, meta: Json) -> str:
    return _path(resource, meta.get("namespace", ""), meta["name"])


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:  # a proxy's page instead of a Status
        return {"message": data[:200].decode(errors="replace")}


def _checked(status: int, body: Any) -> Json:
    if 200 <= status < 300:
        answer: Json = body
        return answer
    message = body.get("message", "") if isinstance(body, dict) else ""
    raise _ERRORS.get(status, Unavailable)(f"{status}: {message}")


def watch_session(configuration: Configuration, stamp: Stamp) -> aiohttp.ClientSession:
    """Kopf's session: our addresses and tokens, and a stamp for each sign of life (event or bookmark) of a watched path."""

    async def authorize(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if token := await configuration.get_api_key_with_prefix("BearerToken"):
            request.headers["Authorization"] = token
        return await send(request)

    class Response(aiohttp.ClientResponse):
        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            await super().start(connection)
            if "watch" in self.url.query:
                stamp(self.url.path, time.monotonic())
                self.content = _Stamped(self.content, lambda: stamp(self.url.path, time.monotonic()))  # type: ignore[assignment]
            return self

    ssl_context = ApiClient(configuration).rest_client.ssl_context
    connector = aiohttp.TCPConnector(limit=0, ssl=ssl_context)
    return aiohttp.ClientSession(connector=connector, response_class=Response, middlewares=(authorize,))


class _Stamped:
    """A response's stream that tells of each chunk; Kopf hands on events but not bookmarks, and idle kinds have only those."""

    def __init__(self, content: aiohttp.StreamReader, alive: Callable[[], None]) -> None:
        self._content = content
        self._alive = alive

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> Any:
        async for chunk in self._content.iter_chunked(size):
            self._alive()
            yield chunk
