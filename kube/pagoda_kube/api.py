"""GET on the API server by the client library, which handles kubeconfigs, TLS and the renewal of a pod's token. Raw bytes only."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import aiohttp
import msgspec
from kubernetes.aio.client import ApiClient, Configuration

OK: Final = 200
# What decoding raises. Text that is not UTF-8 is none of msgspec's errors.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError)

# The API server stores fields without a schema up to 10,000 levels deep, and a list or an event adds two. CPython 3.11 counts the levels of
# a C decoder and of calls together, and stops at 1,000.
_LEVELS: Final = 20_000


def allow_deep_objects() -> None:
    """Lets this process decode whatever the API server stores. Without it one such object ends each list and watch of its kind, and with
    them whoever cannot start without a list. Called once, when a process starts."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _LEVELS))


class ApiFault(Exception):
    """The API server answered with an error. `code` is HTTP's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Status(msgspec.Struct):
    """The API server's error."""

    code: int = 0
    message: str = ""


class KubernetesApi:
    """Answers come as aiohttp's, so that a watch can be read as it arrives."""

    def __init__(self, configuration: Configuration) -> None:
        self._client = ApiClient(configuration)

    async def get(self, path: str, query: Sequence[tuple[str, str]], limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """The answer's head; its body is the caller's to read. ApiFault for any status but 200."""
        headers = {"accept": "application/json"}
        request = await self._client.param_serialize(
            "GET", path, query_params=list(query), header_params=headers, auth_settings=["BearerToken"]
        )
        answer = await self._client.call_api(*request, _request_timeout=limits)
        response: aiohttp.ClientResponse = answer.response
        if response.status == OK:
            return response
        raise ApiFault(response.status, _message(await response.read()))

    async def close(self) -> None:
        """Closes its connections."""
        await self._client.close()  # type: ignore[no-untyped-call]


def _message(body: bytes) -> str:
    """Of an error; the first of a proxy's page."""
    try:
        return msgspec.json.decode(body, type=Status).message
    except UNREADABLE:
        return body[:200].decode(errors="replace")
