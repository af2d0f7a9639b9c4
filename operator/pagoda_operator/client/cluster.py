"""The API server: reads and writes of raw JSON through the Kubernetes client. Every error becomes one of ours."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from http import HTTPStatus
from typing import Final, NamedTuple

import aiohttp
import structlog
from kubernetes.aio.client.api_client import ApiClient, RequestSerialized
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.incluster_config import load_incluster_config
from kubernetes.aio.config.kube_config import load_kube_config
from pagoda_contracts.names import PATH_JWKS

from pagoda_operator.api.errors import Unavailable
from pagoda_operator.api.state import CONTROLLER_REVISIONS, EVENTS, RESOURCE_CLAIM_TEMPLATES, Json, Listed, Resource
from pagoda_operator.client.requests import OBJECT, TALLY, Answer, RetryBudget, Tally, answer_of, list_of, object_path, path_of, root_of

_APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML
_JSON: Final = "application/json"
_YAML: Final = "application/yaml"
# Characters that YAML takes only as an escape: those that are not printable, and its own line breaks.
_ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_MERGE: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"
_TIMEOUT: Final = 30.0
_GIVEN_UP: Final = 60.0
# Reads leave connections free for writes: a write that timed out while it waited for one would count as possibly done.
_CONNECTIONS: Final = 256
# Writes at a time. On a server that is short of CPU more of them only wait, and delay all other requests and the Lease's.
_WRITES: Final = 32
# Errors that a later attempt meets too.
_LASTING: Final = (aiohttp.ClientConnectorCertificateError, aiohttp.InvalidURL, aiohttp.TooManyRedirects)


async def connect(kubeconfig: str | None) -> Configuration:
    """From a kubeconfig file, else from the pod's ServiceAccount, whose token is read again every minute."""
    configuration = Configuration()
    # Otherwise aiohttp looks for a proxy in the environment and a password in ~/.netrc, on threads, at every request.
    configuration.client_session_kwargs = {"trust_env": False}
    configuration.connection_pool_maxsize = _CONNECTIONS
    if kubeconfig is None:
        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        await load_kube_config(  # type: ignore[no-untyped-call]
            config_file=kubeconfig, client_configuration=configuration, persist_config=False
        )
    return configuration


class Hooks(NamedTuple):
    """Called by the client: `guard` before each write, `wrote` after it with the object as the server answered, `again` before a read is
    repeated."""

    guard: Callable[[], None] = lambda: None
    wrote: Callable[[Resource, str, Json], None] = lambda *_: None
    again: Callable[[], None] = lambda: None


_NO_HOOKS: Final = Hooks()
_NO_QUERY: Final[Mapping[str, str]] = {}


async def _sent_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keeps the library from repeating a GET, PUT or DELETE whose connection broke: at once, uncounted, and without `guard`. It does so
    after these two errors, not after their base class."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(repr(error)) from error


class KubeCluster:
    """The verbs that observing and applying need. `retries` is the budget for repeated reads; the Lease's client has none. `namespaces`:
    what a list of all namespaces consists of; empty for all."""

    def __init__(
        self,
        configuration: Configuration,
        hooks: Hooks = _NO_HOOKS,
        timeout: float = _TIMEOUT,
        retries: RetryBudget | None = None,
        namespaces: Sequence[str] = (),
    ) -> None:
        if retries is not None:
            configuration = copy(configuration)
            configuration.client_session_kwargs = (configuration.client_session_kwargs or {}) | {"middlewares": (_sent_once,)}
        self._api = ApiClient(configuration)
        self._retries, self._namespaces = retries, namespaces
        self._api.user_agent = "pagoda-operator"
        self._hooks = hooks
        self._timeout = timeout
        self._unanswered_at = float("-inf")
        self._writes, self._reads = asyncio.Semaphore(_WRITES), asyncio.Semaphore(_CONNECTIONS - _WRITES)

    @property
    def answered(self) -> bool:
        """Whether every write was answered, or sent so long ago that it has ended: the API server gives up a request after a minute."""
        return time.monotonic() - self._unanswered_at >= _GIVEN_UP

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The object, None if there is none; a quorum read."""
        answer = await self._call("GET", path_of(resource, namespace, name))
        return None if answer.status == HTTPStatus.NOT_FOUND else answer.checked()

    async def list(self, resource: Resource, namespace: str, selector: str) -> Sequence[Json]:
        """The objects with these labels, in one namespace or (if that is "") in all; a quorum read."""
        scopes = (namespace,) if namespace else self._namespaces or ("",)
        lists = await asyncio.gather(*(self.listed(resource, scope, label=selector) for scope in scopes))
        return [body for found in lists for body in found.items]

    async def listed(self, resource: Resource, namespace: str, *, label: str = "", name: str = "") -> Listed:
        """The objects with this label, or the one of this name, and the list's version; a quorum read."""
        query = {"fieldSelector": f"metadata.name={name}"} if name else {"labelSelector": label}
        answer = await self._call("GET", path_of(resource, namespace), query)
        if answer.status == HTTPStatus.NOT_FOUND and resource == RESOURCE_CLAIM_TEMPLATES:
            return Listed((), "")  # an older cluster
        return list_of(resource, answer.checked())

    async def pod_events(self, namespace: str, pod: str) -> Sequence[Json]:
        """The Events about a pod."""
        query = {"fieldSelector": f"regarding.kind=Pod,regarding.name={pod}"}
        return list_of(EVENTS, (await self._call("GET", path_of(EVENTS, namespace), query)).checked()).items

    async def token_keys(self) -> Json:
        """The keys that ServiceAccount tokens are verified with (JWKS)."""
        return (await self._call("GET", PATH_JWKS)).checked()

    async def serves(self, resource: Resource) -> bool:
        """Whether this cluster has the kind."""
        answer = await self._call("GET", root_of(resource))
        return answer.status != HTTPStatus.NOT_FOUND and any(found["name"] == resource.plural for found in answer.checked()["resources"])

    async def create(self, resource: Resource, manifest: Json, manager: str) -> Json:
        """POST; Conflict if the name is taken.

        The server keeps the data of a ControllerRevision as they are sent, and compares them byte by byte with every patch, which it spells
        in its own way. So they are sent as YAML, which it converts. Otherwise it refuses every patch, even one of the garbage collector.
        """
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        path = path_of(resource, manifest["metadata"]["namespace"])
        body = (_yaml(manifest), _YAML) if resource == CONTROLLER_REVISIONS else (manifest, _JSON)
        return self._wrote(resource, "create", await self._call("POST", path, query, *body))

    async def replace(self, resource: Resource, manifest: Json, manager: str) -> Json:
        """PUT; Conflict if the resourceVersion is not the live object's."""
        path = object_path(resource, manifest["metadata"])
        return self._wrote(resource, "update", await self._call("PUT", path, {"fieldManager": manager}, manifest))

    async def apply(self, resource: Resource, manifest: Json, manager: str) -> Json:
        """Server-side apply, which takes fields over; Conflict if uid or resourceVersion do not match."""
        return self._wrote(resource, "patch", await self._patch(object_path(resource, manifest["metadata"]), manifest, manager))

    async def apply_status(self, resource: Resource, manifest: Json, manager: str) -> Json:
        """Server-side apply to the status subresource."""
        path = f"{object_path(resource, manifest['metadata'])}/status"
        return self._wrote(resource, "patch", await self._patch(path, manifest, manager))

    async def annotate(self, resource: Resource, meta: Json, annotations: Mapping[str, str | None], manager: str) -> Json:
        """Merge-patch: server-side apply would remove the annotations that it does not repeat."""
        version = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        body = {"metadata": version | {"annotations": dict(annotations)}}
        answer = await self._call("PATCH", object_path(resource, meta), {"fieldManager": manager}, body, _MERGE)
        return self._wrote(resource, "patch", answer)

    async def patch(self, resource: Resource, meta: Json, patch: Sequence[Json], manager: str) -> Json:
        """JSON patch; Conflict if its resourceVersion is not the live object's."""
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        answer = await self._call("PATCH", object_path(resource, meta), query, list(patch), _JSON_PATCH)
        return self._wrote(resource, "patch", answer)

    async def delete(self, resource: Resource, meta: Json) -> None:
        """DELETE in the background, of this version only."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
        }
        answer = (await self._call("DELETE", object_path(resource, meta), {}, body)).checked()
        # The answer is the object if it only begins to terminate, and a Status if it is gone.
        self._hooks.wrote(resource, "delete", answer if answer.get("kind") == resource.kind else {"metadata": meta})

    def _wrote(self, resource: Resource, verb: str, answer: Answer) -> Json:
        body = answer.checked()
        self._hooks.wrote(resource, verb, body)
        return body

    async def _patch(self, path: str, manifest: Json, manager: str) -> Answer:
        query = {"fieldManager": manager, "force": "true", "fieldValidation": "Strict"}
        return await self._call("PATCH", path, query, manifest, _APPLY)

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] = _NO_QUERY,
        body: Json | Sequence[Json] | str | None = None,
        kind: str = _JSON,
    ) -> Answer:
        headers = {"Accept": OBJECT, "Content-Type": kind}
        prepared = await self._api.param_serialize(
            method, path, query_params=list(query.items()), header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        if self._retries is not None:
            self._retries.asked()
        if method == "GET":
            async with self._reads:
                return await self._read(path, prepared)
        async with self._writes:
            self._hooks.guard()
            return await self._send(method, path, prepared, self._timeout)

    async def _read(self, path: str, prepared: RequestSerialized) -> Answer:
        """Sends a read, and repeats it if the budget allows that. All attempts together have the time of one. Only the log and the metrics
        show an attempt that was repeated."""
        end, attempts = time.monotonic() + self._timeout, 0
        while True:
            try:
                return (await self._send("GET", path, prepared, end - time.monotonic())).final()
            except Unavailable as error:
                attempts, left = attempts + 1, end - time.monotonic()
                pause = None if self._retries is None else self._retries.pause(error.soon, attempts, left)
                if pause is None:
                    raise
                structlog.get_logger().debug("read_again", why=str(error), attempts=attempts, pause_s=round(pause, 3))
            self._hooks.again()
            await asyncio.sleep(pause)

    async def _send(self, method: str, path: str, prepared: RequestSerialized, seconds: float) -> Answer:
        try:
            with (TALLY.get(None) or Tally()).request(asyncio.get_running_loop().time, write=method != "GET"):
                response = await self._api.call_api(*prepared, _request_timeout=seconds)
                data: bytes = await response.read()  # type: ignore[no-untyped-call]
            if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                self._lost(method, path)
            return answer_of(response.status, data, response.headers.get("Retry-After"))
        except asyncio.CancelledError:
            self._lost(method, path)
            raise
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._lost(method, path)
            raise Unavailable(f"{method} {path}: {error!r}", None if isinstance(error, _LASTING) else 0.0) from error

    def _lost(self, method: str, path: str) -> None:
        """A write without an answer may still be done, and one that failed in the server or in a proxy may be done already. Events do not
        count: they concern no device."""
        if method != "GET" and EVENTS.api_version not in path:
            self._unanswered_at = time.monotonic()


def _yaml(body: Json) -> str:
    """JSON is YAML, except for some characters."""
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
