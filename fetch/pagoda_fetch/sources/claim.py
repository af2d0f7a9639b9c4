"""pvc://claim[/folder]: a claim mounted below the folder of claims, copied into the cache like any other source."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from pagoda_fetch.core.address import Address
from pagoda_fetch.core.errors import NotFound, Refused, Unreachable
from pagoda_fetch.core.limits import Limits
from pagoda_fetch.core.listing import Listing, RemoteFile, select

_CHUNK: Final = 1024 * 1024
_MAX_ENTRIES: Final = 20_000


class Claim:
    """A folder of a mounted claim."""

    def __init__(self, address: Address, claims: Path, limits: Limits) -> None:
        self._uri = address.uri
        self._root = claims / address.host
        self._folder = self._root / address.path
        self._limits = limits

    async def resolve(self) -> Listing:
        """The folder's files."""
        return await asyncio.to_thread(self._list)

    def _list(self) -> Listing:
        if not self._folder.is_dir():
            raise NotFound(f"{self._uri}: {'no such folder' if self._root.is_dir() else 'that claim is not mounted here'}")
        files: list[RemoteFile] = []
        try:
            for path in self._folder.iterdir():
                if path.is_file():
                    files.append(self._file(path))
                if len(files) > _MAX_ENTRIES:
                    raise Refused(f"{self._uri}: more than {_MAX_ENTRIES} files")
        except OSError as error:
            raise Unreachable(f"{self._uri}: {error.strerror}") from None
        return select(files, self._limits)

    def _file(self, path: Path) -> RemoteFile:
        """Links within the claim are followed (a hub's cache is made of them), those that leave it are refused."""
        target = path.resolve()
        if not target.is_relative_to(self._root.resolve()):
            raise Refused(f"{self._uri}: {path.name[:200]!r} is a link that leaves the claim")
        found = target.stat()
        return RemoteFile(path.name, found.st_size, str(target), f"{found.st_mtime_ns}-{found.st_ino}")

    async def read(self, file: RemoteFile, offset: int) -> AsyncGenerator[bytes]:
        """The file's bytes."""
        try:
            with await asyncio.to_thread(Path(file.where).open, "rb") as stream:
                stream.seek(offset)
                while chunk := await asyncio.to_thread(stream.read, _CHUNK):
                    yield chunk
        except OSError as error:
            raise Unreachable(f"{self._uri}: {error.strerror}") from None

    async def close(self) -> None:
        """Nothing is open between reads."""
