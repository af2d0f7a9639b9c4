"""The API server, in six verbs on raw JSON, by the Kubernetes client. Errors leave as ours."""

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
from pagoda_operator.client.requests import OBJECT, Answer, RetryBudget, answer_of, list_of, object_path, path_of, root_of
from pagoda_operator.client.tally import sent, waiting

_APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML
_JSON: Final = "application/json"
_YAML: Final = "application/yaml"
# What YAML takes only as an escape: what is not printable, and its own line breaks.
_ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_MERGE: Final = "application/merge-patch+json"
_TIMEOUT: Final = 30.0
_GIVEN_UP: Final = 60.0
# Reads wait before their time begins: a write that waited out its own for a connection would pass for one that may be done.
_CONNECTIONS: Final = 256
# Writes under way: where the server is short of CPU more of them only wait there, and with them all others' requests and the Lease's.
_WRITES: Final = 32
# No later attempt ends otherwise.
_LASTING: Final = (aiohttp.ClientConnectorCertificateError, aiohttp.InvalidURL, aiohttp.TooManyRedirects)


async def connect(kubeconfig: str | None) -> Configuration:
    """From a kubeconfig file, else from the pod's ServiceAccount, whose token is read anew every minute."""
    configuration = Configuration()
    # Else aiohttp asks the environment for a proxy and ~/.netrc for a password, on threads, at every request; our watches never did.
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
    sent once more."""

    guard: Callable[[], None] = lambda: None
    wrote: Callable[[Resource, str, Json], None] = lambda *_: None
    again: Callable[[], None] = lambda: None


_NO_HOOKS: Final = Hooks()


async def _sent_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """The library sends a GET, PUT or DELETE whose connection broke a second time: at once, uncounted, and past `guard`. So it does after
    these two errors, not after their base."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(repr(error)) from error


def _only_once(configuration: Configuration) -> Configuration:
    """The configuration of a client that has a budget for sending reads again."""
    own = copy(configuration)
    own.client_session_kwargs = (configuration.client_session_kwargs or {}) | {"middlewares": (_sent_once,)}
    return own


class KubeCluster:
    """The verbs that observing and applying need. `retries` lets reads be sent again within their call; the Lease's client has none."""

    def __init__(
        self, configuration: Configuration, hooks: Hooks = _NO_HOOKS, timeout: float = _TIMEOUT, retries: RetryBudget | None = None
    ) -> None:
        self._api = ApiClient(configuration if retries is None else _only_once(configuration))
        self._retries = retries
        self._api.user_agent = "pagoda-operator"
        self._hooks = hooks
        self._timeout = timeout
        self._unanswered_at = float("-inf")
        self._writes, self._reads = asyncio.Semaphore(_WRITES), asyncio.Semaphore(_CONNECTIONS - _WRITES)

    @property
    def answered(self) -> bool:
        """Whether no write that had no answer can still be done: the API server gives up a request after a minute."""
        return time.monotonic() - self._unanswered_at >= _GIVEN_UP

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The object, None where there is none; a quorum read."""
        answer = await self._call("GET", path_of(resource, namespace, name))
        return None if answer.status == HTTPStatus.NOT_FOUND else answer.checked()

    async def list(self, resource: Resource, namespace: str, selector: str) -> Sequence[Json]:
        """The objects with these labels; a quorum read."""
        return (await self.listed(resource, namespace, label=selector)).items

    async def listed(self, resource: Resource, namespace: str, *, label: str = "", name: str = "") -> Listed:
        """The objects with this label, or the one of this name, and the list's version; a quorum read."""
        query = {"fieldSelector": f"metadata.name={name}"} if name else {"labelSelector": label}
        answer = await self._call("GET", path_of(resource, namespace), query)
        if answer.status == HTTPStatus.NOT_FOUND and resource == RESOURCE_CLAIM_TEMPLATES:
            return Listed((), "")  # an older cluster
        return list_of(resource, answer.checked())

    async def token_keys(self) -> Json:
        """The keys that ServiceAccount tokens are verified by (JWKS)."""
        return (await self._call("GET", PATH_JWKS)).checked()

    async def serves(self, resource: Resource) -> bool:
        """Whether this cluster has the kind."""
        answer = await self._call("GET", root_of(resource))
        return answer.status != HTTPStatus.NOT_FOUND and any(found["name"] == resource.plural for found in answer.checked()["resources"])

    async def create(self, resource: Resource, manifest: Json, manager: str) -> Json:
        """POST; Conflict where the name is taken. The data of a ControllerRevision are kept as they are sent and compared byte by byte with
        every patch, which comes in the server's own spelling: so they are sent as YAML, which the server spells anew. Else no patch passes,
        not even the garbage collector's that takes an owner off."""
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        path = path_of(resource, manifest["metadata"]["namespace"])
        if resource == CONTROLLER_REVISIONS:
            return self._wrote(resource, "create", await self._call("POST", path, query, _yaml(manifest), _YAML))
        return self._wrote(resource, "create", await self._call("POST", path, query, manifest))

    async def replace(self, resource: Resource, manifest: Json, manager: str) -> Json:
        """PUT; Conflict where the resourceVersion is not the live object's."""
        path = object_path(resource, manifest["metadata"])
        return self._wrote(resource, "update", await self._call("PUT", path, {"fieldManager": manager}, manifest))

    async def apply(self, resource: Resource, manifest: Json, manager: str) -> Json:
        """Server-side apply, taking fields over; Conflict where uid or resourceVersion do not match."""
        return self._wrote(resource, "patch", await self._patch(object_path(resource, manifest["metadata"]), manifest, manager))

    async def apply_status(self, resource: Resource, manifest: Json, manager: str) -> Json:
        """Server-side apply to the status subresource."""
        path = f"{object_path(resource, manifest['metadata'])}/status"
        return self._wrote(resource, "patch", await self._patch(path, manifest, manager))

    async def annotate(self, resource: Resource, meta: Json, annotations: Mapping[str, str | None], manager: str) -> Json:
        """Merge-patch: server-side apply would own all annotations that it does not repeat, and this says one thing at a time."""
        version = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        body = {"metadata": version | {"annotations": dict(annotations)}}
        answer = await self._call("PATCH", object_path(resource, meta), {"fieldManager": manager}, body, _MERGE)
        return self._wrote(resource, "patch", answer)

    async def delete(self, resource: Resource, meta: Json) -> None:
        """DELETE in the background, only this very version."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
        }
        answer = (await self._call("DELETE", object_path(resource, meta), {}, body)).checked()
        # What begins to end is answered as it is now; what is gone, by a Status.
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
        query: dict[str, str] | None = None,
        body: Json | str | None = None,
        kind: str = _JSON,
    ) -> Answer:
        headers = {"Accept": OBJECT, "Content-Type": kind}
        prepared = await self._api.param_serialize(
            method, path, query_params=list((query or {}).items()), header_params=headers, body=body, auth_settings=["BearerToken"]
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
        """Sends a read, again if the budget allows it. All attempts together take no longer than one may. Only the log and the metrics show
        an attempt that another one follows."""
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
            sent(write=method != "GET")
            with waiting():
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
        """A write without an answer may still be done, and one that failed in the server, or in a proxy before it, may be done already. An
        Event holds no device: nobody need wait for it."""
        if method != "GET" and EVENTS.api_version not in path:
            self._unanswered_at = time.monotonic()


def _yaml(body: Json) -> str:
    """JSON is YAML, but for some characters."""
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
