"""https://host[:port]/folder: a model's or adapter's files at any web server.

A web server lists nothing. So the files are those that the index of the weights names, and the usual ones around them, each if it is there.
It is asked without a credential.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from http import HTTPStatus
from typing import Final

from pagoda_fetch.core.address import Address
from pagoda_fetch.core.errors import NotFound, Refused
from pagoda_fetch.core.limits import Limits
from pagoda_fetch.core.listing import Listing, RemoteFile, select
from pagoda_fetch.core.names import WEIGHTS, check, taken
from pagoda_fetch.sources.web import Web, base_url, parsed, refusal

_INDEX: Final = "model.safetensors.index.json"
_USUAL: Final = (
    *("config.json", "generation_config.json", "model.safetensors", "adapter_config.json", "adapter_model.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json"),
)
_AT_A_TIME: Final = 8
# Buckets that nobody may list answer 403 for a name that is not there.
_ABSENT: Final = frozenset((HTTPStatus.NOT_FOUND.value, HTTPStatus.GONE.value, HTTPStatus.FORBIDDEN.value))


class Folder:
    """The files below one address."""

    def __init__(self, address: Address, limits: Limits) -> None:
        self._base = f"{base_url(address.host)}/{address.path}"
        self._limits = limits
        self._web = Web(limits.silence)

    async def resolve(self) -> Listing:
        """One request for each file that may be there."""
        index = f"{self._base}/{_INDEX}"
        response, body = await self._web.document(index, {}, take=_ABSENT)
        there = response.status_code not in _ABSENT
        shards = _shards(body, index) if there else ()
        if len(shards) > self._limits.max_files:
            raise Refused(f"{self._base}: {_INDEX} names {len(shards)} files; at most {self._limits.max_files} are taken")
        names, turn = dict.fromkeys((*((_INDEX,) if there else ()), *_USUAL, *shards)), asyncio.Semaphore(_AT_A_TIME)

        async def ask(name: str) -> RemoteFile | None:
            async with turn:
                return await self._look(name)

        found = [file for file in await asyncio.gather(*map(ask, names)) if file is not None]
        if missing := set(shards) - {file.name for file in found}:
            raise NotFound(f"{self._base}: {min(missing)} is not there or may not be read without a credential, and {_INDEX} names it")
        if response.status_code == HTTPStatus.FORBIDDEN and not any(file.name.endswith(WEIGHTS) for file in found):
            raise refusal(response.status_code, index)
        if not found:
            raise NotFound(f"{self._base}: no file of a model there that may be read without a credential")
        return select(found, self._limits)

    async def _look(self, name: str) -> RemoteFile | None:
        url, plain = f"{self._base}/{name}", {"accept-encoding": "identity"}
        async with self._web.open(url, plain, take=_ABSENT, method="HEAD") as response:
            if response.status_code in _ABSENT:
                return None
            size = response.headers.get("content-length", "")
            if not size.isdecimal():
                raise Refused(f"{url}: the server gives no length")
            tag = response.headers.get("etag", "")
            return RemoteFile(name, int(size), name, tag or response.headers.get("last-modified", ""))

    async def read(self, file: RemoteFile, offset: int) -> AsyncGenerator[bytes]:
        """Only while the file is the one that was listed, if the server says of files what they are: by a tag or a date."""
        headers = {} if file.version.startswith("W/") or not file.version else {_condition(file.version): file.version}
        async for chunk in self._web.stream(f"{self._base}/{file.where}", headers, (offset, file.size)):
            yield chunk

    async def close(self) -> None:
        """Ends its connections."""
        await self._web.close()


def _condition(version: str) -> str:
    return "if-match" if version.startswith('"') else "if-unmodified-since"


def _shards(body: bytes, whence: str) -> tuple[str, ...]:
    """The files that an index of weights names."""
    index = parsed(body, whence)
    weights = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()):
        raise Refused(f"{whence}: an index of weights has a weight_map of names")
    names = tuple(sorted(set(weights.values())))
    if wrong := [name for name in names if not taken(check(name))]:
        raise Refused(f"{whence}: {wrong[0][:200]!r} is not the name of a file of weights")
    return names
