"""hf://organisation/name[/folder]: a Hugging Face hub, or whatever speaks its API at the configured endpoint, such as a mirror.

huggingface_hub asks for the listing (commit, sizes, SHA-256 of large files, git's names of small ones) and makes the addresses; the
bytes come over our own stream, because its downloader keeps a cache of its own, knows no bound of the disk and measures no progress.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from http import HTTPStatus
from typing import Any, Final, ParamSpec, TypeVar

import httpx2
from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url
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
from pagoda_fetch.core.names import check, taken
from pagoda_fetch.sources.web import Web, refusal

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_AT_A_TIME: Final = 8
P = ParamSpec("P")
T = TypeVar("T")


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
        """One request for the whole listing; one more for each file of which a mirror gives no size there."""
        info = await asyncio.to_thread(self._ask, self._listing)
        self._commit = str(info.sha or "")
        turn = asyncio.Semaphore(_AT_A_TIME)

        async def described(sibling: Any) -> RemoteFile:
            if sibling.size is not None:
                return _file(sibling)
            async with turn:
                return await asyncio.to_thread(self._ask, self._look, str(sibling.rfilename))

        siblings = [sibling for sibling in info.siblings or () if sibling.size is not None or self._counts(str(sibling.rfilename))]
        if len(siblings) > self._limits.max_files and any(sibling.size is None for sibling in siblings):
            raise Refused(f"{len(siblings)} files: at most {self._limits.max_files} are taken")
        files = await asyncio.gather(*map(described, siblings))
        return select(files, self._limits, prefix=self._folder, revision=self._commit)

    def _counts(self, name: str) -> bool:
        return taken(check(name).removeprefix(f"{self._folder}/" if self._folder else ""))

    def _listing(self) -> Any:
        api = HfApi(endpoint=self._endpoint, token=self._token or False)
        return api.model_info(self._repository, revision=self._revision, files_metadata=True, timeout=self._limits.silence)

    def _look(self, name: str) -> RemoteFile:
        """A tag with the form of a SHA-256 is one, as at the hub. One with the form of git's names may be something else at a mirror."""
        found = get_hf_file_metadata(self._url(name), token=self._token or False, timeout=self._limits.silence, endpoint=self._endpoint)
        if found.size is None:
            raise Refused(f"the hub gives no size of {name[:200]!r}")
        tag = str(found.etag or "")
        return RemoteFile(name, found.size, name, tag, Checksum("sha256", tag) if _SHA256.fullmatch(tag) else None)

    def _url(self, name: str) -> str:
        """By commit, never by branch: all files of one fetch are of one commit. A mirror that names none is asked as the user asked."""
        return hf_hub_url(self._repository, name, revision=self._commit or self._revision, endpoint=self._endpoint)

    def _ask(self, question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the library answers."""
        try:
            return question(*args, **kwargs)
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
        """A file of the commit."""
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        async for chunk in self._web.stream(self._url(file.where), headers, (offset, file.size)):
            yield chunk

    async def close(self) -> None:
        """Ends its connections."""
        await self._web.close()


def _file(sibling: Any) -> RemoteFile:
    name, lfs = str(sibling.rfilename), sibling.lfs
    checksum = Checksum("sha256", lfs.sha256) if lfs else Checksum("git", sibling.blob_id) if sibling.blob_id else None
    return RemoteFile(name, int(lfs.size if lfs else sibling.size), name, str(sibling.blob_id or ""), checksum)
