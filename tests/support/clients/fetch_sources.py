"""One model behind every scheme that goes over a network, all served by the hub double: its faults strike the same file in each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.clients.fetching import Fetcher
from support.servers.fetch_hub import COMMIT, HubDouble

SCHEMES = ("hf", "s3", "gs", "az", "oci", "https")
INDEX = "model.safetensors.index.json"
# Those whose listings promise a digest for each file.
PROMISING = ("hf", "oci")
_OBJECT = "<Contents><Key>llama/{0}</Key><Size>{1}</Size><ETag>{2}</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"

_BLOB = (
    "<Blob><Name>llama/{0}</Name><Properties><Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified><Content-Length>{1}"
    "</Content-Length><Content-Type>x/y</Content-Type><Etag>{2}</Etag></Properties></Blob>"
)


@dataclass
class ModelSource:
    """`listing`: the path that is asked for first; `words`: the credential's files."""

    hub: HubDouble
    uri: str
    listing: str
    revision: str = ""
    words: dict[str, str] = field(default_factory=dict)

    def fetcher(self, folder: Path, **limits: Any) -> Fetcher:
        return Fetcher(folder, self.hub.url, **limits)

    async def fetch(self, fetcher: Fetcher, digest: str = "") -> Path:
        if self.words and not (fetcher.credentials / "store").exists():
            fetcher.credential("store", **self.words)
        return await fetcher.fetch(self.uri, self.revision, digest, "store" if self.words else "")

    def asked(self, path: str) -> int:
        return len(self.hub.asked_for(path))


def shelf(scheme: str, hub: HubDouble) -> ModelSource:
    """The hub's files under an address of this scheme."""
    return _MADE[scheme](hub)


def _hf(hub: HubDouble) -> ModelSource:
    return ModelSource(hub, "hf://org/model", f"/api/models/org/model/revision/{COMMIT}", COMMIT)


def _s3(hub: HubDouble) -> ModelSource:
    _bucket(hub)
    keys = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "s3cret", "AWS_ENDPOINT_URL": hub.url}
    return ModelSource(hub, "s3://models/llama", "/models", words=keys)


def _gs(hub: HubDouble) -> ModelSource:
    """No package offers a server of Google's XML API."""
    _bucket(hub)
    account = {"gcs_base_url": hub.url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    words = {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account), "GOOGLE_BASE_URL": hub.url}
    return ModelSource(hub, "gs://models/llama", "/models", words=words)


def _az(hub: HubDouble) -> ModelSource:
    """Azurite, Microsoft's own emulator, answers the same (docs/fetch.md)."""
    blobs = "".join(_BLOB.format(name, len(body), _tag(body)) for name, body in hub.files.items())
    listing = f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>".encode()
    hub.extra["/account/models"] = lambda request: request.answer(200, listing)  # type: ignore[attr-defined]
    for name in hub.files:
        hub.extra[f"/account/models/llama/{name}"] = lambda request, name=name: _object(hub, request, name)  # type: ignore[misc]
    words = {"AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0", "AZURE_STORAGE_ENDPOINT": f"{hub.url}/account"}
    return ModelSource(hub, "az://account/models/llama", "/account/models", words=words)


def _https(hub: HubDouble) -> ModelSource:
    shards = [name for name in hub.files if name.startswith("model-")]
    hub.files[INDEX] = json.dumps({"weight_map": {name: name for name in shards}}).encode()
    for name in hub.files:
        hub.extra[f"/models/llama/{name}"] = lambda request, name=name: _object(hub, request, name)  # type: ignore[misc]
    host = hub.url.removeprefix("http://")
    return ModelSource(hub, f"https://{host}/models/llama", f"/models/llama/{INDEX}")


def _bucket(hub: HubDouble) -> None:
    """A listing, and objects that know ranges and conditions."""
    entries = "".join(_OBJECT.format(name, len(body), _tag(body)) for name, body in hub.files.items())
    listing = f"<ListBucketResult><Name>models</Name><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()
    hub.extra["/models"] = lambda request: request.answer(200, listing)  # type: ignore[attr-defined]
    for name in hub.files:
        hub.extra[f"/models/llama/{name}"] = lambda request, name=name: _object(hub, request, name)  # type: ignore[misc]


def _tag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def _object(hub: HubDouble, request: Any, name: str) -> None:
    """As the object is now; 412 where another one was asked for."""
    tag = _tag(hub.files[name])
    if request.headers.get("if-match", tag) != tag:
        request.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
    else:
        request.file(name, {"last-modified": "Thu, 01 Jan 2026 00:00:00 GMT", "etag": tag})


def _oci(hub: HubDouble) -> ModelSource:
    layers = []
    for name, body in hub.files.items():
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        titled = {"org.opencontainers.image.title": name}
        layers.append({"mediaType": "application/octet-stream", "digest": digest, "size": len(body), "annotations": titled})
        hub.extra[f"/v2/models/llama/blobs/{digest}"] = lambda request, name=name: request.file(name)  # type: ignore[misc]
    manifest, where = json.dumps({"layers": layers}).encode(), "/v2/models/llama/manifests/v1"
    hub.extra[where] = lambda request: request.answer(200, manifest)  # type: ignore[attr-defined]
    return ModelSource(hub, f"oci://{hub.url.removeprefix('http://')}/models/llama", where, "v1")


_MADE: dict[str, Callable[[HubDouble], ModelSource]] = {"hf": _hf, "s3": _s3, "gs": _gs, "az": _az, "oci": _oci, "https": _https}
