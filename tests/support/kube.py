"""A person's hands on a real API server, for control-plane tests: raw objects over HTTPS, and waiting for a condition."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pagoda_operator.state import Resource

Body = dict[str, Any]
Found = TypeVar("Found")


class Kube:
    """The verbs a test uses, as the cluster's admin."""

    def __init__(self, kubeconfig: Path) -> None:
        document = json.loads(kubeconfig.read_text())
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        self.server: str = cluster["server"]
        self.authority: str = cluster["certificate-authority-data"]
        context = ssl.create_default_context(cadata=base64.b64decode(self.authority).decode())
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(base64.b64decode(user["client-certificate-data"]) + b"\n" + base64.b64decode(user["client-key-data"]))
            pair.flush()
            context.load_cert_chain(pair.name)
        self._http = httpx.Client(base_url=self.server, verify=context, timeout=30, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def get(self, resource: Resource, namespace: str, name: str) -> Body | None:
        answer = self._http.get(_path(resource, namespace, name))
        return None if answer.status_code == 404 else _body(answer)

    def list(self, resource: Resource, namespace: str, selector: str = "") -> list[Body]:
        items: list[Body] = _body(self._http.get(_path(resource, namespace), params={"labelSelector": selector}))["items"]
        return items

    def create(self, resource: Resource, namespace: str, body: Body) -> Body:
        return _body(self._http.post(_path(resource, namespace), json=body))

    def merge(self, resource: Resource, namespace: str, name: str, patch: Body, subresource: str = "") -> Body:
        headers = {"Content-Type": "application/merge-patch+json"}
        path = _path(resource, namespace, name) + (f"/{subresource}" if subresource else "")
        return _body(self._http.patch(path, content=json.dumps(patch), headers=headers))

    def delete(self, resource: Resource, namespace: str, name: str, grace: int | None = None) -> None:
        body = {} if grace is None else {"gracePeriodSeconds": grace}
        answer = self._http.request("DELETE", _path(resource, namespace, name), json=body)
        if answer.status_code != 404:
            _body(answer)

    def post(self, path: str, body: Body) -> Body:
        return _body(self._http.post(path, json=body))


def eventually(look: Callable[[], Found | None], what: str, seconds: float = 150) -> Found:
    """The first truthy answer; fails with what was waited for. The deadline only ends a broken run, nothing is measured by it: the
    garbage collector looks for new kinds every 30 s, so the first deletion after a CRD was installed took 40 s."""
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
