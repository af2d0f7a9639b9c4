"""hf://organisation/name[/folder]: a Hugging Face hub, or whatever speaks its API at the configured endpoint.

huggingface_hub asks for the listing (commit, sizes, SHA-256 of large files, git's names of small ones) and makes the addresses; the
bytes come over our own stream, because its downloader keeps a cache of its own, knows no bound of the disk and measures no progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Any

import httpx2
from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from pagoda_fetch.core.address import Address
from pagoda_fetch.core.credentials import Credential
from pagoda_fetch.core.errors import FetchError, Forbidden, NotFound, Refused, Unreachable
from pagoda_fetch.core.limits import Limits
from pagoda_fetch.core.listing import Checksum, Listing, RemoteFile, select
from pagoda_fetch.sources.web import Web, refusal


class Hub:
    """One repository."""

    def __init__(self, address: Address, credential: Credential, endpoint: str, limits: Limits) -> None:
        name, _, self._folder = address.path.partition("/")
        self._repository = f"{address.host}/{name}"
        self._revision = address.revision or None
        self._endpoint = endpoint.rstrip("/")
        self._token = credential.get("HF_TOKEN")
        self._limits = limits
        self._commit = address.revision
        self._web = Web(limits.silence)

    async def resolve(self) -> Listing:
        """One request for the whole listing."""
        info = await asyncio.to_thread(self._ask)
        self._commit = str(info.sha or "")
        files = [_file(sibling) for sibling in info.siblings or ()]
        return select(files, self._limits, prefix=self._folder, revision=self._commit)

    def _ask(self) -> Any:
        api = HfApi(endpoint=self._endpoint, token=self._token or False)
        try:
            return api.model_info(self._repository, revision=self._revision, files_metadata=True, timeout=self._limits.silence)
        except (HfHubHTTPError, HFValidationError, httpx2.HTTPError, OSError, ValueError) as error:
            raise self._as_fetch_error(error) from None

    def _as_fetch_error(self, error: Exception) -> FetchError:
        """The library's error as ours. A hub says 401 for what it does not show: it may exist for another account."""
        where = f"{self._repository} at {self._endpoint}"
        revision = f"revision {self._revision or 'main'} of {where}"
        if isinstance(error, RevisionNotFoundError):
            return NotFound(f"{revision} does not exist")
        if isinstance(error, GatedRepoError | DisabledRepoError):
            return Forbidden(f"{where} is gated or disabled: accept its terms and name a credential that may read it")
        status = getattr(getattr(error, "response", None), "status_code", 0)
        if isinstance(error, RepositoryNotFoundError):
            seen = "does not exist" if status == HTTPStatus.NOT_FOUND else "does not exist, or asks for a credential"
            return (NotFound if status == HTTPStatus.NOT_FOUND else Forbidden)(f"{where} {seen}")
        if status:
            return refusal(status, where)
        return (
            Refused(f"{where}: {type(error).__name__}")
            if isinstance(error, HFValidationError)
            else Unreachable(f"{where}: {type(error).__name__}")
        )

    async def read(self, file: RemoteFile, offset: int) -> AsyncGenerator[bytes]:
        """By commit, never by branch: all files of one fetch are of one commit."""
        url = hf_hub_url(self._repository, file.where, revision=self._commit, endpoint=self._endpoint)
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        async for chunk in self._web.stream(url, headers, (offset, file.size)):
            yield chunk

    async def close(self) -> None:
        """Ends its connections."""
        await self._web.close()


def _file(sibling: Any) -> RemoteFile:
    name, lfs = str(sibling.rfilename), sibling.lfs
    if sibling.size is None:
        raise Refused(f"the hub gives no size of {name[:200]!r}")
    checksum = Checksum("sha256", lfs.sha256) if lfs else Checksum("git", sibling.blob_id) if sibling.blob_id else None
    return RemoteFile(name, int(lfs.size if lfs else sibling.size), name, str(sibling.blob_id or ""), checksum)
