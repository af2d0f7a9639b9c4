"""A person's hands on a real API server, for control-plane tests: raw objects over HTTPS, and waiting for a condition."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
from pagoda_operator.api.state import Resource

Body = dict[str, Any]
Found = TypeVar("Found")
# Only ends a broken run.
PATIENCE_S = 300.0


class Asked(NamedTuple):
    """A spec, or a part of one, as it was sent, of an object that has it since that version."""

    uid: str
    version: int
    spec: Body


class Kube:
    """The verbs a test uses, as the cluster's admin. `asked`: what was written of specs, and answered."""

    def __init__(self, kubeconfig: Path) -> None:
        document = json.loads(kubeconfig.read_text())
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        self.server: str = cluster["server"]
        self.authority: str = cluster["certificate-authority-data"]
        self._context = ssl.create_default_context(cadata=base64.b64decode(self.authority).decode())
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(base64.b64decode(user["client-certificate-data"]) + b"\n" + base64.b64decode(user["client-key-data"]))
            pair.flush()
            self._context.load_cert_chain(pair.name)
        self.asked: list[Asked] = []
        self._made: list[httpx.Client] = []
        self._idle: list[httpx.Client] = []

    def close(self) -> None:
        for client in self._made:
            client.close()

    @contextmanager
    def _lent(self) -> Iterator[httpx.Client]:
        """A client that no other thread uses meanwhile: of several that share one, one closes what another has just taken (EBADF)."""
        try:
            client = self._idle.pop()
        except IndexError:
            client = httpx.Client(base_url=self.server, verify=self._context, timeout=PATIENCE_S, trust_env=False)
            self._made.append(client)
        try:
            yield client
        finally:
            self._idle.append(client)

    def get(self, resource: Resource, namespace: str, name: str) -> Body | None:
        answer = self._read(_path(resource, namespace, name))
        return None if answer.status_code == 404 else _body(answer)

    def list(self, resource: Resource, namespace: str, selector: str = "") -> list[Body]:
        return self.listed(resource, namespace, selector)[0]

    def listed(self, resource: Resource, namespace: str, selector: str = "") -> tuple[list[Body], str]:
        """All there are, and the version as of which that is so."""
        body = _body(self._read(_path(resource, namespace), {"labelSelector": selector}))
        return body["items"], body["metadata"]["resourceVersion"]

    def create(self, resource: Resource, namespace: str, body: Body) -> Body:
        return self._noted(body, _body(self.request("POST", _path(resource, namespace), json=body)))

    def merge(self, resource: Resource, namespace: str, name: str, patch: Body, subresource: str = "") -> Body:
        return self._noted(patch, _body(self._merged(resource, namespace, name, patch, subresource)))

    def _noted(self, sent: Body, done: Body) -> Body:
        if "spec" in sent and "uid" in done.get("metadata", {}):
            self.asked.append(Asked(done["metadata"]["uid"], int(done["metadata"]["resourceVersion"]), sent["spec"]))
        return done

    def merge_where_it_is(self, resource: Resource, namespace: str, name: str, patch: Body, subresource: str = "") -> None:
        """Nothing where it is gone meanwhile."""
        answer = self._merged(resource, namespace, name, patch, subresource)
        if answer.status_code != 404:
            _body(answer)

    def _merged(self, resource: Resource, namespace: str, name: str, patch: Body, subresource: str) -> httpx.Response:
        """Again after a conflict where the patch names no version: the server itself has then tried five times only. And where its store
        did not answer in time: made twice it is the same."""
        headers = {"Content-Type": "application/merge-patch+json"}
        path = _path(resource, namespace, name) + (f"/{subresource}" if subresource else "")
        again = () if "resourceVersion" in patch.get("metadata", {}) else (409, 500, 504)
        return self.request("PATCH", path, again, content=json.dumps(patch), headers=headers)

    def json_patch(self, resource: Resource, namespace: str, name: str, patch: list[Body]) -> bool:
        """Whether the server took it; it may refuse what makes the object invalid."""
        headers = {"Content-Type": "application/json-patch+json"}
        answer = self.request("PATCH", _path(resource, namespace, name), (409,), content=json.dumps(patch), headers=headers)
        if answer.status_code != 422:
            _body(answer)
        return answer.status_code != 422

    def delete(self, resource: Resource, namespace: str, name: str, grace: int | None = None) -> None:
        body = {} if grace is None else {"gracePeriodSeconds": grace}
        answer = self.request("DELETE", _path(resource, namespace, name), json=body)
        if answer.status_code != 404:
            _body(answer)

    def watch(self, resource: Resource, namespace: str, version: str, seconds: int) -> Iterator[str]:
        """The lines of a watch from a version on ("0": whatever there is first), until the server ends it."""
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(seconds), "allowWatchBookmarks": "true"}
        with self._lent() as http, http.stream("GET", _path(resource, namespace), params=query) as answer:
            yield from (line for line in answer.iter_lines() if line)

    def version(self) -> str:
        """The newest resourceVersion."""
        answer = _body(self._read("/api/v1/namespaces", {"limit": "1"}))
        return str(answer["metadata"]["resourceVersion"])

    def flow(self, user: str, path: str, method: str = "GET") -> str:
        """The uid of the FlowSchema that a request of this user falls under, whatever else becomes of it."""
        with self._lent() as http:
            answer = http.request(method, path, headers={"Impersonate-User": user}, json=None if method == "GET" else {})
        return str(answer.headers["X-Kubernetes-PF-FlowSchema-UID"])

    def ready(self) -> bool:
        """Whether the server is there and says that it is ready."""
        try:
            with self._lent() as http:
                return http.get("/readyz").is_success
        except httpx.TransportError:
            return False

    def request(self, method: str, path: str, again: Collection[int] = (), **content: Any) -> httpx.Response:
        """The answer, whatever it is but 429 and 503, after which every client asks again: nothing was done. For seconds after a CRD was
        changed its storage says nothing else than the one, a server that has just started the other. `again`: after these too."""
        answers: list[httpx.Response] = []

        def answered() -> bool:
            with self._lent() as http:
                answers.append(http.request(method, path, **content))
            return answers[-1].status_code not in (429, 503, *again)

        eventually(answered, f"{method} {path} without {(429, 503, *again)}")
        return answers[-1]

    def _read(self, path: str, query: dict[str, str] | None = None) -> httpx.Response:
        """Again, too, where a connection broke, or the server's store did not answer in time."""
        answers: list[httpx.Response] = []

        def answered() -> bool:
            try:
                answers.append(self.request("GET", path, (500, 504), params=query))
            except (httpx.ReadError, httpx.RemoteProtocolError):
                return False
            return True

        eventually(answered, f"{path} is answered")
        return answers[-1]

    @contextmanager
    def stream(self, resource: Resource, namespace: str, query: dict[str, str]) -> Iterator[Iterator[str]]:
        """The lines of a watch, once the server has accepted it."""
        timeout, path = httpx.Timeout(PATIENCE_S, read=None), _path(resource, namespace)
        self._read(path, {"watch": "true", "timeoutSeconds": "1"})
        with self._lent() as http, http.stream("GET", path, params=query, timeout=timeout) as answer:
            answer.raise_for_status()
            yield answer.iter_lines()

    def read(self, path: str) -> Body:
        return _body(self._read(path))

    def post(self, path: str, body: Body) -> Body:
        return _body(self.request("POST", path, json=body))


def eventually(look: Callable[[], Found | None], what: str, seconds: float = PATIENCE_S) -> Found:
    """The first truthy answer; fails with what was waited for. The deadline only ends a broken run, nothing is measured by it: the
    garbage collector looks for new kinds every 30 s, so the first deletion after a CRD was installed took 40 s, on two idle cores."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)
    return found


def _path(resource: Resource, namespace: str, name: str = "") -> str:
    root = f"/apis/{resource.api_version}" if "/" in resource.api_version else f"/api/{resource.api_version}"
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{scope}/{resource.plural}" + (f"/{name}" if name else "")


def _body(answer: httpx.Response) -> Body:
    if answer.is_error:
        raise AssertionError(f"{answer.request.method} {answer.request.url}: {answer.text[:500]}")
    parsed: Body = answer.json()
    return parsed
