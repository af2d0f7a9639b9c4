"""The few calls this tool makes to the API server, as the administrator."""

import json
import ssl
from types import TracebackType
from typing import Any, Self

import httpx

from pagoda_devcluster.client.pki import ADMIN
from pagoda_devcluster.cluster.errors import ApiError, NotRunningError
from pagoda_devcluster.cluster.spec import ClusterSpec

FIELD_MANAGER = "pagoda-devcluster"
NOT_FOUND = 404


class Api:
    """A context manager around one connection."""

    def __init__(self, spec: ClusterSpec) -> None:
        pki = spec.paths.pki
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(str(pki / f"{ADMIN.name}.crt"), str(pki / f"{ADMIN.name}.key"))
        # trust_env: a proxy of the shell's must not see this.
        self._client = httpx.Client(base_url=spec.server, verify=context, trust_env=False, timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._client.close()

    def ready(self) -> bool:
        """Whether it takes requests; an unreachable server is a server that is not ready."""
        try:
            return self._client.get("/readyz", timeout=2).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def get(self, path: str) -> dict[str, Any] | None:
        # A schema's address holds its hash: one that changed since the index was read is at another, as the server answers (301, no body).
        answer = self._sent("GET", path, follow_redirects=True)
        return None if answer.status_code == NOT_FOUND else self._judged(answer, path)

    def apply(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Server-side apply: creating and confirming are the same call."""
        return self._patch(path, body, "application/apply-patch+yaml", {"fieldManager": FIELD_MANAGER, "force": "true"})

    def merge(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._patch(path, body, "application/merge-patch+json", {"fieldManager": FIELD_MANAGER})

    def _patch(self, path: str, body: dict[str, Any], kind: str, params: dict[str, str]) -> dict[str, Any]:
        answer = self._sent("PATCH", path, params=params, content=json.dumps(body), headers={"Content-Type": kind})
        return self._judged(answer, path)

    def _sent(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            return self._client.request(method, path, **request)
        except httpx.TransportError as error:
            raise NotRunningError(f"the API server at {self._client.base_url} does not answer: {error}") from error

    def _judged(self, answer: httpx.Response, path: str) -> dict[str, Any]:
        if not answer.is_success:
            raise ApiError(f"the API server refused {path}: {reason(answer)}", answer.status_code)
        document: dict[str, Any] = answer.json()
        return document


def reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json().get("message", answer.status_code))
    except ValueError:
        return f"{answer.status_code} {answer.text[:200]}"
