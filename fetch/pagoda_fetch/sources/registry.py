"""oci://registry/repository, its revision a tag or digest: an artifact whose layers are files or archives of files (core/layers.py).

A client of the distribution specification's four requests: the OCI libraries for Python (oras) are untyped, buffer no offset (no Range),
follow redirects on their own, and bound nothing.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from platform import machine
from types import MappingProxyType
from typing import Any, Final

from pagoda_fetch.core import layers
from pagoda_fetch.core.address import Address
from pagoda_fetch.core.credentials import Credential
from pagoda_fetch.core.errors import Forbidden, Mismatch, Refused
from pagoda_fetch.core.limits import Limits
from pagoda_fetch.core.listing import Listing, RemoteFile, select
from pagoda_fetch.sources.web import Web, base_url, parsed, url_of

_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_DOCKER: Final = "application/vnd.docker.distribution.manifest.v2+json"
_INDEXES: Final = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_ARCHITECTURES: Final = MappingProxyType({"x86_64": "amd64", "aarch64": "arm64"})
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_PARAMETER: Final = re.compile(r'(\w+)="([^"]*)"')
_MAX_LAYERS: Final = 10_000
_UNAUTHORIZED: Final = frozenset((HTTPStatus.UNAUTHORIZED.value,))


class Registry:
    """One artifact."""

    def __init__(self, address: Address, credential: Credential, plain: frozenset[str], limits: Limits) -> None:
        host = address.host
        self._base = f"{base_url(host, plain)}/v2/{address.path}"
        self._repository = address.path
        self._reference = address.revision or "latest"
        self._login = credential.registry(host)
        self._limits = limits
        self._headers: dict[str, str] = {}
        self._web = Web(limits.silence)

    async def resolve(self) -> Listing:
        """The manifest's layers that hold files of a model."""
        digest, manifest = await self._manifest()
        found = manifest.get("layers")
        if not isinstance(found, list) or not found or len(found) > _MAX_LAYERS:
            raise Refused(f"{self._base}: the manifest has no layers")
        if not all(isinstance(layer, dict) for layer in found):
            raise Refused("the manifest's layers are not descriptors")
        config = await self._config(manifest) if any(map(layers.is_archive, found)) else {}
        if listing := layers.listed(manifest, config, self._limits, digest):
            return listing
        files = [layers.as_file(layer) for layer in found]
        return select([file for file in files if file is not None], self._limits, revision=digest)

    async def _config(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """The config, where it promises what layers are before their compression; its own digest is checked."""
        if not layers.config_type(manifest):
            return {}
        file = layers.described(manifest["config"], "config")
        _, body = await self._web.document(f"{self._base}/blobs/{file.where}", self._headers)
        if f"sha256:{hashlib.sha256(body).hexdigest()}" != file.where:
            raise Mismatch(f"{self._base}: the config is not {file.where}")
        config = parsed(body, f"{self._base}: the config")
        return config if isinstance(config, dict) else {}

    async def _manifest(self) -> tuple[str, Mapping[str, Any]]:
        """By the reference; where that is an index, the manifest of it that fits this machine."""
        digest, manifest = await self._document(self._reference)
        if manifest.get("mediaType") in _INDEXES or "manifests" in manifest:
            return await self._document(_of_index(manifest.get("manifests"), f"{self._base}: the index {self._reference}"))
        return digest, manifest

    async def _document(self, reference: str) -> tuple[str, Mapping[str, Any]]:
        url = f"{self._base}/manifests/{reference}"
        accept = {"accept": ", ".join((_MANIFEST, _DOCKER, *_INDEXES))}
        response, body = await self._web.document(url, accept | self._headers, take=_UNAUTHORIZED)
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            self._headers = await self._prove(response.headers.get("www-authenticate", ""))
            response, body = await self._web.document(url, accept | self._headers)
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if reference.startswith("sha256:") and digest != reference:
            raise Mismatch(f"{url}: the manifest has digest {digest}")
        manifest = parsed(body, url)
        if not isinstance(manifest, dict):
            raise Refused(f"{url} is not a manifest")
        return digest, manifest

    async def _prove(self, challenge: str) -> dict[str, str]:
        """Basic, or a token from the realm that the registry names: over https, or from its own host."""
        scheme, _, rest = challenge.partition(" ")
        words = dict(_PARAMETER.findall(rest))
        basic = {"authorization": f"Basic {b64encode(':'.join(self._login).encode()).decode()}"} if self._login else {}
        if scheme.lower() == "basic" and basic:
            return basic
        realm = words.get("realm", "")
        own = realm.startswith(f"{self._base.partition('/v2/')[0]}/")
        if scheme.lower() != "bearer" or not (realm.startswith("https://") or own):
            raise Forbidden(f"{self._base} asks for {scheme or 'a proof'!r} and no credential fits")
        query = {"service": words.get("service", ""), "scope": words.get("scope") or f"repository:{self._repository}:pull"}
        _, body = await self._web.document(str(url_of(realm).copy_merge_params(query)), basic)
        answer = parsed(body, "the registry's token")
        token = (answer.get("token") or answer.get("access_token")) if isinstance(answer, dict) else None
        if not isinstance(token, str):
            raise Forbidden(f"{self._base}: its token service gives no token")
        return {"authorization": f"Bearer {token}"}

    async def read(self, file: RemoteFile, offset: int) -> AsyncGenerator[bytes]:
        """A blob; where a token has run out meanwhile, the retry brings a fresh one."""
        try:
            async for chunk in self._web.stream(f"{self._base}/blobs/{file.where}", self._headers, (offset, file.size)):
                yield chunk
        except Forbidden:
            if not self._headers.get("authorization", "").startswith("Bearer"):
                raise
            self._headers = {}
            await self._manifest()
            async for chunk in self._web.stream(f"{self._base}/blobs/{file.where}", self._headers, (offset, file.size)):
                yield chunk

    async def close(self) -> None:
        """Ends its connections."""
        await self._web.close()


def _of_index(entries: Any, whence: str) -> str:
    """The digest of the only manifest, or of the one for this machine's platform. A descriptor of another kind has no platform of ours."""
    known = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    mine = {"os": "linux", "architecture": _ARCHITECTURES.get(machine(), machine())}
    fitting = [entry for entry in known if isinstance(platform := entry.get("platform"), dict) and mine.items() <= platform.items()]
    found = known if len(known) == 1 else fitting[:1]
    if not found or not _DIGEST.fullmatch(str(found[0].get("digest"))):
        raise Refused(f"{whence} has {len(known)} manifests, and not one for {mine['os']}/{mine['architecture']}: name a manifest's digest")
    return str(found[0]["digest"])
