"""s3://bucket/prefix and gs://bucket/prefix, by obstore.

Without a credential requests go unsigned: a pod must not borrow its node's identity from a metadata server.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any, Final

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import GCSStore, S3Store

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


class Objects:
    """The objects under one prefix of a bucket."""

    def __init__(self, address: Address, credential: Credential, limits: Limits) -> None:
        self._uri = address.uri
        self._prefix = address.path
        self._limits = limits
        make = _s3 if address.scheme == "s3" else _gcs
        try:
            self._store: S3Store | GCSStore = make(address.host, credential, limits)
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


def _s3(bucket: str, credential: Credential, limits: Limits) -> S3Store:
    key, endpoint = credential.get("AWS_ACCESS_KEY_ID"), credential.get("AWS_ENDPOINT_URL")
    config: Any = {"region": credential.get("AWS_REGION") or _DEFAULT_REGION, "skip_signature": not key}
    config |= {"endpoint": endpoint} if endpoint else {}
    if key:
        config |= {"access_key_id": key, "secret_access_key": credential.get("AWS_SECRET_ACCESS_KEY")}
        config |= {"session_token": token} if (token := credential.get("AWS_SESSION_TOKEN")) else {}
    options: Any = _client(endpoint, limits)
    return S3Store(bucket, config=config, client_options=options, retry_config={"max_retries": 0})


def _gcs(bucket: str, credential: Credential, limits: Limits) -> GCSStore:
    account, endpoint = credential.get("GOOGLE_SERVICE_ACCOUNT_KEY"), credential.get("GOOGLE_BASE_URL")
    config: Any = {"service_account_key": account} if account else {"skip_signature": True}
    config |= {"base_url": endpoint} if endpoint else {}
    options: Any = _client(endpoint, limits)
    return GCSStore(bucket, config=config, client_options=options, retry_config={"max_retries": 0})


def _client(endpoint: str, limits: Limits) -> dict[str, Any]:
    """No bound on a whole request, one on its silence. Plain HTTP only where the endpoint itself says so."""
    return {
        "timeout": timedelta(days=30),
        "read_timeout": timedelta(seconds=limits.silence),
        "connect_timeout": timedelta(seconds=min(limits.silence, 20.0)),
        "allow_http": endpoint.startswith("http://"),
    }
