"""s3://bucket/prefix, gs://bucket/prefix and az://account/container/prefix, by obstore.

Without a credential requests go unsigned: a pod must not borrow its node's identity from a metadata server. With the pod's own identity
they are signed by what the platform gave to its ServiceAccount. On GKE that comes from the metadata server.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, S3Store

from pagoda_fetch.core.address import Address
from pagoda_fetch.core.credentials import Credential
from pagoda_fetch.core.errors import Changed, ConfigRejected, FetchError, Forbidden, NotFound, Refused, Unreachable
from pagoda_fetch.core.limits import Limits
from pagoda_fetch.core.listing import Listing, RemoteFile, select

_CHUNK: Final = 256 * 1024
# A prefix with more objects is a mistake, such as a whole bucket.
_MAX_OBJECTS: Final = 20_000
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_STATUS: Final = re.compile(r"\b(40[0-9]|4[1-9]\d|5\d\d)\b")
_DEFAULT_REGION: Final = "us-east-1"
_Store = S3Store | GCSStore | AzureStore


class Objects:
    """The objects under one prefix of a bucket."""

    def __init__(self, address: Address, credential: Credential, limits: Limits) -> None:
        self._uri = address.uri
        self._prefix = address.path.partition("/")[2] if address.scheme == "az" else address.path
        self._limits = limits
        try:
            self._store: _Store = _STORES[address.scheme](address, credential, limits)
        except (BaseError, ValueError) as error:
            raise ConfigRejected(f"{self._uri}: the store refuses its configuration ({type(error).__name__})") from None

    async def resolve(self) -> Listing:
        """All objects below the prefix; those in folders below it are not taken."""
        found: list[RemoteFile] = []
        try:
            async for batch in obstore.list(self._store, prefix=self._prefix or None):
                found += [RemoteFile(entry["path"], entry["size"], entry["path"], entry["e_tag"] or "") for entry in batch]
                if len(found) > _MAX_OBJECTS:
                    raise Refused(f"{self._uri}: more than {_MAX_OBJECTS} objects; name the model's own prefix")
        except (BaseError, OSError) as error:
            raise self._as_fetch_error(error) from None
        if not found:
            raise NotFound(f"{self._uri}: no object there")
        return select(found, self._limits, prefix=self._prefix)

    async def read(self, file: RemoteFile, offset: int) -> AsyncGenerator[bytes]:
        """Only while the object is the one that was listed (its entity tag)."""
        options: Any = {"if_match": file.version} if file.version else {}
        if offset:
            options["range"] = {"offset": offset}
        try:
            result = await obstore.get_async(self._store, file.where, options=options)
            async for chunk in result.stream(min_chunk_size=_CHUNK):
                yield bytes(chunk)
        except (BaseError, OSError) as error:
            raise self._as_fetch_error(error) from None

    async def close(self) -> None:
        """obstore's connections end with the store."""

    def _as_fetch_error(self, error: Exception) -> FetchError:
        """obstore's error as ours. Its text may hold an access key: only the service's own code is repeated."""
        text = str(error)
        code = next(iter(_CODE.findall(text)), "") or next(iter(_STATUS.findall(text)), "") or type(error).__name__
        where = f"{self._uri}: the store answers {code}"
        if isinstance(error, FileNotFoundError) or code in ("NoSuchBucket", "NoSuchKey", "404"):
            return NotFound(where)
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or code in ("AccessDenied", "403", "401"):
            return Forbidden(f"{where}: name a credential that may list and read it")
        return Changed(where) if isinstance(error, PreconditionError) else Unreachable(where)


def _s3(address: Address, credential: Credential, limits: Limits) -> S3Store:
    endpoint = credential.get("AWS_ENDPOINT_URL")
    config: Any = {"region": credential.get("AWS_REGION") or _DEFAULT_REGION} | _aws_proof(credential)
    config |= {"endpoint": endpoint} if endpoint else {}
    options: Any = _client(endpoint or credential.get("AWS_ENDPOINT_URL_STS"), limits)
    return S3Store(address.host, config=config, client_options=options, retry_config={"max_retries": 0})


def _aws_proof(credential: Credential) -> dict[str, Any]:
    if credential.identity:
        found = _known(credential, _AWS_IDENTITY)
        if not any(way <= found.keys() for way in _AWS_WAYS):  # with half of one, obstore would ask for the node's
            both = "AWS_CONTAINER_CREDENTIALS_FULL_URI and AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
            raise ConfigRejected(_NO_IDENTITY.format(f"AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE, or {both}"))
        return found
    return _known(credential, _AWS_KEYS) if credential.get("AWS_ACCESS_KEY_ID") else {"skip_signature": True}


def _gcs(address: Address, credential: Credential, limits: Limits) -> GCSStore:
    account, endpoint = credential.get("GOOGLE_SERVICE_ACCOUNT_KEY"), credential.get("GOOGLE_BASE_URL")
    config: Any = {"service_account_key": account} if account else {"skip_signature": not credential.identity}
    config |= {"base_url": endpoint} if endpoint else {}
    options: Any = _client(endpoint, limits)
    return GCSStore(address.host, config=config, client_options=options, retry_config={"max_retries": 0})


def _azure(address: Address, credential: Credential, limits: Limits) -> AzureStore:
    endpoint = credential.get("AZURE_STORAGE_ENDPOINT")
    config: Any = {"account_name": address.host} | _azure_proof(credential)
    config |= {"endpoint": endpoint} if endpoint else {}
    options: Any = _client(endpoint, limits)
    return AzureStore(address.path.partition("/")[0], config=config, client_options=options, retry_config={"max_retries": 0})


def _azure_proof(credential: Credential) -> dict[str, Any]:
    if credential.identity:
        found = _known(credential, _AZURE_IDENTITY)
        if not {"client_id", "tenant_id", "federated_token_file"} <= found.keys():
            raise ConfigRejected(_NO_IDENTITY.format("AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_FEDERATED_TOKEN_FILE"))
        return found | {"credential_type": "workload_identity"}
    # Named, because obstore reads the environment of the process, too, and would prefer the pod's identity to a SAS.
    for name, kind in (("account_key", "access_key"), ("sas_key", "sas_token")):
        if value := credential.get(_AZURE_KEYS[name]):
            return {name: value, "credential_type": kind}
    return {"skip_signature": True}


_NO_IDENTITY: Final = "the pod has no cloud identity: its platform sets {} in pods whose ServiceAccount has one"
_AWS_KEYS: Final = {
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
}
_AWS_IDENTITY: Final = {
    "role_arn": "AWS_ROLE_ARN",
    "web_identity_token_file": "AWS_WEB_IDENTITY_TOKEN_FILE",
    "role_session_name": "AWS_ROLE_SESSION_NAME",
    "endpoint_url_sts": "AWS_ENDPOINT_URL_STS",
    "container_credentials_full_uri": "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "container_authorization_token_file": "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
}
_AWS_WAYS: Final = (
    frozenset(("role_arn", "web_identity_token_file")),
    frozenset(("container_credentials_full_uri", "container_authorization_token_file")),
)
_AZURE_KEYS: Final = {"account_key": "AZURE_STORAGE_ACCOUNT_KEY", "sas_key": "AZURE_STORAGE_SAS_TOKEN"}
_AZURE_IDENTITY: Final = {
    "client_id": "AZURE_CLIENT_ID",
    "tenant_id": "AZURE_TENANT_ID",
    "federated_token_file": "AZURE_FEDERATED_TOKEN_FILE",
    "authority_host": "AZURE_AUTHORITY_HOST",
}
_STORES: Final[Mapping[str, Callable[[Address, Credential, Limits], _Store]]] = MappingProxyType({"s3": _s3, "gs": _gcs, "az": _azure})


def _known(credential: Credential, words: Mapping[str, str]) -> dict[str, Any]:
    """Those that are given, by obstore's names."""
    return {name: value for name, word in words.items() if (value := credential.get(word))}


def _client(endpoint: str, limits: Limits) -> dict[str, Any]:
    """No bound on a whole request, one on its silence. Plain HTTP only where the endpoint itself says so."""
    return {
        "timeout": timedelta(days=30),
        "read_timeout": timedelta(seconds=limits.silence),
        "connect_timeout": timedelta(seconds=min(limits.silence, 20.0)),
        "allow_http": endpoint.startswith("http://"),
    }
